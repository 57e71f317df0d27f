"""Other ways to do the same work, on the same records: a plain loop, Quix Streams, Kafka Streams with RocksDB.

The plain loop needs nothing; the others are installed by `install` into ``.parts/bench``.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.logs import check_outcomes
from benchmarks.measure import figures, peak_mb
from benchmarks.workload import Workload
from stepwell.adapters.logs import open_log
from stepwell.adapters.parts import parts_directory, require_command
from stepwell.engine.ports import TopicPartition
from stepwell.events.catalogue import CATALOGUE
from stepwell.events.schemas import packaged_schemas
from stepwell.events.topics import Topic

HERE = Path(__file__).parent
OUTCOMES = "bench.outcomes"
SNAPSHOTS = "bench.snapshots"
QUIX = "quixstreams==3.28.1"
FASTAVRO = "fastavro==1.13.1"
OUTCOMES_WITHIN_S = 600.0

PLAIN = ("plain Python loop",)
INSTALLED = ("Kafka Streams, RocksDB", "Kafka Streams, RocksDB, 2 threads", "Quix Streams")


def install() -> None:
    """Bring Quix Streams (uv) and Kafka Streams (Maven) where they are missing."""
    place = parts_directory() / "bench"
    place.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    quix = place / "quix"
    if not (quix / "done").exists():
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(quix)], check=True)
        python = str(quix / "bin" / "python")
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, QUIX, FASTAVRO], check=True)
        (quix / "done").touch()
    source, built = HERE / "streams", place / "streams"
    if not built.exists() or _text_of(built) != _text_of(source):
        mvn = require_command("mvn", "maven")
        shutil.rmtree(built, ignore_errors=True)
        shutil.copytree(source, built)
        try:
            subprocess.run([mvn, "-q", "-B", "package"], cwd=built, check=True, stdin=subprocess.DEVNULL)
        except subprocess.CalledProcessError:
            shutil.rmtree(built)
            raise


def _text_of(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("pom.xml", "src/main/java/Bench.java")]


def run(peer: str, url: str, load: Workload) -> dict[str, Any]:
    """One peer over a log that holds the load's records and nothing else. Checks every outcome."""
    bootstrap = url.removeprefix("kafka://")
    log = open_log(url)
    admin = log.admin()
    admin.create([Topic(OUTCOMES, "episode", 4), Topic(SNAPSHOTS, "episode", 4, compacted=True)])
    admin.close()
    consumer = log.consumer()
    consumer.assign({TopicPartition(OUTCOMES, number): 0 for number in range(4)})
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        work = Path(folder)
        (work / "schemas.json").write_text(json.dumps(_schemas()))
        process = subprocess.Popen(
            _command(peer, bootstrap, work, load.events), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            marks = _Marks(process.pid, process.stdout)
            found, last = _read_outcomes(consumer, load.episodes, process, peer)
            cpu_s, peak = _cpu_s(process.pid) - marks.cpu_s, peak_mb(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            consumer.close()
            log.close()
    check_outcomes(load, [(each["episode_id"], each["outcome"], each["steps"]) for each in found])
    assert not any(each["gaps"] for each in found), "a gap"
    made = {**figures(load.events, last - marks.at["first"], cpu_s), "peak_mb": peak}
    if "half" in marks.at:
        made["second_half_per_s"] = load.events / 2 / (last - marks.at["half"])
    return made


def _command(peer: str, bootstrap: str, work: Path, events: int) -> list[str]:
    place, schemas = parts_directory() / "bench", str(work / "schemas.json")
    if peer.startswith("Kafka Streams"):
        jars = f"{place / 'streams' / 'target' / 'streams-benchmark-1.jar'}:{place / 'streams' / 'target' / 'deps'}/*"
        threads = "2" if "2 threads" in peer else "1"
        return [
            require_command("java", "default-jre-headless"), "-Xmx1g", "-cp", jars, "Bench", bootstrap, schemas,
            str(work / "state"), threads, str(events), "nocache",
        ]  # fmt: skip
    if peer.startswith("Quix"):
        return [str(place / "quix" / "bin" / "python"), str(HERE / "quix.py"), bootstrap, schemas, str(work / "state")]
    return [sys.executable, str(HERE / "plain.py"), bootstrap, schemas]


def _schemas() -> dict[str, dict[str, Any]]:
    """Schema id -> type and schema, of all current events."""
    source = packaged_schemas()
    made = {}
    for entry in CATALOGUE:
        version = source.current(entry.type)
        made[str(version.id)] = {"type": entry.type, "schema": version.schema}
    return made


class _Marks:
    """What a peer says of itself: when the first record (and the one half way) reached its code."""

    def __init__(self, pid: int, stream: IO[str]) -> None:
        self.at: dict[str, float] = {}
        self.cpu_s = 0.0
        self._pid = pid
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            if line.startswith("{"):
                if not self.at:
                    self.cpu_s = _cpu_s(self._pid)
                self.at.update(json.loads(line))


def _read_outcomes(
    consumer: Any, count: int, process: "subprocess.Popen[str]", peer: str
) -> tuple[list[dict[str, Any]], float]:
    found: list[dict[str, Any]] = []
    deadline, last = time.monotonic() + OUTCOMES_WITHIN_S, 0.0
    while len(found) < count:
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f"{len(found)} of {count} outcomes; exit code {process.poll()}: {peer}")
        for batch in consumer.poll(10_000, 0.05):
            last = time.time()
            found += [json.loads(value) for value in batch.values]
    return found, last


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
