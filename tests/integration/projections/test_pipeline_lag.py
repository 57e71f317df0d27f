"""The views `pipeline_lag` and `workers`: true also while nobody reports, and clear about what waits for what."""

from collections.abc import Callable
from typing import Any

import pytest

from stepwell.adapters.workers.vitals import WorkerVitals
from stepwell.engine.ports import Consumer, MessageLog, TopicPartition
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import LogUnavailableError
from stepwell.projections.writing.projector import GROUP
from tests.integration.projections import facts

Query = Callable[..., list[tuple[Any, ...]]]
ENGINE = "stepwell-engine"
LAG = (
    "SELECT state, worker_id, behind_events, waits_for, last_error FROM stepwell.pipeline_lag"
    f" WHERE consumer = '{ENGINE}' AND partition = 0"
)
SECOND = 1_000_000


@pytest.fixture
def told(log: MessageLog, drain: Callable[..., None], query: Query) -> Callable[..., tuple[Any, ...]]:
    """Puts an engine's position at 5 of 9, publishes reports, and gives the row of `pipeline_lag`."""

    def run(*reports: Any) -> tuple[Any, ...]:
        facts.publish(log, reports)
        drain()
        query(
            "INSERT INTO stepwell_g1.consumer_positions"
            " (consumer, topic, partition, next_offset, log_end, complete_until, events_per_s, arrives_per_s)"
            f" VALUES ('{ENGINE}', '{EPISODE_EVENTS}', 0, 5, 9, now() - interval '20 s', 3, 1)"
            " ON CONFLICT (consumer, topic, partition) DO NOTHING"
        )
        ((*row,),) = query(LAG)
        return tuple(row)

    return run


def test_the_newest_report_stands_and_the_last_error_stays(log: MessageLog, told: Any, query: Query) -> None:
    first = facts.worker("w", last_error="stuck: it hung", last_error_at=facts.now_us(), state="failed", report_seq=8)
    assert told(first, facts.worker("w", version="1.2.4")) == ("behind", "w", 4, "", "stuck: it hung")
    status = "SELECT state, version, last_error, last_error_at IS NOT NULL FROM stepwell.worker_status"
    assert query(status) == [("running", "1.2.4", "stuck: it hung", True)]
    # In batches of their own, and one that says nothing newer.
    assert told(facts.worker("w", last_error="other", last_error_at=facts.now_us()))[4] == "other"
    assert told(facts.worker("w", waits_for="log: away", state="waiting")) == ("waiting", "w", 4, "log: away", "other")
    assert query("SELECT count(*), max(position) FROM stepwell.worker_partitions") == [(1, 5)]


def test_who_reported_a_partition_last_has_it(told: Any) -> None:
    assert told(facts.worker("w-0"), facts.worker("w-1"))[1] == "w-1"
    assert told(facts.worker("w-1", reads=()), facts.worker("w-0"))[1] == "w-0"


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_the_partition_of_a_worker_that_has_gone_is_silent_and_waits_for_it(told: Any, state: str) -> None:
    assert told(facts.worker("w", state=state))[:4] == ("silent", "w", 4, f"a worker: w is {state}")


def test_a_worker_that_died_without_a_word_is_silent(told: Any, query: Query) -> None:
    assert told(facts.worker("w", waits_for="log: away", state="waiting"))[0] == "waiting"
    query("UPDATE stepwell_g1.worker_status SET logged_at = logged_at - interval '1 min'")
    assert query(LAG) == [("silent", "w", 4, "a worker: w is silent", "")]
    assert query("SELECT state, waits_for, heard_s_ago > 59 FROM stepwell.workers") == [("silent", "", True)]
    # While the tables do not follow the log, nothing is known of the worker's silence.
    query("UPDATE stepwell_g1.sink_offsets SET complete_until = complete_until - interval '1 min'")
    assert query("SELECT state FROM stepwell.workers") == [("waiting",)]


