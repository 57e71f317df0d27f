"""``python -m benchmarks [--quick] [--peers] [--only GROUP ...]``: run, print a table, keep JSON in benchmarks/results.

Every group runs its cases in turn, several times: machines are shared, and only what ran side by side can be compared.
Every run is checked: outcomes, steps, rows. A wrong one ends the whole.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import codec, detector, local_log, peers
from benchmarks.aggregates import aggregate_runs
from benchmarks.latency import latency_run
from benchmarks.latency_rows import row_latency_runs
from benchmarks.logs import fill, log_runs, new_log
from benchmarks.measure import REPOSITORY, Results, child, machine
from benchmarks.otlp import otlp_runs
from benchmarks.projector import projector_runs
from benchmarks.report import print_report
from benchmarks.row_filters import row_filter_runs
from benchmarks.step_rules import step_rule_runs
from benchmarks.transactions import transaction_runs
from benchmarks.triggers import trigger_runs
from benchmarks.workload import Workload, realistic, small
from stepwell.exceptions import StepwellError

RESULTS = REPOSITORY / "benchmarks" / "results"
Runs = Iterator[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Size:
    """How much is done."""

    turns: int
    events: int
    projector_events: int
    finished: int
    live: int
    latency_s: float
    codec_runs: int
    rule_episodes: int
    fold_verdicts: int
    policies: int
    restored: int
    aggregated: int
    aggregated_on_timescale: int
    otlp_requests: int
    filtered_episodes: int


FULL = Size(
    turns=3, events=60_000, projector_events=240_000, finished=100_000, live=1_000, latency_s=15.0, codec_runs=40,
    rule_episodes=20, fold_verdicts=20_000, policies=100, restored=100_000,
    aggregated=200_000, aggregated_on_timescale=2_000, otlp_requests=200,
    filtered_episodes=20_000,
)  # fmt: skip
QUICK = Size(
    turns=1, events=20_000, projector_events=20_000, finished=10_000, live=1_000, latency_s=4.0, codec_runs=5,
    rule_episodes=4, fold_verdicts=2_000, policies=10, restored=5_000,
    aggregated=2_000, aggregated_on_timescale=500, otlp_requests=20, filtered_episodes=2_000,
)  # fmt: skip


def log_group(size: Size) -> Runs:
    """Reading, decoding, folding and the whole loop, on both logs, with large and small events."""
    loads = [(load, list(load.records())) for load in (realistic(size.events), small(size.events))]
    for _ in range(size.turns):
        for load, records in loads:
            for kind in ("kafka", "local") if load.observation else ("kafka",):
                for name, run in log_runs(kind, load, records):
                    yield f"{kind} {load.name} {name}", run
            with new_log("kafka") as url:
                fill(url, records)
                for name in peers.PLAIN:
                    yield f"peer {load.name} {name}", peers.run(name, url, load)


def peer_group(size: Size) -> Runs:
    """Our engine and its peers over Kafka, each on a node of its own with the same records."""
    peers.install()
    load = realistic(size.events)
    records = list(load.records())
    for _ in range(size.turns):
        for name in ("engine", *peers.PLAIN, *peers.INSTALLED):
            with new_log("kafka") as url:
                fill(url, records)
                yield f"peers {name}", engine_or_peer(name, url, load)


def engine_or_peer(name: str, url: str, load: Workload) -> dict[str, Any]:
    """One run of ours or of theirs."""
    from benchmarks.logs import engine_run

    return engine_run(url, load) if name == "engine" else peers.run(name, url, load)


def projector_group(size: Size) -> Runs:
    """Rows into PostgreSQL and into TimescaleDB, beside raw COPY."""
    load = realistic(size.projector_events)
    records = list(load.records())
    for name, run in projector_runs(load, records, size.turns):
        yield f"postgresql {name}", run
    load = realistic(size.projector_events // 4)
    for name, run in projector_runs(load, list(load.records()), size.turns, timescale=True):
        yield f"timescaledb {name}", run


def aggregates_group(size: Size) -> Runs:
    """Sums over any dimensions of steps and episodes, and how they grow."""
    yield from aggregate_runs(size.aggregated, size.aggregated_on_timescale, size.turns)


def memory_group(size: Size) -> Runs:
    """Resident memory of an engine's partition."""
    yield "memory", child("memory", finished=size.finished, live=size.live)


