"""Step rules on an attempt: what each fact gives them to see, once it was applied.

Rules see facts only when their turn has come, so what they find does not depend on how facts were delivered. Of an
action is kept what rules read of it until its steps have passed; a fact that waits keeps the same.
"""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from stepwell.engine.facts import ActionFact, Fact, ReadyFact, StepFact
from stepwell.engine.state import AttemptState
from stepwell.engine.steps.memory import KeptAction, StepMemory
from stepwell.engine.steps.program import NONE, Failure, Program, program_of
from stepwell.engine.steps.signals import READ_MAX, SEEN_MAX, Moment, Values, row_of, row_width
from stepwell.events.model import ActionSent, Event, SimReady, StepDone, Tensor

US_PER_S = 1_000_000


def keep_for_rules(rules: str, event: Event, fact: Fact) -> Fact:
    """A fact with what the attempt's rules will read of it, for one that may have to wait."""
    if isinstance(event, SimReady):
        observation = _observed(program_of(rules), event.observation)
        return msgspec.structs.replace(fact, observation=observation) if observation else fact
    if isinstance(event, ActionSent):
        program = program_of(rules)
        if not (program.reads_rows or program.reads_timing):
            return fact
        action = event.action if program.reads_rows and len(event.action.data) <= READ_MAX else None
        return msgspec.structs.replace(
            fact, occurred_at=event.occurred_at, observed_step=event.observed_step, action=action
        )
    if isinstance(event, StepDone):
        program = program_of(rules)
        return msgspec.structs.replace(
            fact,
            occurred_at=event.occurred_at,
            observation=_observed(program, event.observation),
            metrics=tuple(entry for entry in event.metrics if entry.name in program.metrics),
        )
    return fact


def judge(attempt: AttemptState, fact: Fact) -> Sequence[Failure]:
    """A fact of an attempt with rules was applied."""
    if isinstance(fact, StepFact):
        return judge_step(attempt, fact)
    if isinstance(fact, ActionFact):
        keep_action(attempt, fact)
    elif isinstance(fact, ReadyFact):
        return _judge_ready(attempt, fact)
    return NONE


def keep_action(attempt: AttemptState, fact: ActionFact | ActionSent) -> None:
    """An action was applied: keep what rules will read of it, while its steps have not passed."""
    program = program_of(attempt.rules)
    if fact.producer_seq not in attempt.actions or not (program.reads_rows or program.reads_timing):
        return
    action = fact.action if program.reads_rows else None
    width = 0 if action is None else row_width(action.dtype, action.shape, len(action.data), fact.n_steps)
    readable = action if width else None
    attempt.kept_actions[fact.producer_seq] = KeptAction(
        fact.first_step,
        "" if readable is None else readable.dtype,
        width,
        b"" if readable is None else readable.data,
        fact.occurred_at,
        fact.observed_step,
        fact.inference_s,
    )
    if len(attempt.kept_actions) > len(attempt.actions):
        _drop_passed(attempt)


def judge_step(attempt: AttemptState, fact: StepFact | StepDone) -> Sequence[Failure]:
    """A step was applied: let the rules see it."""
    program = program_of(attempt.rules)
    memory = attempt.step_memory
    if memory is None:
        memory = attempt.step_memory = program.fresh()
    step = attempt.next_step - 1
    if step != memory.expected:
        program.gap(memory)
        memory.rows.clear()
        memory.seen_at.clear()
    memory.expected = step + 1
    moment = Moment(step, fact.observation, fact.sim_time, fact.occurred_at)
    moment.metrics = fact.metrics
    moment.reward = fact.reward
    moment.step_wall_s = fact.step_wall_s
    kept = attempt.kept_actions
    if program.reads_rows or program.reads_timing:
        action = kept.get(fact.action_seq)
        if action is not None:
            _take_action(program, memory, moment, action)
    failures = program.see(memory, moment, label_step=step)
    if program.look_back:
        _remember_row(memory, moment.row, program.look_back)
    if program.reads_latency:
        _remember_time(memory, step + 1, fact.occurred_at)
    if len(kept) > len(attempt.actions):
        _drop_passed(attempt)
    return failures


def judge_tick(attempt: AttemptState, now_us: int) -> Sequence[Failure]:
    """The engine reports silence while nothing waits in the log and nobody holds the attempt still."""
    memory = attempt.step_memory
    if memory is None or attempt.held_count or attempt.paused:
        return NONE
    return program_of(attempt.rules).tick(memory, now_us, max(memory.expected - 1, attempt.first_step))


def _judge_ready(attempt: AttemptState, fact: ReadyFact) -> Sequence[Failure]:
    program = program_of(attempt.rules)
    memory = attempt.step_memory = program.fresh()
    first = fact.first_step
    memory.expected = first
    if program.reads_latency:
        _remember_time(memory, first, fact.occurred_at)
    moment = Moment(first - 1, fact.observation, fact.sim_time, fact.occurred_at)
    if fact.observation:  # only for the rules; the attempt remembers the rest of the fact to its end
        attempt.ready_fact = msgspec.structs.replace(fact, observation=())
    return program.see(memory, moment, label_step=first, ready=True)


def _observed(program: Program, observation: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors that rules read; of a large one only what tells it from others."""
    found = [tensor for tensor in observation if tensor.name in program.observations]
    return tuple(
        tensor
        if len(tensor.data) <= READ_MAX
        else msgspec.structs.replace(tensor, data=b"", uri="", sha256=sha256(tensor.data).digest())
        for tensor in found
    )


def _drop_passed(attempt: AttemptState) -> None:
    """Drop what was kept of actions that the attempt remembers no more."""
    attempt.kept_actions = {seq: kept for seq, kept in attempt.kept_actions.items() if seq in attempt.actions}


def _take_action(program: Program, memory: StepMemory, moment: Moment, action: KeptAction) -> None:
    """What the step was done with."""
    if program.reads_rows:
        row = moment.row = row_of(action, moment.at)
        rows = memory.rows
        if row is None or (rows and len(rows[-1]) != len(row)):
            rows.clear()
        moment.rows = rows
    if program.reads_latency and not action.timed:
        action.timed = True
        observed = action.observed_step
        if observed is not None:
            index = observed - memory.seen_from
            if 0 <= index < len(memory.seen_at):
                action.latency_s = (action.occurred_at - memory.seen_at[index]) / US_PER_S
    moment.inference_s = action.inference_s
    moment.latency_s = action.latency_s


def _remember_row(memory: StepMemory, row: Values | None, look_back: int) -> None:
    rows = memory.rows
    if row is None:
        rows.clear()
        return
    rows.append(row)
    if len(rows) > look_back:
        del rows[0]


def _remember_time(memory: StepMemory, observation: int, occurred_at: int) -> None:
    """When an observation was made."""
    times = memory.seen_at
    if not times:
        memory.seen_from = observation
    times.append(occurred_at)
    if len(times) > SEEN_MAX:
        del times[0]
        memory.seen_from += 1
