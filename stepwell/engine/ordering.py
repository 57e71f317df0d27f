"""Whose turn it is: holding facts back, letting them go, giving up what never came.

A fact applies when its predecessor of the same producer has been applied or is lost. Besides,

* the agent's facts wait for ``sim::ready`` (unless an end says that the simulator wrote no more),
* a step waits for the action that it names (unless an end says that the agent wrote none such),
* an end waits for the sequences that it names,
* a retry request waits for the end of the attempt before;

nothing else waits. What waits is held, at most `HOLD_LIMIT` facts per producer.
"""

from typing import NamedTuple

from stepwell.engine import machine, ranges
from stepwell.engine.effects import agent_counts_as_started, apply_fact, end_code
from stepwell.engine.facts import ActionFact, EndFact, Fact, RequestFact, StartFact, StepFact
from stepwell.engine.findings import Findings
from stepwell.engine.state import (
    AGENT,
    HOLD_LIMIT,
    HOST,
    LIST_LIMIT,
    NUMBER_LIMIT,
    PREVIOUS_GIVEN_UP,
    PREVIOUS_OPEN,
    SIM,
    AttemptState,
    Held,
    ProducerState,
)
from stepwell.engine.steps.judge import judge


class Owed(NamedTuple):
    """What has to come next.

    Attributes:
        producer: index of the producer that owes it.
        seq: the sequence it owes.
        gap_to: the last sequence that something in the log waits for; None where nothing in the log waits.
        previous_end: what is waited for is the end of the attempt before.
    """

    producer: int
    seq: int
    gap_to: int | None = None
    previous_end: bool = False


def waits_for(attempt: AttemptState, fact: Fact) -> Owed | None:
    """What a fact whose predecessor has been applied still waits for, or None."""
    if isinstance(fact, StepFact):
        agent = attempt.agent
        last = announced_last(attempt, AGENT)
        # No agent gets so far: to wait for it would be to give up all that the agent still sends.
        never = fact.action_seq > NUMBER_LIMIT or (last is not None and fact.action_seq > last)
        if attempt.ready and fact.action_seq >= agent.next_seq and not never:
            return Owed(AGENT, agent.next_seq, fact.action_seq)
    elif isinstance(fact, ActionFact | StartFact):
        last = announced_last(attempt, SIM)
        never = last is not None and last < attempt.sim.next_seq
        if not attempt.ready and not never:
            return Owed(SIM, attempt.sim.next_seq, attempt.sim.next_seq)
    elif isinstance(fact, EndFact):
        if end_code(attempt, fact) is None:
            for producer, last in ((attempt.sim, fact.last_sim_seq), (attempt.agent, fact.last_agent_seq)):
                if last is not None and last >= producer.next_seq:
                    return Owed(producer.index, producer.next_seq, last)
    elif isinstance(fact, RequestFact) and fact.retry and fact.producer_seq == 0 and attempt.previous == PREVIOUS_OPEN:
        return Owed(HOST, 0, None, previous_end=True)
    return None


def announced_last(attempt: AttemptState, index: int) -> int | None:
    """The last sequence of simulator or agent, where an end says it: the one applied, or the one whose turn is next."""
    end = attempt.end
    if end is None:
        held = attempt.host.held.get(attempt.host.next_seq)
        if held is None or not isinstance(held.fact, EndFact) or end_code(attempt, held.fact) is not None:
            return None
        end = held.fact
    return end.last_sim_seq if index == SIM else end.last_agent_seq


def blocker(attempt: AttemptState, producer: ProducerState) -> Owed:
    """What the lowest held fact of a producer ultimately waits for: a whole gap, of this producer or of another."""
    held = producer.held
    lowest = min(held)
    if lowest > producer.next_seq:
        return Owed(producer.index, producer.next_seq, lowest - 1)
    owed = waits_for(attempt, held[lowest].fact)
    assert owed is not None  # or `drain` would have applied it
    if owed.previous_end or owed.gap_to is None:
        return owed
    other = attempt.producers()[owed.producer]
    if other.held:
        first = min(other.held)
        if first == other.next_seq:
            return blocker(attempt, other)
        return owed._replace(gap_to=min(owed.gap_to, first - 1))
    return owed


