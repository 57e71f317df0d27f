"""Chooses the records of a batch that go by columns, and makes their rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog

from stepwell.engine.ports import RecordBatch
from stepwell.events.codec import MAGIC, PREFIX_BYTES, SCHEMA_HEADER
from stepwell.events.guards import MAX_EVENT_BYTES
from stepwell.events.model import ActionSent, Headers, StepDone
from stepwell.events.schemas import SchemaSource, SchemaVersion
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.projections.tables import KINDS
from stepwell.projections.writing.columns import guards, texts
from stepwell.projections.writing.columns.avro import Bodies, Flags, Indexes, Places, Struct, joined
from stepwell.projections.writing.columns.copying import encode_columns
from stepwell.projections.writing.columns.facts import MAKERS, Facts, select
from stepwell.projections.writing.columns.headers import UNKNOWN, plans_of

__all__ = ["COLUMNS_FROM", "ColumnReader", "ColumnRows"]

COLUMNS_FROM = 100
"""So many records of a type make it worth while; fewer are faster one by one (docs/performance.md)."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ColumnRows:
    """Rows of one kind, one for each record that they come from, each key once.

    Attributes:
        kind: see `stepwell.projections.tables.KINDS`.
        facts: the records.
        stream: their rows, as COPY wants them in binary.
    """

    kind: str
    facts: Facts
    stream: memoryview

    def __len__(self) -> int:
        return len(self.facts)


@dataclass(frozen=True)
class _Plan:
    """How records of one type are known, judged, and made rows of."""

    version: SchemaVersion
    kind: str
    passes: Callable[[Bodies, Struct], Flags]

    def symbol(self, field: str, symbol: str) -> int:
        """The index of an enum's symbol."""
        types = {each["name"]: each["type"] for each in self.version.schema["fields"]}
        return int(types[field]["symbols"].index(symbol))


class ColumnReader:
    """Takes what it can of each batch.

    Args:
        schemas: as the codec's; records of older versions of a schema are not taken.
        least: records of a type below which none is taken.
    """

    def __init__(self, schemas: SchemaSource, *, least: int = COLUMNS_FROM) -> None:
        self._least = least
        self._plans = (
            _Plan(schemas.current(StepDone.TYPE), "steps", guards.steps_pass),
            _Plan(schemas.current(ActionSent.TYPE), "actions", guards.actions_pass),
        )
        self._numbers = {plan.version.fingerprint.encode(): number for number, plan in enumerate(self._plans)}
        self._types = [plan.version.entry.type.encode() for plan in self._plans]

    def read(self, batch: RecordBatch) -> tuple[list[ColumnRows], list[int]]:
        """Rows by columns, and the places in the batch of the records that must go one by one."""
        if batch.source.topic != EPISODE_EVENTS or len(batch) < self._least:
            return [], list(range(len(batch)))
        try:
            return self._read(batch)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - a defect of ours costs time and not rows
            _log.exception("a batch could not be read by columns, going record by record",
                           partition=batch.source.partition, start=batch.start, end=batch.end)  # fmt: skip
            return [], list(range(len(batch)))

    def _read(self, batch: RecordBatch) -> tuple[list[ColumnRows], list[int]]:
        log = _Laid(batch)
        framed = (log.sizes >= PREFIX_BYTES) & (log.sizes <= MAX_EVENT_BYTES) & (log.first_bytes == MAGIC)
        numbers = plans_of(batch.headers, self._plan_of)
        rest = np.ones(len(batch), np.bool_)
        found = []
        for number, plan in enumerate(self._plans):
            rows = (framed & (numbers == number)).nonzero()[0]
            if len(rows) < self._least:
                continue
            taken, made = _rows(plan, log, rows)
            rest[taken] = False
            if made is not None:
                found.append(made)
        return found, rest.nonzero()[0].tolist()

    def _plan_of(self, headers: Headers) -> int:
        """The number of the plan whose schema the headers name plainly, as the codec reads them; or `UNKNOWN`."""
        by_name = dict(headers)
        number = self._numbers.get(by_name.get(SCHEMA_HEADER) or b"", UNKNOWN)
        if (
            number == UNKNOWN
            or len(by_name) < len(headers)
            or by_name.get("ce_type", self._types[number]) != self._types[number]
        ):
            return UNKNOWN
        return number


