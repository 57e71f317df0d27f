"""``stepwell dead-letters``: look at records that could not be used, and append them again."""

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, counted, plain_table

if TYPE_CHECKING:
    from stepwell.adapters.dead_letters import StoredLetter
    from stepwell.engine.ports import MessageLog
    from stepwell.events.codec import Codec

Id = Annotated[str, typer.Argument(metavar="ID", help="PARTITION-OFFSET, as 'list' shows it.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines instead of text.")]

KINDS = "unreadable, after_seal, violation, rule_failed or refused"
DUMP_MAX = 4096
"""Raw bytes that ``show`` prints; ``--json`` has them all."""


def register(app: typer.Typer) -> None:
    """Add ``stepwell dead-letters list | show | retry``."""
    commands = typer.Typer(help="Records that could not be used: look at them, try them again.", no_args_is_help=True)
    commands.command("list")(list_)
    commands.command("show")(show)
    commands.command("retry")(retry)
    app.add_typer(commands, name="dead-letters")


def list_(
    kind: Annotated[
        str | None,
        typer.Option(help=f"Only this kind: {KINDS}.", show_default=False),
    ] = None,
    episode: Annotated[str | None, typer.Option(help="Only about this episode.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="The latest so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the latest dead letters, newest last."""
    from collections import deque

    from stepwell.adapters.dead_letters import letters

    with _log() as (log, codec):
        found = sorted(
            (
                stored
                for stored in letters(log, codec)
                if (kind is None or stored.letter.kind == kind)
                and (episode is None or stored.letter.episode_id == episode)
            ),
            key=lambda stored: (stored.recorded_at, stored.id),
        )
    shown = list(deque(found, maxlen=limit))
    if as_json:
        for stored in shown:
            print(json.dumps(_as_json(stored)))
        return
    _print_table(shown)
    print(f"{len(shown)} of {counted(len(found), 'dead letter')}" if found else "no dead letters")
    print("Records that the projector refused by itself stand in the database's table stepwell.dead_letters.")


def show(letter_id: Id, as_json: AsJson = False) -> None:
    """Show one dead letter whole: where it stood, why it was refused, its raw bytes."""
    from stepwell.adapters.dead_letters import find

    with _log() as (log, codec):
        stored = find(log, codec, letter_id)
    values = _as_json(stored)
    if as_json:
        print(json.dumps(values))
        return
    from stepwell.structured_logging import escape_text

    headers = values.pop("source_headers")
    for name in ("source_value", "source_key"):
        values.pop(name)
    for name, value in values.items():
        print(f"{name:<17} {escape_text(str(value)) if value is not None else '-'}")
    letter = stored.letter
    print(f"{'source_key':<17} {_shown(letter.source_key)}")
    for name, value in headers:
        print(f"{'header':<17} {escape_text(name)}: {escape_text(value) if value is not None else '-'}")
    if letter.source_value is None:
        print("no raw bytes")
        return
    print(f"raw bytes ({len(letter.source_value)}):")
    for line in _dump(letter.source_value[:DUMP_MAX]):
        print(line)
    if len(letter.source_value) > DUMP_MAX:
        print(f"… {len(letter.source_value) - DUMP_MAX} more; --json has them all")


def retry(letter_id: Id) -> None:
    """Append the raw record to its topic again, where that can help; it carries a header that names the letter."""
    from stepwell.adapters.dead_letters import RETRIED_HEADER, find
    from stepwell.adapters.dead_letters import retry as append_again

    with _log() as (log, codec):
        record = append_again(log, codec, find(log, codec, letter_id))
    print(f"appended to {record.topic} again, with header {RETRIED_HEADER}: {letter_id}")


def _print_table(shown: "list[StoredLetter]") -> None:
    if not shown:
        return
    rows = []
    for stored in shown:
        letter = stored.letter
        episode = f"{letter.episode_id}/{letter.attempt}" if letter.episode_id else ""
        place = f"{letter.source_topic}/{letter.source_partition}@{letter.source_offset}"
        detail = letter.detail.replace("\n", "\\n")  # a line each
        told = (letter.kind, letter.reason, place, episode, letter.event_type or "", detail)
        rows.append((stored.id, _time(stored.recorded_at), *told))
    columns = ("id", "when", "kind", "reason", "from", "episode", "type", "detail")
    console().print(plain_table(*columns, rows=rows, whole=("id",)))


def _as_json(stored: "StoredLetter") -> dict[str, Any]:
    letter = stored.letter
    return {
        "id": stored.id,
        "recorded_at": _time(stored.recorded_at),
        "kind": letter.kind,
        "reason": letter.reason,
        "detail": letter.detail,
        "episode_id": letter.episode_id,
        "attempt": letter.attempt,
        "event_type": letter.event_type,
        "reported_by": letter.reported_by,
        "source_topic": letter.source_topic,
        "source_partition": letter.source_partition,
        "source_offset": letter.source_offset,
        "source_time": _time(letter.source_timestamp),
        "source_key": None if letter.source_key is None else letter.source_key.hex(),
        "source_headers": [
            [field.name, None if field.value is None else field.value.decode("utf-8", "backslashreplace")]
            for field in letter.source_headers
        ],
        "source_value": None if letter.source_value is None else letter.source_value.hex(),
    }


def _time(at_us: int) -> str:
    try:
        return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{at_us} µs"


def _shown(data: bytes | None) -> str:
    return "-" if data is None else data.decode("ascii", "backslashreplace")


def _dump(data: bytes) -> Iterator[str]:
    """Offset, sixteen bytes in hexadecimal, the same as text where printable."""
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"  {start:06x}  {part.hex(' '):<47}  {text}"


@contextlib.contextmanager
def _log() -> "Iterator[tuple[MessageLog, Codec]]":

    with opened_log(must_exist=True) as log:
        yield log, codec_in_force()
