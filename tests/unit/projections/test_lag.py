"""How far behind a reader is, in time."""

from stepwell.projections.progress.lag import LagMeter, ProgressMeter, RateMeter


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


def test_a_rate_is_the_mean_over_the_window_and_unknown_at_first() -> None:
    meter = RateMeter(window_s=10)
    assert meter.per_s() is None
    meter.saw(100, at=0)
    assert meter.per_s() is None
    meter.saw(150, at=5_000_000)
    assert meter.per_s() == 10
    for second in range(6, 40):
        meter.saw(150, second * 1_000_000)
    assert meter.per_s() == 0


def test_a_position_or_clock_that_is_set_back_starts_the_rate_anew() -> None:
    meter = RateMeter()
    for offset, at in ((0, 0), (100, 1_000_000), (50, 2_000_000)):
        meter.saw(offset, at)
    assert meter.per_s() is None
    meter.saw(60, 3_000_000)
    assert meter.per_s() == 10
    meter.saw(70, 2_500_000)
    assert meter.per_s() is None


def test_progress_is_when_the_position_was_first_seen_where_it_is() -> None:
    meter = ProgressMeter()
    meter.saw(10, 20, at=1_000_000)
    assert (meter.progressed_at, meter.events_per_s, meter.log_end) == (None, None, 20)
    meter.saw(14, 26, at=3_000_000)
    meter.saw(14, 30, at=5_000_000)
    assert (meter.progressed_at, meter.log_end) == (3_000_000, 30)
    assert (meter.events_per_s, meter.arrives_per_s) == (1.0, 2.5)
    assert meter.complete_until(14) is None
    assert meter.complete_until(26) == 3_000_000
