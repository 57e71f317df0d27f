"""Conformance cases of message logs: transactions."""

import random
from collections.abc import Callable

import pytest

from stepwell.engine.ports import OutgoingRecord, TopicPartition, TransactionalProducer
from stepwell.exceptions import FencedError, LogError
from stepwell.testing.log_lab import LogLab, Member


def _records(topic: str, *values: bytes) -> list[OutgoingRecord]:
    return [OutgoingRecord(topic, b"key", value, (), 0) for value in values]


class TransactionCases:
    """All or nothing, once, and only by whoever owns the work."""

    def test_what_was_committed_is_read(self, lab: LogLab) -> None:
        first, second = lab.topic("a"), lab.topic("b")
        producer = lab.transactional()
        for round_number in range(3):
            producer.begin()
            producer.send(_records(first, b"%d" % round_number))
            producer.send(_records(second, b"%d" % round_number))
            producer.commit()
        assert [record.value for record in lab.read(first, 3)] == [b"0", b"1", b"2"]
        assert [record.value for record in lab.read(second, 3)] == [b"0", b"1", b"2"]

    def test_an_open_transaction_is_not_read(self, lab: LogLab) -> None:
        topic = lab.topic()
        source = TopicPartition(topic, 0)
        producer = lab.transactional()
        producer.begin()
        producer.send(_records(topic, b"open"))
        consumer = lab.consumer()
        consumer.assign({source: 0})
        assert consumer.poll(10, lab.silence_s) == []
        assert consumer.watermarks(source).high == 0
        producer.commit()
        assert [record.value for record in lab.read(topic, 1)] == [b"open"]

    def test_what_was_aborted_is_never_read(self, lab: LogLab) -> None:
        topic = lab.topic()
        producer = lab.transactional()
        for values, keep in (([b"a"], True), ([b"b", b"c"], False), ([b"d"], True), ([b"e"], False)):
            producer.begin()
            producer.send(_records(topic, *values))
            if keep:
                producer.commit()
            else:
                producer.abort()
        assert [record.value for record in lab.read_settled(topic, 2)] == [b"a", b"d"]

    def test_a_consumer_reaches_the_end_over_aborted_records(self, lab: LogLab) -> None:
        topic = lab.topic()
        source = TopicPartition(topic, 0)
        producer = lab.transactional()
        producer.begin()
        producer.send(_records(topic, b"kept"))
        producer.commit()
        producer.begin()
        producer.send(_records(topic, b"gone"))
        producer.abort()
        consumer = lab.consumer()
        consumer.assign({source: 0})

        def at_end() -> bool:
            consumer.poll(10, 0.05)
            return consumer.position(source) == consumer.watermarks(source).high

        lab.wait_until(at_end, "the end of the partition")

    def test_an_empty_transaction_commits(self, lab: LogLab) -> None:
        producer = lab.transactional()
        producer.begin()
        producer.commit()

    def test_a_large_transaction_is_one(self, lab: LogLab) -> None:
        topic = lab.topic()
        producer = lab.transactional()
        producer.begin()
        for start in range(0, 5000, 500):
            records = (OutgoingRecord(topic, b"%d" % n, b"%d" % n) for n in range(start, start + 500))
            producer.send(records)
        producer.commit()
        values = sorted(int(record.value or b"") for record in lab.read_settled(topic, 5000))
        assert values == list(range(5000))

    def test_records_need_an_open_transaction(self, lab: LogLab) -> None:
        topic = lab.topic()
        producer = lab.transactional()
        with pytest.raises(LogError):
            producer.send(_records(topic, b"a"))
        with pytest.raises(LogError):
            producer.commit()
        producer.begin()
        with pytest.raises(LogError):
            producer.begin()

    def test_outputs_and_positions_are_committed_as_one(self, lab: LogLab) -> None:
        topic, output, group = lab.topic("in"), lab.topic("out"), lab.unique("group")
        source = TopicPartition(topic, 0)
        lab.append(topic, [b"a", b"b", b"c"])
        member = lab.member(group, topic)
        lab.poll_until([member], lambda: len(member.seen) >= 3, "input")
        producer = lab.transactional()

        producer.begin()
        producer.send(_records(output, b"thrown away"))
        producer.send_offsets({source: member.ends[source]}, member.consumer.membership())
        producer.abort()
        assert lab.admin().group_positions(group, topic)[source] is None

        producer.begin()
        producer.send(_records(output, b"kept"))
        producer.send_offsets({source: member.ends[source]}, member.consumer.membership())
        producer.commit()
        assert member.consumer.committed([source]) == {source: member.ends[source]}
        assert [record.value for record in lab.read_settled(output, 1)] == [b"kept"]

    def test_a_crash_at_any_point_neither_loses_nor_doubles(self, lab: LogLab) -> None:
        """Consume, process, produce; now and then a worker is dropped where it stands and the next one takes over."""
        topic, output, group = lab.topic("in"), lab.topic("out"), lab.unique("group")
        transactional_id = lab.unique("worker")
        total = 200
        lab.send(OutgoingRecord(topic, b"%d" % number, b"%d" % number) for number in range(total))
        dice = random.Random(7)
        crashes = 0

        def finished() -> bool:
            positions = lab.admin().group_positions(group, topic)
            return positions == {source: ends[source].high for source in positions}

        ends = lab.admin().watermarks(topic)
        while not finished():
            member = lab.member(group, topic, instance_id="worker")
            producer = lab.transactional(transactional_id)
            crash_after = dice.randrange(1, 5) if crashes < 5 else 10**6
            if self._work(lab, member, producer, output, crash_after, finished):
                crashes += 1
            member.consumer.close()
        assert crashes == 5
        values = sorted(int(record.value or b"") for record in lab.read_settled(output, total))
        assert values == list(range(total))

    @staticmethod
    def _work(
        lab: LogLab,
        member: Member,
        producer: TransactionalProducer,
        output: str,
        crash_after: int,
        finished: Callable[[], bool],
    ) -> bool:
        """Work until all is done, or "crash" within the transaction after so many batches; whether it crashed."""
        batches = 0
        crashed = False

        def step() -> bool:
            nonlocal batches, crashed
            before = len(member.seen)
            polled = member.poll(15)
            if not polled:
                return finished()
            producer.begin()
            producer.send(OutgoingRecord(output, record.key, record.value) for record in member.seen[before:])
            batches += 1
            if batches == crash_after:
                crashed = True
                return True
            producer.send_offsets({batch.source: batch.end for batch in polled}, member.consumer.membership())
            producer.commit()
            return False

        lab.wait_until(step, "all input done")
        return crashed

    def test_a_newer_producer_with_the_same_id_fences_the_older(self, lab: LogLab) -> None:
        topic, transactional_id = lab.topic(), lab.unique("worker")
        zombie = lab.transactional(transactional_id)
        zombie.begin()
        zombie.send(_records(topic, b"zombie"))
        successor = lab.transactional(transactional_id)
        successor.begin()
        successor.send(_records(topic, b"successor"))
        successor.commit()
        with pytest.raises(FencedError):
            zombie.commit()
        assert [record.value for record in lab.read_settled(topic, 1)] == [b"successor"]

    def test_producers_with_other_ids_do_not_fence_each_other(self, lab: LogLab) -> None:
        topic = lab.topic()
        producers = [lab.transactional() for _ in range(3)]
        for producer in producers:
            producer.begin()
            producer.send(_records(topic, b"x"))
        for producer in producers:
            producer.commit()
        assert len(lab.read_settled(topic, 3)) == 3

    def test_positions_of_a_member_that_has_left_are_refused(self, lab: LogLab) -> None:
        topic, output, group = lab.topic("in"), lab.topic("out"), lab.unique("group")
        source = TopicPartition(topic, 0)
        lab.append(topic, [b"a"])
        zombie = lab.member(group, topic)
        lab.poll_until([zombie], lambda: len(zombie.seen) >= 1, "input")
        membership, end = zombie.consumer.membership(), zombie.ends[source]
        zombie.consumer.close()
        successor = lab.member(group, topic)
        lab.settle([successor], [topic])
        producer = lab.transactional()
        producer.begin()
        producer.send(_records(output, b"zombie"))
        with pytest.raises(FencedError):
            producer.send_offsets({source: end}, membership)
        producer.abort()
        assert lab.admin().group_positions(group, topic)[source] is None

        producer.begin()
        producer.send(_records(output, b"successor"))
        producer.send_offsets({source: end}, successor.consumer.membership())
        producer.commit()
        assert [record.value for record in lab.read_settled(output, 1)] == [b"successor"]
        assert lab.admin().group_positions(group, topic)[source] == end

    def test_positions_of_a_partition_that_moved_away_are_refused(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        lab.append(topic, [b"a"])
        first = lab.member(group, topic)
        lab.settle([first], [topic])
        second = lab.member(group, topic)
        lab.settle([first, second], [topic])
        moved = min(second.owned)
        producer = lab.transactional()
        producer.begin()
        with pytest.raises(FencedError):
            producer.send_offsets({moved: 1}, first.consumer.membership())
        producer.abort()
        assert lab.admin().group_positions(group, topic)[moved] is None

    def test_a_membership_from_before_a_rebalance_is_refused(self, lab: LogLab) -> None:
        """The partition went to another member and came back: what was read before may have been done by the other."""
        topic, group = lab.topic(), lab.unique("group")
        lab.append(topic, [b"a"])
        first = lab.member(group, topic)
        lab.settle([first], [topic])
        old = first.consumer.membership()
        second = lab.member(group, topic)
        lab.settle([first, second], [topic])
        moved = min(second.owned)
        second.consumer.close()
        second.owned.clear()
        lab.settle([first], [topic])
        producer = lab.transactional()
        producer.begin()
        with pytest.raises(FencedError):
            producer.send_offsets({moved: 1}, old)
        producer.abort()
        assert lab.admin().group_positions(group, topic)[moved] is None
