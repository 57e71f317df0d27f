"""Arbitrary histories for property tests: honest ones, with what can go wrong on the way put in afterwards.

An honest history is a list of facts in the order in which they came about (so each producer's are in order): an agent
that plans ahead in overlapping chunks, pauses, checkpoints, any kind of end, retries. Everything is drawn as small
numbers, so that a failing example shrinks to something readable.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from stepwell.events import model
from stepwell.events.model import Event
from tests.unit.engine.stories import Story, tensor

ENDS = ("success", "max_steps", "unnamed", "failed", "failed_unnamed", "aborted", "none")
PRODUCERS = ("sim", "agent", "host")

Operation = tuple[str, int, int]
_operations = st.tuples(
    st.sampled_from(["chunk", "chunk", "step", "step", "step", "step", "pause", "checkpoint", "intervene"]),
    st.integers(0, 9),
    st.integers(0, 9),
)
_rewards = st.lists(st.floats(width=64), max_size=6)


class Plan(NamedTuple):
    """What one attempt does."""

    operations: list[Operation]
    end: str
    started: bool
    first_step: int
    rewards: list[float]


def plans(max_operations: int = 20) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        st.lists(_operations, max_size=max_operations),
        st.sampled_from(ENDS),
        st.booleans(),
        st.sampled_from([0, 0, 7]),
        _rewards,
    )


def act_out(plan: Plan, attempt: int = 1) -> Story:
    """The facts of one attempt, as honest producers would write them."""
    story = Story(attempt)
    story.request()
    story.claim()
    if plan.started and not plan.first_step:
        story.started()  # agent and simulator start side by side; the agent is first here
    if plan.end == "failed" and not plan.operations:
        story.fail("start_failed")
        return story
    story.ready(first_step=plan.first_step)
    _act(story, plan)
    _finish(story, plan.end)
    return story


def _act(story: Story, plan: Plan) -> None:
    covered_to = next_step = plan.first_step
    actions: list[tuple[int, int, int]] = []
    paused = False
    for name, a, b in plan.operations:
        if name == "chunk":
            first = max(0, covered_to - a % (covered_to - next_step + 3))
            sent = story.action(first, 1 + b % 6)
            actions.append((sent.producer_seq, first, first + 1 + b % 6))
            covered_to = max(covered_to, first + 1 + b % 6)
        elif name == "step" and covered_to > next_step:
            fitting = [seq for seq, first, end in actions if first <= next_step < end]
            reward = plan.rewards[(a + next_step) % len(plan.rewards)] if plan.rewards else None
            story.step(next_step, fitting[a % len(fitting)], reward=reward, success=[None, False, True][b % 3])
            next_step += 1
        elif name == "pause":
            (story.resume if paused else story.pause)()
            paused = not paused
        elif name == "checkpoint":
            story.checkpoint(next_step)
        elif name == "intervene":
            story.intervene()


def _finish(story: Story, end: str) -> None:
    if end == "success":
        story.end()
    elif end == "max_steps":
        story.end(success=False, reason="max_steps")
    elif end == "unnamed":
        story.end(named=False)
    elif end == "failed":
        story.fail()
    elif end == "failed_unnamed":
        story.fail("host_lost", named=False)
    elif end == "aborted":
        story.abort()


@st.composite
def episodes(draw: st.DrawFn, max_operations: int = 20) -> list[Event]:
    """An honest episode of one or two attempts."""
    first = draw(plans(max_operations))
    facts = list(act_out(first).facts)
    if first.end not in {"success", "unnamed", "none"} and draw(st.booleans()):
        facts += act_out(draw(plans(max_operations)), attempt=2).facts
    return facts


def interleave(facts: Sequence[Event], seed: int, apart: int) -> list[Event]:
    """The facts in another order, each overtaken by fewer than ``apart`` others that came about later."""
    rng = random.Random(seed)
    keys = [index + rng.random() * apart for index in range(len(facts))]
    return [facts[index] for index in sorted(range(len(facts)), key=keys.__getitem__)]


def with_duplicates(facts: Sequence[Event], seed: int, share: float) -> list[Event]:
    """The same, some delivered again at any later place."""
    rng = random.Random(seed)
    delivered = list(facts)
    for fact in facts:
        if rng.random() < share:
            first = delivered.index(fact)
            delivered.insert(rng.randint(first + 1, len(delivered)), fact)
    return delivered


def without(facts: Sequence[Event], seed: int, share: float) -> tuple[list[Event], list[Event]]:
    """What arrives, and what is lost."""
    rng = random.Random(seed)
    arrived: list[Event] = []
    lost: list[Event] = []
    for fact in facts:
        (lost if rng.random() < share else arrived).append(fact)
    return arrived, lost


def spoil(facts: Sequence[Event], choices: Sequence[tuple[int, int]]) -> list[Event]:
    """Put facts in that break the protocol as they are written: each takes a sequence of its producer.

    The producer's later sequences move up; what steps and ends name moves along, so that the rest stays honest.
    """
    written = list(facts)
    for where, what in choices:
        at = where % len(written) if written else 0
        if not written or written[at].producer_seq == 0:
            continue  # the first facts keep their places, so that each attempt is what it is
        written = _insert(written, at, _bad(written[at], what))
    return written


def _bad(beside: Event, what: int) -> Event:
    """An illegal fact of the same producer with the sequence of ``beside``."""
    head = {name: getattr(beside, name) for name in Event.__struct_fields__}
    story = Story(beside.attempt)
    story.next_seq = dict.fromkeys(PRODUCERS, beside.producer_seq)
    if beside.PRODUCER == "sim":
        bad = [story.ready, lambda: story.step(90, 0), lambda: story.step(0, -1)][what % 3]()
    elif beside.PRODUCER == "agent":
        bad = [story.started, lambda: story.action(500), lambda: story.action(0, 0)][what % 3]()
    else:
        bad = [story.request, story.claim][what % 2]()
    return msgspec.structs.replace(bad, producer_id=head["producer_id"])


def _insert(facts: list[Event], at: int, bad: Event) -> list[Event]:
    producer, attempt, from_seq = bad.PRODUCER, bad.attempt, bad.producer_seq
    after: list[Event] = []
    for index, fact in enumerate(facts):
        if index == at:
            after.append(bad)
        after.append(_moved(fact, producer, from_seq) if fact.attempt == attempt else fact)
    return after


def _moved(fact: Event, producer: str, from_seq: int) -> Event:
    changes: dict[str, int] = {}
    if producer == fact.PRODUCER and fact.producer_seq >= from_seq:
        changes["producer_seq"] = fact.producer_seq + 1
    if producer == "agent" and isinstance(fact, model.StepDone) and fact.action_seq >= from_seq:
        changes["action_seq"] = fact.action_seq + 1
    for name in ("sim", "agent"):
        last = getattr(fact, f"last_{name}_seq", None)
        if producer == name and last is not None and last >= from_seq:
            changes[f"last_{name}_seq"] = last + 1
    return msgspec.structs.replace(fact, **changes) if changes else fact


JUNK = [
    kind for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, Event) and "TYPE" in vars(kind)
]
_small = st.integers(-1, 6)
_any_int = _small | _small | _small | st.integers(-(2**63), 2**63 - 1)
_HEAD = {
    "event_id": st.binary(min_size=16, max_size=16),
    "run_id": st.sampled_from(["run-1", ""]),
    "episode_id": st.sampled_from(["ep-story", "ep-story", "ep-story", "ep-other"]),
    "attempt": st.sampled_from([1, 1, 1, 2, 2, 3, 0, -4, 2**31 - 1]),
    "producer_id": st.sampled_from(["a", "a", "a", "b"]),
    "producer_seq": _any_int,
    "occurred_at": st.integers(0, 2**62),
    "trace_id": st.just("0" * 32),
    "step": st.none() | _any_int,
    "sim_time": st.none() | st.floats(),
}
_BODY: dict[str, st.SearchStrategy[object]] = {
    **dict.fromkeys(("seed", "repetition", "max_steps", "pid", "size_bytes"), st.integers(-(2**63), 2**63 - 1)),
    "exit_code": st.none() | st.integers(-(2**31), 2**31 - 1),
    "observation": st.sampled_from([(), (tensor([1.0]),), (tensor([float("nan")]),)]),
    "action": st.sampled_from([tensor([1.0]), tensor([float("inf")])]),
    "metrics": st.just(()),
    "first_step": _any_int,
    "n_steps": _any_int,
    "action_seq": _any_int,
    "last_sim_seq": st.none() | _any_int,
    "last_agent_seq": st.none() | _any_int,
    "owed": st.sampled_from(["sim", "agent", "host", "nobody"]),
    "owed_seq": _small,
    "flips": st.integers(0, 2),
    "reward": st.none() | st.floats(),
}


def junk(kinds: Sequence[type[Event]] = ()) -> st.SearchStrategy[Event]:
    """Events of any type with any content, most of them about the same few attempts and sequences."""
    wanted = kinds or [
        kind for kind in JUNK if kind.PRODUCER in {"sim", "agent", "host"} or kind.TYPE.startswith("episode")
    ]
    return st.sampled_from(list(wanted)).flatmap(
        lambda kind: st.builds(
            kind, **{name: strategy for name, strategy in (_HEAD | _BODY).items() if name in kind.__struct_fields__}
        )
    )
