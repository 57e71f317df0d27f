"""The projector's benchmarks work and count right; how fast anything is, no test asks."""

import io

from rich.console import Console

from benchmarks.latency_rows import row_latency_run
from benchmarks.measure import Results, machine
from benchmarks.projector import projector_runs
from benchmarks.report import print_report
from benchmarks.workload import Workload


def test_the_projector_is_run_beside_raw_copy_and_every_row_is_counted() -> None:
    load = Workload("tiny", episodes=8, steps=50, live=4)
    runs = list(projector_runs(load, list(load.records()), 1))
    assert [name for name, _ in runs] == ["copy", "projector", "projector, record by record"]
    assert [run["count"] for _, run in runs] == [800, 800, 800]


def test_rows_are_timed_from_their_append_and_back_pressure_shows() -> None:
    steady, full = row_latency_run("local", 400, 0.6), row_latency_run("local", None, 0.2)
    for run in (steady, full):
        assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"]
        assert 0 < run["records"] <= run["written"]
        assert 0 < run["most_behind"] <= run["records"]
    results = Results()
    results.add("rows local, postgresql: 1,000 events/s", steady)
    kept = {"machine": machine(), "load_average": {"before": (0.0,) * 3, "after": (0.0,) * 3}, "took_s": 1.0}
    out = io.StringIO()
    print_report(kept | {"runs": results.runs}, Console(file=out, width=250))
    assert f"at most {steady['most_behind']} behind" in out.getvalue()