def owed(attempt: AttemptState) -> Owed | None:
    """Who owes the next event; None once ended, when nothing held waits any more.

    What waits in the log tells first: the host's held facts, then the simulator's, then the agent's. Else the host owes
    the claim, or the resume while paused; else the counters tell.
    """
    if attempt.held_count:
        for producer in (attempt.host, attempt.sim, attempt.agent):
            if producer.held:
                return blocker(attempt, producer)
    if attempt.end_state >= 0:
        return None
    if attempt.paused:
        return Owed(HOST, attempt.host.next_seq)
    if not attempt.ready:
        unclaimed = not attempt.claimed and attempt.host.producer_id is None and attempt.sim.producer_id is None
        return Owed(HOST, attempt.host.next_seq) if unclaimed else Owed(SIM, attempt.sim.next_seq)
    if attempt.covered_to > attempt.next_step:
        return Owed(SIM, attempt.sim.next_seq)
    return Owed(AGENT, attempt.agent.next_seq)


def is_queued(attempt: AttemptState) -> bool:
    """Whether the attempt was asked for and nobody has taken it yet: it waits for a host, and no clock runs."""
    return all(p.producer_id is None for p in attempt.producers())


def hold(attempt: AttemptState, producer: ProducerState, seq: int, held: Held, findings: Findings) -> None:
    """Keep a fact until its turn; where a producer then holds too many, give up what its lowest waits for."""
    producer.held[seq] = held
    attempt.held_count += 1
    while len(producer.held) > HOLD_LIMIT:
        attempt.overflow = True
        give_up(attempt, blocker(attempt, producer), "overflow", findings)


def advance(producer: ProducerState, seq: int, digest: int) -> None:
    """Sequence ``seq`` has its turn now."""
    producer.digests[seq % HOLD_LIMIT] = digest
    producer.next_seq = seq + 1


def drain(attempt: AttemptState, findings: Findings) -> None:
    """Apply held facts as long as one has its turn."""
    moved = True
    while moved and attempt.held_count:
        moved = False
        for producer in attempt.producers():
            while producer.held:
                seq = producer.next_seq
                held = producer.held.get(seq)
                if held is None or waits_for(attempt, held.fact) is not None:
                    break
                del producer.held[seq]
                attempt.held_count -= 1
                apply_in_turn(attempt, producer, seq, held, findings)
                moved = True


def apply_in_turn(attempt: AttemptState, producer: ProducerState, seq: int, held: Held, findings: Findings) -> None:
    """Apply a fact whose turn has come, and record it where it is illegal."""
    advance(producer, seq, held.digest)
    had_ended = attempt.end_state >= 0
    code = apply_fact(attempt, held.fact)
    if code is not None:
        findings.violation(attempt, code, producer, seq, held)
        return
    if attempt.rules:
        findings.rules_failed(attempt, judge(attempt, held.fact), seq, held)
    if attempt.end_state >= 0 and not had_ended:
        refuse_beyond_end(attempt, findings)


def refuse_beyond_end(attempt: AttemptState, findings: Findings) -> None:
    """An end was applied: what lies beyond the sequences that it names is a violation, held or applied."""
    for producer in attempt.producers():
        limit = producer.limit
        if limit is None:
            continue
        for seq in sorted(seq for seq in producer.held if seq > limit):
            held = producer.held.pop(seq)
            attempt.held_count -= 1
            second = producer.index == HOST and isinstance(held.fact, EndFact)
            findings.violation(attempt, "second_end" if second else "beyond_end", producer, seq, held)
        came = producer.next_seq - limit - 1 - ranges.count_from(producer.lost, limit + 1)
        if came > 0:
            findings.beyond_end_applied(attempt, producer, limit + 1, producer.next_seq - 1, came)


def give_up(attempt: AttemptState, gap: Owed, cause: str, findings: Findings) -> None:
    """Declare a gap lost and let go on what waited for it."""
    if gap.previous_end:
        attempt.previous = PREVIOUS_GIVEN_UP
    else:
        assert gap.gap_to is not None
        lose(attempt, attempt.producers()[gap.producer], gap.gap_to, cause, findings)
    drain(attempt, findings)


def lose(attempt: AttemptState, producer: ProducerState, last: int, cause: str, findings: Findings) -> None:
    """Sequences from the next one to ``last`` are lost: they count as applied with unknown content."""
    first = producer.next_seq
    count = last - first + 1
    producer.lost_count += count
    if not ranges.append(producer.lost, first, last, LIST_LIMIT):
        producer.unlisted += count
    for seq in range(max(first, last - HOLD_LIMIT + 1), last + 1):
        producer.digests[seq % HOLD_LIMIT] = -1
    producer.next_seq = last + 1
    if producer.index == SIM:
        attempt.may_skip = True
        if not attempt.ready:
            attempt.ready = True
            attempt.coverage_unknown = True
            attempt.state = machine.TABLE[machine.ON_SIM_READY][attempt.state][0]
    elif producer.index == AGENT:
        attempt.coverage_unknown = True
    else:
        attempt.pause_unknown = True
    agent_counts_as_started(attempt)
    findings.lost(attempt, producer, first, last, cause)