class _Laid:
    """A batch, laid end to end."""

    def __init__(self, batch: RecordBatch) -> None:
        self.partition = batch.source.partition
        self.raw, starts, self.sizes = joined(batch.values)
        self.starts, self.ends = starts, starts + self.sizes
        self.first_bytes = np.frombuffer(self.raw, np.uint8)[starts]
        self.raw_keys, key_starts, key_sizes = joined(batch.keys)
        self.keys = Places(key_starts, key_sizes)
        self.offsets = np.array(batch.offsets, np.int64)
        self.timestamps = np.array(batch.timestamps, np.int64)


def _rows(plan: _Plan, log: _Laid, rows: Indexes) -> tuple[Indexes, ColumnRows | None]:
    """The records taken, duplicates among them, and the rows that they make."""
    bodies = Bodies(log.raw, log.starts[rows] + PREFIX_BYTES, log.ends[rows])
    columns, sound = bodies.read(plan.version.schema)
    facts = Facts(bodies, columns, log.partition, log.offsets[rows], log.timestamps[rows])
    passed = guards.heads_pass(
        bodies, columns, sound, producer=plan.symbol("producer", plan.version.entry.producer or ""),
        imported=plan.symbol("origin", "import"), logged_at=facts.logged_at,
    )  # fmt: skip
    passed &= plan.passes(bodies, columns)
    keys = Places(log.keys.starts[rows], log.keys.sizes[rows])
    passed &= texts.are_equal(bodies.raw, guards.places_of(columns, "episode_id"), log.raw_keys, keys)
    rows, facts = _narrow(rows, facts, passed)
    if not len(rows):
        return rows, None
    made, fit = MAKERS[plan.kind](facts)
    if not fit.all():
        rows, facts = _narrow(rows, facts, fit)
        if not len(rows):
            return rows, None
        made, _ = MAKERS[plan.kind](facts)
    first = _firsts(facts)
    if not first.all():
        _, facts = _narrow(rows, facts, first)
        made, _ = MAKERS[plan.kind](facts)
    stream = encode_columns([made[name] for name in KINDS[plan.kind].columns])
    return rows, ColumnRows(plan.kind, facts, stream)


def _narrow(rows: Indexes, facts: Facts, kept: Flags) -> tuple[Indexes, Facts]:
    if kept.all():
        return rows, facts
    inside = kept.nonzero()[0]
    return rows[inside], select(facts, inside)


def _firsts(facts: Facts) -> Flags:
    """Which rows are the first of their key (that of both tables) in the batch."""
    columns, buffer = facts.columns, facts.bodies.buffer
    mixed = texts.hashes(buffer, guards.places_of(columns, "episode_id"))
    mixed ^= texts.hashes(buffer, guards.places_of(columns, "producer_id")) << np.uint64(1)
    for name in ("attempt", "producer_seq", "occurred_at"):
        mixed = texts.mixed(mixed, guards.numbers_of(columns, name).values.view(np.uint64))
    first = np.ones(len(facts), np.bool_)
    ordered = np.sort(mixed)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        _drop_repeats(facts, np.isin(mixed, twice).nonzero()[0], first)
    return first


def _drop_repeats(facts: Facts, suspects: Indexes, first: Flags) -> None:
    """Compare the keys themselves, of those whose hashes are equal."""
    names = ("episode_id", "producer_id")
    numbers = [guards.numbers_of(facts.columns, name).values for name in ("attempt", "producer_seq", "occurred_at")]
    seen = set()
    for row in suspects.tolist():
        ids = [_text(facts, guards.places_of(facts.columns, name), row) for name in names]
        key = (*ids, *(int(values[row]) for values in numbers))
        first[row] = key not in seen
        seen.add(key)


def _text(facts: Facts, places: Places, row: int) -> bytes:
    start = int(places.starts[row])
    return facts.bodies.raw[start : start + int(places.sizes[row])]
