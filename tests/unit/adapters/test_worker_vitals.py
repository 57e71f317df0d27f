"""What is known of a running worker, when the watchdog takes it for stuck, and what probes and Prometheus are told."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers.health import HealthServer, health, parse_listen, readiness
from stepwell.adapters.workers.metrics import WorkerMetrics
from stepwell.adapters.workers.reporting import WorkerReporter
from stepwell.adapters.workers.vitals import ERROR_MAX, MISSED_AFTER_S, WorkerVitals
from stepwell.adapters.workers.watchdog import FROZEN_AFTER_S, LOOK_AGE_MAX_S, PARTITION_PATIENCE, Watchdog
from stepwell.engine.ports import TopicPartition
from stepwell.engine.publish import outgoing, outgoing_letter
from stepwell.engine.reading import read_range
from stepwell.engine.vitals import DATABASE, LOG
from stepwell.events.codec import Codec
from stepwell.events.model import DeadLetter, WorkerReported
from stepwell.events.topics import TELEMETRY
from stepwell.exceptions import ConfigurationError, LogUnavailableError
from stepwell.projections.progress.log_watch import Look
from tests.unit.events.records import sample

CODEC = Codec()
ONE, TWO = TopicPartition("stepwell.episode-events", 0), TopicPartition("stepwell.episode-events", 1)
STUCK_AFTER_S = 60.0


class Story:
    """A worker whose clock stands still until `passes`; a look at the log every second, as in life."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.ends = {ONE: 10, TWO: 10}
        self.positions = {ONE: 10, TWO: 10}
        self.group_positions: dict[tuple[str, TopicPartition], int] = {}
        self.stops = False
        self.answers = True
        self.turns = True
        self.vitals = WorkerVitals(
            "stepwell-engine-0", "engine", "stepwell-engine", CODEC,
            stopping=lambda: self.stops, monotonic=lambda: self.now,
        )  # fmt: skip
        self.watchdog = Watchdog(self.vitals, STUCK_AFTER_S, lambda: None, monotonic=lambda: self.now)

    def passes(self, seconds: float) -> str | None:
        """Let time pass; the watchdog's first finding."""
        for _ in range(round(seconds)):
            self.now += 1
            if self.turns:
                self.vitals.turned(self.positions)
            if self.answers:
                self.vitals.saw(Look(round(self.now * 1e6), self.ends, self.group_positions))
            found = self.watchdog.look()
            if found is not None:
                return found
        return None


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_worker_that_is_caught_up_may_be_still_for_ever(story: Story) -> None:
    assert story.passes(10 * STUCK_AFTER_S) is None
    assert story.vitals.condition().still_s == 0


def test_lag_without_movement_is_stuck(story: Story) -> None:
    assert story.passes(100) is None
    story.ends = {ONE: 15, TWO: 10}
    before = story.now
    found = story.passes(2 * STUCK_AFTER_S)
    assert found is not None
    assert "behind in stepwell.episode-events/0 by 5" in found
    assert STUCK_AFTER_S < story.now - before <= STUCK_AFTER_S + 3


def test_movement_starts_the_time_anew(story: Story) -> None:
    story.ends = {ONE: 1_000, TWO: 10}
    for position in range(11, 20):
        story.positions = {ONE: position, TWO: 10}
        assert story.passes(STUCK_AFTER_S - 2) is None


def test_one_partition_that_never_moves_beside_one_that_does_is_stuck_after_a_longer_time(story: Story) -> None:
    story.ends = {ONE: 100_000, TWO: 12}
    before = story.now
    found = None
    for position in range(11, 2_000):
        story.positions = {ONE: position, TWO: 10}
        found = story.passes(1)
        if found is not None:
            break
    assert found is not None
    assert found.startswith("stepwell.episode-events/1 has not moved")
    assert story.now - before == pytest.approx(PARTITION_PATIENCE * STUCK_AFTER_S, abs=5)


@pytest.mark.parametrize("what", [LOG, DATABASE])
def test_waiting_for_others_is_no_fault_and_afterwards_the_time_is_whole_again(story: Story, what: str) -> None:
    story.ends = {ONE: 15, TWO: 10}
    assert story.passes(STUCK_AFTER_S - 5) is None
    story.vitals.waits(what, "away")
    assert story.vitals.condition().state == "waiting"
    assert story.passes(15 * STUCK_AFTER_S) is None
    story.vitals.has(what)
    assert story.vitals.condition().state == "running"
    assert story.passes(STUCK_AFTER_S - 2) is None
    assert story.passes(10) is not None


