"""Who reads which partition: a pure function, the same answer for the same input."""

from collections.abc import Mapping, Sequence

from stepwell.engine.ports import TopicPartition


def assign(
    members: Mapping[str, Sequence[str]],
    partitions: Mapping[str, int],
    previous: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Spread the partitions of each topic evenly over the members that subscribed to it, moving as few as can be.

    Args:
        members: topics by member id.
        partitions: number of partitions by topic.
        previous: who had a partition before; members that are gone may still be named.

    Returns:
        the member of every partition of every topic that has subscribers. In each topic, two members' shares differ by
        at most one.
    """
    targets: dict[TopicPartition, str] = {}
    load = dict.fromkeys(members, 0)
    for topic in sorted(partitions):
        eligible = sorted(member for member, topics in members.items() if topic in topics)
        if eligible:
            shares = _share(topic, partitions[topic], eligible, previous, load)
            targets |= shares
            for member in shares.values():
                load[member] += 1
    return targets


def _share(
    topic: str, count: int, eligible: list[str], previous: Mapping[TopicPartition, str], load: Mapping[str, int]
) -> dict[TopicPartition, str]:
    floor, spare = divmod(count, len(eligible))
    mine: dict[str, list[TopicPartition]] = {member: [] for member in eligible}
    free: list[TopicPartition] = []
    for number in range(count):
        source = TopicPartition(topic, number)
        owner = previous.get(source)
        kept = mine.get(owner) if owner is not None else None
        if kept is not None and len(kept) < floor:
            kept.append(source)
        elif kept is not None and len(kept) == floor and spare > 0:
            kept.append(source)
            spare -= 1
        else:
            free.append(source)
    for source in free:
        member = min(eligible, key=lambda name: (len(mine[name]), load[name], name))
        mine[member].append(source)
    return {source: member for member, sources in mine.items() for source in sources}
