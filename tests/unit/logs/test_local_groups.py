"""Groups of the local log where time and failure come in: silent, stuck and stale members, callbacks that raise."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.adapters.logs import local_store
from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.local_consumer import LocalConsumer
from stepwell.adapters.logs.local_groups import join, release, take, view
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.topics import Topic
from stepwell.exceptions import ConfigurationError, FencedError, LogError, LogUnavailableError

TOPIC = Topic("things", "key", 4)
SOURCES = [TopicPartition("things", number) for number in range(4)]
PATIENCE_S = 20.0


@pytest.fixture(params=["local", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalLog]:
    made: LocalLog = (
        LocalLog(tmp_path, topics=[TOPIC], session_timeout_s=1.2, poll_interval_max_s=0.9)
        if request.param == "local"
        else MemoryLog(topics=[TOPIC], session_timeout_s=1.2, poll_interval_max_s=0.9)
    )
    yield made
    made.close()


class Member:
    """A consumer that keeps account of what it owns."""

    def __init__(self, log: LocalLog, instance_id: str | None = None) -> None:
        self.consumer: LocalConsumer = log.consumer("group", instance_id)
        self.owned: set[TopicPartition] = set()
        self.consumer.subscribe(["things"], self.owned.update, self.owned.difference_update)

    def poll(self) -> None:
        self.consumer.poll(10, 0.01)


def _until(condition: Callable[[], bool], *members: Member) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        for member in members:
            member.poll()


def _shared(*members: Member) -> bool:
    everything = sorted(source for member in members for source in member.owned)
    return everything == SOURCES and all(member.owned for member in members)


def test_a_member_that_stops_polling_loses_its_partitions_and_comes_back(log: LocalLog) -> None:
    stuck, other = Member(log), Member(log)
    _until(lambda: _shared(stuck, other), stuck, other)
    stale = stuck.consumer.membership()
    _until(lambda: len(other.owned) == 4, other)
    producer = log.transactional_producer("stuck")
    producer.begin()
    with pytest.raises(FencedError, match="session timed out"):
        producer.send_offsets({min(stuck.owned): 1}, stale)
    with pytest.raises(FencedError):
        stuck.consumer.commit({min(stuck.owned): 1})
    _until(lambda: len(stuck.owned) == 2 and _shared(stuck, other), stuck, other)
    stuck.consumer.commit({min(stuck.owned): 0})
    for client in (producer, stuck.consumer, other.consumer):
        client.close()


def test_a_member_that_only_waits_stays(log: LocalLog) -> None:
    waiting, other = Member(log), Member(log)
    _until(lambda: _shared(waiting, other), waiting, other)
    before = waiting.consumer.membership()
    # Longer than both time-outs, in one call: waiting in poll is not being stuck.
    waiting.consumer.poll(1, 2.5)
    assert waiting.consumer.membership().member_id == before.member_id
    waiting.consumer.commit({min(waiting.owned): 0})
    waiting.consumer.close()
    other.consumer.close()


def test_a_static_member_that_never_comes_back_is_replaced_after_its_time_out(log: LocalLog) -> None:
    static, other = Member(log, "slot-0"), Member(log)
    _until(lambda: _shared(static, other), static, other)
    static.consumer.close()
    _until(lambda: len(other.owned) == 4, other)
    other.consumer.close()


def test_a_membership_that_went_stale_before_the_commit_is_refused_whole(log: LocalLog) -> None:
    first = Member(log)
    _until(lambda: len(first.owned) == 4, first)
    producer = log.transactional_producer("worker")
    producer.begin()
    producer.send([OutgoingRecord("things", b"k", b"output", (), 3)])
    producer.send_offsets({SOURCES[0]: 0}, first.consumer.membership())
    first.consumer.close()
    with pytest.raises(FencedError):
        producer.commit()
    producer.abort()
    admin = log.admin()
    assert admin.group_positions("group", "things") == dict.fromkeys(SOURCES)
    assert admin.watermarks("things")[SOURCES[3]].high == 0
    admin.close()
    producer.close()


def test_on_assign_that_raises_is_called_again(log: LocalLog) -> None:
    calls: list[int] = []

    def on_assign(sources: list[TopicPartition]) -> None:
        calls.append(len(sources))
        if len(calls) == 1:
            raise RuntimeError("not ready")

    consumer = log.consumer("group")
    consumer.subscribe(["things"], on_assign)
    with pytest.raises(RuntimeError, match="not ready"):
        consumer.poll(1, 0)
    consumer.poll(1, 0)
    assert calls == [4, 4]
    assert consumer.position(SOURCES[0]) == 0
    consumer.close()


def test_on_revoke_that_raises_does_not_hold_the_partitions(log: LocalLog) -> None:
    def on_revoke(sources: list[TopicPartition]) -> None:
        raise RuntimeError("cannot let go")

    consumer = log.consumer("group")
    consumer.subscribe(["things"], None, on_revoke)
    consumer.poll(1, 0)
    other = Member(log)
    other.poll()
    with pytest.raises(RuntimeError, match="cannot let go"):
        consumer.poll(1, 0)
    _until(lambda: len(other.owned) == 2, other)
    consumer.close()
    other.consumer.close()


def test_callbacks_may_use_their_consumer(log: LocalLog) -> None:
    seen: dict[TopicPartition, int | None] = {}

    def on_assign(sources: list[TopicPartition]) -> None:
        seen.update(consumer.committed(sources))
        consumer.pause(sources)
        assert [consumer.position(source) for source in sources] == [0] * 4
        consumer.membership()

    consumer = log.consumer("group")
    consumer.subscribe(["things"], on_assign)
    consumer.poll(1, 0)
    assert seen == dict.fromkeys(SOURCES)
    consumer.close()


def test_a_consumer_outside_the_protocol_commits_only_for_an_empty_group(log: LocalLog) -> None:
    loner = log.consumer("group")
    loner.assign({SOURCES[0]: 0})
    loner.commit({SOURCES[0]: 0})
    member = Member(log)
    _until(lambda: len(member.owned) == 4, member)
    with pytest.raises(FencedError, match="subscribe"):
        loner.commit({SOURCES[0]: 0})
    member.consumer.close()
    loner.commit({SOURCES[0]: 0})
    loner.close()


def test_subscribing_anew_replaces_the_subscription(log: LocalLog) -> None:
    admin = log.admin()
    admin.create([Topic("others", "key", 1)])
    member = Member(log)
    _until(lambda: len(member.owned) == 4, member)
    got: list[TopicPartition] = []
    member.consumer.subscribe(["others"], got.extend)
    member.consumer.poll(1, 0)
    assert got == [TopicPartition("others", 0)]
    member.consumer.assign({SOURCES[1]: 0})
    other = Member(log)
    _until(lambda: len(other.owned) == 4, other)
    for client in (member.consumer, other.consumer, admin):
        client.close()


def test_what_cannot_be_is_refused(log: LocalLog) -> None:
    with pytest.raises(ConfigurationError):
        log.consumer(None, "instance")
    with pytest.raises(ConfigurationError):
        MemoryLog(session_timeout_s=0)
    consumer = log.consumer("group")
    with pytest.raises(LogError, match="nothing"):
        consumer.subscribe(["nothing"])
    consumer.subscribe(["things"])
    with pytest.raises(FencedError, match="joins in poll"):
        consumer.membership()
    with pytest.raises(LogError, match="not assigned"):
        consumer.seek(SOURCES[0], 0)
    consumer.close()
    producer = log.transactional_producer("x")
    producer.begin()
    with pytest.raises(LogError, match="another log"):
        producer.send_offsets({}, object())
    producer.close()


def test_a_commit_that_found_the_log_away_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LocalLog(tmp_path, topics=[TOPIC])
    monkeypatch.setattr(local_store, "BUSY_TIMEOUT_S", 0.2)
    producer = log.transactional_producer("worker")
    producer.begin()
    producer.send([OutgoingRecord("things", b"k", b"v", (), 0)])
    holder = local_store.open_store(tmp_path)
    with holder.write(), pytest.raises(LogUnavailableError):
        producer.commit()
    producer.commit()
    holder.close()
    producer.close()
    admin = log.admin()
    assert admin.watermarks("things")[SOURCES[0]].high == 1
    admin.close()


def test_a_member_that_found_the_log_away_lets_go_and_joins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LocalLog(tmp_path, topics=[TOPIC])
    monkeypatch.setattr(local_store, "BUSY_TIMEOUT_S", 0.2)
    first, second, late = Member(log), Member(log), Member(log)
    _until(lambda: len(first.owned) == 4, first)
    second.poll()
    holder = local_store.open_store(tmp_path)
    with holder.write():
        with pytest.raises(LogUnavailableError):
            first.consumer.poll(1, 0)
        with pytest.raises(LogUnavailableError):
            late.consumer.poll(1, 0)
    _until(lambda: _shared(first, second), first, second)
    late.poll()
    _until(lambda: _shared(first, second, late), first, second, late)
    for client in (first.consumer, second.consumer, late.consumer, holder):
        client.close()


def test_a_position_for_a_partition_that_was_not_handed_out_is_told(log: LocalLog) -> None:
    consumer = log.consumer("group")
    consumer.subscribe(["things"], lambda sources: {SOURCES[2]: 7, TopicPartition("things", 9): 1})
    for _ in range(2):
        with pytest.raises(LogError, match="things/9 is not assigned"):
            consumer.poll(1, 0)
    consumer.close()


def test_a_partition_is_taken_only_once_it_is_free(tmp_path: Path) -> None:
    LocalLog(tmp_path, topics=[TOPIC])
    store = local_store.open_store(tmp_path)
    with store.write() as connection:
        first, _ = take(connection, join(connection, "group", ["things"], None, 10**9), [1, 2, 3, 4])
        second = join(connection, "group", ["things"], None, 10**9)
        (target,) = connection.execute(
            "SELECT min(slot) FROM ownership WHERE target = ?", (second.member_id,)
        ).fetchone()
        assert target in view(connection, first, None).owned
        assert view(connection, second, None).targets == frozenset()
        assert take(connection, second, [target]) == (second, [])
        first = release(connection, first, [target])
        assert view(connection, second, None).targets == {target}
        assert take(connection, second, [1, 2, 3, 4])[1] == [target]
        assert take(connection, first, [target])[1] == []
    store.close()
