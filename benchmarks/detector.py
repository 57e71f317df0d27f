"""The detector without a live log: verdicts per second, memory per policy, and how long taking a partition over takes.

The fold is timed on decoded events with the CPU clock of its thread; a *verdict* there comes with the announcement that
the engine writes when its episode is requested. Every tenth episode fails, 50 per policy are under way at a time, and
they end a little out of order. Every run is checked: counts, and that equal work comes to the same bytes.
"""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import structlog

from benchmarks.live_rules import many_rules
from benchmarks.logs import FILL_BATCH, new_log
from benchmarks.measure import child, figures, peak_mb, resident_mb
from benchmarks.triggers import announced, verdict
from stepwell.adapters.logs import open_log
from stepwell.adapters.rules.activate import activate
from stepwell.adapters.workers.process import StopFlag, SystemClock, tune_garbage_collection
from stepwell.engine.detection.partition import pack
from stepwell.engine.detection.policies import Place, Policies
from stepwell.engine.detection.restore import GROUP, TOPICS, DetectorRestore, _Saved
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import Consumer, MessageLog, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import Event, VerdictIssued
from stepwell.events.topics import POLICY_EVENTS, WRITTEN_BY_DETECTOR

RULES = (1, 5, 20, 50)
POLICIES = (1, 100, 10_000)
UNDER_WAY = 50
FAILS_EACH = 10
STIRRED = 4
"""Verdicts come in an order that was shuffled within so many of a policy."""

RESTORED_POLICIES = 100
RESTORED_RULES = 5
TICK_US = 1_000


