"""Tables from what was kept: medians over the runs, least and most, and ratios of runs that stood side by side."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Results
from benchmarks.row_filters import QUESTIONS
from benchmarks.triggers import STRETCHES

# Case -> the case that it is compared with.
COMPARED = {
    "postgresql projector": "postgresql copy", "timescaledb projector": "timescaledb copy",
    "postgresql projector, record by record": "postgresql copy",
    "timescaledb projector, record by record": "timescaledb copy",
    "local log append: producer": "local log append: plain SQLite",
    "local log append: transactions": "local log append: plain SQLite",
    "local log read: producer": "local log read: plain SQLite",
    "local log read: transactions": "local log read: plain SQLite",
    "detector restore local: from snapshots, after a kill": "detector restore local: from zero",
    "detector restore local: from snapshots, after a stop": "detector restore local: from zero",
    **{
        f"otlp {shape}, {way}": f"otlp {shape}, parse only"
        for shape in ("batched", "wide")
        for way in ("grpc to local", "http to local", "grpc to kafka", "http to kafka")
    },
    **{f"{name}: filters, {who}": f"{name}: no filter" for name in QUESTIONS for who in ("writer", "team")},
}  # fmt: skip


def print_report(kept: dict[str, Any], console: Console | None = None) -> None:
    """Print every group that was run."""
    console = console or Console(width=130 if not sys.stdout.isatty() else None)
    results = Results(kept["runs"])
    facts, loads = kept["machine"], kept["load_average"]
    before, after = (" ".join(f"{value:.1f}" for value in loads[when]) for when in ("before", "after"))
    console.print(
        f"{facts['date']}  commit {facts['commit'][:10]}{' and changes' if facts['tree_changed'] else ''}\n"
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_mb']} MiB, Linux {facts['kernel']}, "
        f"Python {facts['python']}\nload average {before} before, {after} after; {kept['took_s']:.0f} s",
        highlight=False,
    )
    rates = [name for name, runs in results.runs.items() if "per_s" in runs[0]]
    if rates:
        console.print(_rates(results, rates))
    for name, runs in results.runs.items():
        if name.startswith("latency"):
            run = runs[0]
            console.print(
                f"{name}: {run['verdicts']} verdicts at {run['events_per_s']} events/s: "
                f"p50 {run['p50_ms']:.0f} ms, p99 {run['p99_ms']:.0f} ms", highlight=False,
            )  # fmt: skip
        elif name.startswith("rows "):
            _print_rows(console, name, runs)
        elif name.startswith("triggers"):
            _print_triggers(console, name, runs)
        elif name.startswith("transactions"):
            _print_transactions(console, results, name)
        elif name.startswith("detector memory"):
            run = runs[0]
            console.print(
                f"{name}: {run['kib_each']:.0f} KiB a policy ({run['policies']:,} policies with {run['verdicts_each']} "
                f"verdicts each), {run['snapshot_kib']:.1f} KiB as a snapshot", highlight=False,
            )  # fmt: skip
        elif name == "memory":
            _print_memory(console, runs[0])
        elif name.startswith("aggregates"):
            told = [f"{what} {value:.3g}" for what, value in runs[0].items() if isinstance(value, int | float)]
            console.print(f"{name}: {', '.join(told)}", highlight=False)
        elif name.startswith("codec"):
            figures = ", ".join(f"{what.strip()} {value:.1f} us" for what, value in runs[0].items() if what != "bytes")
            console.print(f"{name} ({runs[0]['bytes']:.0f} bytes): {figures}", highlight=False)


def _rates(results: Results, names: list[str]) -> Table:
    table = Table("case", *("per s", "least", "most", "CPU s/100k", "peak MB", "compared"), box=None, padding=(0, 1))
    for column in table.columns[1:6]:
        column.justify = "right"
    for name in names:
        low, high = results.spread(name, "per_s") or (0.0, 0.0)
        table.add_row(
            name, f"{results.median(name, 'per_s') or 0:,.0f}", f"{low:,.0f}", f"{high:,.0f}",
            _figure(results.median(name, "cpu_s_per_100k"), ".2f"), _figure(results.median(name, "peak_mb"), ".0f"),
            _comparison(results, name),
        )  # fmt: skip
    return table


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _comparison(results: Results, name: str) -> str:
    if name.startswith("peers ") and name != "peers engine":
        rate, cpu = (results.ratio("peers engine", name, figure) for figure in ("per_s", "cpu_s_per_100k"))
        second = results.median(name, "second_half_per_s")
        warm = f", second half {second:,.0f}/s" if second else ""
        return f"engine: {rate:.2f} x rate, {cpu:.2f} x CPU{warm}"
    if name.startswith("step rules"):
        return f"{results.median(name, 'times_without'):.2f} x the time without rules"
    other = COMPARED.get(name)
    share = results.ratio(name, other) if other else None
    if not share:
        return ""
    return f"{share:.1f} x {other}" if share > 2 else f"{share:.0%} of {other}"


def _print_rows(console: Console, name: str, runs: list[dict[str, Any]]) -> None:
    """From the append to the row: medians over the runs."""
    figure = {what: statistics.median(run[what] for run in runs) for what in runs[0]}
    console.print(
        f"{name}: p50 {figure['p50_ms']:,.0f} ms, p99 {figure['p99_ms']:,.0f} ms of {figure['records']:,.0f} records "
        f"at {figure['events_per_s']:,.0f} events/s; {figure['rows_per_s']:,.0f} written/s, at most "
        f"{figure['most_behind']:,.0f} behind, {figure['batches']:,.0f} batches, all visible "
        f"{figure['drained_s']:.1f} s after the last; {figure['peak_mb']:.0f} MiB", highlight=False,
    )  # fmt: skip


def _print_triggers(console: Console, name: str, runs: list[dict[str, Any]]) -> None:
    """Each stretch, and of each worker where its transactions take their time: medians over the runs."""
    console.print(f"{name}: {runs[0]['requests']} requests in each of {len(runs)} runs", highlight=False)
    shown = {stretch: [run[stretch] for run in runs] for stretch in STRETCHES if stretch in runs[0]}
    for kind, worker in runs[0]["workers"].items():
        shown |= {
            f"{kind}'s {phase}": [run["workers"][kind]["phases"][phase] for run in runs] for phase in worker["phases"]
        }
    table = Table("ms", "p50", "least", "most", "p99", "least", "most", box=None, padding=(0, 1))
    for label, found in shown.items():
        cells = []
        for figure in ("p50_ms", "p99_ms"):
            values = [each[figure] for each in found]
            cells += [f"{value:.1f}" for value in (statistics.median(values), min(values), max(values))]
        table.add_row(label, *cells)
    console.print(table)


def _print_transactions(console: Console, results: Results, name: str) -> None:
    figures = ", ".join(f"p{part} {results.median(name, f'p{part}_ms') or 0:.1f} ms" for part in (50, 90, 99))
    usual = f"{name.partition(':')[0]}: as it is"
    shares = [(part, results.ratio(name, usual, f"p{part}_ms")) for part in (50, 90)]
    beside = ", ".join(f"p{part} {share:.2f} x" for part, share in shares if share and name != usual)
    console.print(f"{name}: {figures}{f' ({beside} that as it is)' if beside else ''}", highlight=False)


def _print_memory(console: Console, run: dict[str, Any]) -> None:
    points = run["rss_mb"]
    shown = [points[0], *points[len(points) // 4 :: max(1, len(points) // 4)]]
    text = ", ".join(f"{count:,}: {mb:.1f}" for count, mb in shown)
    console.print(
        f"memory: {run['start_mb']:.1f} MiB before; with live episodes, after so many finished ones: {text} MiB; "
        f"markers on disk {run['markers_mb']:.1f} MiB", highlight=False,
    )  # fmt: skip


if __name__ == "__main__":
    print_report(json.loads(Path(sys.argv[1]).read_text()))