@pytest.mark.parametrize("looked", [True, False], ids=["was there", "never there"])
def test_a_log_that_answers_no_look_is_waited_for_whatever_the_thread_says(story: Story, looked: bool) -> None:
    """A poll that finds nothing looks the same when no broker is there."""
    story.answers = looked
    assert story.passes(1) is None
    story.answers = False
    story.vitals.missed("nobody answers")
    assert story.vitals.condition().state == "running", "one look that failed is no outage"
    assert story.passes(MISSED_AFTER_S) is None
    story.vitals.changed.clear()
    story.vitals.missed("nobody answers")
    story.vitals.has(LOG)
    condition = story.vitals.condition()
    assert (condition.state, condition.waits_for) == ("waiting", "log: nobody answers")
    assert condition.last_error == "nobody answers"
    assert story.vitals.changed.is_set()
    assert readiness(condition, reads=True) == (False, "log: nobody answers")
    story.answers = True
    assert story.passes(1) is None
    assert story.vitals.condition().state == "running"


def test_who_waits_for_the_log_says_where_that_is() -> None:
    vitals = WorkerVitals("e", "engine", "g", CODEC, log_url="kafka://lab:9092")
    vitals.waits(LOG, "no controller")
    vitals.waits(DATABASE, "refused")
    assert vitals.condition().waits_for == "database: refused; log: kafka://lab:9092: no controller"


def test_a_thread_without_a_sign_of_life_is_stuck_also_while_it_waits(story: Story) -> None:
    """What it waits for is no excuse for a call that never ends, nor is it that nobody knows the lag."""
    assert story.passes(1) is None
    story.vitals.waits(LOG, "away")
    story.vitals.doing("joining its group")
    story.turns = story.answers = False
    found = story.passes(2 * STUCK_AFTER_S)
    assert found == "its thread gave no sign of life for 61 s; it was joining its group"


def test_signs_of_life_in_a_long_restore_are_enough(story: Story) -> None:
    story.turns = False
    story.vitals.doing("restoring stepwell.episode-events/0")
    for _ in range(20):
        assert story.passes(STUCK_AFTER_S / 2) is None
        story.vitals.alive()


def test_lag_that_nobody_can_look_at_is_no_lag(story: Story) -> None:
    story.ends = {ONE: 15, TWO: 10}
    assert story.passes(LOOK_AGE_MAX_S) is None
    story.answers = False
    assert story.passes(5 * STUCK_AFTER_S) is None


def test_a_process_that_was_stopped_as_a_whole_has_its_time_anew(story: Story) -> None:
    story.ends = {ONE: 15, TWO: 10}
    assert story.passes(STUCK_AFTER_S - 5) is None
    story.now += max(3_600, FROZEN_AFTER_S)
    assert story.passes(STUCK_AFTER_S - 5) is None
    assert story.passes(10) is not None


def test_without_partitions_the_groups_positions_count(story: Story) -> None:
    """A member that was forgotten by its group: nobody moves, though there is work."""
    story.positions = {}
    story.group_positions = {("stepwell-engine", ONE): 4, ("stepwell-engine", TWO): 10}
    assert story.vitals.owns_nothing()
    found = story.passes(2 * STUCK_AFTER_S)
    assert found is not None
    assert "gave it no partition" in found
    for position in range(5, 10):  # while another one works, it stands by
        story.group_positions = {("stepwell-engine", ONE): position, ("stepwell-engine", TWO): 10}
        assert story.passes(STUCK_AFTER_S - 2) is None


def test_states_and_errors(story: Story) -> None:
    assert story.vitals.condition().state == "starting"
    story.passes(1)
    assert story.vitals.condition().state == "running"
    story.vitals.waits(DATABASE, "postgresql://stepwell:secret@db/x refused " + "x" * ERROR_MAX)
    condition = story.vitals.condition()
    assert condition.waits_for.startswith("database: postgresql://stepwell:***@db/x refused")
    assert len(condition.last_error) == ERROR_MAX
    assert condition.last_error_at is not None
    story.stops = True
    assert story.vitals.condition().state == "stopping"
    story.vitals.ended("failed", "it broke")
    story.vitals.ended("stopped")
    condition = story.vitals.condition()
    assert (condition.state, condition.last_error) == ("failed", "it broke")


