"""Which partition a key belongs to: murmur2, as Kafka's Java client and librdkafka's ``murmur2_random`` do it.

One partitioner everywhere, or the same episode lands in two partitions and loses its order. Source of the function:
Austin Appleby's MurmurHash2 (32 bit), with the seed of ``org.apache.kafka.common.utils.Utils.murmur2``.
"""

from functools import lru_cache
from itertools import count

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """The hash of ``data`` as an unsigned 32-bit number (Java prints the same bits signed)."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        hashed = (hashed * _MULTIPLIER & _MASK) ^ word
    if whole != length:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = hashed * _MULTIPLIER & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _MULTIPLIER & _MASK
    return hashed ^ (hashed >> 15)


# Keys come back thousands of times (every event of an episode), and the hash is the dearest part of an append.
@lru_cache(maxsize=1 << 16)
def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition, 0 to ``partitions`` - 1, that every record with this key goes to."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Partitioner:
    """Chooses partitions for one producer: by key, and in turn where there is none."""

    def __init__(self) -> None:
        self._turn = count()

    def choose(self, key: bytes | None, partitions: int) -> int:
        """The partition for a record with this key in a topic with so many partitions."""
        if key is None:
            return next(self._turn) % partitions
        return partition_for_key(key, partitions)
