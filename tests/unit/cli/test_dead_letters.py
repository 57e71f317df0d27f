"""``stepwell dead-letters`` on a local log."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepwell import settings
from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.local import LocalLog
from stepwell.cli import build_app
from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import DeadLetter, HeaderField
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import ConfigurationError, NotFoundError, StepwellError

CODEC = Codec()


def letter(value: bytes | None, **changes: object) -> DeadLetter:
    fields: dict[str, object] = {
        "kind": "unreadable", "reason": "magic", "detail": "the first byte is \x1b[31mred\nline",
        "source_topic": EPISODE_EVENTS, "source_partition": 1, "source_offset": 7,
        "source_timestamp": 1_700_000_000_000_000, "source_key": b"ep-1",
        "source_value": value, "source_headers": (HeaderField(name="a", value=b"1"), HeaderField(name="b", value=None)),
        "reported_by": "engine-0",
    }  # fmt: skip
    return DeadLetter(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log with one dead letter of each kind, all in one partition."""
    url = f"local:{tmp_path / 'log'}"
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    monkeypatch.setenv("STEPWELL_LOG", url)
    settings.get_settings.cache_clear()
    log = open_log(url)
    good, headers = CODEC.encode(letter(b"x"))
    whole = tuple(HeaderField(name=name, value=value) for name, value in headers)
    kinds = [
        letter(b"\1" + bytes(range(40))),
        letter(b"x", kind="after_seal", reason="after_seal", episode_id="ep-1", attempt=1),
        letter(b"x", kind="violation", reason="foreign", episode_id="ep-2", attempt=1, event_type="sim::ready"),
        letter(None, detail="1000000 bytes were left at their place"),
        letter(b"x", source_topic="elsewhere"),
        letter(good, source_headers=whole, reason="no-key"),
        letter(good, source_headers=whole, kind="refused", reason="22021"),
        letter(b"\2" * 5000),
        letter(good, source_headers=whole, kind="rule_failed", reason="jerky", detail="by zero"),
    ]
    producer = log.producer()
    producer.send([outgoing(CODEC, item)._replace(partition=0) for item in kinds])
    producer.send([OutgoingRecord("stepwell.dead-letters", b"k", b"no letter", (), 0)])
    producer.flush(10)
    producer.close()
    log.close()
    return url


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["dead-letters", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("place")
def test_list_shows_them_on_one_line_each_and_filters() -> None:
    """Control characters from outside are escaped; a record that is no letter is left out."""
    text = run("list")
    assert "9 of 9 dead letters" in text
    assert "\x1b[31m" not in text
    lines = [json.loads(line) for line in run("list", "--json").splitlines()]
    assert [line["id"] for line in lines] == [f"0-{n}" for n in range(9)]
    assert lines[0]["source_value"] == (b"\1" + bytes(range(40))).hex()
    assert lines[0]["source_headers"] == [["a", "1"], ["b", None]]
    assert lines[3]["source_value"] is None
    assert "1 of 1" in run("list", "--kind", "violation")
    assert "1 of 1" in run("list", "--episode", "ep-1")
    assert "2 of 9" in run("list", "--limit", "2")
    none, elsewhere = run("list", "--kind", "none").splitlines()
    assert none == "no dead letters"
    assert "the projector refused by itself stand in the database's table stepwell.dead_letters" in elsewhere


@pytest.mark.usefixtures("place")
def test_show_gives_everything_with_the_raw_bytes() -> None:
    """As text with a dump, or as JSON."""
    text = run("show", "0-0")
    assert "\\x1b[31mred\\nline" in text
    assert "000020" in text
    assert "header            b: -" in text
    assert "raw bytes (41):" in text
    assert "no raw bytes" in run("show", "0-3")
    assert "904 more" in run("show", "0-7")
    assert json.loads(run("show", "0-1", "--json"))["kind"] == "after_seal"


@pytest.mark.usefixtures("place")
def test_ids_that_are_none_or_not_there() -> None:
    """Each says what was expected."""
    with pytest.raises(ConfigurationError, match="PARTITION-OFFSET"):
        run("show", "seven")
    for absent in ("0-99", "9-0", "0-9"):
        with pytest.raises(NotFoundError, match=absent):
            run("show", absent)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("letter_id", "reason"),
    [
        ("0-0", "still cannot be read"),
        ("0-1", "sealed"),
        ("0-2", "producer has to be put right"),
        ("0-3", "episode-events/1 offset 7"),
        ("0-4", "no topic of Stepwell"),
        ("0-5", "refused again"),
        ("0-8", r"a rule that raised \(jerky\).*correct the rule"),
    ],
)
def test_retry_refuses_what_cannot_help(letter_id: str, reason: str) -> None:
    """With the reason, and without writing anything."""
    with pytest.raises(StepwellError, match=reason):
        run("retry", letter_id)


def test_retry_appends_the_record_with_a_mark(place: str) -> None:
    """To its topic, under its key, byte for byte, with a header that names the letter."""
    assert "0-6" in run("retry", "0-6")
    log = LocalLog(place.removeprefix("local:"))
    consumer = log.consumer()
    consumer.assign(dict.fromkeys(log.admin().watermarks(EPISODE_EVENTS), 0))
    (batch,) = consumer.poll(10, 5.0)
    assert batch.keys == [b"ep-1"]
    assert batch.values == [CODEC.encode(letter(b"x"))[0]]
    assert batch.headers[0][-1] == ("stepwell-retried", b"0-6")
    consumer.close()
    log.close()
