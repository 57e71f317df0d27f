"""Partitions are spread evenly, and move no more than they must."""

from hypothesis import given
from hypothesis import strategies as st

from stepwell.adapters.logs.local_assignment import assign
from stepwell.engine.ports import TopicPartition

TOPICS = st.sampled_from(["a", "b", "c"])
MEMBERS = st.dictionaries(st.sampled_from("uvwxyz"), st.lists(TOPICS, min_size=1, max_size=3, unique=True), max_size=6)
PARTITIONS = st.fixed_dictionaries(dict.fromkeys("abc", st.integers(1, 9)))


@given(MEMBERS, PARTITIONS, st.randoms(use_true_random=False))
def test_every_partition_has_one_member_and_shares_are_even(members, partitions, dice) -> None:
    everything = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    previous = {source: dice.choice("uvwxyzgone") for source in everything if dice.random() < 0.7}
    targets = assign(members, partitions, previous)
    for topic, count in partitions.items():
        eligible = [member for member, topics in members.items() if topic in topics]
        owners = [targets.get(TopicPartition(topic, number)) for number in range(count)]
        if not eligible:
            assert owners == [None] * count
            continue
        assert set(owners) <= set(eligible)
        shares = [owners.count(member) for member in eligible]
        assert max(shares) - min(shares) <= 1


@given(MEMBERS, PARTITIONS)
def test_nothing_moves_when_nothing_changed(members, partitions) -> None:
    first = assign(members, partitions, {})
    assert assign(members, partitions, first) == first


@given(st.integers(1, 6), st.integers(1, 12))
def test_a_newcomer_takes_its_share_and_no_more(members, count) -> None:
    before = {str(member): ["a"] for member in range(members)}
    first = assign(before, {"a": count}, {})
    second = assign({**before, "new": ["a"]}, {"a": count}, first)
    moved = [source for source in first if first[source] != second[source]]
    assert len(moved) == count // (members + 1)
    assert {second[source] for source in moved} <= {"new"}


def test_topics_with_as_many_partitions_are_shared_alike() -> None:
    targets = assign({"x": ["a", "b"], "y": ["a", "b"]}, {"a": 4, "b": 4}, {})
    assert all(targets[TopicPartition("a", number)] == targets[TopicPartition("b", number)] for number in range(4))


def test_single_partitions_do_not_all_go_to_the_first() -> None:
    targets = assign({"x": ["a", "b"], "y": ["a", "b"]}, {"a": 1, "b": 1}, {})
    assert set(targets.values()) == {"x", "y"}
