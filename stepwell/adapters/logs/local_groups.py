"""Consumer groups of the local log: who is a member, who shall have and who has which partition.

Every function works inside the caller's transaction. How a rebalance goes: a change of membership sets new targets
and raises the group's epoch. Each member sees the epoch in `poll`; it lets go of what it shall no longer have, and
takes what it shall have once that is free. A partition therefore never has two owners. A member whose heartbeats stop
is removed by the others; what it still tries to commit is refused, for its member id is gone.
"""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stepwell.adapters.logs.local_assignment import assign
from stepwell.adapters.logs.local_store import now_us
from stepwell.engine.ports import TopicPartition
from stepwell.exceptions import FencedError


class LocalMembership(NamedTuple):
    """Proof of membership: valid while the member exists and has neither taken nor given up partitions since.

    ``member_id`` None: a consumer that assigned its partitions itself; valid while the group has no members.
    """

    group: str
    member_id: str | None
    generation: int


class GroupView(NamedTuple):
    """A group as one member sees it.

    Attributes:
        epoch: the group's epoch.
        owned: the slots that this member has.
        targets: the slots that it shall have and could have now (its own, or free).
        alive: whether it still is a member.
        replaced: whether another member has its instance id.
    """

    epoch: int
    owned: frozenset[int]
    targets: frozenset[int]
    alive: bool
    replaced: bool


def join(
    connection: sqlite3.Connection, group: str, topics: Sequence[str], instance_id: str | None, timeout_us: int
) -> LocalMembership:
    """Become a member. With an instance id that the group knows: in the other's place, with its partitions."""
    expire(connection, group)
    member_id = uuid.uuid4().hex
    before = None
    if instance_id is not None:
        before = connection.execute(
            "DELETE FROM members WHERE group_name = ? AND instance_id = ? RETURNING member_id, topics",
            (group, instance_id),
        ).fetchone()
    wanted = json.dumps(sorted(set(topics)))
    connection.execute(
        "INSERT INTO members (group_name, member_id, instance_id, topics, generation, timeout_us, heartbeat_us)"
        " VALUES (?, ?, ?, ?, 0, ?, ?)",
        (group, member_id, instance_id, wanted, timeout_us, now_us()),
    )
    if before is not None:
        connection.execute(
            "UPDATE ownership SET target = iif(target = ?2, ?1, target), owner = iif(owner = ?2, NULL, owner)"
            " WHERE group_name = ?3 AND (target = ?2 OR owner = ?2)",
            (member_id, before[0], group),
        )
    if before is None or before[1] != wanted:
        _set_targets(connection, group)
    _raise_epoch(connection, group)
    return LocalMembership(group, member_id, 0)


def leave(connection: sqlite3.Connection, group: str, member_id: str) -> None:
    """Stop being a member; the partitions go to the others at once."""
    gone = connection.execute("DELETE FROM members WHERE group_name = ? AND member_id = ?", (group, member_id))
    if gone.rowcount:
        _after_removal(connection, group, [member_id])


def beat(connection: sqlite3.Connection, group: str, member_id: str) -> None:
    """Say that the member is alive."""
    connection.execute(
        "UPDATE members SET heartbeat_us = ? WHERE group_name = ? AND member_id = ?", (now_us(), group, member_id)
    )


def has_silent_members(connection: sqlite3.Connection, group: str) -> bool:
    """Whether `expire` would remove someone."""
    row = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM members WHERE group_name = :group"
        " AND (heartbeat_us + timeout_us < :now OR heartbeat_us > :now + timeout_us))",
        {"group": group, "now": now_us()},
    ).fetchone()
    return bool(row[0])


def expire(connection: sqlite3.Connection, group: str) -> None:
    """Remove members whose heartbeats have stopped for longer than their session time-out.

    A heartbeat from the future means that the clock was set back. Liveness may suffer from that, safety never does.
    """
    gone = connection.execute(
        "DELETE FROM members WHERE group_name = :group"
        " AND (heartbeat_us + timeout_us < :now OR heartbeat_us > :now + timeout_us) RETURNING member_id",
        {"group": group, "now": now_us()},
    ).fetchall()
    if gone:
        _after_removal(connection, group, [member for (member,) in gone])


def _after_removal(connection: sqlite3.Connection, group: str, gone: Iterable[str]) -> None:
    connection.executemany(
        "UPDATE ownership SET owner = NULL WHERE group_name = ? AND owner = ?", [(group, member) for member in gone]
    )
    _set_targets(connection, group)
    _raise_epoch(connection, group)


def _raise_epoch(connection: sqlite3.Connection, group: str) -> None:
    connection.execute(
        "INSERT INTO consumer_groups (name, epoch) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1",
        (group,),
    )


def _set_targets(connection: sqlite3.Connection, group: str) -> None:
    members = {
        member: json.loads(topics)
        for member, topics in connection.execute("SELECT member_id, topics FROM members WHERE group_name = ?", (group,))
    }
    slots: dict[TopicPartition, int] = {}
    partitions: dict[str, int] = {}
    for topic in sorted({topic for topics in members.values() for topic in topics}):
        for slot, partition in connection.execute("SELECT slot, partition FROM slots WHERE topic = ?", (topic,)):
            slots[TopicPartition(topic, partition)] = slot
            partitions[topic] = partitions.get(topic, 0) + 1
    rows = connection.execute("SELECT slot, target, owner FROM ownership WHERE group_name = ?", (group,)).fetchall()
    last = {slot: owner or target for slot, target, owner in rows}
    previous = {source: last[slot] for source, slot in slots.items() if last.get(slot) is not None}
    targets = assign(members, partitions, previous)
    connection.execute("UPDATE ownership SET target = NULL WHERE group_name = ?", (group,))
    connection.executemany(
        "INSERT INTO ownership (group_name, slot, target) VALUES (?, ?, ?)"
        " ON CONFLICT (group_name, slot) DO UPDATE SET target = excluded.target",
        [(group, slots[source], member) for source, member in targets.items()],
    )


