"""A real Apache Kafka node on 127.0.0.1, from Maven's jars.

``python -m stepwell.adapters.parts.kafka install`` brings the jars, a formatted data folder and an archive of loaded
classes (AppCDS: a start takes half the time with it). ``... run`` starts a node in the foreground.
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Self

from stepwell.adapters.parts import OwnProcess, exclusive, free_port, parts_directory, require_command
from stepwell.exceptions import ConfigurationError, MissingPartError, StepwellError

__all__ = ["KafkaPart", "install"]

VERSION = "4.4.0"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
# One core's worth of compiler and the simplest collector: a node that lives for minutes starts sooner with both.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_QUIET = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)
READY_TIMEOUT_S = 90.0


def install(parts_dir: Path | None = None) -> Path:
    """Bring what a node needs; does nothing where it is there already. Safe when several processes call it at once.

    Returns:
        the installation's folder: ``libs/`` (jars), ``formatted/`` (an empty data folder), ``*.jsa`` (class archive).

    Raises:
        MissingPartError: java or mvn is missing, or Maven could not bring the jars.
    """
    home = (parts_dir or parts_directory()) / f"kafka-{VERSION}"
    java = require_command("java", "default-jre-headless")
    home.mkdir(parents=True, exist_ok=True)
    with exclusive(home / "lock"):
        if not (home / "libs").is_dir():
            _copy_jars(home)
        if not (home / "formatted").is_dir():
            _format_once(java, home)
        if not _archive(java, home).exists():
            _make_archive(java, home)
    return home


def _copy_jars(home: Path) -> None:
    mvn = require_command("mvn", "maven")
    with tempfile.TemporaryDirectory(dir=home, prefix="new-") as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_bytes(resources.files(__package__).joinpath("kafka-pom.xml").read_bytes())
        jars = Path(scratch, "libs")
        command = [mvn, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode or not any(jars.glob("kafka_*.jar")):
            said = (done.stdout + done.stderr).strip()[-2000:]
            raise MissingPartError(
                f"Maven could not bring Kafka {VERSION} (exit code {done.returncode}). It needs a Maven repository: "
                f"the network, or a mirror named in ~/.m2/settings.xml. Maven said:\n{said}"
            )
        jars.rename(home / "libs")  # whole or not at all


def _class_path(home: Path) -> str:
    # Sorted and spelled out: a class archive fits only the class path it was made with.
    return ":".join(str(jar) for jar in sorted((home / "libs").glob("*.jar")))


def _archive(java: str, home: Path) -> Path:
    """The class archive's name, which holds the JVM and the jars that it fits."""
    jvm = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    fits = hashlib.sha256(jvm + os.path.realpath(java).encode() + _class_path(home).encode())
    return home / f"kafka-{fits.hexdigest()[:12]}.jsa"


