"""The speed of an attempt, once a second."""

import pytest

from stepwell.adapters.runs.speed import AttemptSpeed
from stepwell.adapters.telemetry.measurements import Origin
from stepwell.events.codec import Codec
from stepwell.events.model import LogRecord, TelemetrySampled

ORIGIN = Origin("stepwell-run-lab-1", "lab-1", "e-1", 2)
START = 1_795_000_000_000_000


class Clock:
    """A clock that is set by hand (µs)."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def published() -> list[LogRecord]:
    return []


@pytest.fixture
def speed(clock: Clock, published: list[LogRecord]) -> AttemptSpeed:
    return AttemptSpeed(published.append, ORIGIN, clock)


def told(record: LogRecord) -> dict[str, tuple[float, int, int]]:
    """Metric -> value, start, time; the record is one that the log takes."""
    assert isinstance(record, TelemetrySampled)
    value, headers = Codec().encode(record)
    assert Codec().decode(value, headers) == record
    assert (record.worker_id, record.host, record.episode_id, record.attempt) == (
        "stepwell-run-lab-1",
        "lab-1",
        "e-1",
        2,
    )
    columns = zip(record.point_series, record.point_value, record.point_start_at, record.point_at, strict=True)
    return {record.series[place].metric: (value, start, at) for place, value, start, at in columns}


def test_each_second_has_its_rate_and_durations(speed: AttemptSpeed, clock: Clock, published: list[LogRecord]) -> None:
    clock.now += 500_000
    speed.inferred(0.5)  # began at START
    for _ in range(4):
        clock.now += 100_000
        speed.stepped(0.1)
    clock.now = START + 1_200_000
    speed.stepped(0.3)  # closes the first window
    speed.close()
    assert len(published) == 1
    assert told(published[0]) == {
        "stepwell.sim.step.rate": (pytest.approx(4 / 1.2), START, clock.now),
        "stepwell.sim.step.duration": (pytest.approx(0.4), START, clock.now),
        "stepwell.agent.inference.duration": (0.5, START, clock.now),
    }


def test_the_last_window_is_told_at_the_end(speed: AttemptSpeed, clock: Clock, published: list[LogRecord]) -> None:
    speed.stepped(None)  # a simulator that does not tell its time
    clock.now += 250_000
    speed.close()
    speed.close()
    (record,) = published
    assert told(record) == {"stepwell.sim.step.rate": (4.0, START, clock.now)}


def test_a_pause_belongs_to_no_rate_but_its_own(speed: AttemptSpeed, clock: Clock, published: list[LogRecord]) -> None:
    speed.stepped(0.0)
    clock.now += 10_000_000
    speed.stepped(0.0)
    clock.now += 500_000
    speed.close()
    assert [told(record)["stepwell.sim.step.rate"][0] for record in published] == [0.1, 2.0]


def test_a_clock_that_is_set_back_spoils_one_window_only(
    speed: AttemptSpeed, clock: Clock, published: list[LogRecord]
) -> None:
    clock.now += 900_000
    speed.stepped(0.0)
    clock.now = START
    speed.stepped(0.0)
    clock.now += 1_000_000
    speed.stepped(0.0)
    assert [told(record)["stepwell.sim.step.rate"] for record in published] == [(2.0, START, clock.now)]


def test_an_attempt_without_steps_says_nothing(speed: AttemptSpeed, published: list[LogRecord]) -> None:
    speed.close()
    assert published == []