def test_partitions_that_went_are_forgotten(story: Story) -> None:
    story.ends = {ONE: 20, TWO: 10}
    story.passes(30)
    story.positions = {TWO: 10}
    story.passes(1)
    assert [each.source for each in story.vitals.condition().partitions] == [TWO]
    story.positions = {ONE: 12, TWO: 10}
    story.passes(2)
    (one, _) = story.vitals.condition().partitions
    assert (one.behind, one.progressed_at) == (8, None)
    assert one.still_s <= 2


def test_in_a_long_catch_up_the_last_record_tells_how_far_behind_it_is(story: Story) -> None:
    """The log's end runs ahead all the time: no end that was seen is ever passed."""
    story.positions = {ONE: 0, TWO: 10}
    for second in range(1, 30):
        story.ends = {ONE: 1_000_000 + 1_000 * second, TWO: 10}
        story.positions = {ONE: 100 * second, TWO: 10}
        story.vitals.took(ONE, 100, 5_000_000 + second)
        story.passes(1)
    one, two = story.vitals.condition().partitions
    assert one.complete_until == 5_000_029
    assert two.complete_until == round(story.now * 1e6), "caught up: the look at the end says more"
    story.vitals.took(ONE, 0, None)  # nothing but markers
    assert story.vitals.condition().partitions[0].complete_until == 5_000_029
    story.positions = {ONE: 2_000_000, TWO: 10}
    story.passes(1)
    assert story.vitals.condition().partitions[0].complete_until == round(story.now * 1e6)
    story.positions = {TWO: 10}
    story.passes(1)
    story.positions = {ONE: 100, TWO: 10}
    story.passes(1)
    assert story.vitals.condition().partitions[0].complete_until is None, "another owner's time says nothing of ours"


# --- reports ---


def reports(log: MemoryLog) -> list[WorkerReported]:
    out = []
    for source, marks in log.admin().watermarks(TELEMETRY).items():
        for batch in read_range(log, source, marks.low, marks.high):
            out += [CODEC.decode(value, headers) for value, headers in zip(batch.values, batch.headers, strict=True)]
    return [record for record in out if isinstance(record, WorkerReported)]


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_reports_are_published_at_once_when_the_state_changes_and_a_last_one_at_the_end(story: Story) -> None:
    log = MemoryLog()
    reporter = WorkerReporter(log, story.vitals, partial(outgoing, CODEC), interval_s=600)
    reporter.start()
    story.ends = {ONE: 15, TWO: 10}
    story.passes(5)
    wait_for(lambda: [each.state for each in reports(log)] == ["running"])
    story.vitals.waits(LOG, "away")
    wait_for(lambda: reports(log)[-1].state == "waiting")
    story.vitals.ended("failed", "lost")
    reporter.close()
    found = reports(log)
    assert [each.report_seq for each in found] == list(range(len(found)))
    assert (found[-1].state, found[-1].last_error, found[-1].waits_for) == ("failed", "lost", "log: away")
    (topic,) = found[-1].reads
    assert (topic.consumer, topic.topic) == ("stepwell-engine", ONE.topic)
    assert [(each.partition, each.position, each.log_end) for each in topic.partitions] == [(0, 10, 15), (1, 10, 10)]
    log.close()


def test_a_log_that_is_away_stops_no_worker(story: Story) -> None:
    log = MemoryLog()
    failures = [LogUnavailableError("away"), LogUnavailableError("away")]
    real = log.producer

    def producer(*, quiet: bool = False) -> Any:
        if failures:
            raise failures.pop()
        return real(quiet=quiet)

    log.producer = producer  # type: ignore[method-assign]
    reporter = WorkerReporter(log, story.vitals, partial(outgoing, CODEC), interval_s=0.05)
    reporter.start()
    wait_for(lambda: reports(log))
    reporter.close()
    assert reports(log)[0].report_seq == 0, "a report that was never made must not be counted"
    log.close()


# --- endpoints ---


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)), (":9464", ("127.0.0.1", 9464)), ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:9464", ("::1", 9464)), ("node-1.lab:80", ("node-1.lab", 80)),
    ],
)  # fmt: skip
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "1:2:3", "host:65536", "http://host:80", "a b:80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected HOST:PORT"):
        parse_listen(text)


