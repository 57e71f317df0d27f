"""Clocks, repeated runs and the facts of the machine."""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("stepwell", "confluent-kafka", "msgspec", "fastavro", "psycopg")


@dataclass
class Timed:
    """Wall and CPU seconds of a stretch of work, and how much was done in it.

    ``cpu``: the clock of CPU seconds; by default that of all threads of this process.
    """

    cpu: Callable[[], float] = time.process_time
    count: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @contextmanager
    def more(self, count: int) -> Iterator[None]:
        """Measure the block and count it in."""
        wall, cpu = time.perf_counter(), self.cpu()
        yield
        self.cpu_s += self.cpu() - cpu
        self.wall_s += time.perf_counter() - wall
        self.count += count

    def figures(self) -> dict[str, float]:
        """As kept in the results."""
        return figures(self.count, self.wall_s, self.cpu_s)


def figures(count: int, wall_s: float, cpu_s: float | None) -> dict[str, float]:
    """Rate per second of wall time, and CPU seconds per 100,000."""
    made = {"count": count, "wall_s": wall_s, "per_s": count / wall_s}
    if cpu_s is not None:
        made |= {"cpu_s": cpu_s, "cpu_s_per_100k": cpu_s / count * 1e5}
    return made


@dataclass
class Results:
    """The runs of every case, in the order of their first run."""

    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, name: str, run: dict[str, Any]) -> None:
        """Keep one run."""
        self.runs.setdefault(name, []).append(run)

    def median(self, name: str, figure: str) -> float | None:
        """Median of one figure over a case's runs."""
        values = [run[figure] for run in self.runs.get(name, ()) if run.get(figure) is not None]
        return statistics.median(values) if values else None

    def spread(self, name: str, figure: str) -> tuple[float, float] | None:
        """Least and most."""
        values = [run[figure] for run in self.runs.get(name, ()) if run.get(figure) is not None]
        return (min(values), max(values)) if values else None

    def ratio(self, name: str, other: str, figure: str = "per_s") -> float | None:
        """Median of the ratios of runs that followed each other; steadier than the ratio of medians."""
        pairs = zip(self.runs.get(name, ()), self.runs.get(other, ()), strict=False)
        values = [a[figure] / b[figure] for a, b in pairs if a.get(figure) and b.get(figure)]
        return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def resident_mb(pid: int | str = "self") -> float:
    """Resident memory of a process now, MiB."""
    return _memory_mb(pid, "VmRSS:")


def peak_mb(pid: int | str = "self") -> float:
    """The most resident memory that a process has had, MiB. (`getrusage` would tell its parent's, before the start.)"""
    return _memory_mb(pid, "VmHWM:")


def _memory_mb(pid: int | str, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    from stepwell import __version__

    versions["stepwell"] = __version__
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": versions,
        "commit": _git("rev-parse", "HEAD"),
        "tree_changed": bool(_git("status", "--porcelain", "--", "stepwell", "benchmarks")),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def child(case: str, **parameters: Any) -> dict[str, Any]:
    """Run a case in a process of its own and give what it printed last."""
    process = start_child(case, **parameters)
    return finish_child(process)


def start_child(case: str, **parameters: Any) -> "subprocess.Popen[str]":
    """Start a case; it ends by itself, or when its standard input is closed."""
    command = [sys.executable, "-m", "benchmarks.children", case, json.dumps(parameters)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish_child(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Close its input, wait, and read its result."""
    out, _ = process.communicate(timeout=600)
    if process.returncode != 0:
        raise RuntimeError(f"{process.args!r}: exit code {process.returncode}")
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return result