def _format(java: str, home: Path, properties: Path) -> None:
    command = [
        java, *_JVM, *_LOG_OPTIONS, "-cp", _class_path(home),
        "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise StepwellError(f"Kafka could not format {properties.parent} (exit code {done.returncode}):\n{said}")


def _format_once(java: str, home: Path) -> None:
    """Keep a formatted data folder to copy from: it names nothing of this machine, and formatting takes 2 s."""
    with tempfile.TemporaryDirectory(dir=home, prefix="new-") as scratch:
        properties = _write_properties(Path(scratch), free_port(), free_port())
        _format(java, home, properties)
        Path(scratch, "data").rename(home / "formatted")


def _make_archive(java: str, home: Path) -> None:
    """Run a node once and let the JVM write what it loaded. The archive appears whole, by a rename."""
    archive = _archive(java, home)
    fresh = archive.with_suffix(f".new-{os.getpid()}")
    try:
        with KafkaPart(jvm_options=(f"-XX:ArchiveClassesAtExit={fresh}",), home=home) as node:
            _warm(node.bootstrap)
        if fresh.exists():  # a JVM without AppCDS writes none; starts are then slower, nothing else
            fresh.rename(archive)
    finally:
        fresh.unlink(missing_ok=True)


def _warm(bootstrap: str) -> None:
    """Use what the tests use, so that those classes are archived too: topics, a transaction, a group."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("warm", 1, 1)])["warm"].result(timeout=30)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "warm", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("warm", b"x", b"x")
    producer.commit_transaction(30)
    options = {"bootstrap.servers": bootstrap, "group.id": "warm", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**options, "enable.auto.commit": False})
    consumer.subscribe(["warm"])
    if consumer.poll(20) is not None:
        consumer.commit(offsets=[TopicPartition("warm", 0, 1)], asynchronous=False)
    consumer.close()


def _write_properties(directory: Path, port: int, controller_port: int) -> Path:
    text = resources.files(__package__).joinpath("kafka-single.properties").read_text()
    for mark, value in (("DIRECTORY", directory), ("PORT", port), ("CONTROLLER_PORT", controller_port)):
        text = text.replace(f"@{mark}@", str(value))
    path = directory / "server.properties"
    path.write_text(text)
    return path


class KafkaPart:
    """One Kafka node. A context manager; also ``start``, ``stop``, ``kill9``, ``restart``.

    Args:
        directory: where data and log lie; kept on `stop`. None: a temporary folder, removed on `stop`.
        port: the clients' port on 127.0.0.1; None takes a free one. A restart keeps it.
        heap: the JVM's largest heap, in its own spelling.
        jvm_options: more options for the JVM.
        home: the installation, as `install` returns it; None installs where needed.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        port: int | None = None,
        *,
        heap: str = "256m",
        jvm_options: tuple[str, ...] = (),
        home: Path | None = None,
    ) -> None:
        self._temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="stepwell-kafka-")).absolute()
        self.port = port or free_port()
        self._controller_port = free_port()
        self._heap = heap
        self._jvm_options = jvm_options
        self._home = home
        self._process: OwnProcess | None = None

    @property
    def bootstrap(self) -> str:
        """What clients connect to, ``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The node's own log file."""
        return self.directory / "kafka.log"

    @property
    def process(self) -> OwnProcess:
        """The running node. Raises `StepwellError` when it does not run."""
        if self._process is None:
            raise StepwellError(f"The Kafka node in {self.directory} is not running.")
        return self._process

    def start(self, wait: bool = True) -> str:
        """Start the node, wait until it answers, and return its address. Does nothing where it runs already.

        Raises:
            StepwellError: it did not come up; the last lines of its log are in the message.
        """
        if self._process is None or not self._process.running:
            self._process = OwnProcess(self.command(), self.log, cwd=self.directory)
            (self.directory / "pid").write_text(str(self._process.pid))
        if wait:
            self.wait_ready()
        return self.bootstrap

    def command(self) -> list[str]:
        """The command that serves this folder; installs where needed, and makes the folder.

        Raises:
            MissingPartError: as `install`.
            ConfigurationError: a node runs on this folder already.
        """
        home = self._home or install()
        java = require_command("java", "default-jre-headless")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._refuse_second_node()
        if not (self.directory / "data" / "meta.properties").exists():
            shutil.copytree(home / "formatted", self.directory / "data", dirs_exist_ok=True)
        properties = _write_properties(self.directory, self.port, self._controller_port)
        archive = _archive(java, home)
        shared = (f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive.exists() else ()
        return [
            java, f"-Xmx{self._heap}", *_JVM, *shared, *self._jvm_options, *_LOG_OPTIONS,
            "-cp", _class_path(home), "kafka.Kafka", str(properties),
        ]  # fmt: skip

    def answers(self) -> bool:
        """Whether a client gets an answer now (within 1 s)."""
        return _probe(self.bootstrap)()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the node answers a client; the port alone opens earlier."""
        self.process.wait_ready(_probe(self.bootstrap), timeout_s, f"Kafka on {self.bootstrap}")

    def stop(self) -> None:
        """End the node cleanly (2 s or so) and remove a temporary folder. Does nothing where it does not run."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        with contextlib.suppress(FileNotFoundError):
            (self.directory / "pid").unlink()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill9(self) -> None:
        """End the node at once, as a crash does; the data stay. Start again with `start`."""
        self.process.kill9()
        self._process = None

    def restart(self) -> str:
        """End the node cleanly, keep its data, and start it again on the same port."""
        self.process.stop()
        self._process = None
        return self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _refuse_second_node(self) -> None:
        """Two nodes on one data folder: the second one's own message is a puzzle, ours is not."""
        try:
            pid = int((self.directory / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return
        if str(self.directory).encode() in command:
            raise ConfigurationError(f"A Kafka node (process {pid}) already runs on {self.directory}; stop it first.")


def _probe(bootstrap: str) -> Callable[[], bool]:
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise MissingPartError("Kafka needs confluent-kafka: pip install 'stepwell[kafka]'") from error
    admin = AdminClient({
        "bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2000,
        "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 100,
    })  # fmt: skip

    def ready() -> bool:
        try:
            return len(admin.list_topics(timeout=1).brokers) > 0
        except KafkaException:
            return False

    return ready


def main(arguments: list[str] | None = None) -> int:
    """``install`` brings the parts; ``run`` starts a node and stops it on Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.adapters.parts.kafka", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="bring Kafka's jars and prepare quick starts")
    run = commands.add_parser("run", help="run one node in the foreground")
    run.add_argument("--directory", help="keep the data here (default: a temporary folder)")
    run.add_argument("--port", type=int, help="the clients' port on 127.0.0.1 (default: a free one)")
    chosen = parser.parse_args(arguments)
    try:
        started = time.monotonic()
        home = install()
        if chosen.command == "install":
            print(f"Kafka {VERSION} is ready in {home} ({time.monotonic() - started:.0f} s).")
            return 0
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with KafkaPart(chosen.directory, chosen.port, home=home) as node, contextlib.suppress(KeyboardInterrupt):
            print(f"kafka://{node.bootstrap}", flush=True)
            while node.process.running:
                time.sleep(0.2)
            print(f"The node ended by itself; see {node.log}.", file=sys.stderr)
            return 1
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
