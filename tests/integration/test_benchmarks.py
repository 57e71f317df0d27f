"""The benchmarks work and count right; how fast anything is, no test asks."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.__main__ import keep
from benchmarks.logs import check_outcomes, log_runs
from benchmarks.measure import Results, child, machine, percentile
from benchmarks.report import print_report
from benchmarks.workload import Workload

TINY = Workload("tiny", episodes=8, steps=10, live=4)


def test_the_engine_is_run_over_a_log_and_every_verdict_is_checked(tmp_path: Path) -> None:
    records = list(TINY.records())
    assert len(records) == TINY.events == 8 * 25
    results = Results()
    for name, run in log_runs("local", TINY, records):
        results.add(f"local {name}", run)
    assert set(results.runs) == {f"local {n}" for n in ("fill", "raw", "read", "decode", "fold", "process", "engine")}
    for name in ("fill", "decode", "fold", "process", "engine"):
        assert results.runs[f"local {name}"][0]["count"] == TINY.events
    # Ended episodes are sealed, and the seals come back: at most one record more per episode.
    assert TINY.events <= results.runs["local engine"][0]["records"] <= TINY.events + TINY.episodes

    kept = {"machine": machine(), "load_average": {"before": (0.0,) * 3, "after": (0.0,) * 3}, "took_s": 1.0}
    kept["runs"] = results.runs
    path = keep(kept, tmp_path / "kept.json")
    out = io.StringIO()
    print_report(json.loads(path.read_text()), Console(file=out, width=130))
    assert "local engine" in out.getvalue()


def test_memory_is_looked_at_with_live_and_after_finished_episodes() -> None:
    run = child("memory", finished=300, live=20)
    assert run["verdicts"] == 300
    assert [count for count, _ in run["rss_mb"]] == [0, 300]


def test_wrong_outcomes_are_seen() -> None:
    right = [(episode, outcome, TINY.steps) for episode, outcome in TINY.outcomes().items()]
    check_outcomes(TINY, right)
    episode, outcome, steps = right[0]
    for wrong in ((episode, "error", steps), (episode, outcome, steps - 1), right[1]):
        with pytest.raises(AssertionError):
            check_outcomes(TINY, [wrong, *right[1:]])


def test_figures_of_several_runs() -> None:
    results = Results()
    for ours, theirs in ((10.0, 5.0), (30.0, 10.0), (20.0, 20.0)):
        results.add("ours", {"per_s": ours})
        results.add("theirs", {"per_s": theirs})
    assert results.median("ours", "per_s") == 20.0
    assert results.spread("ours", "per_s") == (10.0, 30.0)
    assert results.ratio("ours", "theirs") == 2.0
    assert results.median("nobody", "per_s") is None
    numbers = [float(n) for n in range(1, 101)]
    assert (percentile(numbers, 0.5), percentile(numbers, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)
