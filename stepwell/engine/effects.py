"""What each fact does to an attempt once its turn has come.

Every function takes an attempt and a fact (or the event it came from, field names are the same), applies it and returns
None; or leaves the attempt as it was and returns the code of the violation. Whether it is a fact's turn is decided in
`stepwell.engine.ordering`.
"""

from collections.abc import Callable
from typing import Final

from stepwell.engine import machine
from stepwell.engine.facts import (
    ActionFact,
    ClaimFact,
    EndFact,
    Fact,
    FlipFact,
    MarkFact,
    ReadyFact,
    RequestFact,
    StartFact,
    StepFact,
)
from stepwell.engine.ranges import contains
from stepwell.engine.state import (
    ACTION_LIMIT,
    NUMBER_LIMIT,
    PREVIOUS_GIVEN_UP,
    PREVIOUS_SUCCEEDED,
    AttemptState,
)
from stepwell.events.model import ActionSent, StepDone

CODES: Final[dict[str, str]] = {
    "foreign": "comes from another incarnation of the producer than the attempt's",
    "equivocation": "says something else under a sequence that was used already; the first in the log stands",
    "bad_sequence": "the sequence is negative or absurdly large",
    "bad_value": "a step, a count or a sequence in it is negative or absurdly large",
    "illegal": "the state machine has no transition for it in this state",
    "hole": "the action leaves steps before it that no action covers",
    "not_next_step": "the step is not the one after the last",
    "not_covered": "the step names an action that does not cover it",
    "second_end": "the attempt has ended already; the first end stands",
    "beyond_end": "lies beyond the last sequence that the end names",
    "no_request": "the host's fact 0 has to be the request",
    "misplaced_request": "a request has to be the host's fact 0",
    "misplaced_claim": "a claim has to be the host's fact 1",
    "wrong_request": "attempt 1 is asked for by episode::requested, every other by episode::retry_requested",
    "retry_after_success": "the attempt before was a success",
    "retry_without_end": "the end of the attempt before never came",
    "unexpected_type": "is no event about an episode",
    "wrong_episode": "belongs to another episode",
    "bad_attempt": "attempts count from 1",
}
"""Code of every violation, with its meaning. Codes are stable; consumers may rely on them."""

_ON_ACTION_SENT = machine.TABLE[machine.ON_ACTION_SENT]
_ON_STEP_COMPLETE = machine.TABLE[machine.ON_STEP_COMPLETE]
_END_TRIGGERS: Final = {
    "ended": machine.ON_EPISODE_END,
    "failed": machine.ON_FAILURE,
    "timed_out": machine.ON_FAILURE,
    "aborted": machine.ON_ABORT,
}


def agent_counts_as_started(attempt: AttemptState) -> None:
    """A lost fact of the agent counts as applied: it may have been the agent's first."""
    agent = attempt.agent
    if attempt.state == machine.SIM_READY and (agent.lost_count or agent.late_count):
        attempt.state = machine.TABLE[machine.ON_AGENT_START][attempt.state][0]


def apply_ready(attempt: AttemptState, fact: ReadyFact) -> str | None:
    """``sim::ready``: steps count from its first step."""
    target = machine.TABLE[machine.ON_SIM_READY][attempt.state][0]
    if target < 0:
        return "illegal"
    if not 0 <= fact.first_step <= NUMBER_LIMIT:
        return "bad_value"
    attempt.state = target
    attempt.ready = True
    attempt.ready_fact = fact
    attempt.first_step = attempt.next_step = attempt.covered_to = fact.first_step
    attempt.last_sim_time = fact.sim_time
    if fact.nonfinite:
        attempt.nonfinite_observations += 1
        attempt.nonfinite_events += 1
    agent_counts_as_started(attempt)
    return None


def apply_start(attempt: AttemptState, fact: StartFact) -> str | None:
    """``agent::started``. Where the simulator never became ready, it moves no state."""
    if not attempt.ready:
        attempt.start_fact = fact
        return None
    target = machine.TABLE[machine.ON_AGENT_START][attempt.state][0]
    if target < 0:
        return "illegal"
    attempt.state = target
    attempt.start_fact = fact
    return None


