"""From the records of a batch to their rows: many alike by columns, the others one by one."""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepwell.engine.ports import RecordBatch
from stepwell.events.codec import Codec
from stepwell.exceptions import EventError
from stepwell.projections.writing.columns.batch import COLUMNS_FROM, ColumnReader, ColumnRows
from stepwell.projections.writing.rows import project
from stepwell.projections.writing.writer import Item, unreadable

__all__ = ["BatchReader", "BatchRows", "without_collector"]


@dataclass(frozen=True, slots=True)
class BatchRows:
    """What a batch comes to.

    Attributes:
        items: the rows of records that were read one by one.
        columns: the rows of the others.
        given_up: place in the batch and reason of each record that nobody can read.
    """

    items: Sequence[Item]
    columns: Sequence[ColumnRows] = ()
    given_up: Sequence[tuple[int, str]] = field(default=())


class BatchReader:
    """Makes rows of batches.

    Args:
        codec: decodes the records.
        sink: who sets aside what cannot be read.
        columns_from: records of one type from which on they are read by columns.
    """

    def __init__(self, codec: Codec, sink: str, *, columns_from: int = COLUMNS_FROM) -> None:
        self._codec = codec
        self._sink = sink
        self._columns = ColumnReader(codec.schemas, least=columns_from)

    def read(self, batch: RecordBatch) -> BatchRows:
        """The rows of every record."""
        with without_collector():
            columns, rest = self._columns.read(batch)
            items, given_up = self._one_by_one(batch, rest)
        return BatchRows(items, columns, given_up)

    def read_one_by_one(self, batch: RecordBatch) -> Sequence[Item]:
        """The rows of every record, none of them by columns."""
        with without_collector():
            return self._one_by_one(batch, range(len(batch)))[0]

    def _one_by_one(self, batch: RecordBatch, indexes: Sequence[int]) -> tuple[list[Item], list[tuple[int, str]]]:
        items: list[Item] = []
        given_up: list[tuple[int, str]] = []
        for index in indexes:
            try:
                rows = project(self._codec, batch, index)
            except EventError as error:
                rows = unreadable(batch, index, error, self._sink)
                given_up += [(index, error.reason)] if rows else []
            if rows:
                items.append(Item(index, rows))
        return items, given_up


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """No cyclic garbage collection in the block: a batch makes many records at once, and none of them is garbage yet.

    Measured: a quarter of the time that a batch takes to decode one by one, and of that which it takes to be read.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
