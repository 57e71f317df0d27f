"""The state machine of an attempt, defined once.

Rule 1: `STATES`, `TRIGGERS`, `GUARDS` and `TRANSITIONS` below are the whole definition, in the form that `transitions`
takes. Everything else is made from it: that library's machine (`reference_machine`), the lookup table of the hot path
(`TABLE`; a test walks every state, trigger and guard result through both), and the diagram in the docs.

Rule 2: an event that has no transition here is a protocol violation, and the state stays where it was.

How to read a guard: the fold works out the guards of a trigger as bits, in the order that `GUARDS` names them, and
looks up ``TABLE[trigger][state][bits]``: the next state, or `ILLEGAL`.

PAUSED is no state but a flag over the live one: ``on_pause`` and ``on_resume`` are internal transitions.
"""

from itertools import product
from typing import Any, Final, NamedTuple

from stepwell.events import model

STATES: Final = (
    "INIT",
    "SIM_READY",
    "AGENT_RUNNING",
    "STEP_COMPLETE",
    "EPISODE_DONE",
    "FAILED",
    "ABORTED",
)
INIT, SIM_READY, AGENT_RUNNING, STEP_COMPLETE, EPISODE_DONE, FAILED, ABORTED = range(len(STATES))
LIVE: Final = (INIT, SIM_READY, AGENT_RUNNING, STEP_COMPLETE)
ILLEGAL: Final = -1

TRIGGERS: Final = (
    "on_sim_ready",
    "on_agent_start",
    "on_action_sent",
    "on_step_complete",
    "on_episode_end",
    "on_failure",
    "on_abort",
    "on_pause",
    "on_resume",
)
(
    ON_SIM_READY,
    ON_AGENT_START,
    ON_ACTION_SENT,
    ON_STEP_COMPLETE,
    ON_EPISODE_END,
    ON_FAILURE,
    ON_ABORT,
    ON_PAUSE,
    ON_RESUME,
) = range(len(TRIGGERS))

GUARDS: Final[dict[str, tuple[str, ...]]] = {
    "on_action_sent": ("leaves_no_hole", "covers_more"),
    "on_step_complete": ("is_next", "is_covered", "covers_more"),
    "on_pause": ("is_running",),
    "on_resume": ("is_paused",),
}
"""The guards of each trigger; the first is bit 0."""

GUARD_MEANINGS: Final[dict[str, str]] = {
    "leaves_no_hole": "first_step <= covered_to; or coverage is unknown, for sim::ready or a fact of the agent is lost",
    "covers_more": "covered_to > next_step, both taken after the event",
    "is_next": "step = next_step; or step >= next_step for the first step after facts of the simulator were lost",
    "is_covered": "the action it names covers the step, or is lost and so of unknown content",
    "is_running": "not paused; or unknown, because facts of the host were lost since the last pause or resume",
    "is_paused": "paused; or unknown, because facts of the host were lost since the last pause or resume",
}


class Transition(NamedTuple):
    """One line of the table. ``to`` None: an internal transition, the state stays."""

    trigger: str
    sources: tuple[str, ...]
    to: str | None
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


_LIVE_NAMES: Final = tuple(STATES[state] for state in LIVE)

TRANSITIONS: Final = (
    Transition("on_sim_ready", ("INIT",), "SIM_READY"),
    Transition("on_agent_start", ("SIM_READY",), "AGENT_RUNNING"),
    # An agent that sends no agent::started starts with its first action.
    Transition("on_action_sent", ("SIM_READY", "AGENT_RUNNING"), "AGENT_RUNNING", ("leaves_no_hole",)),
    Transition("on_action_sent", ("STEP_COMPLETE",), "AGENT_RUNNING", ("leaves_no_hole", "covers_more")),
    # An action whose steps have all passed changes nothing: it stays unexecuted.
    Transition("on_action_sent", ("STEP_COMPLETE",), "STEP_COMPLETE", ("leaves_no_hole",), ("covers_more",)),
    Transition("on_step_complete", ("AGENT_RUNNING",), "AGENT_RUNNING", ("is_next", "is_covered", "covers_more")),
    Transition("on_step_complete", ("AGENT_RUNNING",), "STEP_COMPLETE", ("is_next", "is_covered"), ("covers_more",)),
    # Only after a loss: the action that was applied is among the lost ones, so nothing covered this step.
    Transition("on_step_complete", ("STEP_COMPLETE",), "STEP_COMPLETE", ("is_next", "is_covered"), ("covers_more",)),
    Transition("on_episode_end", _LIVE_NAMES, "EPISODE_DONE"),
    Transition("on_failure", _LIVE_NAMES, "FAILED"),
    Transition("on_abort", _LIVE_NAMES, "ABORTED"),
    Transition("on_pause", _LIVE_NAMES, None, ("is_running",)),
    Transition("on_resume", _LIVE_NAMES, None, ("is_paused",)),
)

TRIGGER_OF: Final[dict[type[model.Event], str | None]] = {
    model.EpisodeRequested: None,
    model.RetryRequested: None,
    model.EpisodeClaimed: None,
    model.SimReady: "on_sim_ready",
    model.AgentStarted: "on_agent_start",
    model.ActionSent: "on_action_sent",
    model.StepDone: "on_step_complete",
    model.EpisodeEnded: "on_episode_end",
    model.EpisodeFailed: "on_failure",
    model.EpisodeAborted: "on_abort",
    model.EpisodePaused: "on_pause",
    model.EpisodeResumed: "on_resume",
    model.CheckpointSaved: None,
    model.EpisodeIntervened: None,
    model.EpisodeStalled: None,
    # Where something in the log waits for the owed fact, the time-out declares that one lost and fires nothing.
    model.EpisodeTimedOut: "on_failure",
    model.EpisodeSealed: None,
}
"""Every event about an episode, with the trigger it fires, or None where it moves no state."""


def compile_table() -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The lookup table: ``[trigger][state][guard bits] -> state``, or `ILLEGAL`. The definition's first line wins."""
    table = []
    for trigger in TRIGGERS:
        guards = GUARDS.get(trigger, ())
        rows = []
        for index, state in enumerate(STATES):
            row = []
            for reversed_bits in product((False, True), repeat=len(guards)):
                holds = dict(zip(guards, reversed(reversed_bits), strict=True))
                row.append(_next_state(trigger, index, state, holds))
            rows.append(tuple(row))
        table.append(tuple(rows))
    return tuple(table)


def _next_state(trigger: str, index: int, state: str, holds: dict[str, bool]) -> int:
    """Where one (trigger, state, guard result) leads."""
    for line in TRANSITIONS:
        if line.trigger != trigger or state not in line.sources:
            continue
        if all(holds[guard] for guard in line.when) and not any(holds[guard] for guard in line.unless):
            return index if line.to is None else STATES.index(line.to)
    return ILLEGAL


TABLE: Final = compile_table()


def reference_machine(model: object) -> Any:
    """The same definition as a machine of `transitions`, driving ``model``.

    ``model`` needs one method or attribute per guard (`GUARD_MEANINGS`) and gets ``state`` and one method per trigger.
    """
    from transitions import Machine

    return Machine(
        model=model,
        states=list(STATES),
        initial="INIT",
        auto_transitions=False,
        transitions=[
            {
                "trigger": line.trigger,
                "source": list(line.sources),
                "dest": line.to,
                "conditions": list(line.when),
                "unless": list(line.unless),
            }
            for line in TRANSITIONS
        ],
    )
