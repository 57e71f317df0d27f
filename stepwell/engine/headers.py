"""Headers of many records as one packs them, taken apart only where somebody asks for them.

A record's headers are a dozen and a half objects in Python, and who reads many records of one kind looks at few of
them. So a log that keeps them packed may hand them on as they are, and `PackedHeaders` is a column of a `RecordBatch`
like any other. The form is MessagePack: an array of [name, bytes or nil].
"""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import msgspec

from stepwell.events.model import Headers
from stepwell.exceptions import LogError

__all__ = ["PackedHeaders", "pack_headers"]

pack_headers: Callable[[Headers], bytes] = msgspec.msgpack.Encoder().encode
"""The headers of one record in their packed form."""

_take_apart = msgspec.msgpack.Decoder(Headers).decode


class PackedHeaders(Sequence[Headers]):
    """The headers of the records of one stretch of a partition.

    Whatever takes an entry out of it raises `LogError` where that one is damaged.

    Args:
        packed: of each record; None: it has none.
        offsets: of each record, for what is said of damage.
        where: the partition, for the same.

    Attributes:
        packed: as given.
    """

    __slots__ = ("_offsets", "_where", "packed")

    def __init__(self, packed: Sequence[bytes | None], offsets: Sequence[int], where: str) -> None:
        self.packed = packed
        self._offsets = offsets
        self._where = where

    def __len__(self) -> int:
        return len(self.packed)

    @overload
    def __getitem__(self, index: int) -> Headers: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedHeaders": ...
    def __getitem__(self, index: int | slice) -> "Headers | PackedHeaders":
        if isinstance(index, slice):
            return PackedHeaders(self.packed[index], self._offsets[index], self._where)
        return self._taken_apart(index)

    def __iter__(self) -> Iterator[Headers]:
        return map(self._taken_apart, range(len(self.packed)))

    def _taken_apart(self, index: int) -> Headers:
        packed = self.packed[index]
        if packed is None:
            return ()
        try:
            return _take_apart(packed)
        except msgspec.DecodeError as error:
            raise LogError(
                f"{self._where}: the headers of the record at offset {self._offsets[index]} are damaged ({error}); "
                "restore the log, or go on behind that record on purpose"
            ) from error
