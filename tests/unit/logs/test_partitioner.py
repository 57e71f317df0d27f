"""The partitioner gives what Kafka's Java client gives."""

import pytest

from stepwell.adapters.logs.partitioner import Partitioner, murmur2, partition_for_key

# From Kafka's own unit test of its hash (UtilsTest.testMurmur2).
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), KAFKA_VECTORS.items())
def test_murmur2_agrees_with_kafka(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (signed & 0x7FFFFFFF) % 7


def test_an_empty_key_is_a_key() -> None:
    partitioner = Partitioner()
    assert len({partitioner.choose(b"", 8) for _ in range(20)}) == 1


def test_records_without_a_key_go_round() -> None:
    partitioner = Partitioner()
    assert [partitioner.choose(None, 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