def test_lag_is_judged_by_movement_and_by_how_fresh_the_look_is(told: Any, query: Query) -> None:
    told(facts.worker("w"))
    change = "UPDATE stepwell_g1.consumer_positions SET {}"
    seen = "SELECT state, behind_s > 0, round(behind_s), catch_up_s FROM stepwell.pipeline_lag WHERE consumer = %s"
    ((state, _, behind_s, catch_up_s),) = query(seen, ENGINE)
    assert (state, catch_up_s) == ("behind", 2)  # 4 events, 3 - 1 = 2 a second
    assert behind_s >= 20
    query(change.format("events_per_s = 1"))
    assert query(seen, ENGINE)[0][3] is None, "as much comes as is done"
    query(change.format("complete_until = now() - interval '2 min', progressed_at = now() - interval '5 s'"))
    assert query(seen, ENGINE)[0][0] == "behind", "it moves"
    query(change.format("progressed_at = now() - interval '90 s'"))
    assert query(seen, ENGINE)[0][0] == "stalled"
    query(change.format("next_offset = 9"))
    assert query(seen, ENGINE) == [("caught up", False, 0, 0)]
    query(change.format("seen_at = now() - interval '15 s'"))
    assert query(seen, ENGINE)[0][:2] == ("behind", True), "nobody has looked for 15 s"
    query(change.format("seen_at = now() - interval '40 s'"))
    assert query(seen, ENGINE)[0][0] == "silent"


def test_the_projector_tells_its_rate_and_when_it_moved(
    log: MessageLog, running: Callable[..., Any], query: Query
) -> None:
    with running(slot=3) as projector:
        projector.wait_reported()
        facts.publish(log, facts.episode("e-1", 40))
        projector.wait_reported()
        own = (
            "SELECT worker_id, events_per_s > 0, arrives_per_s > 0, now() - progressed_at < interval '20 s', state"
            f" FROM stepwell.pipeline_lag WHERE consumer = '{GROUP}' AND topic = '{EPISODE_EVENTS}' AND next_offset > 0"
        )
        projector.wait(lambda: query(own) == [(f"{GROUP}-3", True, True, True, "caught up")])


class Reluctant:
    """A log whose consumers and admins do not answer while ``away``."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self.away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def consumer(self, *arguments: Any) -> Any:
        return Failing(self, self._log.consumer(*arguments))

    def admin(self) -> Any:
        return Failing(self, self._log.admin())


class Failing:
    def __init__(self, log: Reluctant, real: Any) -> None:
        self._log = log
        self._real: Consumer = real

    def __getattr__(self, name: str) -> Any:
        if self._log.away and name in ("poll", "watermarks"):
            raise LogUnavailableError("nobody answers")
        return getattr(self._real, name)


def test_while_the_log_is_away_the_projector_says_so_and_the_figures_stay_as_of_then(
    log: MessageLog, running: Callable[..., Any], query: Query
) -> None:
    reluctant = Reluctant(log)
    vitals = WorkerVitals(f"{GROUP}-0", "projector", GROUP, facts.CODEC)
    found = running(vitals=vitals)
    found.projector._message_log = found.projector._own_looks._log = reluctant
    facts.publish(log, facts.episode("e-1", 3))
    states = f"SELECT DISTINCT state, waits_for, behind_s > 1 FROM stepwell.pipeline_lag WHERE consumer = '{GROUP}'"
    with found as projector:
        projector.wait_reported()
        assert vitals.condition().counters["stepwell_records_total", EPISODE_EVENTS] == 8
        assert TopicPartition(EPISODE_EVENTS, 0) in {each.source for each in vitals.condition().partitions}
        reluctant.away = True
        projector.wait(lambda: vitals.condition().waits == {"log": "nobody answers"})
        then = "now() - interval '40 s'"
        query(f"UPDATE stepwell_g1.sink_offsets SET looked_at = {then}, complete_until = {then}, seen_at = {then}")
        projector.wait(lambda: query(states) == [("waiting", "log: nobody answers", True)])
        reluctant.away = False
        projector.wait(lambda: query(states) == [("caught up", "", False)])
        assert vitals.condition().state == "running"
