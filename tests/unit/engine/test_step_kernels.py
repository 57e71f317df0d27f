"""Each kind of step rule: what it finds, what it must not find, and the edges between the two."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from stepwell.events import model
from stepwell.events.model import Metric, Tensor
from tests.unit.engine.step_rules import INF, NAN, array, rules_text
from tests.unit.engine.stories import Story, attempt_of, fold, stalled, timed_out, verdict

GAP = "gap"
"""In a list of values: a step that is lost."""
LOST_ACTION = "lost action"
"""In a list of values: a step with a usual value (of rewards: 2.0) whose action is lost."""


def told(story: Story, rules: str) -> dict[str, int]:
    """The labels of an attempt, with their steps; the built-in ones left out."""
    said = verdict(fold(story.facts, rules=rules))
    return {name: step for name, step in zip(said.labels, said.label_steps, strict=True) if step >= 0}


def attempt(rule: dict[str, Any], steps: Iterable[Any], **of_ready: Any) -> int | None:
    """The step at which a rule finds its label in an attempt; None where it does not.

    ``steps``: for each step what is special about it (fields of `sim::step_done`, ``action`` for the action's tensor,
    ``sent`` for its other fields), `LOST_ACTION` (nothing, its action is lost), or `GAP`.
    """
    story = Story()
    story.request()
    story.claim()
    story.ready(**of_ready)
    story.started()
    lost: list[model.Event] = []
    for number, special in enumerate(steps):
        fields: dict[str, Any] = {"reward": 2.0} if special in (GAP, LOST_ACTION) else dict(special)
        sent = story.action(number, **fields.pop("sent", {}))
        if (action := fields.pop("action", None)) is not None:
            sent = story.facts[-1] = msgspec.structs.replace(sent, action=action)
        done = story.step(number, sent.producer_seq)
        changed = story.facts[-1] = msgspec.structs.replace(done, **fields)
        lost += [changed] if special == GAP else [sent] if special == LOST_ACTION else []
    story.end(success=False, reason="max_steps")
    arrived = [fact for fact in story.facts if fact not in lost]
    return told(Story(facts=[*arrived, *give_up(arrived, rules_text(rule))]), rules_text(rule)).get("rule_0")


def give_up(arrived: Sequence[model.Event], rules: str) -> list[model.Event]:
    """Time-outs that let go on what waits for lost facts."""
    found: list[model.Event] = []
    while (waiting := attempt_of(fold([*arrived, *found], rules=rules))).held_count:
        lowest = min((p for p in waiting.producers() if p.held), key=lambda p: (p.index != 2, p.index))
        token = {"sim": waiting.sim.next_seq, "agent": waiting.agent.next_seq}
        before = len(found)
        for name, seq in token.items():
            one = timed_out(name, seq)
            after = attempt_of(fold([*arrived, *found, one], rules=rules))
            if after.stale_count == waiting.stale_count:
                found.append(one)
                break
        assert len(found) > before, lowest
    return found


def actions(*rows: Any) -> list[Any]:
    """Steps whose action is given: a number for every element, or a tuple of them."""
    return [
        row if isinstance(row, str) else {"action": array("action", row, shape=(1, len(row)))}
        for row in (entry if isinstance(entry, tuple | str) else (entry, entry) for entry in rows)
    ]


def rewards(*values: Any) -> list[Any]:
    return [value if isinstance(value, str) else {"reward": value} for value in values]


def seen(*tensors: Tensor | None) -> list[Any]:
    return [{"observation": () if tensor is None else (tensor,)} for tensor in tensors]


def metrics(*values: float | None) -> list[Any]:
    return [{"metrics": () if value is None else (Metric(name="d", value=value),)} for value in values]


# --- limit --------------------------------------------------------------------------------------------------------

ABOVE = {"kind": "limit", "signal": "reward", "above": 1.0}


@pytest.mark.parametrize(
    ("rule", "values", "step"),
    [
        ({}, (0.0, 1.0, 1.5, 9.0), 2),
        ({}, (0.0, 1.0, -1.0), None),
        ({}, (0.0, -1.5), 1),  # the magnitude counts
        ({}, (NAN, NAN), None),
        ({}, (-INF,), 0),
        ({"steps": 3}, (2.0, 2.0, 0.0, 2.0, 2.0, 2.0), 5),
        ({"steps": 3}, (2.0, 2.0, 0.0, 2.0, 2.0), None),  # K - 1
        ({"steps": 3}, (2.0, 2.0, GAP, 2.0, 2.0), None),  # a lost step: the window starts anew
        ({"steps": 3}, (2.0, 2.0, GAP, 2.0, 2.0, 2.0), 5),
        ({"steps": 3}, (2.0, 2.0, None, 2.0, 2.0), None),  # an unknown value does the same
        ({"steps": 3}, (2.0, 2.0, LOST_ACTION, 2.0, 2.0), 2),  # the reward of a step whose action is lost is known
        ({"steps": 3, "within": 5}, (2.0, 0.0, 2.0, 0.0, 2.0), 4),
        ({"steps": 3, "within": 5}, (2.0, 0.0, 2.0, 0.0, 0.0, 2.0), None),  # M + 1
        ({"steps": 2, "within": 3}, (2.0, NAN, 2.0), 2),  # NaN is no hit, and no gap
    ],
)
def test_limit(rule: dict[str, Any], values: tuple[Any, ...], step: int | None) -> None:
    assert attempt(ABOVE | rule, rewards(*values)) == step


def test_below_looks_at_the_smallest_element() -> None:
    rule = {"kind": "limit", "signal": "observation.force", "below": -2.0}
    force = [array("force", values) for values in ((0.0, 5.0), (NAN, -2.0), (NAN, -2.5))]
    assert attempt(rule, seen(*force)) == 2
    assert attempt(rule, seen(*force[:2])) is None


def test_a_nan_among_the_elements_hides_no_other() -> None:
    rule = {"kind": "limit", "signal": "observation.force", "above": 2.0}
    for values in ((NAN, 3.0), (3.0, NAN), (1.0, NAN, -3.0)):
        assert attempt(rule, seen(array("force", values))) == 0
    assert attempt(rule, seen(array("force", (NAN, NAN)), array("force", (NAN, 2.0)))) is None


def test_the_first_observation_counts_and_the_label_names_the_first_step() -> None:
    rule = {"kind": "limit", "signal": "observation.qpos", "above": 2.0, "steps": 2}
    assert attempt(rule, seen(array("qpos", [3.0])), observation=(3.0,)) == 0
    assert attempt(rule | {"steps": 1}, seen(array("qpos", [0.0])), observation=(3.0,)) == 0
    assert attempt(rule | {"steps": 1}, seen(array("qpos", [3.0])), observation=(0.0,)) == 0
    late = Story()
    late.request()
    late.claim()
    late.ready(first_step=7, observation=(9.0,))
    late.fail("start_failed")
    assert told(late, rules_text(rule | {"steps": 1})) == {"rule_0": 7}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"])
def test_every_dtype_is_read(dtype: str) -> None:
    rule = {"kind": "limit", "signal": "observation.x[1:3]", "above": 0.5}
    assert attempt(rule, seen(array("x", [1, 0, 0], dtype), array("x", [0, 0, 1], dtype))) == 1


def test_shapes_are_flattened_in_c_order() -> None:
    rule = {"kind": "limit", "signal": "observation.x[2]", "above": 2.5}
    grid = array("x", [0.0, 1.0, 3.0, 2.0], shape=(2, 2))
    assert attempt(rule, seen(grid)) == 0
    assert attempt(rule | {"signal": "observation.x[1:2]"}, seen(grid)) is None
    scalar = array("x", [3.0], shape=())
    assert attempt(rule | {"signal": "observation.x"}, seen(scalar)) == 0
    assert attempt(rule, seen(scalar)) is None  # no such element: unknown, never judged


def test_what_cannot_be_read_is_unknown() -> None:
    rule = {"kind": "limit", "signal": "observation.x", "above": 0.5, "steps": 2}
    one = array("x", [1.0])
    for strange in (
        None,
        array("y", [1.0]),
        array("x", []),
        Tensor(name="x", dtype="complex64", shape=(1,), data=bytes(8)),
        Tensor(name="x", dtype="float64", shape=(1,), data=b"torn"),
        Tensor(name="x", dtype="float64", shape=(1,), data=b"", uri="s3://b/x", sha256=bytes(32)),
        array("x", [1.0] * 1025),
        array("x", [1.0] * 5000),
    ):
        assert attempt(rule, seen(one, strange, one)) is None
    assert attempt(rule, seen(one, array("x", [1.0] * 1024), one)) == 1


# --- signals ------------------------------------------------------------------------------------------------------


def test_the_row_that_was_applied_is_judged() -> None:
    """Chunks overlap: of each the rows count that steps name, whatever else it says."""
    story = Story().begin()
    early = story.action(0, 4, values=(0.0,))
    story.facts[-1] = msgspec.structs.replace(early, action=array("action", [0, 9, 0, 9, 9, 9, 9, 9.0], shape=(4, 2)))
    again = story.action(2, 2)
    story.facts[-1] = msgspec.structs.replace(again, action=array("action", [0.0, 5.0, 0.0, 0.0], shape=(2, 2)))
    for step, chunk in enumerate((early, early, again, again)):
        story.step(step, chunk.producer_seq)
    story.end()
    signal = {"kind": "limit", "signal": "action[0]"}
    assert told(story, rules_text(signal | {"above": 1.0})) == {}
    assert told(story, rules_text({"kind": "limit", "signal": "action[1]", "below": 6.0})) == {"rule_0": 2}
    assert told(story, rules_text({"kind": "limit", "signal": "action", "below": 9.0, "steps": 4})) == {"rule_0": 3}


@pytest.mark.parametrize(
    ("tensor", "n_steps", "known"),
    [
        (array("action", [9.0, 9.0], shape=(2, 1)), 2, True),
        (array("action", [9.0, 9.0], shape=(2,)), 2, True),
        (array("action", [9.0, 9.0], shape=(1, 2)), 2, False),  # says one row for two steps
        (array("action", [9.0, 9.0, 9.0], shape=(2, 1)), 2, False),
        (array("action", [9.0], shape=()), 1, True),
        (array("action", []), 1, False),
        (array("action", [9.0] * 5000, shape=(1, 5000)), 1, False),
    ],
)
def test_rows_of_strange_chunks(tensor: Tensor, n_steps: int, known: bool) -> None:
    story = Story().begin()
    sent = story.action(0, n_steps)
    story.facts[-1] = msgspec.structs.replace(sent, action=tensor)
    for step in range(n_steps):
        story.step(step, sent.producer_seq)
    story.end()
    rules = rules_text({"kind": "limit", "signal": "action", "above": 1.0, "steps": n_steps})
    assert told(story, rules) == ({"rule_0": n_steps - 1} if known else {})


def test_differences_of_actions() -> None:
    change = {"kind": "limit", "signal": "action_change", "above": 1.0}
    assert attempt(change, actions(0.0, 1.0, 2.0, 4.0)) == 3
    assert attempt(change, actions(5.0)) is None
    assert attempt(change, actions(0.0, LOST_ACTION, 5.0, 6.0)) is None  # unknown on both sides of the lost row
    assert attempt(change, actions(0.0, GAP, 5.0, 6.0)) is None
    assert attempt(change, actions((0.0, 0.0), (5.0,), (6.0,))) is None  # another width
    # Third differences of k**3 are 6 everywhere.
    cubes = [float(k**3) for k in range(6)]
    jerk = {"kind": "limit", "signal": "action_jerk[0]", "above": 5.9}
    assert attempt(jerk, actions(*cubes)) == 3
    assert attempt(jerk | {"above": 6.0}, actions(*cubes)) is None
    assert attempt(jerk, actions(*cubes[:3])) is None
    assert attempt(jerk, actions(0.0, 1.0, GAP, 27.0, 64.0, 125.0)) is None
    assert attempt(jerk, actions(0.0, 1.0, GAP, 27.0, 64.0, 125.0, 216.0)) == 6


def test_latency_is_from_the_observation_to_the_action() -> None:
    rule = {"kind": "limit", "signal": "latency_s", "above": 0.25}

    def sent(observed: int | None, at: int) -> dict[str, Any]:
        return {"sent": {"observed_step": observed}, "at": at}

    def run(*plan: tuple[int | None, int]) -> int | None:
        """Observation k is made at second k; the action of step k is sent at the time given (µs)."""
        story = Story().begin()
        story.facts[2] = msgspec.structs.replace(story.facts[2], occurred_at=0)
        for step, (observed, at) in enumerate(plan):
            action = story.action(step, observed_step=observed)
            story.facts[-1] = msgspec.structs.replace(action, occurred_at=at)
            done = story.step(step, action.producer_seq)
            story.facts[-1] = msgspec.structs.replace(done, occurred_at=(step + 1) * 1_000_000)
        story.end()
        return told(story, rules_text(rule)).get("rule_0")

    assert run((0, 250_000), (1, 1_250_000)) is None
    assert run((0, 250_000), (1, 1_250_001)) == 1
    assert run((0, 0), (0, 1_000_000)) == 1  # computed from an older observation
    assert run((None, 9_000_000)) is None
    assert run((1, 9_000_000)) is None  # from one that had not been made
    many = [(step, step * 1_000_000) for step in range(64)]
    assert run(*many, (1, 64_000_000)) == 64
    assert run(*many, (0, 64_000_000)) is None  # too long ago


@pytest.mark.parametrize(("name", "field"), [("inference_s", "sent"), ("step_wall_s", "done")])
def test_durations(name: str, field: str) -> None:
    rule = {"kind": "limit", "signal": name, "above": 0.5, "steps": 2}
    values: list[float | None] = [1.0, None, 1.0, 1.0]
    steps = [{"sent": {name: value}} if field == "sent" else {name: value} for value in values]
    assert attempt(rule, steps) == 3


# --- nonfinite, saturated -----------------------------------------------------------------------------------------


def test_nonfinite() -> None:
    rule = {"kind": "nonfinite", "signal": "action", "steps": 2, "within": 3}
    assert attempt(rule, actions(0.0, (NAN, 0.0), 0.0, (0.0, INF))) == 3
    assert attempt(rule, actions((NAN, 0.0), 0.0, 0.0, (0.0, -INF))) is None
    assert attempt(rule, actions((NAN, 0.0), LOST_ACTION, (NAN, 0.0))) is None
    assert attempt({"kind": "nonfinite", "signal": "metric.d"}, metrics(1.0, None, NAN)) == 2
    # The sum of these is infinite, and none of them.
    assert attempt({"kind": "nonfinite"}, actions((1.7e308, 1.7e308), 0.0)) is None


def test_saturated() -> None:
    rule = {"kind": "saturated", "signal": "action", "steps": 2, "tolerance": 0.125}
    assert attempt(rule, actions((0.0, 1.0), (-1.0, 0.0))) == 1
    assert attempt(rule, actions((0.0, 0.875), (-0.875, 0.0))) == 1  # just at the tolerance
    assert attempt(rule, actions((0.0, 0.87), (-1.0, 0.0), (0.0, 0.87))) is None
    assert attempt(rule, actions((0.0, 2.0), (NAN, -INF))) == 1
    assert attempt(rule, actions((NAN, NAN), (NAN, NAN))) is None
    bounds = {"kind": "saturated", "signal": "action", "low": 0.0, "high": 10.0}
    assert attempt(bounds, actions(5.0, 0.0)) == 1


# --- frozen, stale ------------------------------------------------------------------------------------------------


def test_frozen_needs_one_moment_more_than_it_counts() -> None:
    rule = {"kind": "frozen", "signal": "action", "steps": 3, "tolerance": 0.1}
    assert attempt(rule, actions(1.0, 1.0, 1.0, 1.0)) == 3
    assert attempt(rule, actions(1.0, 1.0, 1.0)) is None
    assert attempt(rule, actions((1.0, 0.0), (1.0, 0.0), (1.0, 0.2), (1.0, 0.2), (1.0, 0.2), (1.0, 0.2))) == 5
    assert attempt(rule, actions(1.0, 1.0, GAP, 1.0, 1.0)) is None
    assert attempt(rule, actions(1.0, 1.0, LOST_ACTION, 1.0, 1.0, 1.0)) is None
    assert attempt(rule, actions(1.0, 1.0, LOST_ACTION, 1.0, 1.0, 1.0, 1.0)) == 6
    assert attempt(rule, actions((1.0, 1.0), (1.0,), (1.0,), (1.0,), (1.0,))) == 4


def test_nan_and_infinity_are_movement() -> None:
    rule = {"kind": "frozen", "signal": "action", "steps": 2}
    assert attempt(rule, actions(NAN, NAN, NAN, NAN)) is None
    assert attempt(rule, actions(INF, INF, INF, INF)) is None
    assert attempt(rule, actions(0.0, -0.0, 0.0)) == 2


def test_a_drift_within_the_tolerance_is_frozen() -> None:
    rule = {"kind": "frozen", "signal": "action", "steps": 3, "tolerance": 0.125}
    assert attempt(rule, actions(0.0, 0.125, 0.25, 0.375)) == 3


def test_stale_counts_equal_observations() -> None:
    rule = {"kind": "stale", "signal": "observation.x", "steps": 3}
    one, other = array("x", [1.0, 2.0]), array("x", [1.0, 2.5])
    assert attempt(rule, seen(one, one, one)) == 2
    assert attempt(rule, seen(one, one, other, one, one)) is None
    assert attempt(rule, seen(one, one, None, one, one)) is None
    assert attempt(rule, seen(other, one, one)) is None
    assert attempt(rule | {"signal": "observation.x[0]"}, seen(one, other, one)) == 2
    assert attempt(rule | {"signal": "observation.x[0:3]"}, seen(one, one, one)) is None
    assert attempt(rule | {"signal": "observation.qpos"}, [], observation=(0.0,)) is None


def test_stale_is_about_bits() -> None:
    rule = {"kind": "stale", "signal": "observation.x", "steps": 2}
    assert attempt(rule, seen(array("x", [NAN]), array("x", [NAN]))) == 1
    assert attempt(rule, seen(array("x", [0.0]), array("x", [-0.0]))) is None
    assert attempt(rule, seen(array("x", [0, 0], "float32"), array("x", [0.0]))) is None  # the same bytes
    assert attempt(rule, seen(array("x", [1.0, 2.0]), array("x", [1.0, 2.0], shape=(2, 1)))) is None


@pytest.mark.parametrize("size", [100, 2_000, 40_000])
def test_large_observations_and_references_are_told_apart_by_their_digests(size: int) -> None:
    rule = {"kind": "stale", "signal": "observation.camera", "steps": 2}
    black, dot = bytes(size), bytes(size - 1) + b"\1"
    shown = [Tensor(name="camera", dtype="uint8", shape=(size,), data=data) for data in (dot, black, black)]
    assert attempt(rule, seen(*shown)) == 2
    assert attempt(rule, seen(*shown[:2])) is None
    kept = [
        Tensor(name="camera", dtype="uint8", shape=(size,), data=b"", uri="s3://b", sha256=sha256(data).digest())
        for data in (dot, black, black)
    ]
    assert attempt(rule, seen(*kept)) == 2
    assert attempt(rule, seen(*kept[:2])) is None


# --- oscillating --------------------------------------------------------------------------------------------------

SHAKY = {"kind": "oscillating", "signal": "action", "amplitude": 1.0, "reversals": 3, "within": 5}


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((0.0, 1.0, 0.0, 1.0, 0.0), 4),
        ((0.0, 1.0, 0.0, 1.0), None),  # two reversals
        ((0.0, 0.9, 0.0, 0.9, 0.0, 0.9, 0.0), None),
        ((0.0, 0.5, 1.0, 0.5, 0.0, 0.5, 1.0, 0.5, 0.0), 8),  # a reversal each two steps: the third at 8, the first at 4
        ((0.0, 0.4, 0.8, 1.0, 0.6, 0.2, 0.0, 0.4, 0.8, 1.0, 0.6, 0.2, 0.0), None),  # too slow
        ((0.0, 1.0, 0.0, 0.0, 1.0, 0.0), 5),
        ((0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0), None),
        ((0.0, 1.0, 0.0, GAP, 0.0, 1.0, 0.0), None),
        ((0.0, 1.0, 0.0, GAP, 0.0, 1.0, 0.0, 1.0, 0.0), 8),
        ((NAN, 0.0, 1.0, NAN, 0.0, 1.0, 0.0), 6),
        ((INF, INF, INF, INF, INF, INF), None),
        ((0.0, INF, -INF, INF, -INF), 4),
    ],
)
def test_oscillating(values: tuple[Any, ...], step: int | None) -> None:
    assert attempt(SHAKY, actions(*values)) == step


def test_one_element_must_turn_back_by_itself() -> None:
    rows = [(0.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, 1.0)]
    assert attempt(SHAKY | {"within": 6}, actions(*rows)) is None
    assert attempt(SHAKY | {"within": 6, "reversals": 2}, actions(*rows)) == 5


# --- stagnation ---------------------------------------------------------------------------------------------------

STUCK = {"kind": "stagnation", "signal": "metric.d", "direction": "falling", "steps": 3, "min_change": 0.5}


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((5.0, 5.0, 5.0, 5.0), 3),
        ((5.0, 5.0, 5.0), None),
        ((5.0, 4.9, 4.8, 4.4, 4.4, 4.4, 4.4), 6),  # slow progress adds up: 4.4 is a new best
        ((5.0, 4.5, 4.5, 4.5), None),  # just min_change is a new best
        ((5.0, 4.75, 4.75, 4.75), 3),
        ((INF, INF, INF, INF), 3),
        ((5.0, 9.0, 9.0, 4.0, 9.0, 9.0), None),
        ((5.0, 5.0, 5.0, None, 5.0, 5.0, 5.0), None),
        ((5.0, NAN, NAN, NAN), 3),
        ((NAN, NAN, 5.0, 4.0), None),
    ],
)
def test_stagnation(values: tuple[float | None, ...], step: int | None) -> None:
    assert attempt(STUCK, metrics(*values)) == step
    rising = [None if value is None else -value for value in values]
    assert attempt(STUCK | {"direction": "rising"}, metrics(*rising)) == step


def test_a_signal_of_several_elements_is_no_number() -> None:
    assert attempt(STUCK | {"signal": "action"}, actions(*[(1.0, 1.0)] * 6)) is None
    assert attempt(STUCK | {"signal": "action"}, actions(*[(1.0,)] * 6)) == 3


# --- sequence -----------------------------------------------------------------------------------------------------

GRASP = {"signal": "metric.d", "above": 0.5}
LIFT = {"signal": "reward", "above": 0.5}
LIFTED = {"kind": "sequence", "first": GRASP, "then": LIFT, "within_steps": 2}


def moves(*pairs: Any) -> list[Any]:
    """Steps as (metric d, reward)."""
    return [
        pair if isinstance(pair, str) else {"metrics": metrics(pair[0])[0]["metrics"], "reward": pair[1]}
        for pair in pairs
    ]


@pytest.mark.parametrize(
    ("pairs", "step"),
    [
        (((1, 0), (1, 0), (1, 0)), 2),  # holds from the start on, and is missed two steps later
        (((0, 0), (1, 0), (1, 0), (1, 1)), None),  # just in time
        (((0, 0), (1, 0), (1, 0), (1, 0), (1, 1)), 3),
        (((0, 0), (1, 0), (1, 0)), None),  # the attempt ends before the time is up
        (((0, 0), (1, 1), (1, 0), (1, 0), (1, 0)), None),  # answered at once; still holding begins no other wait
        (((0, 0), (1, 1), (0, 0), (1, 0), (1, 0), (1, 0)), 5),  # holds again, and is missed
        (((0, 0), (1, 0), (0, 0), (1, 0)), 3),  # letting go does not put the wait off
        (((0, 0), (1, 0), GAP, (1, 0), (1, 0), (1, 0)), None),  # it may have been lifted in the lost step
        (((0, 0), (1, 0), (1, None), (1, 0), (1, 0), (1, 0)), 3),  # what a step does not say does not hold
        (((0, 0), (1, 0), (None, 0), (1, 0)), 3),  # whether it is still grasped does not matter
        (((None, None), (1, None), (None, None), (None, None)), 3),  # told only when it happens
        (((None, None), (1, None), (None, None), (None, 1)), None),
        (
            ((None, None), (1, None), (None, 1), (1, None), (1, None), (1, None)),
            5,
        ),  # told again: it comes to hold again
        (((None, None), (1, None), GAP, (None, None), (None, None)), None),  # it may have been told in the lost step
        (((0, 0), GAP, (1, 0), (1, 0), (1, 0), (1, 0)), None),  # came to hold nobody knows when
        (((0, 0), GAP, (0, 0), (1, 0), (1, 0), (1, 0)), 5),
        (((0, 0), (NAN, 0), (NAN, 0), (NAN, 0)), None),
    ],
)
def test_sequence_in_steps(pairs: tuple[Any, ...], step: int | None) -> None:
    assert attempt(LIFTED, moves(*pairs)) == step


def test_a_condition_about_a_lost_action_is_unknown_and_one_about_what_was_not_observed_does_not_hold() -> None:
    moved = {"signal": "action", "above": 0.5}
    rule = LIFTED | {"first": moved, "then": LIFT}
    still, quick = actions((0.0,), (1.0,))
    assert attempt(rule, [still, quick | {"reward": 0.0}, *[still | {"reward": 0.0}] * 2]) == 3
    assert attempt(rule, [still, LOST_ACTION, *[quick | {"reward": 0.0}] * 4]) is None  # came to hold nobody knows when
    then_moved = LIFTED | {"then": moved}
    touched = [{"metrics": metrics(each)[0]["metrics"], "reward": 0.0} for each in (0.0, 1.0, 1.0, 1.0)]
    assert attempt(then_moved, [still | each for each in touched]) == 3
    assert attempt(then_moved, [*(still | each for each in touched[:2]), LOST_ACTION, still | touched[3]]) is None
    seen_it = LIFTED | {"then": {"signal": "observation.x", "above": 0.5}}
    assert attempt(seen_it, touched) == 3  # no observation x
    unread = {"observation": (array("x", [0.0, 0.0]),)}
    assert attempt(seen_it, [*touched[:2], touched[2] | unread, touched[3]]) is None  # one of two elements: which?


def test_sequence_in_simulated_time() -> None:
    """Steps take 12.5 ms each in these stories."""
    rule = {name: value for name, value in LIFTED.items() if name != "within_steps"} | {"within_sim_s": 0.025}
    held = moves((0, 0), (1, 0), (1, 0), (1, 0), (1, 0))
    assert attempt(rule, held) == 3
    assert attempt(rule | {"within_sim_s": 0.03}, held) == 4
    assert attempt(rule, [*held[:2], held[2] | {"sim_time": None}, *held[3:]]) is None
    jump = [*held[:2], {"metrics": (), "reward": 1.0, "sim_time": 9.0}]
    assert attempt(rule, jump) == 2  # lifted, but too late


def test_sequence_in_wall_time_goes_by_the_simulators_clock() -> None:
    """Facts of the simulator are 1 ms apart in these stories."""
    rule = {name: value for name, value in LIFTED.items() if name != "within_steps"} | {"within_wall_s": 0.002}
    assert attempt(rule, moves((0, 0), (1, 0), (1, 0), (1, 0))) == 3
    assert attempt(rule, moves((0, 0), (1, 0), (1, 0), (1, 1))) is None


def silent(*silence: model.Event, rule: dict[str, Any]) -> dict[str, int]:
    """Grasped at step 1, and then silence."""
    story = Story().begin()
    for step, distance in enumerate((0.0, 1.0)):
        sent = story.action(step)
        story.step(step, sent.producer_seq, reward=0.0, metrics=(Metric(name="d", value=distance),))
    state = fold([*story.facts, *silence], rules=rules_text(rule))
    memory = attempt_of(state).step_memory
    assert memory is not None
    return {} if memory.found[0] < 0 else {"rule_0": memory.found[0]}


def test_silence_proves_absence_in_wall_time() -> None:
    """The step at which it was grasped occurred at 1,010,002,000 µs; the agent owes its fact 3."""
    rule = {name: value for name, value in LIFTED.items() if name != "within_steps"} | {"within_wall_s": 1.0}
    early = msgspec.structs.replace(stalled("agent", 3), occurred_at=1_011_002_000)
    late = msgspec.structs.replace(early, occurred_at=1_011_002_001)
    assert silent(early, rule=rule) == {}
    assert silent(late, rule=rule) == {"rule_0": 1}
    assert silent(early, late, rule=rule) == {"rule_0": 1}
    ended = msgspec.structs.replace(timed_out("agent", 3), occurred_at=1_012_000_000)
    assert silent(ended, rule=rule) == {"rule_0": 1}
    stale = msgspec.structs.replace(late, owed_seq=2)
    assert silent(stale, rule=rule) == {}
    assert silent(late, rule=LIFTED) == {}  # in steps, silence says nothing


def test_silence_says_nothing_while_something_waits_or_a_person_holds_the_attempt() -> None:
    rule = {name: value for name, value in LIFTED.items() if name != "within_steps"} | {"within_wall_s": 1.0}
    story = Story(next_seq={"sim": 4, "agent": 4, "host": 2})
    waiting = story.step(3, 3)
    late = msgspec.structs.replace(stalled("sim", 3), occurred_at=1_020_000_000)
    assert silent(waiting, late, rule=rule) == {}
    paused = story.pause()
    late = msgspec.structs.replace(stalled("host", 3, flips=1), occurred_at=1_020_000_000)
    assert silent(paused, late, rule=rule) == {}
