"""The real Kafka node that tests and demos start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.parts import free_port, parts_directory
from stepwell.adapters.parts.kafka import KafkaPart, install
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.topics import Topic
from stepwell.exceptions import ConfigurationError, MissingPartError, StepwellError

TOPIC = Topic("kept", "key", 1)


def _append(bootstrap: str, value: bytes) -> None:
    producer = KafkaLog(bootstrap).producer()
    producer.send([OutgoingRecord(TOPIC.name, b"k", value)])
    producer.flush(30)
    producer.close()


def _end(bootstrap: str) -> int:
    return KafkaLog(bootstrap).admin().watermarks(TOPIC.name)[TopicPartition(TOPIC.name, 0)].high


def test_data_outlive_a_kill_and_a_restart_and_the_port_stays(tmp_path: Path) -> None:
    node = KafkaPart(tmp_path / "node")
    try:
        bootstrap = node.start()
        assert node.start() == bootstrap
        KafkaLog(bootstrap).admin().create([TOPIC])
        _append(bootstrap, b"one")
        node.kill9()
        with pytest.raises(StepwellError, match="not running"):
            _ = node.process
        assert node.start() == bootstrap
        assert _end(bootstrap) == 1
        with pytest.raises(ConfigurationError, match="already runs"):
            KafkaPart(tmp_path / "node").start()
        pid = node.process.pid
        assert node.restart() == bootstrap
        assert not Path(f"/proc/{pid}").exists()
        _append(bootstrap, b"two")
        assert _end(bootstrap) == 2
    finally:
        node.stop()
    assert (tmp_path / "node" / "data").is_dir()


def test_a_temporary_folder_is_removed() -> None:
    with KafkaPart() as node:
        pid, directory = node.process.pid, node.directory
        assert directory.is_dir()
    assert not directory.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_node_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        node = KafkaPart(tmp_path / "node", taken.getsockname()[1])
        with pytest.raises(StepwellError, match=r"(?s)ended with exit code .*kafka\.log.*[Aa]ddress already in use"):
            node.start()
    node.stop()


def test_installing_again_does_nothing() -> None:
    home = install()
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    assert install() == home
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()} == before


def test_without_java_the_command_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPartError, match="apt-get install default-jre-headless"):
        install(tmp_path)


def test_without_maven_the_command_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPartError, match="apt-get install maven"):
        install(tmp_path / "parts")


def test_the_parts_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPWELL_PARTS", str(tmp_path))
    assert parts_directory() == tmp_path


def test_free_ports_stay_clear_of_outgoing_connections() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    assert 1_024 <= port < max(low, 2_048)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_the_command_runs_a_node_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stepwell.adapters.parts.kafka", "run", "--directory", str(tmp_path / "node")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert KafkaLog(url.removeprefix("kafka://")).admin().brokers() == 1
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "node" / "pid").exists()
