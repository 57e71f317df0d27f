import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from stepwell.structured_logging import LogFormat, configure_logging, episode_context, escape_text

FORGED = "lift\n2026-01-01T00:00:00Z [error    ] disk on fire\r\x1b[2J\x1b]0;owned\x07\u2028\u202e\x85\x00"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Leave the process's logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def start(log_format: LogFormat = "auto", level: str = "info", *, terminal: bool = False) -> io.StringIO:
    stream = Terminal() if terminal else io.StringIO()
    configure_logging(level, log_format, stream)
    return stream


def one_json(stream: io.StringIO) -> dict[str, object]:
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert isinstance(record, dict)
    return record


def test_json_lines_where_there_is_no_terminal() -> None:
    stream = start()
    structlog.get_logger("stepwell.engine").info("batch done", records=3)
    record = one_json(stream)
    assert record.pop("timestamp")
    assert record == {"event": "batch done", "records": 3, "level": "info", "logger": "stepwell.engine"}


def test_readable_and_coloured_on_a_terminal_only() -> None:
    on_terminal, elsewhere = start(terminal=True), io.StringIO()
    structlog.get_logger("x").info("batch done", records=3)
    assert "\x1b[" in on_terminal.getvalue()
    assert "batch done" in on_terminal.getvalue()
    configure_logging("info", "console", elsewhere)
    structlog.get_logger("x").info("batch done", records=3)
    assert "\x1b" not in elsewhere.getvalue()
    assert "records=3" in elsewhere.getvalue()


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize("where", ["event", "value", "key", "nested", "object", "foreign", "extra", "context"])
def test_forged_text_comes_out_as_one_line(log_format: LogFormat, where: str) -> None:
    stream = start(log_format)
    logger, plain = structlog.get_logger("stepwell.runs"), logging.getLogger("other.library")

    class Hostile:
        def __repr__(self) -> str:
            return FORGED

    match where:
        case "event":
            logger.info(FORGED)
        case "value":
            logger.info("task started", task=FORGED)
        case "key":
            logger.info("task started", **{FORGED: 1})
        case "nested":
            logger.info("task started", spec={"tasks": [{FORGED: FORGED}], "raw": FORGED.encode()})
        case "object":
            logger.info("task started", task=Hostile())
        case "foreign":
            plain.warning("joined %s", FORGED)
        case "extra":
            plain.warning("joined", extra={"task": FORGED})
        case "context":
            with episode_context(episode_id=FORGED, attempt=1):
                logger.info("task started")
    output = stream.getvalue()
    assert output.endswith("\n")
    assert not set(output[:-1]) & set("\n\r\x1b\x07\x00\x85\u2028\u202e")
    assert len(output.splitlines()) == 1
    assert "disk on fire" in output


def test_the_lines_of_a_reason_are_joined_on_a_terminal_and_kept_in_json() -> None:
    reason = "connection failed: refused\n\tIs the server running?\r\n"
    console, plain = start("console"), io.StringIO()
    structlog.get_logger("x").warning("database is away", reason=reason, nested=[reason])
    assert "'connection failed: refused | Is the server running?'" in console.getvalue()
    assert "\\n" not in console.getvalue()
    configure_logging("info", "json", plain)
    structlog.get_logger("x").warning("database is away", reason=reason, nested=[reason])
    record = one_json(plain)
    assert record["reason"] == reason.replace("\r", "\\r")
    assert record["nested"] == [record["reason"]]


def test_traceback_cannot_pass_as_messages() -> None:
    for log_format in ("console", "json"):
        stream = start(log_format)
        try:
            raise ValueError(FORGED)
        except ValueError:
            structlog.get_logger("x").exception("task failed")
        first, *rest = stream.getvalue().split("\n")
        assert "task failed" in first
        assert all(line.startswith("  | ") for line in rest if line)
        assert not set(stream.getvalue()) & set("\r\x1b\x07\x00\x85\u2028\u202e")
        if log_format == "json":
            lines = json.loads(first)["exception"]
            assert lines[0].startswith("Traceback")


def test_episode_context_is_in_every_message_inside_and_none_outside() -> None:
    stream = start()
    with episode_context("e1", 2, "0af7651916cd43dd8448eb211c80319c"):
        logging.getLogger("other").warning("inside")
        with episode_context(attempt=3):
            structlog.get_logger("x").info("deeper")
    structlog.get_logger("x").info("outside")
    inside, deeper, outside = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (inside["episode_id"], inside["attempt"]) == ("e1", 2)
    assert (deeper["episode_id"], deeper["attempt"]) == ("e1", 3)
    assert deeper["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert not {"episode_id", "attempt", "trace_id"} & set(outside)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_secret_is_written(log_format: LogFormat) -> None:
    stream = start(log_format)
    url = "postgresql://ops:hunter2@db/x"
    structlog.get_logger("x").info(
        f"connecting to {url}",
        password="hunter2",
        url=url,
        nested={"auth_token": "hunter2", "dsn": ["password=hunter2"]},
    )
    logging.getLogger("other").error("cannot reach %s", url)
    logging.getLogger("other").error("no", extra={"client_secret": "hunter2"})
    try:
        raise RuntimeError(f"refused by {url}")
    except RuntimeError:
        structlog.get_logger("x").exception("failed")
    assert "hunter2" not in stream.getvalue()
    assert "ops:***@db/x" in stream.getvalue()


def test_level_holds_for_both_kinds_of_logger() -> None:
    stream = start(level="warning")
    structlog.get_logger("x").info("quiet")
    logging.getLogger("other").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert one_json(stream)["event"] == "loud"


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    structlog.get_logger("x").info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err


def test_starting_twice_writes_once() -> None:
    start()
    stream = start()
    structlog.get_logger("x").info("hello")
    logging.getLogger("other").warning("hello")
    assert len(stream.getvalue().splitlines()) == 2


def test_deep_and_endless_values_end() -> None:
    stream = start()
    endless: list[object] = []
    endless.append(endless)
    structlog.get_logger("x").info("deep", value=endless, other=float("inf"))
    assert one_json(stream)["event"] == "deep"


def test_ordinary_text_is_left_alone() -> None:
    assert escape_text("Größe 3 µm → 日本語 🙂 \\n") == "Größe 3 µm → 日本語 🙂 \\n"
    assert escape_text("a\tb\ud800") == "a\\tb\\ud800"
