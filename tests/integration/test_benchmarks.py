"""The benchmarks work and count right; how fast anything is, no test asks."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.__main__ import keep
from benchmarks.detector import fold_run, memory_runs, restore_runs, verdict_stream
from benchmarks.live_rules import FIRES_AT
from benchmarks.logs import check_outcomes, log_runs
from benchmarks.measure import Results, child, machine, percentile
from benchmarks.otlp import POINTS, SHAPES, receive, request, stages
from benchmarks.report import print_report
from benchmarks.step_rules import step_rule_runs
from benchmarks.transactions import RECORDS, SETTINGS, transaction_runs
from benchmarks.triggers import REQUESTS_EACH, Variant, chain_run, check_requests, hop_run, verdict
from benchmarks.workload import Workload
from stepwell.engine.detection.bearing import entry_of
from stepwell.events.model import RetrainRequested, VerdictIssued

TINY = Workload("tiny", episodes=8, steps=10, live=4)
BRIEFLY = Variant(warm_s=0.5)


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


def test_every_request_is_timed_from_the_verdict_that_brought_it_about() -> None:
    kept = {name: [run] for name, run in (
        ("triggers local: chain", chain_run("local", 400, 1.0, BRIEFLY)),
        ("triggers local: hop", hop_run("local", 50, 1.0, BRIEFLY)),
    )}  # fmt: skip
    chain, hop = kept["triggers local: chain"][0], kept["triggers local: hop"][0]
    assert chain["requests"] == 2 * REQUESTS_EACH
    assert hop["requests"] == 12 * REQUESTS_EACH
    assert set(chain) - set(hop) == {"events_per_s", "append"}
    assert chain["trigger"]["p50_ms"] >= chain["detector"]["p50_ms"] > 0.0
    # Phases are those of whole transactions.
    for worker in chain["workers"].values():
        assert set(worker["phases"]) == {"poll", "process", "begin", "send", "positions", "commit"}
        assert worker["transactions"] > 0
    assert "engine's commit" in printed(kept)


def test_wrong_requests_are_seen() -> None:
    live = [(rule, failures) for failures, rules in FIRES_AT.items() for rule in rules]
    right = [request_by(rule, failures) for rule, failures in live]
    check_requests(right, {"p": 1})
    for wrong in (right[1:], [*right, right[0]], [request_by("two_in_a_row", 3), *right[1:]]):
        with pytest.raises(AssertionError):
            check_requests(wrong, {"p": 1})


def request_by(rule: str, failures: int) -> RetrainRequested:
    named = verdict("e", "p", failed=True, seed=1)
    return RetrainRequested(
        event_id=b"0" * 16, run_id="r", episode_id="", attempt=1, producer_id="detector", producer_seq=0, occurred_at=1,
        trace_id="1" * 32, policy="p-0", trigger_id="t", rule=rule, rule_version=1, rule_key="k", policy_version="1",
        failure_type="task_not_completed", evidence=(entry_of(named, 0, 0).evidence,) * failures, sampling_weights=(),
        requested_by="d",
    )  # fmt: skip


def test_the_detector_is_folded_weighed_and_taken_over() -> None:
    events = list(verdict_stream(policies=7, verdicts=200))
    assert sum(isinstance(event, VerdictIssued) for event in events) == 200 == len(events) / 2
    kept = {"detector fold: 5 rules": [fold_run(events, rules=5, policies=7)]}
    assert kept["detector fold: 5 rules"][0]["count"] == 200
    for name, run in (*memory_runs(full=1, fresh=2), *restore_runs("local", verdicts=300, turns=1)):
        kept.setdefault(name, []).append(run)
    assert len(kept) == 6
    out = printed(kept)
    assert "KiB a policy" in out
    assert re.search(r"(x|of) detector restore local: from zero", out)


def printed(runs: dict[str, Any]) -> str:
    kept = {"machine": machine(), "load_average": {"before": (0.0,) * 3, "after": (0.0,) * 3}, "took_s": 1.0}
    out = io.StringIO()
    print_report(kept | {"runs": runs}, Console(file=out, width=200))
    return out.getvalue()


def test_step_rules_are_measured_beside_the_fold_without_them() -> None:
    runs = dict(step_rule_runs(episodes=1, turns=1))
    assert runs["step rules: without rules"]["times_without"] == 1.0
    assert "x the time without rules" in printed({name: [run] for name, run in runs.items()})


def test_transactions_are_timed_under_each_setting() -> None:
    kept = {name: [run] for name, run in transaction_runs(turns=1, share=0.02)}
    assert len(kept) == len(SETTINGS) * len(RECORDS)
    assert all(runs[0]["p90_ms"] >= runs[0]["p50_ms"] > 0.0 for runs in kept.values())
    assert "x, p90" in printed(kept)


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


def test_every_point_that_is_sent_is_counted_in_the_log() -> None:
    bodies = [request(shape, number) for shape in SHAPES for number in range(2)]
    assert [run["count"] for _, run in stages(bodies)] == [4 * POINTS] * 3
    for transport in ("grpc", "http"):
        assert receive("local", transport, bodies)["count"] == 4 * POINTS
