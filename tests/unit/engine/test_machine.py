"""The state machine: one definition, two ways to run it, one picture of it."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from transitions import MachineError

from stepwell.engine import machine
from stepwell.events import model

CASES = [
    (trigger, state, bits)
    for trigger in machine.TRIGGERS
    for state in machine.STATES
    for bits in range(2 ** len(machine.GUARDS.get(trigger, ())))
]


def _model(holds: dict[str, bool]) -> Any:
    """A model whose guards answer as told; a guard that the trigger does not name must not be asked."""

    def unasked() -> bool:
        raise AssertionError("a guard was asked that GUARDS does not name for this trigger")

    guards = dict.fromkeys(machine.GUARD_MEANINGS, unasked)
    guards |= {name: (lambda answer=answer: answer) for name, answer in holds.items()}
    return SimpleNamespace(**guards)


@pytest.mark.parametrize(("trigger", "state", "bits"), CASES)
def test_the_table_and_transitions_agree(trigger: str, state: str, bits: int) -> None:
    guards = machine.GUARDS.get(trigger, ())
    subject = _model({guard: bool(bits >> index & 1) for index, guard in enumerate(guards)})
    reference = machine.reference_machine(subject)
    reference.set_state(state)
    try:
        moved = subject.trigger(trigger)
    except MachineError:
        moved = False
    expected = machine.TABLE[machine.TRIGGERS.index(trigger)][machine.STATES.index(state)][bits]
    if expected == machine.ILLEGAL:
        assert not moved
        assert subject.state == state
    else:
        assert moved
        assert subject.state == machine.STATES[expected]


def test_every_state_can_be_reached_and_every_live_one_left() -> None:
    reached = {"INIT"}
    for trigger, state, bits in CASES * 3:
        target = machine.TABLE[machine.TRIGGERS.index(trigger)][machine.STATES.index(state)][bits]
        if state in reached and target != machine.ILLEGAL:
            reached.add(machine.STATES[target])
    assert reached == set(machine.STATES)
    final = {"EPISODE_DONE", "FAILED", "ABORTED"}
    for trigger, state, bits in CASES:
        target = machine.TABLE[machine.TRIGGERS.index(trigger)][machine.STATES.index(state)][bits]
        assert target == machine.ILLEGAL or state not in final


def test_a_pause_never_moves_the_state() -> None:
    for trigger, state, bits in product(("on_pause", "on_resume"), range(len(machine.STATES)), (0, 1)):
        target = machine.TABLE[machine.TRIGGERS.index(trigger)][state][bits]
        assert target in {machine.ILLEGAL, state}


def test_every_event_about_an_episode_has_its_line_in_the_trigger_table() -> None:
    about_episodes = {
        kind
        for kind in vars(model).values()
        if isinstance(kind, type)
        and issubclass(kind, model.Event)
        and getattr(kind, "TYPE", "").split("::")[0] in {"episode", "sim", "agent"}
    }
    assert set(machine.TRIGGER_OF) == about_episodes
    assert {trigger for trigger in machine.TRIGGER_OF.values() if trigger} == set(machine.TRIGGERS)


def test_the_definition_uses_each_name_it_declares() -> None:
    assert {line.trigger for line in machine.TRANSITIONS} == set(machine.TRIGGERS)
    used = {guard for line in machine.TRANSITIONS for guard in (*line.when, *line.unless)}
    declared = {guard for guards in machine.GUARDS.values() for guard in guards}
    assert used == declared == set(machine.GUARD_MEANINGS)
