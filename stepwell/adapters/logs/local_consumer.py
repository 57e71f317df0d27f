"""Consumer of the local log: reads batches from its partitions, and follows its group inside `poll`."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from stepwell.adapters.logs.local_append import Catalog
from stepwell.adapters.logs.local_groups import (
    GroupView,
    LocalMembership,
    beat,
    check_membership,
    epoch_of,
    expire,
    has_silent_members,
    join,
    leave,
    read_positions,
    release,
    take,
    view,
    write_positions,
)
from stepwell.adapters.logs.local_reader import LocalReader
from stepwell.adapters.logs.local_store import Store
from stepwell.engine.ports import RecordBatch, TopicPartition, Watermarks
from stepwell.exceptions import ConfigurationError, FencedError, LogError, LogUnavailableError

_log = structlog.get_logger(__name__)

OnAssign = Callable[[list[TopicPartition]], Mapping[TopicPartition, int] | None]
OnRevoke = Callable[[list[TopicPartition]], None]

_WAIT_MIN_S = 0.0005
_WAIT_MAX_S = 0.02
_WAIT_GROWTH = 1.1
"""Each look at an idle log waits for about a tenth of the time that it has been idle: late by little, and cheap."""


class LocalConsumer:
    """See `stepwell.engine.ports.Consumer`. To be used by one thread at a time.

    Args:
        store: its own connection.
        heartbeat_store: another one, for the heartbeat's thread.
        group, instance_id: as in `MessageLog.consumer`.
        session_timeout_s: after so long without a heartbeat the others take over.
        poll_interval_max_s: a member that has not called `poll` for so long sends no heartbeats any more.
    """

    def __init__(
        self,
        store: Store,
        heartbeat_store: Callable[[], Store],
        group: str | None,
        instance_id: str | None,
        session_timeout_s: float,
        poll_interval_max_s: float,
    ) -> None:
        if instance_id is not None and group is None:
            raise ConfigurationError("a consumer with an instance id needs a group")
        self._store = store
        self._heartbeat_store = heartbeat_store
        self._group = group
        self._instance_id = instance_id
        self._timeout_s = session_timeout_s
        self._poll_interval_max_s = poll_interval_max_s
        self._catalog = Catalog(store)
        self._reader = LocalReader(store, self._catalog)
        self._topics: list[str] | None = None
        self._on_assign: OnAssign | None = None
        self._on_revoke: OnRevoke | None = None
        self._membership: LocalMembership | None = None
        self._heartbeat: _Heartbeat | None = None
        self._seen_epoch = -1
        self._wait_s = _WAIT_MIN_S

    def subscribe(
        self, topics: Sequence[str], on_assign: OnAssign | None = None, on_revoke: OnRevoke | None = None
    ) -> None:
        """Join the group at the next `poll`."""
        self._need_group("subscribe")
        for topic in topics:
            self._catalog.topic(topic)
        self._leave()
        self._reader.assign({})
        self._topics, self._on_assign, self._on_revoke = list(topics), on_assign, on_revoke

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these positions, outside any group."""
        self._leave()
        self._topics = None
        self._reader.assign(positions)

    def poll(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """Up to ``max_records`` records, one batch per partition."""
        deadline = time.monotonic() + timeout_s
        while True:
            # Taken before looking: whatever is committed after that changes it, and the wait ends at once.
            marker = self._store.change_marker()
            while self._topics is not None and self._follow_group(self._topics):
                pass
            batches = self._reader.read(max_records)
            if batches:
                self._wait_s = _WAIT_MIN_S
                return batches
            if not self._wait_for_change(marker, deadline):
                return []

    def _wait_for_change(self, marker: int, deadline: float) -> bool:
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(self._wait_s, left))
            self._wait_s = min(self._wait_s * _WAIT_GROWTH, _WAIT_MAX_S)
            if self._heartbeat is not None:
                self._heartbeat.polled()
            if self._store.change_marker() != marker:
                return True
        return False

    def position(self, source: TopicPartition) -> int:
        """The position to be read next."""
        return self._reader.position(source)

    def seek(self, source: TopicPartition, position: int) -> None:
        """Read this assigned partition from here."""
        self._reader.seek(source, position)

    def pause(self, sources: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`."""
        self._reader.pause(sources)

    def resume(self, sources: Iterable[TopicPartition]) -> None:
        """Hand out records of these again."""
        self._reader.resume(sources)

    def committed(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The group's committed positions; None where there is none."""
        group = self._need_group("committed")
        slots = {source: self._catalog.slot(source) for source in sources}
        with self._store.read() as connection:
            known = read_positions(connection, group, slots.values())
        return {source: known.get(slot) for source, slot in slots.items()}

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit positions outside a transaction."""
        membership = self.membership()
        slots = {self._catalog.slot(source): position for source, position in positions.items()}
        with self._store.write() as connection:
            check_membership(connection, membership, slots)
            write_positions(connection, membership.group, slots)

    def watermarks(self, source: TopicPartition) -> Watermarks:
        """Start and end of the partition now."""
        return self._reader.watermarks(source)

    def membership(self) -> LocalMembership:
        """Proof of membership, as of now."""
        group = self._need_group("membership")
        if self._topics is None:
            return LocalMembership(group, None, 0)
        if self._membership is None:
            raise FencedError(f"group {group!r}: this consumer is no member now; it joins in poll")
        return self._membership

    def close(self) -> None:
        """Leave the group and let go. A static member (with an instance id) keeps its place until its time-out."""
        try:
            self._revoke(self._reader.sources())
        except Exception as error:  # noqa: BLE001 - the caller's own callback, and close never raises
            _log.warning("log_consumer_close", group=self._group, reason=repr(error))
        try:
            self._leave()
        except LogError as error:  # the others will notice by the time-out
            _log.warning("log_consumer_close", group=self._group, reason=str(error))
        self._store.close()

    def _need_group(self, what: str) -> str:
        if self._group is None:
            raise LogError(f"{what} needs a consumer with a group")
        return self._group

    def _follow_group(self, topics: list[str]) -> bool:
        """Join where needed, let go of what others shall have, take what is ours and free; whether to look again."""
        if self._membership is None:
            self._join(topics)
        membership = self._membership
        assert membership is not None
        if self._heartbeat is not None:
            self._heartbeat.polled()
        with self._store.read() as connection:
            if epoch_of(connection, membership.group) == self._seen_epoch:
                return False
            seen = view(connection, membership, self._instance_id)
        if not seen.alive:
            self._lost(membership, seen)
            return True
        held = {self._catalog.slot(source): source for source in self._reader.sources()}
        # Besides what is held, what an earlier `poll` could not let go of because the log was away.
        going = seen.owned.union(held) - seen.targets
        if going:
            self._give_up(membership, going, [source for slot, source in held.items() if slot in going])
            return True
        coming = sorted(slot for slot in seen.targets if slot not in held)
        if coming:
            return self._take(membership, coming)
        self._seen_epoch = seen.epoch
        return False

    def _join(self, topics: list[str]) -> None:
        group = self._need_group("subscribe")
        heartbeat_store = self._heartbeat_store()
        try:
            with self._store.write() as connection:
                self._membership = join(connection, group, topics, self._instance_id, int(self._timeout_s * 1_000_000))
        except BaseException:
            heartbeat_store.close()
            raise
        self._seen_epoch = -1
        self._heartbeat = _Heartbeat(heartbeat_store, self._membership, self._timeout_s / 3, self._poll_interval_max_s)
        self._heartbeat.start()

    def _lost(self, membership: LocalMembership, seen: GroupView) -> None:
        self._stop_heartbeat()
        self._membership = None
        try:
            self._revoke(self._reader.sources())
        finally:
            if seen.replaced:
                self._topics = None
        if seen.replaced:
            raise FencedError(
                f"group {membership.group!r}: another consumer with the instance id {self._instance_id!r} has started; "
                "this one must stop"
            )

    def _give_up(self, membership: LocalMembership, slots: Iterable[int], held: list[TopicPartition]) -> None:
        try:
            self._revoke(held)
        finally:
            with self._store.write() as connection:
                self._membership = release(connection, membership, slots)

    def _take(self, membership: LocalMembership, coming: list[int]) -> bool:
        with self._store.write() as connection:
            self._membership, taken = take(connection, membership, coming)
            known = read_positions(connection, membership.group, taken)
            positions = {
                TopicPartition(topic, partition): known.get(slot, low)
                for slot in taken
                for topic, partition, low in connection.execute(
                    "SELECT topic, partition, low FROM slots WHERE slot = ?", (slot,)
                )
            }
        if not positions:
            return False
        self._reader.add(positions)
        if self._on_assign is not None:
            try:
                for source, position in (self._on_assign(list(positions)) or {}).items():
                    self._reader.seek(source, position)
            except BaseException:
                self._reader.remove(positions)  # so that the next poll hands them out again
                raise
        return True

    def _revoke(self, sources: list[TopicPartition]) -> None:
        self._reader.remove(sources)
        if sources and self._topics is not None and self._on_revoke is not None:
            self._on_revoke(sources)

    def _leave(self) -> None:
        self._stop_heartbeat()
        membership, self._membership = self._membership, None
        if membership is not None and membership.member_id is not None and self._instance_id is None:
            with self._store.write() as connection:
                leave(connection, membership.group, membership.member_id)

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None


class _Heartbeat(threading.Thread):
    """Says that the member is alive, as long as it polls; removes members that say nothing any more."""

    def __init__(
        self, store: Store, membership: LocalMembership, interval_s: float, poll_interval_max_s: float
    ) -> None:
        super().__init__(name="stepwell-local-log-heartbeat", daemon=True)
        self._store = store
        self._membership = membership
        self._interval_s = interval_s
        self._poll_interval_max_s = poll_interval_max_s
        self._polled = time.monotonic()
        self._ended = threading.Event()

    def polled(self) -> None:
        self._polled = time.monotonic()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        group, member_id, _ = self._membership
        assert member_id is not None
        while not self._ended.wait(self._interval_s):
            try:
                self._beat(group, member_id)
            except LogUnavailableError:
                continue  # it may be back at the next beat
            except LogError:
                break  # closed or damaged: poll tells
        self._store.close()

    def _beat(self, group: str, member_id: str) -> None:
        if time.monotonic() - self._polled < self._poll_interval_max_s:
            with self._store.write() as connection:
                beat(connection, group, member_id)
        with self._store.read() as connection:
            silent = has_silent_members(connection, group)
        if silent:
            with self._store.write() as connection:
                expire(connection, group)