def apply_action(attempt: AttemptState, fact: ActionFact | ActionSent, nonfinite: bool) -> str | None:
    """``agent::action_sent``: covers steps ``first_step`` to ``first_step + n_steps - 1``."""
    first = fact.first_step
    end = first + fact.n_steps
    if first < 0 or end <= first or end > NUMBER_LIMIT:
        return "bad_value"
    covered_to = attempt.covered_to
    if attempt.ready:  # else the simulator never became ready, and the action stays unexecuted
        leaves_no_hole = first <= covered_to or attempt.coverage_unknown
        covered_to = max(covered_to, end)
        bits = (1 if leaves_no_hole else 0) | (2 if covered_to > attempt.next_step else 0)
        target = _ON_ACTION_SENT[attempt.state][bits]
        if target < 0:
            return "illegal" if leaves_no_hole else "hole"
        attempt.state = target
        attempt.covered_to = covered_to
        if end > attempt.next_step:
            actions = attempt.actions
            actions[fact.producer_seq] = [first, end, 0]
            if len(actions) > ACTION_LIMIT:
                _forget_actions(attempt)
    attempt.actions_applied += 1
    inference_s = fact.inference_s
    if inference_s is not None and inference_s - inference_s == 0.0:
        attempt.inference_total_s += inference_s
        attempt.inference_count += 1
    if nonfinite:
        attempt.nonfinite_actions += 1
        attempt.nonfinite_events += 1
    return None


def live_actions(attempt: AttemptState) -> dict[int, list[int]]:
    """The actions whose steps have not passed, in the order of their sequences."""
    return {seq: entry for seq, entry in sorted(attempt.actions.items()) if entry[1] > attempt.next_step}


def _forget_actions(attempt: AttemptState) -> None:
    """Make room: drop the actions whose steps have passed, and if that is not enough the oldest one."""
    attempt.actions = live_actions(attempt)
    if len(attempt.actions) > ACTION_LIMIT:
        oldest = next(iter(attempt.actions))
        del attempt.actions[oldest]
        attempt.actions_forgotten_to = oldest + 1


def apply_step(attempt: AttemptState, fact: StepFact | StepDone, nonfinite: bool) -> str | None:
    """``sim::step_done``: step ``step`` was done with the action that it names."""
    step = fact.step
    if step is None or not 0 <= step < NUMBER_LIMIT or fact.action_seq > NUMBER_LIMIT:
        return "bad_value"
    actions = attempt.actions
    entry = actions.get(fact.action_seq)
    done = step + 1
    covered_to = attempt.covered_to
    if entry is not None:
        covered = entry[0] <= step < entry[1]
    else:
        covered = _may_have_covered(attempt, fact.action_seq, step)
        covered_to = max(covered_to, done)
    is_next = step == attempt.next_step or (attempt.may_skip and step > attempt.next_step)
    target = _ON_STEP_COMPLETE[attempt.state][
        (1 if is_next else 0) | (2 if covered else 0) | (4 if covered_to > done else 0)
    ]
    if target < 0:
        # The code must not depend on how far the agent's facts have come, so it is not told from the state.
        if not attempt.ready:
            return "illegal"
        return "not_covered" if is_next else "not_next_step"
    attempt.state = target
    attempt.covered_to = covered_to
    attempt.next_step = done
    attempt.may_skip = False
    attempt.steps += 1
    if entry is not None:
        if not entry[2]:
            entry[2] = 1
            attempt.actions_executed += 1
        if entry[1] <= done:
            del actions[fact.action_seq]
            _drop_passed(attempt)
    _add_step_numbers(attempt, fact, nonfinite)
    return None


def _drop_passed(attempt: AttemptState) -> None:
    """Drop the oldest actions whose steps have passed; `live_actions` finds the rest when room is needed."""
    actions = attempt.actions
    while actions:
        seq, entry = next(iter(actions.items()))
        if entry[1] > attempt.next_step:
            return
        del actions[seq]


def _add_step_numbers(attempt: AttemptState, fact: StepFact | StepDone, nonfinite: bool) -> None:
    """Add what a step reports, in the simulator's order: floats are summed one after the other."""
    reward = fact.reward
    if reward is not None:
        attempt.total_reward += reward
        if reward - reward == 0.0:
            if attempt.max_reward is None or reward > attempt.max_reward:
                attempt.max_reward = reward
        else:
            attempt.nonfinite_rewards += 1
            if not nonfinite:
                attempt.nonfinite_events += 1
    if nonfinite:
        attempt.nonfinite_observations += 1
        attempt.nonfinite_events += 1
    success = fact.success
    if success is not None:
        attempt.success_last = success
        attempt.success_once = success or bool(attempt.success_once)
    wall_s = fact.step_wall_s
    if wall_s is not None and wall_s - wall_s == 0.0:
        attempt.step_wall_total_s += wall_s
        attempt.step_wall_count += 1
    if fact.sim_time is not None:
        attempt.last_sim_time = fact.sim_time


