"""Producers on confluent-kafka: idempotent, acknowledged by all in-sync replicas, partitioned like Java's client."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as DriverPartition

from stepwell.adapters.logs.kafka_client import CALL_TIMEOUT_S, Availability, Outage, base_options, make_client
from stepwell.adapters.logs.kafka_consumer import KafkaMembership
from stepwell.adapters.logs.kafka_errors import kafka_error, to_log_error
from stepwell.adapters.logs.kafka_settling import group_metadata, settle
from stepwell.engine.ports import GroupMembership, OutgoingRecord, TopicPartition, Touches
from stepwell.exceptions import FencedError, LogError, LogUnavailableError, StillQueuedError, TransactionAbortedError

__all__ = ["KafkaProducer", "KafkaTransactionalProducer"]

TRANSACTION_TIMEOUT_MS = 60_000
"""After this the broker aborts a transaction whose producer is gone; until then readers of committed records wait."""

BROKER_MAX_BYTES = 1_048_588
"""Default of the broker's message.max.bytes: the largest batch, and so the largest record with all its framing."""

_CLOSE_TIMEOUT_S = 10.0
_QUIET_CLOSE_TIMEOUT_S = 1.0
OVERDUE_S = 20.0
"""How long adding positions may take (s) before the client counts as stuck. Usually it takes milliseconds."""
_log = structlog.get_logger(__name__)


def _producer_options(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    ours: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        # librdkafka's default (CRC32) puts keys elsewhere than Java's and aiokafka's clients do.
        "partitioner": "murmur2_random",
        # Less than half of gzip's CPU time on both sides, for a sixth more bytes. aiokafka reads it with cramjam, which
        # the extra "kafka" brings.
        "compression.type": "lz4",
        # What a broker takes unless told otherwise. The driver's own default is less, and would refuse what fits.
        "message.max.bytes": BROKER_MAX_BYTES,
        "linger.ms": 5,
        "batch.num.messages": 10_000,
        "queue.buffering.max.messages": 50_000,
        "queue.buffering.max.kbytes": 65_536,
        "topic.metadata.propagation.max.ms": 5_000,
        "delivery.report.only.error": True,
    }
    return {**ours, **more, **base}