def test_health_and_readiness(story: Story) -> None:
    assert health(story.vitals.condition(), 30) == (True, "")
    assert readiness(story.vitals.condition(), reads=True) == (False, "it is starting")
    story.passes(2)
    assert readiness(story.vitals.condition(), reads=True) == (True, "")
    story.vitals.waits(DATABASE, "refused")
    assert health(story.vitals.condition(), 30) == (True, "")
    assert readiness(story.vitals.condition(), reads=True) == (False, "database: refused")
    story.vitals.has(DATABASE)
    story.positions = {}
    story.passes(1)
    ready, problem = readiness(story.vitals.condition(), reads=True)
    assert not ready
    assert "no partition" in problem
    assert readiness(story.vitals.condition(), reads=False) == (True, "")
    story.answers = False
    story.passes(40)
    assert readiness(story.vitals.condition(), reads=False) == (False, "the log does not say where it ends")
    story.turns = False
    story.passes(40)
    well, problem = health(story.vitals.condition(), 30)
    assert not well
    assert problem.startswith("its thread gave no sign of life for 40 s")


@pytest.fixture
def served(story: Story) -> Iterator[str]:
    """Where the worker of the story answers."""
    metrics = WorkerMetrics(story.vitals, "1.2.3", "lab")
    server = HealthServer(("127.0.0.1", 0), story.vitals, metrics, 30)
    server.start()
    yield "http://{}:{}".format(*server.address)
    server.close()


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def figures(page: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name and values of the labels, in the order of the labels' names."""
    return {
        (each.name, tuple(value for _, value in sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(page.decode())
        for each in family.samples
    }


def test_probes_are_answered(story: Story, served: str) -> None:
    assert get(f"{served}/readyz")[0] == 503
    story.passes(2)
    code, body = get(f"{served}/readyz?verbose")
    assert (code, json.loads(body)["status"]) == (200, "ok")
    assert get(f"{served}/healthz")[0] == 200
    story.turns = False
    story.passes(31)
    code, body = get(f"{served}/healthz")
    assert code == 503
    assert "no sign of life" in json.loads(body)["problem"]
    assert get(f"{served}/")[0] == 404


def test_an_address_in_use_is_an_error_with_the_way_out(story: Story, served: str) -> None:
    port = int(served.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} cannot be used: .*choose another port"):
        HealthServer(("127.0.0.1", port), story.vitals, WorkerMetrics(story.vitals, "1", "lab"), 30)


def test_figures_are_those_of_the_worker(story: Story, served: str) -> None:
    """Lag in seconds is 0 only where a fresh look said that there is nothing to read."""
    story.ends = {ONE: 15, TWO: 10}
    story.passes(20)
    story.vitals.took(ONE, 7, None)
    letter = outgoing_letter(CODEC, sample(DeadLetter))
    story.vitals.wrote([letter, letter])
    story.vitals.waits(LOG, "away")
    found = figures(get(f"{served}/metrics")[1])
    one, two = [("stepwell-engine", number, "stepwell.episode-events") for number in "01"]
    assert found["stepwell_worker_info", ("lab", "engine", "1.2.3", "stepwell-engine-0")] == 1
    assert found["stepwell_lag_events", one] == 5
    assert found["stepwell_lag_events", two] == 0
    assert found["stepwell_lag_seconds", two] == 0
    assert ("stepwell_lag_seconds", one) not in found, "nobody knows since when"
    assert found["stepwell_progress_age_seconds", ()] == 19
    assert found["stepwell_records_total", ("stepwell.episode-events",)] == 7
    assert found["stepwell_batches_total", ()] == 1
    assert found["stepwell_dead_letters_total", ("kind ä",)] == 2
    assert (found["stepwell_waiting", ("log",)], found["stepwell_waiting", ("database",)]) == (1, 0)
    assert found["stepwell_errors_total", ()] == 1
    assert found["process_resident_memory_bytes", ()] > 1e6
    story.answers = False
    story.passes(60)
    found = figures(get(f"{served}/metrics")[1])
    assert found["stepwell_log_look_age_seconds", ()] == 60
    assert found["stepwell_lag_seconds", two] > 0, "nobody has looked for a minute"
