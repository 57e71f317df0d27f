"""Kafka breaks in the ways in which it does break: the node is killed, away, frozen; clients are zombies."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.logs.kafka_admin import KafkaAdmin
from stepwell.adapters.logs.kafka_consumer import KafkaConsumer
from stepwell.adapters.logs.kafka_producer import KafkaTransactionalProducer
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.engine.ports import OutgoingRecord, TopicPartition, Touches
from stepwell.events.topics import Topic
from stepwell.exceptions import (
    ConfigurationError,
    FencedError,
    LogError,
    LogUnavailableError,
    PositionLostError,
    TransactionAbortedError,
)

PARTITIONS = 2


@pytest.fixture(scope="module")
def node() -> Iterator[KafkaPart]:
    """A node of this module's own, which may be killed."""
    with KafkaPart() as part:
        yield part


@pytest.fixture
def log(node: KafkaPart) -> KafkaLog:
    return KafkaLog(node.start())


def _topic(log: KafkaLog, word: str, partitions: int = PARTITIONS) -> str:
    name = f"{word}-{uuid.uuid4().hex[:8]}"
    assert log.admin().create([Topic(name, "key", partitions)]) == [name]
    return name


def _sources(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def _read_all(log: KafkaLog, topic: str) -> dict[bytes | None, list[bytes | None]]:
    """Values by key, in the order of the log, up to its end."""
    marks = log.admin().watermarks(topic)
    consumer = log.consumer()
    consumer.assign({source: mark.low for source, mark in marks.items()})
    values: dict[bytes | None, list[bytes | None]] = {}
    deadline = time.monotonic() + 60
    while any(consumer.position(source) < mark.high for source, mark in marks.items()):
        assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
        for batch in consumer.poll(1_000, 0.2):
            for key, value in zip(batch.keys, batch.values, strict=True):
                values.setdefault(key, []).append(value)
    consumer.close()
    return values


class Copier(threading.Thread):
    """Copies a topic in transactions, as the workers' loop does: on trouble back to the committed positions.

    Where the outcome of a transaction is not known, its producer is renewed first.
    """

    def __init__(self, log: KafkaLog, source: str, target: str) -> None:
        super().__init__(daemon=True)  # a failed test must not wait for it
        self._log, self._source, self._target = log, source, target
        self._touches = Touches((target,), "copier-" + source)
        self._owned: set[TopicPartition] = set()
        self.may_commit = threading.Event()
        self.may_commit.set()
        self.holds_a_transaction = threading.Event()
        self.stopping = threading.Event()
        self.setbacks: list[LogError] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self._work()
                except FencedError as error:
                    # A broker that was killed can take a static member for gone, though nobody has its place. A worker
                    # ends then, and its supervisor starts it again: so do we.
                    self.setbacks.append(error)
                    time.sleep(1)
        except BaseException as error:  # noqa: BLE001 - the test's thread looks at it
            self.failure = error

    def _work(self) -> None:
        self._owned.clear()
        consumer = self._log.consumer("copier-" + self._source, "slot-0")
        try:
            consumer.subscribe([self._source], self._owned.update, self._owned.difference_update)
            producer = self._log.transactional_producer("copier-" + self._source, self._touches)
            back = False
            try:
                while not self.stopping.is_set():
                    try:
                        producer.hold()
                        if back:
                            self._go_back(consumer)
                        back = False
                        self._copy(consumer, producer)
                    except LogError as error:
                        if not error.retriable:
                            raise
                        self.setbacks.append(error)
                        if isinstance(error, LogUnavailableError):
                            producer = self._renewed(producer)
                        back = True
            finally:
                producer.close()
        finally:
            consumer.close()

    def _renewed(self, producer: KafkaTransactionalProducer) -> KafkaTransactionalProducer:
        """A producer under the same id: starting it resolves what the last one left open, and its positions with it."""
        producer.close()
        while True:
            try:
                return self._log.transactional_producer("copier-" + self._source, self._touches)
            except LogUnavailableError as error:
                self.setbacks.append(error)

    def _copy(self, consumer: KafkaConsumer, producer: KafkaTransactionalProducer) -> None:
        batches = consumer.poll(50, 0.1)
        if not batches:
            return
        producer.begin()
        for batch in batches:
            records = zip(batch.keys, batch.values, strict=True)
            producer.send(OutgoingRecord(self._target, key, value) for key, value in records)
        producer.send_offsets({batch.source: batch.end for batch in batches}, consumer.membership())
        self.holds_a_transaction.set()
        self.may_commit.wait()
        producer.commit()

    def _go_back(self, consumer: KafkaConsumer) -> None:
        # A partition that was taken away meanwhile starts at its committed position when it comes back.
        for source, at in consumer.committed(self._owned).items():
            consumer.seek(source, 0 if at is None else at)


def test_a_worker_starts_on_a_node_that_has_never_had_a_group() -> None:
    """Settling is then the first that asks for the group's coordinator, whose topic does not exist yet."""
    with KafkaPart() as fresh:
        log = KafkaLog(fresh.bootstrap)
        target = _topic(log, "out")
        producer = log.transactional_producer("first", Touches((target,), "nobody-yet"))
        producer.hold()
        producer.begin()
        producer.send([OutgoingRecord(target, b"k", b"1")])
        producer.commit()
        producer.close()
        assert _read_all(log, target) == {b"k": [b"1"]}


def test_a_killed_node_loses_and_doubles_nothing(node: KafkaPart, log: KafkaLog) -> None:
    source, target = _topic(log, "in"), _topic(log, "out")
    copier = Copier(log, source, target)
    copier.start()
    producer = log.producer()
    keys, each = [b"a", b"b", b"c", b"d"], 600
    for number in range(each):
        producer.send(OutgoingRecord(source, key, b"%d" % number) for key in keys)
        if number in (150, 400):
            node.kill9()
            node.start(wait=False)
        time.sleep(0.005)
    node.wait_ready()
    producer.flush(60)
    producer.close()
    expected = {key: [b"%d" % number for number in range(each)] for key in keys}
    assert _read_all(log, source) == expected
    _finish(copier, log, source)
    assert _read_all(log, target) == expected


def _positions(admin: KafkaAdmin, group: str, topic: str) -> dict[TopicPartition, int | None] | None:
    """None while a transaction that the broker has not ended yet hides them."""
    try:
        return admin.group_positions(group, topic)
    except LogUnavailableError:
        return None


def _finish(copier: Copier, log: KafkaLog, source: str) -> None:
    """Wait until the copier has committed the end of its source, and end it."""
    end = {place: mark.high or None for place, mark in log.admin().watermarks(source).items()}
    deadline = time.monotonic() + 150
    with contextlib.closing(log.admin()) as admin:
        while copier.failure is None and _positions(admin, "copier-" + source, source) != end:
            assert time.monotonic() < deadline, f"the copier did not get to the end; setbacks: {copier.setbacks}"
            time.sleep(0.2)
    copier.stopping.set()
    copier.join(60)
    assert copier.failure is None


def test_an_outage_longer_than_a_transaction_may_last(node: KafkaPart, log: KafkaLog) -> None:
    times = {"transaction.timeout.ms": 4_000, "message.timeout.ms": 3_000, "socket.timeout.ms": 2_000}
    source, target = _topic(log, "in"), _topic(log, "out")
    copier = Copier(KafkaLog(log.bootstrap, times), source, target)
    copier.start()
    producer = log.producer()
    for number in range(200):
        producer.send([OutgoingRecord(source, b"k", b"%d" % number)])
        if number == 100:
            copier.may_commit.clear()
            copier.holds_a_transaction.clear()
            producer.send([OutgoingRecord(source, b"k", b"in the open transaction")])
            assert copier.holds_a_transaction.wait(30)
            node.kill9()
            time.sleep(8)
            copier.may_commit.set()
            node.start(wait=False)
        time.sleep(0.01)
    node.wait_ready()
    producer.flush(60)
    producer.close()
    _finish(copier, log, source)
    assert copier.setbacks
    assert _read_all(log, target) == _read_all(log, source)
    assert len(_read_all(log, target)[b"k"]) == 201


def test_while_the_node_is_away_clients_wait_and_say_so_once(node: KafkaPart, log: KafkaLog) -> None:
    topic = _topic(log, "away")
    small = KafkaLog(log.bootstrap, {"queue.buffering.max.messages": 50})
    consumer = log.consumer()
    consumer.assign(dict.fromkeys(_sources(topic), 0))
    with capture_logs() as said:
        producer = small.producer()
        producer.send([OutgoingRecord(topic, b"k", b"before")])
        producer.flush(30)
        node.kill9()
        sent = threading.Event()

        def send() -> None:
            producer.send(OutgoingRecord(topic, b"k", b"%d" % number) for number in range(200))
            sent.set()

        sender = threading.Thread(target=send)
        sender.start()
        assert [batch.values for batch in consumer.poll(10, 3)] in ([[b"before"]], [])
        assert consumer.poll(10, 2) == []
        assert not sent.is_set(), "the full queue must hold the sender back"
        node.start()
        sender.join(60)
        assert sent.is_set()
        producer.flush(60)
        values = _read_all(log, topic)[b"k"]
    assert values == [b"before", *(b"%d" % number for number in range(200))]
    seen: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(seen) < 200 and time.monotonic() < deadline:
        seen += [value for batch in consumer.poll(500, 0.5) for value in batch.values]
    assert seen[-200:] == values[1:]
    producer.close()
    consumer.close()
    ours = [line["event"] for line in said if line.get("client") == "producer"]
    assert ours == ["log_away", "log_back"]


def test_without_a_node_calls_that_need_an_answer_raise_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.logs.kafka_admin.ANSWER_TIMEOUT_S", 1.0)
    for module in ("kafka_producer", "kafka_consumer"):
        monkeypatch.setattr(f"stepwell.adapters.logs.{module}.CALL_TIMEOUT_S", 1.0)
    nobody = KafkaLog("127.0.0.1:9", {"sasl.password": "do-not-tell"})
    with capture_logs() as said:
        with pytest.raises(LogUnavailableError) as refused:
            nobody.transactional_producer("t")
        consumer = nobody.consumer("g")
        with pytest.raises(LogUnavailableError):
            consumer.committed([TopicPartition("t", 0)])
        with pytest.raises(LogUnavailableError):
            consumer.watermarks(TopicPartition("t", 0))
        with pytest.raises(LogUnavailableError):
            nobody.admin().partitions("t")
        producer = nobody.producer()
        producer.send([OutgoingRecord("t", b"k", b"v")])
        with pytest.raises(LogUnavailableError):
            producer.flush(0.5)
        consumer.close()
    assert "do-not-tell" not in f"{said}{refused.value}{nobody!r}"


def test_a_transaction_that_outlives_its_time_is_rolled_back(log: KafkaLog) -> None:
    topic = _topic(log, "late")
    hasty = KafkaLog(
        log.bootstrap, {"transaction.timeout.ms": 1_500, "message.timeout.ms": 1_000, "socket.timeout.ms": 1_000}
    )
    producer = hasty.transactional_producer(f"late-{topic}")
    producer.begin()
    producer.send([OutgoingRecord(topic, b"k", b"lost")])
    time.sleep(5)
    with pytest.raises((TransactionAbortedError, FencedError)):
        producer.commit()
    producer.close()
    successor = log.transactional_producer(f"late-{topic}")
    successor.begin()
    successor.send([OutgoingRecord(topic, b"k", b"kept")])
    successor.commit()
    successor.close()
    assert _read_all(log, topic) == {b"k": [b"kept"]}


_ZOMBIE = """
import sys
import structlog
from stepwell.adapters.logs import open_log
from stepwell.engine.ports import OutgoingRecord
from stepwell.exceptions import FencedError
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
url, transactional_id, topic = sys.argv[1:]
producer = open_log(url).transactional_producer(transactional_id)
producer.begin()
producer.send([OutgoingRecord(topic, b"k", b"zombie")])
print("sent", flush=True)
sys.stdin.readline()
try:
    producer.commit()
except FencedError as error:
    print("fenced", flush=True)
    try:
        producer.begin()
    except FencedError:
        sys.exit(7)
"""


def test_a_process_that_was_frozen_cannot_commit_beside_its_successor(log: KafkaLog) -> None:
    topic = _topic(log, "zombie")
    transactional_id = f"slot-{topic}"
    command = [sys.executable, "-c", _ZOMBIE, f"kafka://{log.bootstrap}", transactional_id, topic]
    zombie = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert zombie.stdout is not None
        assert zombie.stdout.readline() == "sent\n"
        zombie.send_signal(signal.SIGSTOP)
        successor = log.transactional_producer(transactional_id)
        successor.begin()
        successor.send([OutgoingRecord(topic, b"k", b"successor")])
        zombie.send_signal(signal.SIGCONT)
        assert zombie.communicate("go\n", timeout=60)[0] == "fenced\n"
        assert zombie.returncode == 7
        successor.commit()
        successor.close()
    finally:
        zombie.kill()
        zombie.communicate()
    assert _read_all(log, topic) == {b"k": [b"successor"]}


def test_a_zombie_whose_transaction_timed_out_does_not_throw_its_successor_out(log: KafkaLog) -> None:
    topic = _topic(log, "slot", partitions=1)
    source, slot = TopicPartition(topic, 0), f"slot-{topic}"
    feeder = log.producer()
    feeder.send([OutgoingRecord(topic, b"k", b"v")])
    feeder.flush(30)
    feeder.close()
    times = {"transaction.timeout.ms": 1_500, "message.timeout.ms": 1_000, "socket.timeout.ms": 1_000}
    zombie = KafkaLog(log.bootstrap, times).transactional_producer(slot)
    zombie_member = log.consumer(slot, "slot-0")
    zombie_member.subscribe([topic])
    assert _poll_for(zombie_member, 20) == [b"v"]
    zombie.begin()
    zombie.send_offsets({source: 1}, zombie_member.membership())
    successor, member = log.transactional_producer(slot), log.consumer(slot, "slot-0")
    member.subscribe([topic])
    assert _poll_for(member, 20) == [b"v"]
    successor.begin()
    successor.send_offsets({source: 1}, member.membership())
    time.sleep(2)  # from here on the zombie may believe that only its own transaction's time ran out
    with pytest.raises((TransactionAbortedError, FencedError)):
        zombie.commit()
    successor.commit()
    with pytest.raises(FencedError):
        zombie.begin()
    successor.begin()
    successor.commit()
    assert log.admin().group_positions(slot, topic) == {source: 1}
    for client in (zombie, successor, zombie_member, member):
        client.close()


def test_a_committed_position_that_retention_removed_stops_the_member(log: KafkaLog) -> None:
    topic = _topic(log, "short", partitions=1)
    source = TopicPartition(topic, 0)
    group = f"reader-{topic}"
    producer = log.producer()
    producer.send(OutgoingRecord(topic, b"k", b"%d" % number) for number in range(10))
    producer.flush(30)
    first = log.consumer(group)
    first.subscribe([topic])
    while not (batches := first.poll(3, 1)):
        pass
    first.commit({source: batches[0].end})
    first.close()
    committed = batches[0].end
    log.admin().delete_records({source: 8})
    late = log.consumer(group)
    late.subscribe([topic])
    for _ in range(2):  # as long as nobody decides, it is said again
        with pytest.raises(PositionLostError, match=f"Position {committed} of {topic}/0 .* holds 8 to 10"):
            _poll_for(late, 20)
    late.seek(source, 8)
    assert _poll_for(late, 20) == [b"8", b"9"]
    late.close()
    producer.close()


def _poll_for(consumer: KafkaConsumer, seconds: float) -> list[bytes | None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if batches := consumer.poll(100, 0.5):
            return [value for batch in batches for value in batch.values]
    return []


def test_a_failed_assignment_callback_is_raised_and_tried_again(log: KafkaLog) -> None:
    topic = _topic(log, "restore")
    producer = log.producer()
    producer.send([OutgoingRecord(topic, b"k", b"v")])
    producer.flush(30)
    producer.close()
    calls = 0

    def restore(sources: list[TopicPartition]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise LogUnavailableError("the snapshots cannot be read now")

    member = log.consumer(f"restore-{topic}")
    member.subscribe([topic], on_assign=restore)
    with pytest.raises(LogUnavailableError, match="snapshots"):
        _poll_for(member, 20)
    assert _poll_for(member, 20) == [b"v"]
    assert calls == 2
    member.close()


def test_an_option_that_the_driver_does_not_know_is_named(log: KafkaLog) -> None:
    wrong = KafkaLog(log.bootstrap, {"no.such.option": "1"})
    for make in (wrong.producer, wrong.consumer, wrong.admin, lambda: wrong.transactional_producer("t")):
        with pytest.raises(ConfigurationError, match=r"no\.such\.option"):
            make()