def verdict_stream(policies: int, verdicts: int) -> Iterator[Event]:
    """Announcements and verdicts, round robin over the policies."""
    chance = random.Random(policies)
    turns = -(-verdicts // policies)
    orders: list[list[int]] = []
    for start in range(0, turns, STIRRED):
        orders.append(list(range(start, min(start + STIRRED, turns))))
        chance.shuffle(orders[-1])
    order = [turn for some in orders for turn in some]
    for turn in range(turns + UNDER_WAY):
        for policy in range(policies):
            if turn < turns and turn * policies + policy < verdicts:
                yield announced(_one(turn, policy))
            ended = order[turn - UNDER_WAY] if turn >= UNDER_WAY else turns
            if ended * policies + policy < verdicts:
                yield _one(ended, policy)


def _one(turn: int, policy: int) -> VerdictIssued:
    chance = random.Random(turn * 1_000_003 + policy)
    failed = chance.randrange(FAILS_EACH) == 0
    scene = f"scene-{chance.randrange(4)}"
    return verdict(f"episode-{policy}-{turn}", f"policy-{policy}", failed=failed, seed=turn, scene=scene)


# --- the fold ---------------------------------------------------------------------------------------------------------


def fold_runs(verdicts: int, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every number of rules with every number of policies, in turn."""
    streams = {policies: list(verdict_stream(policies, verdicts)) for policies in POLICIES}
    for _ in range(turns):
        for policies, events in streams.items():
            for rules in RULES:
                yield f"detector fold: {rules} rules, {policies:,} policies", fold_run(events, rules, policies)


def fold_run(events: Sequence[Event], rules: int, policies: int) -> dict[str, Any]:
    """Fold all of them."""
    fold = Policies(many_rules(rules).canonical())
    places = [Place(0, at, 1_000_000 + at * TICK_US) for at in range(len(events))]
    gc.collect()
    gc.disable()
    begun, published = time.thread_time(), 0
    for event, place in zip(events, places, strict=True):
        published += len(fold.take(event, place))
    took = time.thread_time() - begun
    gc.enable()
    verdicts = sum(isinstance(event, VerdictIssued) for event in events)
    states = fold.states.values()
    assert len(states) == min(policies, verdicts)
    assert sum(state.recorded for state in states) == sum(state.admitted for state in states) == verdicts
    assert sum(state.ignored for state in states) == 0
    return figures(verdicts, took, took) | {"published": published}


# --- memory -----------------------------------------------------------------------------------------------------------


def memory_runs(full: int, fresh: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A policy with a full window, and one that has just begun; each in a process of its own."""
    for name, policies, each in (("full window", full, 700), ("10 verdicts", fresh, 10)):
        yield f"detector memory: {name}", child("detector_memory", policies=policies, each=each)


def memory(policies: int, each: int) -> dict[str, Any]:
    """Resident memory of so many policies with so many verdicts each, decoded as from a log."""
    tune_garbage_collection()
    codec, fold = Codec(), Policies(many_rules(RESTORED_RULES).canonical())
    _fold_decoded(codec, fold, verdict_stream(1, 10))  # compiles readers and writers
    fold.states.clear()
    before = resident_mb()
    _fold_decoded(codec, fold, verdict_stream(policies, policies * each))
    gc.collect()
    grown = resident_mb() - before
    assert len(fold.states) == policies
    packed = sorted(len(pack(state)) for state in fold.states.values())
    return {
        "policies": policies, "verdicts_each": each, "kib_each": grown * 1024 / policies, "peak_mb": peak_mb(),
        "snapshot_kib": packed[len(packed) // 2] / 1024,
    }  # fmt: skip


def _fold_decoded(codec: Codec, fold: Policies, events: Iterator[Event]) -> None:
    for at, event in enumerate(events):
        value, headers = codec.encode(event)
        fold.take(codec.decode_event(value, headers), Place(0, at, 1_000_000 + at * TICK_US))


# --- taking over ------------------------------------------------------------------------------------------------------


class FromZero(DetectorRestore):
    """As if there were no snapshots, or only such of another version."""

    def _read_saved(self, source: TopicPartition, consumer: Consumer) -> _Saved:
        del source, consumer
        return _Saved()


def restore_runs(kind: str, verdicts: int, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """All partitions taken over: after a kill, after a stop, and from the log's start."""
    with new_log(kind) as url:
        log, codec = open_log(url), Codec()
        activate(log, codec, many_rules(RESTORED_RULES), "benchmark")
        count = _fill(log, codec, verdicts)
        _detect(log, codec, count)
        zero: dict[str, bytes] = {}
        for stopped in (False, True):
            if stopped:
                _detect(log, codec, 0)
            for _ in range(turns):
                for name, restore in (("snapshots", DetectorRestore), ("zero", FromZero)):
                    run, ledgers = _restore(log, restore(log, codec, "benchmark"), verdicts)
                    zero = zero or ledgers
                    assert ledgers == zero, "another ledger"
                    when = "after a stop" if stopped else "after a kill"
                    if name != "zero":
                        yield f"detector restore {kind}: from snapshots, {when}", run
                    elif stopped:
                        yield f"detector restore {kind}: from zero", run
        log.close()


def _fill(log: MessageLog, codec: Codec, verdicts: int) -> int:
    """Write the stream; how many records it has."""
    producer, some, count = log.producer(), [], 0
    for event in verdict_stream(RESTORED_POLICIES, verdicts):
        some.append(outgoing(codec, event))
        count += 1
        if len(some) == FILL_BATCH:
            producer.send(some)
            some = []
    producer.send(some)
    producer.flush(300)
    producer.close()
    return count


def _detect(log: MessageLog, codec: Codec, records: int) -> None:
    """A detector takes in so many records and is gone as if killed; or none, and stops in peace."""
    stop = StopFlag()
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id="stepwell-detector-0", topics=TOPICS, writes=WRITTEN_BY_DETECTOR,
        restore=DetectorRestore(log, codec, "stepwell-detector-0"), clock=SystemClock(stop),
        report=structlog.get_logger("benchmark"),
    )  # fmt: skip
    owned = 0
    while loop.records < records or owned == 0:
        loop.step()
        owned = len(loop.processors)
    while loop.step():
        pass  # what brought nothing to write is committed at the first empty poll
    if records:
        loop.close()
        return
    stop.set()
    loop.run(stop)


def _restore(log: MessageLog, restore: DetectorRestore, verdicts: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Seconds of taking all partitions over, and what was found."""
    consumer = log.consumer(GROUP)
    admin = log.admin()
    sources = [TopicPartition(POLICY_EVENTS, number) for number in range(admin.partitions(POLICY_EVENTS))]
    admin.close()
    committed = consumer.committed(sources)
    wall, cpu = time.perf_counter(), time.process_time()
    partitions = [restore(source, committed[source], consumer) for source in sources]
    run = figures(verdicts, time.perf_counter() - wall, time.process_time() - cpu)
    consumer.close()
    ledgers: dict[str, bytes] = {}
    for partition in partitions:
        ledgers |= partition.ledger_bytes()  # type: ignore[union-attr]
    assert len(ledgers) == RESTORED_POLICIES
    return run, ledgers
