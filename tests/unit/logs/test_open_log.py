"""Which URL opens which log, and what wrong ones are told."""

import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.events.topics import TOPICS
from stepwell.exceptions import ConfigurationError


def test_a_fresh_local_log_has_all_topics(tmp_path: Path) -> None:
    log = open_log(f"local:{tmp_path}/deep/log")
    assert isinstance(log, LocalLog)
    admin = log.admin()
    assert admin.check(TOPICS) == []
    assert admin.create(TOPICS) == []
    admin.close()


def test_each_memory_log_is_its_own() -> None:
    first, second = open_log("memory:"), open_log("memory:")
    assert isinstance(first, MemoryLog)
    assert first is not second
    assert first.admin().check(TOPICS) == []
    first.close()
    second.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "local:",
        "local://tmp/log",
        "memory",
        "memory:x",
        "redis://host",
        "kafka:host:9092",
        "kafka://",
        "kafka://host",
        "kafka://host:port",
        "kafka://host:0",
        "kafka://a:1,,b:2",
        "kafka://host:9092/topic",
    ],
)
def test_wrong_urls_are_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"local:|kafka://host:port"):
        open_log(url)


def test_a_password_in_the_url_is_not_repeated() -> None:
    for url in ("kafka://user:s3cret@host:9092", "amqp://user:s3cret@host"):
        with pytest.raises(ConfigurationError) as error:
            open_log(url)
        assert "s3cret" not in str(error.value)


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="cannot be made"):
        open_log(f"local:{tmp_path}/file")


def test_kafka_is_imported_only_when_asked_for(tmp_path: Path) -> None:
    script = (
        "import sys; from stepwell.adapters.logs import open_log; open_log('local:' + sys.argv[1]);"
        "sys.exit(any(name.startswith(('confluent_kafka', 'aiokafka')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 0