def _may_have_covered(attempt: AttemptState, action_seq: int, step: int) -> bool:
    """Whether an action that is not at hand may have covered the step: it is lost, or was dropped for want of room."""
    agent = attempt.agent
    if not 0 <= action_seq < agent.next_seq:
        return False
    if agent.unlisted or contains(agent.lost, action_seq) or contains(agent.late, action_seq):
        return True
    return action_seq < attempt.actions_forgotten_to and step < attempt.covered_to


def apply_request(attempt: AttemptState, fact: RequestFact) -> str | None:
    """``episode::requested`` or ``episode::retry_requested``: what this attempt is."""
    if fact.producer_seq != 0:
        return "misplaced_request"
    if fact.retry == (attempt.attempt == 1):
        return "wrong_request"
    if fact.retry and attempt.previous == PREVIOUS_SUCCEEDED:
        return "retry_after_success"
    if fact.retry and attempt.previous == PREVIOUS_GIVEN_UP:
        return "retry_without_end"
    attempt.request = fact
    attempt.run_id = fact.run_id
    attempt.trace_id = fact.trace_id
    return None


def apply_claim(attempt: AttemptState, fact: ClaimFact) -> str | None:
    """``episode::claimed`` by the attempt's host."""
    if fact.producer_seq != 1:
        return "misplaced_claim"
    attempt.claimed = True
    attempt.claimed_at = fact.occurred_at
    return None


def end_code(attempt: AttemptState, fact: EndFact) -> str | None:
    """Why this end may not be applied, or None."""
    if attempt.end_state >= 0:
        return "second_end"
    if fact.producer_seq == 0:
        return "no_request"
    for number, least in ((fact.n_steps, 0), (fact.last_sim_seq, -1), (fact.last_agent_seq, -1)):
        if number is not None and not least <= number <= NUMBER_LIMIT:
            return "bad_value"
    return None


def apply_end(attempt: AttemptState, fact: EndFact) -> str | None:
    """The end of the attempt. From here on nothing beyond the sequences that it names counts."""
    code = None if fact.kind == "timed_out" else end_code(attempt, fact)
    if code is not None:
        return code
    attempt.end_state = machine.TABLE[_END_TRIGGERS[fact.kind]][attempt.state][0]
    attempt.end = fact
    attempt.sim.limit = fact.last_sim_seq
    attempt.agent.limit = fact.last_agent_seq
    if fact.kind != "timed_out":
        attempt.host.limit = fact.producer_seq
    return None


def apply_flip(attempt: AttemptState, fact: FlipFact) -> str | None:
    """``episode::paused`` or ``episode::resumed``."""
    if fact.producer_seq == 0:
        return "no_request"
    trigger = machine.ON_PAUSE if fact.pause else machine.ON_RESUME
    holds = attempt.pause_unknown or attempt.paused != fact.pause
    state = attempt.state if attempt.end_state < 0 else attempt.end_state
    if machine.TABLE[trigger][state][1 if holds else 0] < 0:
        return "illegal"
    attempt.paused = fact.pause
    attempt.pause_unknown = False
    attempt.flips += 1
    return None


def apply_mark(attempt: AttemptState, fact: MarkFact) -> str | None:
    """``episode::checkpoint_saved`` or ``episode::intervened``: move no state."""
    if fact.producer_seq == 0:
        return "no_request"
    if fact.uri is None:
        attempt.interventions += 1
    else:
        attempt.checkpoints += 1
        attempt.last_checkpoint = (fact.step, fact.uri)
    return None


def _held_action(attempt: AttemptState, fact: ActionFact) -> str | None:
    return apply_action(attempt, fact, fact.nonfinite)


def _held_step(attempt: AttemptState, fact: StepFact) -> str | None:
    return apply_step(attempt, fact, fact.nonfinite)


_APPLY: Final[dict[type, Callable[..., str | None]]] = {
    RequestFact: apply_request,
    ClaimFact: apply_claim,
    ReadyFact: apply_ready,
    StartFact: apply_start,
    ActionFact: _held_action,
    StepFact: _held_step,
    EndFact: apply_end,
    FlipFact: apply_flip,
    MarkFact: apply_mark,
}


def apply_fact(attempt: AttemptState, fact: Fact) -> str | None:
    """Apply any fact whose turn has come; the violation's code where it is illegal, and then nothing has changed."""
    return _APPLY[type(fact)](attempt, fact)
