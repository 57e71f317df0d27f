"""Conformance cases of message logs: appending, reading, positions, topics."""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping

import pytest

from stepwell.adapters.logs.partitioner import partition_for_key
from stepwell.engine.ports import Consumer, OutgoingRecord, Producer, TopicPartition
from stepwell.events.guards import MAX_STORED_BYTES, stored_bytes
from stepwell.events.topics import Topic
from stepwell.exceptions import LogError, PositionLostError, TopicError
from stepwell.testing.log_lab import LogLab, records_of


class RecordCases:
    """What goes in comes out: all of it, in order, where it belongs."""

    def test_records_of_one_key_keep_their_order(self, lab: LogLab) -> None:
        topic = lab.topic()
        dice = random.Random(1)
        sent: dict[bytes, list[bytes]] = defaultdict(list)
        for call in range(20):
            records = []
            for number in range(100):
                key = b"key-%d" % dice.randrange(50)
                sent[key].append(b"%d/%d" % (call, number))
                records.append(OutgoingRecord(topic, key, sent[key][-1]))
            lab.producer().send(records)
        lab.producer().flush(lab.patience_s)

        came: dict[bytes | None, list[bytes | None]] = defaultdict(list)
        places: dict[bytes | None, set[int]] = defaultdict(set)
        for record in lab.read(topic, 2000):
            came[record.key].append(record.value)
            places[record.key].add(record.source.partition)
        assert came == sent
        assert {len(partitions) for partitions in places.values()} == {1}

    def test_keys_go_to_the_partition_that_murmur2_gives(self, lab: LogLab) -> None:
        topic = lab.topic()
        dice = random.Random(2)
        keys = [b"episode-%d" % number for number in range(500)]
        keys += [dice.randbytes(dice.randrange(40)) for _ in range(500)]
        lab.send(OutgoingRecord(topic, key, b"") for key in keys)
        for record in lab.read(topic, len(keys)):
            assert record.key is not None
            assert record.source.partition == partition_for_key(record.key, lab.partitions), record.key

    def test_batches_join_up_and_enclose_their_offsets(self, lab: LogLab) -> None:
        topic = lab.topic()
        lab.send(OutgoingRecord(topic, b"%d" % (number % 7), b"%d" % number) for number in range(1000))
        consumer = lab.consumer()
        ends = {source: marks.low for source, marks in lab.admin().watermarks(topic).items()}
        consumer.assign(ends)
        count = 0
        while count < 1000:
            batches = consumer.poll(37, lab.patience_s)
            assert batches, "no records came"
            assert sum(map(len, batches)) <= 37
            assert len({batch.source for batch in batches}) == len(batches)
            for batch in batches:
                assert len(batch) > 0
                assert batch.start == ends[batch.source] <= batch.offsets[0]
                assert batch.offsets == sorted(set(batch.offsets))
                assert batch.end > batch.offsets[-1]
                ends[batch.source] = batch.end
                count += len(batch)
        assert all(consumer.position(source) >= end for source, end in ends.items())

    def test_every_kind_of_content_comes_back_as_it_went(self, lab: LogLab) -> None:
        topic = lab.topic()
        headers = (("a", b"1"), ("b", None), ("a", b"2"), ("empty", b""), ("ünïcode", bytes(range(256))))
        sent = [
            (b"key", b"value", headers),
            (None, b"no key", ()),
            (b"tombstone", None, (("why", b"gone"),)),
            (b"", b"", ()),
            (None, None, ()),
            (b"large", random.Random(3).randbytes(500_000), ()),
        ]
        lab.send(OutgoingRecord(topic, key, value, more, 1) for key, value, more in sent)
        came = lab.read(topic, len(sent))
        assert [(record.key, record.value, record.headers) for record in came] == sent
        assert {record.source for record in came} == {TopicPartition(topic, 1)}

    def test_records_without_a_key_all_arrive(self, lab: LogLab) -> None:
        topic = lab.topic()
        values = [b"%d" % number for number in range(200)]
        lab.send(OutgoingRecord(topic, None, value) for value in values)
        assert sorted(record.value or b"" for record in lab.read_settled(topic, 200)) == sorted(values)

    def test_timestamps_are_the_time_of_append_in_microseconds(self, lab: LogLab) -> None:
        topic = lab.topic()
        before = time.time_ns() // 1000
        lab.append(topic, [b"a", b"b"])
        after = time.time_ns() // 1000
        for record in lab.read(topic, 2):
            # A second of room: a broker's clock counts milliseconds and may be another machine's.
            assert before - 1_000_000 <= record.timestamp <= after + 1_000_000

    def test_a_topic_that_does_not_exist_is_refused(self, lab: LogLab) -> None:
        producer = lab.keep(lab.log.producer())
        with pytest.raises(LogError):
            self._send_and_flush(producer, OutgoingRecord(lab.unique("missing"), b"k", b"v"), lab)

    @pytest.mark.parametrize("part", ["value", "key", "header", "headers"])
    def test_a_record_may_be_as_large_as_the_limit_and_not_much_larger(self, lab: LogLab, part: str) -> None:
        topic = lab.topic()
        noise = random.Random(5)

        def record(size: int) -> OutgoingRecord:
            rest = size - stored_bytes(b"k", b"v", (("h", b""),))
            match part:
                case "value":
                    return OutgoingRecord(topic, b"k", b"v" + noise.randbytes(rest), (("h", b""),), 0)
                case "key":
                    return OutgoingRecord(topic, b"k" + noise.randbytes(rest), b"v", (("h", b""),), 0)
                case "header":
                    return OutgoingRecord(topic, b"k", b"v", (("h", noise.randbytes(rest)),), 0)
            each = stored_bytes(None, None, (("h", b""),))
            return OutgoingRecord(topic, b"k", b"v", (("h", b""),) * (size // each), 0)

        fits = record(MAX_STORED_BYTES)
        lab.send([fits])
        (came,) = lab.read(topic, 1)
        assert (came.key, came.value, came.headers) == (fits.key, fits.value, fits.headers)
        if part == "headers":
            return  # a broker packs small ones more tightly than the limit counts them
        producer = lab.keep(lab.log.producer())
        with pytest.raises(LogError):
            self._send_and_flush(producer, record(MAX_STORED_BYTES * 101 // 100), lab)

    def test_a_partition_that_does_not_exist_is_refused(self, lab: LogLab) -> None:
        producer = lab.keep(lab.log.producer())
        with pytest.raises(LogError):
            self._send_and_flush(producer, OutgoingRecord(lab.topic(), b"k", b"v", (), lab.partitions), lab)

    @staticmethod
    def _send_and_flush(producer: Producer, record: OutgoingRecord, lab: LogLab) -> None:
        # Either of the two calls may be the one that tells.
        producer.send([record])
        producer.flush(lab.patience_s)

    def test_flush_with_nothing_queued_returns(self, lab: LogLab) -> None:
        lab.producer().flush(lab.patience_s)

    def test_a_waiting_reader_gets_what_is_appended_meanwhile(self, lab: LogLab) -> None:
        topic = lab.topic()
        consumer = lab.consumer()
        consumer.assign(dict.fromkeys(lab.sources(topic), 0))
        assert consumer.poll(10, 0.01) == []
        timer = threading.Timer(0.2, lab.append, (topic, [b"late"]))
        timer.start()
        try:
            came = records_of(consumer.poll(10, lab.patience_s))
        finally:
            timer.join()
        assert [record.value for record in came] == [b"late"]

    def test_every_client_may_be_closed_twice(self, lab: LogLab) -> None:
        topic = lab.topic()
        member = lab.member(lab.unique("group"), topic)
        member.poll()
        for _ in range(2):
            lab.producer().close()
            lab.admin().close()
            member.consumer.close()
        transactional, consumer = lab.transactional(), lab.consumer()
        for _ in range(2):
            transactional.close()
            consumer.close()

    def test_close_writes_what_is_queued(self, lab: LogLab) -> None:
        topic = lab.topic()
        producer = lab.log.producer()
        producer.send([OutgoingRecord(topic, b"k", b"%d" % number) for number in range(50)])
        producer.close()
        assert [record.value for record in lab.read(topic, 50)] == [b"%d" % number for number in range(50)]


class PositionCases(ABC):
    """Positions: where a reader stands, and what it is told when that place is no more."""

    @abstractmethod
    def delete_records(self, lab: LogLab, before: Mapping[TopicPartition, int]) -> None:
        """Drop the records below these positions, as retention would."""

    def test_seek_reads_again(self, lab: LogLab) -> None:
        topic = lab.topic()
        lab.append(topic, [b"%d" % number for number in range(10)])
        source = TopicPartition(topic, 0)
        first = lab.read(topic, 10)
        consumer = lab.consumer()
        consumer.assign({source: first[4].offset})
        assert consumer.position(source) == first[4].offset
        assert self._next(lab, consumer, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        consumer.seek(source, first[8].offset)
        assert consumer.position(source) == first[8].offset
        assert self._next(lab, consumer, 2) == [b"8", b"9"]

    @staticmethod
    def _next(lab: LogLab, consumer: Consumer, count: int) -> list[bytes | None]:
        values: list[bytes | None] = []

        def enough() -> bool:
            values.extend(record.value for record in records_of(consumer.poll(500, 0.05)))
            return len(values) >= count

        lab.wait_until(enough, f"{count} records")
        return values

    def test_paused_partitions_give_nothing_until_resumed(self, lab: LogLab) -> None:
        topic = lab.topic()
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        consumer = lab.consumer()
        consumer.assign({first: 0, second: 0})
        consumer.pause([first])
        lab.append(topic, [b"a", b"b"], partition=0)
        lab.append(topic, [b"c"], partition=1)
        assert self._next(lab, consumer, 1) == [b"c"]
        assert consumer.poll(10, lab.silence_s) == []
        assert consumer.position(first) == 0
        consumer.resume([first])
        assert self._next(lab, consumer, 2) == [b"a", b"b"]

    def test_a_partition_that_is_not_assigned_has_no_position(self, lab: LogLab) -> None:
        topic = lab.topic()
        consumer = lab.consumer()
        consumer.assign({TopicPartition(topic, 0): 0})
        with pytest.raises(LogError):
            consumer.position(TopicPartition(topic, 1))

    def test_the_end_of_the_log_is_a_position(self, lab: LogLab) -> None:
        topic = lab.topic()
        source = TopicPartition(topic, 0)
        lab.append(topic, [b"old"])
        consumer = lab.consumer()
        consumer.assign({source: consumer.watermarks(source).high})
        assert consumer.poll(10, lab.silence_s) == []
        lab.append(topic, [b"new"])
        assert self._next(lab, consumer, 1) == [b"new"]

    def test_watermarks_enclose_what_is_kept(self, lab: LogLab) -> None:
        topic = lab.topic()
        source = TopicPartition(topic, 0)
        consumer = lab.consumer()
        assert consumer.watermarks(source) == (0, 0)
        lab.append(topic, [b"%d" % number for number in range(10)])
        assert consumer.watermarks(source) == (0, 10)
        self.delete_records(lab, {source: 4})
        assert consumer.watermarks(source) == (4, 10)
        marks = lab.admin().watermarks(topic)
        assert marks[source] == (4, 10)
        assert set(marks) == set(lab.sources(topic))
        assert [record.value for record in lab.read(topic, 6)] == [b"4", b"5", b"6", b"7", b"8", b"9"]

    def test_a_position_below_retention_stops_loudly_and_is_never_reset(self, lab: LogLab) -> None:
        topic = lab.topic()
        source = TopicPartition(topic, 0)
        lab.append(topic, [b"%d" % number for number in range(10)])
        self.delete_records(lab, {source: 5})
        consumer = lab.consumer()
        consumer.assign({source: 3})
        self._expect_lost(lab, consumer, source)
        self._expect_lost(lab, consumer, source)
        consumer.seek(source, 5)
        assert self._next(lab, consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]

    def test_a_position_beyond_the_end_stops_loudly(self, lab: LogLab) -> None:
        topic = lab.topic()
        source = TopicPartition(topic, 0)
        lab.append(topic, [b"only"])
        consumer = lab.consumer()
        consumer.assign({source: 1000})
        self._expect_lost(lab, consumer, source)
        self._expect_lost(lab, consumer, source)

    def test_a_groups_position_below_retention_stops_loudly(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        source = TopicPartition(topic, 0)
        lab.append(topic, [b"%d" % number for number in range(10)])
        member = lab.member(group, topic)
        lab.settle([member], [topic])
        member.consumer.commit({source: 2})
        member.consumer.close()
        self.delete_records(lab, {source: 5})
        late = lab.member(group, topic)
        with pytest.raises(PositionLostError, match=topic):
            lab.poll_until([late], lambda: bool(late.seen), "a lost position")
        assert late.seen == []

    @staticmethod
    def _expect_lost(lab: LogLab, consumer: Consumer, source: TopicPartition) -> None:
        def poll() -> bool:
            assert consumer.poll(10, 0.05) == []
            return False

        with pytest.raises(PositionLostError, match=f"{source.topic}.*{source.partition}"):
            lab.wait_until(poll, "a lost position")


class TopicCases:
    """Making and looking at topics."""

    def test_create_makes_what_is_missing_and_says_so(self, lab: LogLab) -> None:
        first, second = Topic(lab.unique("a"), "key", 1), Topic(lab.unique("b"), "key", lab.partitions, compacted=True)
        assert lab.admin().create([first]) == [first.name]
        assert lab.admin().create([first, second]) == [second.name]
        assert lab.admin().create([first, second]) == []
        assert lab.admin().partitions(first.name) == 1
        assert lab.admin().partitions(second.name) == lab.partitions
        assert lab.admin().check([first, second]) == []

    def test_check_says_what_is_wrong_in_a_sentence_each(self, lab: LogLab) -> None:
        name = lab.unique("topic")
        admin = lab.admin()
        admin.create([Topic(name, "key", 2, retention_ms=3_600_000)])
        assert admin.check([Topic(name, "key", 1, retention_ms=3_600_000)]) == []
        for wanted in (
            Topic(name, "key", 3, retention_ms=3_600_000),
            Topic(name, "key", 2, retention_ms=7_200_000),
            Topic(name, "key", 2, compacted=True),
        ):
            wrong = admin.check([wanted])
            assert wrong, wanted
            assert all(name in sentence for sentence in wrong)
        assert "3" in admin.check([Topic(name, "key", 3, retention_ms=3_600_000)])[0]
        missing = lab.unique("missing")
        assert missing in admin.check([Topic(missing, "key", 1)])[0]

    def test_a_missing_topic_is_told(self, lab: LogLab) -> None:
        missing = lab.unique("missing")
        with pytest.raises(TopicError, match=missing):
            lab.admin().partitions(missing)
        with pytest.raises(TopicError, match=missing):
            lab.admin().watermarks(missing)
