"""Producers of the local log: one that appends in the background, one that appends in transactions."""

import threading
import time
from collections.abc import Iterable, Mapping

import structlog

from stepwell.adapters.logs.local_append import Catalog, Outbox
from stepwell.adapters.logs.local_groups import LocalMembership, check_membership, write_positions
from stepwell.adapters.logs.local_store import Store
from stepwell.adapters.logs.local_upkeep import Upkeep
from stepwell.adapters.logs.partitioner import Partitioner
from stepwell.engine.ports import GroupMembership, OutgoingRecord, TopicPartition
from stepwell.exceptions import FencedError, LogError, StepwellError, StillQueuedError

_QUEUE_RECORDS_MAX = 100_000
_QUEUE_BYTES_MAX = 64 * 1024 * 1024
_CLOSE_S = 30.0
_log = structlog.get_logger(__name__)


class LocalProducer:
    """Appends in a thread of its own: whatever has queued up while one commit reached the disk makes the next one.

    After a refused write, everything queued is dropped and `send` raises until `flush` has told the reason: so what is
    in the log is always a beginning of what was sent, never with a hole.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._catalog = Catalog(store)
        self._partitioner = Partitioner()
        self._upkeep = Upkeep(store)
        self._changed = threading.Condition()
        self._queue = Outbox(self._catalog, self._partitioner)
        self._writing = False
        self._refused = 0
        self._reason: StepwellError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Queue records; all of this call or, when it raises, none of them."""
        batch = Outbox(self._catalog, self._partitioner)
        batch.add(records)
        with self._changed:
            self._check_open()
            while self._queue.count and (
                self._queue.count + batch.count > _QUEUE_RECORDS_MAX or self._queue.size + batch.size > _QUEUE_BYTES_MAX
            ):
                self._changed.wait()
                self._check_open()
            self._queue.extend(batch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stepwell-local-log-producer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise LogError(f"{self._store.where}: the producer was closed")
        if self._reason is not None:
            raise type(self._reason)(f"an earlier record was refused, flush tells more: {self._reason}")

    def flush(self, timeout_s: float) -> None:
        """Wait until every queued record is on the disk."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (self._queue.count or self._writing) and self._reason is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StillQueuedError(
                        f"{self._store.where}: {self._queue.count} records and more were not written in {timeout_s} s"
                    )
                self._changed.wait(left)
            if self._reason is not None:
                reason, refused = self._reason, self._refused
                self._reason, self._refused = None, 0
                raise type(reason)(f"{refused} records were refused: {reason}") from reason

    def close(self) -> None:
        """Write what is queued and let go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)
            if thread.is_alive():
                _log.warning("log_producer_close", reason=f"not all was written in {_CLOSE_S} s")
            if self._reason is not None:
                _log.warning("log_producer_close", refused=self._refused, reason=str(self._reason))
        self._store.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue.count and not self._closed:
                    self._changed.wait()
                if not self._queue.count:
                    return
                batch, self._queue = self._queue, Outbox(self._catalog, self._partitioner)
                self._writing = True
                self._changed.notify_all()
            reason: StepwellError | None = None
            try:
                with self._store.write() as connection:
                    batch.write(connection)
            except StepwellError as error:
                reason = error
            except Exception as error:  # noqa: BLE001 - told by flush; the thread must live on
                reason = LogError(f"{self._store.where}: {error!r}")
            with self._changed:
                self._writing = False
                if reason is not None:
                    self._reason = reason
                    self._refused += batch.count + self._queue.count
                    self._queue = Outbox(self._catalog, self._partitioner)
                self._changed.notify_all()
            if reason is None:
                self._upkeep.run_when_due(batch.count)


class LocalTransactionalProducer:
    """Keeps outputs and positions in memory until `commit` writes them in one SQLite transaction.

    So there is never an open transaction that readers would have to wait for, and nothing to roll back.
    """

    def __init__(self, store: Store, transactional_id: str) -> None:
        self._store = store
        self._id = transactional_id
        self._catalog = Catalog(store)
        self._partitioner = Partitioner()
        self._upkeep = Upkeep(store)
        self._outbox: Outbox | None = None
        self._positions: list[tuple[LocalMembership, dict[int, int]]] = []
        with store.write() as connection:
            (self._epoch,) = connection.execute(
                "INSERT INTO transactional_ids (transactional_id, epoch) VALUES (?, 0)"
                " ON CONFLICT (transactional_id) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
                (transactional_id,),
            ).fetchone()

    def begin(self) -> None:
        """Start a transaction."""
        if self._outbox is not None:
            raise LogError(f"transactional id {self._id!r}: the transaction before was neither committed nor aborted")
        self._outbox = Outbox(self._catalog, self._partitioner)
        self._positions = []

    def _open(self) -> Outbox:
        if self._outbox is None:
            raise LogError(f"transactional id {self._id!r}: no transaction is open; call begin() first")
        return self._outbox

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Add records to the open transaction; all of this call or, when it raises, none of them."""
        outbox = self._open()
        batch = Outbox(self._catalog, self._partitioner)
        batch.add(records)
        outbox.extend(batch)

    def send_offsets(self, positions: Mapping[TopicPartition, int], membership: GroupMembership) -> None:
        """Add consumed positions to the open transaction; checked now, and once more by `commit`."""
        self._open()
        if not isinstance(membership, LocalMembership):
            raise LogError(f"a membership of another log was given: {type(membership).__name__}")
        slots = {self._catalog.slot(source): position for source, position in positions.items()}
        with self._store.read() as connection:
            check_membership(connection, membership, slots)
        self._positions.append((membership, slots))

    def commit(self) -> None:
        """Write outputs and positions at once. After `LogUnavailableError` it can be called again."""
        outbox = self._open()
        with self._store.write() as connection:
            (epoch,) = connection.execute(
                "SELECT epoch FROM transactional_ids WHERE transactional_id = ?", (self._id,)
            ).fetchone()
            if epoch != self._epoch:
                raise FencedError(
                    f"transactional id {self._id!r}: a newer producer with this id has started; nothing was committed"
                )
            for membership, slots in self._positions:
                check_membership(connection, membership, slots)
                write_positions(connection, membership.group, slots)
            outbox.write(connection)
        self._outbox = None
        self._upkeep.run_when_due(outbox.count)

    def abort(self) -> None:
        """Throw away the open transaction, where there is one."""
        self._outbox = None
        self._positions = []

    def hold(self) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.hold`. Whether it is still ours is seen at the commit."""

    def close(self) -> None:
        """Throw away what is open and let go."""
        self.abort()
        self._store.close()