class _Sender:
    """Queues records and keeps what became of those that failed."""

    def __init__(self, options: dict[str, Any], availability: Availability) -> None:
        self.availability = availability
        self.refused: list[tuple[KafkaError, str]] = []
        self.refused_count = 0
        self.driver = make_client(Producer, {**options, "on_delivery": self._on_failure})

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self.refused_count += 1
        if len(self.refused) < 10:  # enough to tell; a queue of 50,000 would say the same 50,000 times
            self.refused.append((error, f"{message.topic()}/{message.partition()}"))

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Queue them; wait where the queue is full. Raises `KafkaException` for what the driver refuses at once."""
        produce, poll = self.driver.produce, self.driver.poll
        for topic, key, value, headers, partition in records:
            chosen = -1 if partition is None else partition
            while True:
                try:
                    produce(topic, value, key, chosen, headers=list(headers))
                    break
                except BufferError:
                    poll(0.1)  # serves delivery reports, which makes room
        poll(0)

    def take_refused(self) -> LogError | None:
        """The first reason why records were refused since the last call."""
        if not self.refused_count:
            return None
        error, where = self.refused[0]
        count, self.refused_count = self.refused_count, 0
        self.refused.clear()
        return to_log_error(error, f"{count} record(s) were not appended, the first to {where}")


class KafkaProducer:
    """A producer outside transactions.

    Records wait as long as the cluster is away (`message.timeout.ms=0`): facts are not dropped because a broker
    restarts, the caller is held back by the full queue instead. A fatal error (idempotence can no longer be
    guaranteed) is raised by every later call: what was not flushed may or may not be in the log; close this producer,
    open a new one and send again from the last flush. Events carry ids, so a repeat is harmless.
    """

    def __init__(
        self, bootstrap: str, options: Mapping[str, Any], outage: Outage | None = None, *, quiet: bool = False
    ) -> None:
        self._quiet = quiet
        self._availability = Availability("producer", outage, quiet=quiet)
        base = base_options(bootstrap, options, self._availability.on_error)
        settings = _producer_options(base, {"message.timeout.ms": 0})
        self._sender = _Sender(settings, self._availability)
        self._fatal: LogError | None = None
        self._closed = False

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """See `stepwell.engine.ports.Producer.send`. Raises `LogError` for a record that can never be sent."""
        self._check_usable()
        try:
            self._sender.send(records)
        except KafkaException as error:
            raise self._failed(error, "sending") from error

    def flush(self, timeout_s: float) -> None:
        """See `stepwell.engine.ports.Producer.flush`."""
        self._check_usable()
        try:
            left = self._sender.driver.flush(timeout_s)
        except KafkaException as error:
            raise self._failed(error, "flushing") from error
        if (refused := self._sender.take_refused()) is not None:
            raise refused
        if left:
            raise StillQueuedError(
                f"Kafka did not acknowledge {left} record(s) within {timeout_s:g} s. They stay queued; they may or may "
                "not be in the log already. Flush again."
            )
        self._availability.on_success()

    def close(self) -> None:
        """See `stepwell.engine.ports.Producer.close`. Says how many records were given up, if any."""
        if self._closed:
            return
        self._closed = True
        driver = self._sender.driver
        left = 0
        try:
            left = 0 if self._fatal else driver.flush(_QUIET_CLOSE_TIMEOUT_S if self._quiet else _CLOSE_TIMEOUT_S)
            if left or self._fatal:
                driver.purge()
                driver.flush(1.0)
        except KafkaException as error:
            _log.warning("log_producer_close", reason=str(to_log_error(error, "closing")))
        if left or self._sender.refused_count:
            say = _log.debug if self._quiet else _log.error
            say("log_records_given_up", unacknowledged=left, refused=self._sender.refused_count)

    def _check_usable(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._closed:
            raise LogError("This producer is closed.")

    def _failed(self, error: KafkaException, doing: str) -> LogError:
        failure = to_log_error(error, doing)
        if kafka_error(error).fatal():
            self._fatal = failure
        return failure


class KafkaTransactionalProducer:
    """A producer of transactions with a stable id.

    When a transaction fails in a way that a fresh one can get over, it is aborted here and `TransactionAbortedError`
    is raised; after `LogUnavailableError` from `commit` the outcome is not known yet. In both cases: read again from
    the committed positions (`Consumer.committed` waits until the outcome stands), then `begin`.

    When the cluster was away for longer than a transaction may last, the broker has ended the transaction and answers
    as if another producer had taken the id. Whether that is so is then asked of the consumer group: a member that is
    still one takes the id over again in `hold` or `begin`, a zombie gets `FencedError`.

    Whenever the id is taken over, what it may have left open is settled (see `kafka_settling`). And a commit counts
    only where no connection broke meanwhile: a coordinator that restarts just then may call the transaction committed
    without telling its partitions. So `commit`, or the next `begin`, then raises `TransactionAbortedError`.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        options: Mapping[str, Any],
        outage: Outage | None = None,
        touches: Touches | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self._bootstrap, self._options, self._touches = bootstrap, options, touches
        self._availability = Availability(f"transactions of {transactional_id}", outage)
        base = base_options(bootstrap, options, self._availability.on_error)
        more = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            # Right after a commit the coordinator is still writing its markers and answers "concurrent transactions";
            # the driver's own 100 ms until it asks again would make up most of a live transaction. Doubles each time.
            "retry.backoff.ms": 5,
        }
        self._settings = _producer_options(base, more)
        self._open = False
        self._closed = False
        self._fenced: FencedError | None = None
        self._expired: FencedError | None = None  # fenced, maybe only by our own transaction's time-out
        self._begun_at = 0.0
        self._membership: KafkaMembership | None = None
        self._sender: _Sender | None = None
        self._quiet_since: int | None = None  # lost connections when the last transaction began; None: none yet
        self._start()

    # -- the port -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.begin`."""
        if self._open:
            raise LogError("A transaction is open already; commit or abort it first.")
        sender = self._held()
        sender.driver.poll(0)  # serves what was heard since the last commit
        self._check_connections("starting a transaction")
        self._quiet_since = self._availability.lost_connections
        self._begun_at = time.monotonic()
        try:
            sender.driver.begin_transaction()
        except KafkaException as error:
            raise self._failed(error, "starting a transaction") from error
        self._open = True

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.send`."""
        sender = self._in_transaction()
        try:
            sender.send(records)
        except KafkaException as error:
            raise self._failed(error, "sending in a transaction") from error

    def send_offsets(self, positions: Mapping[TopicPartition, int], membership: GroupMembership) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.send_offsets`."""
        sender = self._in_transaction()
        if not isinstance(membership, KafkaMembership):
            raise LogError(f"The membership must come from a Kafka consumer, not from {type(membership).__name__}.")
        if not positions:
            return
        membership.check_owns(positions)
        self._membership = membership
        offsets = [DriverPartition(source.topic, source.partition, end) for source, end in positions.items()]
        doing = "adding positions to the transaction"

        def call() -> None:
            self._within(
                lambda: sender.driver.send_offsets_to_transaction(offsets, membership.metadata, OVERDUE_S / 2), doing
            )

        self._retrying(call, doing)

    def commit(self) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.commit`."""
        sender = self._in_transaction()
        # Without a time of ours: librdkafka then waits for what is left of the transaction's own time-out, and its
        # state cannot fall out of step with the coordinator's.
        self._retrying(lambda: sender.driver.commit_transaction(-1), "committing")
        self._open = False
        self._forget_refused()
        self._availability.on_success()
        self._check_connections("committing")

    def abort(self) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.abort`. Does nothing where none is open."""
        if not self._open:
            return
        self._open = False
        sender = self._sender
        if sender is None or self._fenced is not None:
            return
        try:
            # An abort that overtakes the first append makes the coordinator refuse it for good ("invalid transaction
            # state"); so what is under way arrives first.
            if len(sender.driver):
                sender.driver.flush(5.0)
            self._abort_driver(sender)
        except KafkaException as error:
            self._lost_driver(to_log_error(error, f"aborting ({self.transactional_id})"))
        self._forget_refused()

    def hold(self) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.hold`."""
        self._held()

    def close(self) -> None:
        """See `stepwell.engine.ports.TransactionalProducer.close`."""
        if self._closed:
            return
        try:
            self.abort()
        except Exception as error:  # noqa: BLE001 - closing never raises
            _log.warning("log_transaction_close", transactional_id=self.transactional_id, reason=str(error))
        self._closed = True
        self._drop()

    # -- what goes wrong ------------------------------------------------------------------------------------------

    def _held(self) -> _Sender:
        """The driver's object, with the id; takes the id over again where it was let go."""
        self._check_usable()
        if self._expired is not None:
            self._prove_membership(self._expired)
        return self._sender or self._start()

    def _check_connections(self, doing: str) -> None:
        """See the class: after a commit in doubt the id must be taken over anew, which settles it either way.

        But only by a current member: a worker that was frozen for long loses its connections, and its place, too.
        """
        if self._membership is None or self._quiet_since in {None, self._availability.lost_connections}:
            return
        self._quiet_since = None
        self._expired = FencedError(
            f"Kafka: {doing} ({self.transactional_id}): connections broke, and this worker is no member of its group "
            "any more."
        )
        self._drop()
        raise TransactionAbortedError(
            f"Kafka: {doing} ({self.transactional_id}): a connection broke during the last transaction or since; "
            "whether all of it is committed is settled by taking the id over."
        )

    def _start(self) -> _Sender:
        """Take over the transactional id: fences its last holder and ends what that one left open."""
        sender = _Sender(self._settings, self._availability)
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                sender.driver.init_transactions(max(1.0, deadline - time.monotonic()))
                break
            except KafkaException as error:
                inner = kafka_error(error)
                if inner.retriable() and not inner.fatal() and time.monotonic() < deadline:
                    continue
                raise to_log_error(error, f"taking over the transactional id {self.transactional_id}") from error
        if self._touches is not None and self._touches.topics:
            self._settle(sender, self._touches)
        self._sender = sender
        return sender

    def _settle(self, sender: _Sender, touches: Touches) -> None:
        doing = f"settling what {self.transactional_id} may have left open"
        metadata = group_metadata(self._bootstrap, self._options, touches)
        try:
            self._within(lambda: settle(sender.driver, touches, metadata), doing)
        except KafkaException as error:
            raise to_log_error(error, doing) from error
        if (refused := sender.take_refused()) is not None:
            raise LogUnavailableError(str(refused))

    def _retrying(self, call: Callable[[], None], doing: str) -> None:
        """Call again while the driver says that it helps, for no longer than a transaction may last."""
        deadline = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000
        while True:
            try:
                call()
                return
            except KafkaException as error:
                inner = kafka_error(error)
                again = inner.retriable() and not inner.txn_requires_abort() and not inner.fatal()
                if again and time.monotonic() < deadline:
                    continue
                raise self._failed(error, doing) from error

    def _within(self, call: Callable[[], None], doing: str) -> None:
        """Make a call that librdkafka may never come back from: it forgets its own time-out while the coordinator is
        away, and need not notice that it is back (librdkafka issues 5456 and 5511, seen with 2.16.0).

        Where it does not, its thread and its client are left behind, and `begin` takes the id over with another.

        Raises:
            LogUnavailableError: not done in time.
        """
        outcome: list[BaseException | None] = []

        def run() -> None:
            try:
                call()
                outcome.append(None)
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                outcome.append(error)

        thread = threading.Thread(target=run, name=f"transactions of {self.transactional_id}", daemon=True)
        thread.start()
        thread.join(OVERDUE_S)
        if not outcome:
            self._open, self._sender = False, None
            raise LogUnavailableError(
                f"Kafka: {doing} ({self.transactional_id}): no answer within {OVERDUE_S:g} s; the client is replaced."
            )
        if outcome[0] is not None:
            raise outcome[0]

    def _failed(self, error: KafkaException, doing: str) -> LogError:
        """Bring the producer into a state from which `begin` works again, and say what the caller must do."""
        inner = kafka_error(error)
        failure = to_log_error(error, f"{doing} ({self.transactional_id})")
        if inner.fatal():
            self._open = False
            self._lost_driver(failure)
            return self._fenced or TransactionAbortedError(str(failure))
        if isinstance(failure, LogUnavailableError):
            # Out of patience, and the outcome is open. The next `begin` takes the id over anew, which settles it.
            self._open = False
            self._drop()
            return failure
        if inner.txn_requires_abort() or inner.code() == KafkaError._STATE:
            reason = self._sender.take_refused() if self._sender else None
            self.abort()
            if isinstance(failure, FencedError):
                return failure
            return TransactionAbortedError(f"{failure}{f' {reason}' if reason else ''}")
        return failure

    def _abort_driver(self, sender: _Sender) -> None:
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                sender.driver.abort_transaction(-1)
                return
            except KafkaException as error:
                inner = kafka_error(error)
                if inner.fatal() or not inner.retriable() or time.monotonic() > deadline:
                    raise

    def _lost_driver(self, failure: LogError) -> None:
        """The driver's object is of no more use; the next `begin` makes another, which aborts what is still open."""
        if isinstance(failure, FencedError):
            if time.monotonic() - self._begun_at > self._settings["transaction.timeout.ms"] / 1000:
                self._expired = failure
            else:
                self._fenced = failure
        _log.warning("log_transaction_reset", transactional_id=self.transactional_id, reason=str(failure))
        self._drop()

    def _prove_membership(self, failure: FencedError) -> None:
        """Take the id back only as a current member of the group; else the id's new holder would be thrown out."""
        if self._membership is None:
            self._fenced = failure
            raise failure
        try:
            self._membership.confirm()
        except FencedError as error:
            self._fenced = error
            raise
        self._expired = None

    def _drop(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            try:
                sender.driver.purge()
                sender.driver.poll(0)
            except KafkaException as error:
                _log.debug("log_producer_close", reason=str(to_log_error(error, "closing")))

    def _forget_refused(self) -> None:
        if self._sender is not None:
            self._sender.take_refused()

    def _check_usable(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        if self._closed:
            raise LogError("This producer is closed.")

    def _in_transaction(self) -> _Sender:
        self._check_usable()
        if not self._open or self._sender is None:
            raise LogError("No transaction is open; call begin() first.")
        return self._sender