def epoch_of(connection: sqlite3.Connection, group: str) -> int:
    """The group's epoch; 0 for a group that never was."""
    row = connection.execute("SELECT epoch FROM consumer_groups WHERE name = ?", (group,)).fetchone()
    return int(row[0]) if row else 0


def view(connection: sqlite3.Connection, membership: LocalMembership, instance_id: str | None) -> GroupView:
    """The group as this member sees it now."""
    group, member_id, _ = membership
    rows = connection.execute(
        "SELECT slot, target, owner FROM ownership WHERE group_name = ? AND (target = ? OR owner = ?)",
        (group, member_id, member_id),
    ).fetchall()
    others = connection.execute(
        "SELECT member_id FROM members WHERE group_name = ? AND (member_id = ? OR instance_id = ?)",
        (group, member_id, instance_id),
    ).fetchall()
    alive = (member_id,) in others
    return GroupView(
        epoch_of(connection, group),
        frozenset(slot for slot, _, owner in rows if owner == member_id),
        frozenset(slot for slot, target, owner in rows if target == member_id and owner in (None, member_id)),
        alive,
        bool(others) and not alive,
    )


def release(connection: sqlite3.Connection, membership: LocalMembership, slots: Iterable[int]) -> LocalMembership:
    """Let go of slots, so that others can take them."""
    group, member_id, generation = membership
    connection.executemany(
        "UPDATE ownership SET owner = NULL WHERE group_name = ? AND slot = ? AND owner = ?",
        [(group, slot, member_id) for slot in slots],
    )
    _raise_epoch(connection, group)
    return _next_generation(connection, LocalMembership(group, member_id, generation))


def take(
    connection: sqlite3.Connection, membership: LocalMembership, slots: Iterable[int]
) -> tuple[LocalMembership, list[int]]:
    """Take those of the slots that are free and meant for this member; says which."""
    group, member_id, _ = membership
    taken = [
        slot
        for slot in slots
        if connection.execute(
            "UPDATE ownership SET owner = ?1 WHERE group_name = ?2 AND slot = ?3 AND target = ?1"
            " AND (owner IS NULL OR owner = ?1)",
            (member_id, group, slot),
        ).rowcount
    ]
    return (_next_generation(connection, membership) if taken else membership), taken


def _next_generation(connection: sqlite3.Connection, membership: LocalMembership) -> LocalMembership:
    row = connection.execute(
        "UPDATE members SET generation = generation + 1 WHERE group_name = ? AND member_id = ? RETURNING generation",
        (membership.group, membership.member_id),
    ).fetchone()
    return membership._replace(generation=row[0]) if row else membership


def check_membership(connection: sqlite3.Connection, membership: LocalMembership, slots: Iterable[int]) -> None:
    """Whether this member may commit positions of these slots.

    Raises:
        FencedError: it is no member any more, its generation has passed, or another owns one of the slots.
    """
    group, member_id, generation = membership
    if member_id is None:
        (busy,) = connection.execute("SELECT EXISTS (SELECT 1 FROM members WHERE group_name = ?)", (group,)).fetchone()
        if busy:
            raise FencedError(
                f"group {group!r} has members that own its partitions; a consumer outside the group protocol "
                "cannot commit for it: subscribe, or use another group"
            )
        return
    row = connection.execute(
        "SELECT generation FROM members WHERE group_name = ? AND member_id = ?", (group, member_id)
    ).fetchone()
    if row is None:
        raise FencedError(f"group {group!r}: this member was replaced or its session timed out; nothing was committed")
    if row[0] != generation:
        raise FencedError(
            f"group {group!r}: the membership is of generation {generation}, now it is {row[0]}: partitions have moved "
            "since; nothing was committed"
        )
    owned = connection.execute(
        "SELECT slot FROM ownership WHERE group_name = ? AND owner = ?", (group, member_id)
    ).fetchall()
    foreign = set(slots).difference(slot for (slot,) in owned)
    if foreign:
        names = connection.execute(
            "SELECT topic || '/' || partition FROM slots WHERE slot IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(foreign)),),
        ).fetchall()
        raise FencedError(
            f"group {group!r}: this member does not own {', '.join(name for (name,) in names)}; nothing was committed"
        )


def write_positions(connection: sqlite3.Connection, group: str, positions: Mapping[int, int]) -> None:
    """Set the group's positions, by slot."""
    connection.executemany(
        "INSERT INTO group_positions (group_name, slot, position) VALUES (?, ?, ?)"
        " ON CONFLICT (group_name, slot) DO UPDATE SET position = excluded.position",
        [(group, slot, position) for slot, position in positions.items()],
    )


def read_positions(connection: sqlite3.Connection, group: str, slots: Iterable[int]) -> dict[int, int]:
    """The group's positions, by slot; without those that it has never committed."""
    known: dict[int, int] = dict(
        connection.execute("SELECT slot, position FROM group_positions WHERE group_name = ?", (group,)).fetchall()
    )
    return {slot: known[slot] for slot in slots if slot in known}
