"""How far behind a reader is, in time."""

from stepwell.projections.lag import LagMeter


def test_nothing_is_known_before_an_end_was_passed() -> None:
    meter = LagMeter()
    meter.saw_end(10, at=1_000)
    assert meter.complete_until(9) is None
    assert meter.complete_until(10) == 1_000


def test_the_latest_end_that_was_passed_counts() -> None:
    meter = LagMeter()
    for end, at in ((10, 1_000), (20, 2_000), (30, 3_000)):
        meter.saw_end(end, at)
    assert meter.complete_until(25) == 2_000
    assert meter.complete_until(25) == 2_000
    meter.saw_end(40, 4_000)
    assert meter.complete_until(29) == 2_000
    assert meter.complete_until(40) == 4_000


def test_a_silent_log_keeps_the_reader_up_to_date() -> None:
    meter = LagMeter()
    meter.saw_end(10, 1_000)
    assert meter.complete_until(10) == 1_000
    meter.saw_end(10, 9_000)
    assert meter.complete_until(10) == 9_000


def test_a_reader_far_behind_keeps_the_last_answer_in_bounded_memory() -> None:
    meter = LagMeter(samples_max=3)
    meter.saw_end(1, 1)
    assert meter.complete_until(1) == 1
    for end in range(2, 100):
        meter.saw_end(end, end)
    assert meter.complete_until(50) == 1
    assert meter.complete_until(99) == 99
