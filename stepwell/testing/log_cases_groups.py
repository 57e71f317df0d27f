"""Conformance cases of message logs: consumer groups."""

import pytest

from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.exceptions import FencedError, LogError
from stepwell.testing.log_lab import LogLab, Member


class GroupCases:
    """Members share partitions, hand them over, and are refused what they no longer own."""

    def test_a_lone_member_gets_everything_from_the_start(self, lab: LogLab) -> None:
        topic = lab.topic()
        lab.send(OutgoingRecord(topic, b"%d" % number, b"%d" % number) for number in range(100))
        member = lab.member(lab.unique("group"), topic)
        lab.poll_until([member], lambda: len(member.seen) >= 100, "100 records")
        assert member.owned == set(lab.sources(topic))
        assert sorted(int(value or b"") for value in member.values()) == list(range(100))

    def test_one_subscription_takes_several_topics(self, lab: LogLab) -> None:
        topics = [lab.topic("a"), lab.topic("b", partitions=1)]
        member = lab.member(lab.unique("group"), *topics)
        lab.settle([member], topics)
        for topic in topics:
            lab.append(topic, [topic.encode()])
        lab.poll_until([member], lambda: len(member.seen) >= 2, "a record of each topic")
        assert {record.source.topic: record.value for record in member.seen} == {t: t.encode() for t in topics}

    def test_partitions_move_when_members_come_and_go(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        first = lab.member(group, topic)
        lab.settle([first], [topic])
        second = lab.member(group, topic)
        lab.settle([first, second], [topic])
        assert first.revocations >= 1
        assert abs(len(first.owned) - len(second.owned)) <= 1
        second.consumer.close()
        second.owned.clear()
        lab.settle([first], [topic])

    def test_a_rebalance_loses_and_doubles_nothing(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        lab.send(OutgoingRecord(topic, b"%d" % number, b"%d" % number) for number in range(300))
        first, second = Member(lab.consumer(group)), Member(lab.consumer(group))
        done: list[bytes | None] = []

        def work(*members: Member) -> int:
            for member in members:
                before = len(member.seen)
                member.poll(20)
                if len(member.seen) > before:
                    member.consumer.commit(member.ends)
                    done.extend(member.values()[before:])
            return len(done)

        first.subscribe(topic)
        lab.wait_until(lambda: work(first) >= 60, "60 records")
        second.subscribe(topic)
        lab.wait_until(lambda: work(first, second) >= 300, "300 records")
        lab.settle([first, second], [topic])
        assert sorted(int(value or b"") for value in done) == list(range(300))

    def test_the_next_member_goes_on_from_what_was_committed(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        lab.append(topic, [b"%d" % number for number in range(10)])
        source, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
        first = lab.member(group, topic)
        lab.settle([first], [topic])
        assert first.consumer.committed([source, other]) == {source: None, other: None}
        first.consumer.commit({source: 6})
        assert first.consumer.committed([source, other]) == {source: 6, other: None}
        assert lab.admin().group_positions(group, topic) == {
            found: 6 if found == source else None for found in lab.sources(topic)
        }
        first.consumer.close()
        second = lab.member(group, topic)
        lab.poll_until([second], lambda: len(second.seen) >= 4, "the rest")
        assert second.values() == [b"6", b"7", b"8", b"9"]

    def test_positions_that_on_assign_returns_come_first(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        source = TopicPartition(topic, 0)
        lab.append(topic, [b"%d" % number for number in range(10)])
        member = lab.member(group, topic)
        lab.settle([member], [topic])
        member.consumer.commit({source: 2})
        member.consumer.close()
        again = Member(lab.consumer(group), start_at={source: 7}).subscribe(topic)
        lab.poll_until([again], lambda: len(again.seen) >= 3, "the rest")
        assert again.values() == [b"7", b"8", b"9"]

    def test_groups_do_not_touch_each_other(self, lab: LogLab) -> None:
        topic = lab.topic()
        lab.append(topic, [b"a", b"b"])
        members = [lab.member(lab.unique("group"), topic) for _ in range(2)]
        lab.poll_until(members, lambda: all(len(member.seen) >= 2 for member in members), "both records twice")
        assert [member.values() for member in members] == [[b"a", b"b"]] * 2

    def test_a_static_member_takes_its_partitions_back(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        first = lab.member(group, topic, instance_id="one")
        second = lab.member(group, topic, instance_id="two")
        lab.settle([first, second], [topic])
        had, revocations = set(first.owned), second.revocations
        first.consumer.close()
        back = lab.member(group, topic, instance_id="one")
        lab.settle([back, second], [topic])
        assert back.owned == had
        assert second.revocations == revocations, "the other member was disturbed"

    def test_a_second_consumer_with_the_same_instance_id_fences_the_first(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        zombie = lab.member(group, topic, instance_id="slot-0")
        lab.settle([zombie], [topic])
        successor = lab.member(group, topic, instance_id="slot-0")
        lab.settle([successor], [topic])
        with pytest.raises(FencedError):
            zombie.consumer.commit({TopicPartition(topic, 0): 1})
        with pytest.raises(FencedError):
            lab.poll_until([zombie], lambda: False, "fencing")
        successor.consumer.commit({TopicPartition(topic, 0): 0})

    def test_what_moved_away_cannot_be_committed(self, lab: LogLab) -> None:
        topic, group = lab.topic(), lab.unique("group")
        lab.append(topic, [b"a"])
        first = lab.member(group, topic)
        lab.settle([first], [topic])
        second = lab.member(group, topic)
        lab.settle([first, second], [topic])
        moved = min(second.owned)
        with pytest.raises(FencedError):
            first.consumer.commit({moved: 1})
        assert lab.admin().group_positions(group, topic)[moved] is None

    def test_a_consumer_without_a_group_cannot_subscribe(self, lab: LogLab) -> None:
        with pytest.raises(LogError):
            lab.consumer().subscribe([lab.topic()])