def latency_group(size: Size) -> Runs:
    """From an end to its verdict, live."""
    for kind in ("local", "kafka"):
        yield f"latency {kind}", latency_run(kind, 1_000, size.latency_s)


def rows_group(size: Size) -> Runs:
    """From the append of an event until its row is visible, at a steady rate and at saturation."""
    for _ in range(size.turns):
        for kind in ("local", "kafka"):
            for name, run in row_latency_runs(kind, size.latency_s):
                yield f"rows {kind}, postgresql: {name}", run
        for name, run in row_latency_runs("local", size.latency_s, timescale=True):
            yield f"rows local, timescaledb: {name}", run


def steps_group(size: Size) -> Runs:
    """What each kind of step rule adds to the fold."""
    yield from step_rule_runs(size.rule_episodes, size.turns)


def triggers_group(size: Size) -> Runs:
    """From a verdict to the request for retraining, live, with all rules in force."""
    yield from trigger_runs(size.latency_s, size.turns)


def transactions_group(size: Size) -> Runs:
    """One exactly-once transaction after the other on Kafka, under several settings of the driver."""
    yield from transaction_runs(size.turns)


def detector_group(size: Size) -> Runs:
    """The detector's fold, its memory, and taking a partition over."""
    yield from detector.fold_runs(size.fold_verdicts, size.turns)
    yield from detector.memory_runs(full=size.policies, fresh=100 * size.policies)
    yield from detector.restore_runs("local", size.restored, size.turns)


def otlp_group(size: Size) -> Runs:
    """Points through the OTLP receiver, beside only parsing them."""
    yield from otlp_runs(size.otlp_requests, size.turns)


def filters_group(size: Size) -> Runs:
    """Questions to the views without row filters, and with them."""
    yield from row_filter_runs(size.filtered_episodes, size.turns)


def local_group(size: Size) -> Runs:
    """The local log beside plain SQLite."""
    for name, write, read in local_log.turns(size.turns):
        for what, seconds in (("append", write), ("read", read)):
            run = {"count": local_log.RECORDS, "wall_s": seconds, "per_s": local_log.RECORDS / seconds}
            yield f"local log {what}: {name}", run


def codec_group(size: Size) -> Runs:
    """Microseconds per record of encoding and decoding, beside fastavro."""
    for label, figures in codec.sizes(size.codec_runs):
        yield f"codec {label}", dict(figures)


GROUPS: dict[str, Callable[[Size], Runs]] = {
    "logs": log_group, "projector": projector_group, "aggregates": aggregates_group, "memory": memory_group,
    "latency": latency_group,
    "rows": rows_group, "steps": steps_group, "triggers": triggers_group, "transactions": transactions_group,
    "detector": detector_group, "local": local_group, "otlp": otlp_group, "filters": filters_group,
    "codec": codec_group, "peers": peer_group,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one turn: whether it works, not how fast")
    parser.add_argument("--peers", action="store_true", help="also install and run Kafka Streams and Quix Streams")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--turns", type=int, help="how often each case runs")
    parser.add_argument("--output", type=Path, help="where to keep the JSON (default: benchmarks/results/DATE.json)")
    chosen = parser.parse_args(arguments)
    size = QUICK if chosen.quick else FULL
    if chosen.turns:
        size = Size(**{**size.__dict__, "turns": chosen.turns})
    groups = chosen.only or [name for name in GROUPS if name != "peers" or chosen.peers]
    try:
        kept = run_groups(groups, size)
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print_report(kept)
    print(f"kept in {keep(kept, chosen.output)}")
    return 0


def run_groups(groups: list[str], size: Size) -> dict[str, Any]:
    """Run them one after the other; facts of the machine and every run."""
    facts, load_before, started = machine(), os.getloadavg(), time.monotonic()
    results = Results()
    for group in groups:
        begun = time.monotonic()
        for name, run in GROUPS[group](size):
            results.add(name, run)
            print(f"\r{group}: {name:<60}", end="", file=sys.stderr, flush=True)
        print(f"\r{group}: {time.monotonic() - begun:.0f} s{'':<60}", file=sys.stderr)
    return {
        "machine": facts,
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "took_s": time.monotonic() - started,
        "size": size.__dict__,
        "runs": results.runs,
    }


def keep(kept: dict[str, Any], output: Path | None) -> Path:
    """Write the JSON."""
    path = output or RESULTS / f"{kept['machine']['date'].replace(':', '').replace('+0000', 'Z')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
