"""What is remembered is bounded by bytes."""

import tracemalloc

import pytest

from stepwell.engine.remembered import Remembered
from stepwell.events.model import Attribute, Series, TelemetrySampled
from stepwell.projections.writing import rows_telemetry
from tests.unit.events.records import sample


def test_when_it_is_full_it_starts_anew() -> None:
    known: Remembered[str, int] = Remembered(10)
    known.add("a", 1, 6)
    known.add("b", 2, 4)
    assert (known.get("a"), known.get("b"), known.get("c")) == (1, 2, None)
    known.add("c", 3, 1)
    assert (known.get("a"), known.get("b"), known.get("c")) == (None, None, 3)
    known.add("d", 4, 9)
    assert (known.get("c"), known.get("d")) == (3, 4)


@pytest.mark.parametrize("characters", [10, 20_000])
def test_a_projector_does_not_remember_every_series_that_ever_was(
    monkeypatch: pytest.MonkeyPatch, characters: int
) -> None:
    bound = 1_000_000
    monkeypatch.setattr(rows_telemetry, "_known_series", Remembered(bound))
    record = sample(TelemetrySampled)
    tracemalloc.start()
    try:
        for number in range(4_000 if characters < 100 else 100):
            text = f"{number}-{'x' * characters}"
            attributes = (Attribute(name="run", value=text), Attribute(name="host", value="lab"))
            series = Series(metric="torque", unit="N.m", attributes=attributes)
            rows_telemetry._series(record.worker_id, record.host, attributes, record.scope, series)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * bound
