"""How Stepwell's processes talk: structlog, readable on a terminal, JSON lines elsewhere, always to standard error.

Three promises, kept by processors that every message goes through, also those of other libraries:

- One message is one line. ANSI sequences and other control characters in any text are escaped, so that a task name from
  outside can forge neither a message nor the terminal's state. The lines of a text are joined with `` | `` on a
  terminal; JSON escapes their breaks itself. Tracebacks are the one exception on a terminal; there, each of their lines
  is marked as part of one.
- No secret is written: values under keys such as ``password``, ``token`` or ``secret``, and credentials in URLs.
- ``episode_id``, ``attempt`` and ``trace_id`` stand in every message of the code inside `episode_context`.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from stepwell.redaction import HIDDEN, is_secret_key, redact_text

LogFormat = Literal["auto", "console", "json"]

# C0 and C1 control characters, DEL, the Unicode line breaks, characters that turn the direction of text, surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_BREAK = re.compile(r"[ \t]*\r?\n\s*")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\x1b"}
_DEPTH_MAX = 6
_TRACEBACK_MARK = "  | "


# Libraries that report every request as information.
_CHATTY = ("httpx2", "httpcore2")


def configure_logging(level: str = "info", log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's messages through one chain.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``auto`` is ``console`` where the stream is a terminal, else ``json``. Colours only on a terminal.
        stream: standard error by default.
    """
    terminal = (stream or sys.stderr).isatty()
    readable = log_format == "console" or (log_format == "auto" and terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact_secrets,
        partial(escape_values, escape=_on_one_line if readable else _for_json),
    ]
    renderer: list[Processor] = (
        [_mark_traceback, structlog.dev.ConsoleRenderer(colors=terminal, pad_level=False, sort_keys=False)]
        if readable
        else [_traceback_as_list, structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [each for each in root.handlers if not isinstance(each, _Handler)] + [handler]
    root.setLevel(level.upper())
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to the given stream, else to what standard error is at the moment."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._given = stream

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = self._given or sys.stderr
        super().emit(record)


@contextmanager
def episode_context(
    episode_id: str | None = None, attempt: int | None = None, trace_id: str | None = None
) -> Iterator[None]:
    """Put these into every message of the code inside, in this thread or task; None leaves the outer value."""
    values = {"episode_id": episode_id, "attempt": attempt, "trace_id": trace_id}
    with structlog.contextvars.bound_contextvars(**{key: value for key, value in values.items() if value is not None}):
        yield


def escape_text(text: str) -> str:
    r"""The text on one line: control characters, line breaks and direction marks as ``\n``, ``\x1b``, ``\u2028``."""
    return _UNSAFE.sub(_escape_character, text)


def redact_secrets(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Processor: hide values under secret keys at any depth, and credentials inside any text."""
    return {key: _redact(str(key), value, 0) for key, value in event_dict.items()}


def escape_values(
    _logger: WrappedLogger, _method: str, event_dict: EventDict, *, escape: Callable[[str], str]
) -> EventDict:
    """Processor: escape every text at any depth, keys included. Other objects are shown by their escaped repr."""
    return {escape_text(str(key)): _escape(key, value, escape) for key, value in event_dict.items()}


def _on_one_line(text: str) -> str:
    """Many libraries put their reasons on several lines, often indented."""
    return escape_text(_LINE_BREAK.sub(" | ", text.strip()))


def _for_json(text: str) -> str:
    """Line breaks and tabs stay: JSON's own escape of them is enough, and gives readers the text as it was."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] in "\n\t" else _escape_character(match), text)


def _escape_character(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _redact(key: str, value: Any, depth: int) -> Any:
    if value is not None and is_secret_key(key):
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bool | int | float) or value is None or key.startswith("_"):
        return value
    if depth >= _DEPTH_MAX:
        return redact_text(repr(value))
    if isinstance(value, Mapping):
        return {inner: _redact(str(inner), item, depth + 1) for inner, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact("", item, depth + 1) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return redact_text(repr(bytes(value)))
    return redact_text(str(value))


def _escape(key: str, value: Any, escape: Callable[[str], str]) -> Any:
    if key.startswith("_"):  # structlog's own record-keeping, removed before rendering
        return value
    if key in {"exception", "stack"} and isinstance(value, str):
        return "\n".join(escape_text(line) for line in value.split("\n"))
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {escape_text(str(inner)): _escape("", item, escape) for inner, item in value.items()}
    if isinstance(value, list):
        return [_escape("", item, escape) for item in value]
    return value


def _mark_traceback(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    return _each_traceback(event_dict, lambda lines: "\n".join(_TRACEBACK_MARK + line for line in lines))


def _traceback_as_list(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    return _each_traceback(event_dict, list)


def _each_traceback(event_dict: MutableMapping[str, Any], change: Any) -> EventDict:
    for key in ("exception", "stack"):
        if isinstance(event_dict.get(key), str):
            event_dict[key] = change(event_dict[key].split("\n"))
    return event_dict
