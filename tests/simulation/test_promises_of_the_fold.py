"""The detector's fold fires where the rules, written down plainly, do: what is simulated is what runs.

Streams of verdicts go through the whole fold, alone and requested in one order while they end in another; its first
trigger must open at the same episode, with the same counts.
"""

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from stepwell.engine.detection.fold import Detector
from stepwell.engine.detection.promises import judge
from stepwell.engine.ruleset import InARowRule, RateRule, RuleSet, RunPromise, ShiftRule, VerdictRule, WindowRateRule
from stepwell.events.ids import derived_event_id
from stepwell.events.model import Event, PatternDetected, VerdictExpected, VerdictIssued
from tests.unit.engine.verdicts import verdict

PROMISE = RunPromise(baseline_rate=0.3, average_run_length=1.0)
SHIFT = ShiftRule(kind="shift", name="shift", level=0.2, minimum=3)
IN_ORDER: list[VerdictRule] = [
    WindowRateRule(kind="window_rate", name="w", window=20, minimum=8, limit=0.5, promise=PROMISE),
    WindowRateRule(kind="window_rate", name="w", window=5, minimum=5, limit=0.6, promise=PROMISE),
    RateRule(kind="rate", name="r", limit=0.3, level=0.1, minimum=2),
    RateRule(kind="rate", name="r", limit=0.25, level=0.2, minimum=15),
]
RULES: list[VerdictRule] = [InARowRule(kind="in_a_row", name="row", length=4), *IN_ORDER, SHIFT]
EPISODES = 120


class At(NamedTuple):
    partition: int
    offset: int
    timestamp: int


class Episode(NamedTuple):
    number: int
    failed: bool
    new: bool


def stream(seed: int) -> list[Episode]:
    """An old checkpoint begins; then both run side by side, the new one worse."""
    chance = random.Random(seed)
    made = []
    for number in range(EPISODES):
        new = number >= 20 and chance.random() < 0.7
        made.append(Episode(number, chance.random() < (0.55 if new else 0.3), new))
    return made


def issued(episode: Episode, rule: VerdictRule) -> VerdictIssued:
    checkpoint = ("b" if episode.new else "a") if isinstance(rule, ShiftRule) else "a"
    return verdict(f"ep-{episode.number}", "task_not_completed" if episode.failed else None, checkpoint=checkpoint)


def first_pattern(rule: VerdictRule, events: Iterable[Event]) -> tuple[int, PatternDetected | None]:
    """After how many events the fold first fires, and what it says."""
    detector = Detector(RuleSet(rule_set="simulation", verdicts=[rule]))
    state = detector.begin("expert")
    for count, event in enumerate(events, 1):
        for out in detector.apply(state, event, At(0, count, 1_000_000 + count)):
            if isinstance(out, PatternDetected):
                return count, out
    return 0, None


def first_judged(rule: VerdictRule, episodes: Iterable[Episode]) -> int:
    sees = judge(rule)
    return next((episode.number + 1 for episode in episodes if sees(episode.failed, episode.new)), 0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_the_fold_fires_at_the_same_episode(rule: VerdictRule) -> None:
    fired = []
    for seed in range(60):
        episodes = stream(seed)
        count, _ = first_pattern(rule, (issued(episode, rule) for episode in episodes))
        assert count == first_judged(rule, episodes), seed
        fired.append(count)
    assert len(set(fired)) > 5, "the streams tell nothing"


@pytest.mark.parametrize("rule", IN_ORDER, ids=lambda rule: rule.kind)
def test_rules_in_the_order_of_requests_see_the_same_whatever_ends_first(rule: VerdictRule) -> None:
    """Failures end first within each dozen that runs at once: in log order the rate would be overstated."""
    fired = 0
    for seed in range(60):
        episodes = stream(seed)
        events: list[Event] = []
        for start in range(0, EPISODES, 12):
            batch = episodes[start : start + 12]
            events += [expected(issued(episode, rule)) for episode in batch]
            events += [issued(episode, rule) for episode in sorted(batch, key=lambda each: not each.failed)]
        _, pattern = first_pattern(rule, events)
        at = first_judged(rule, episodes)
        assert (pattern is not None) == bool(at), seed
        if pattern is not None:
            held = episodes[:at]
            if isinstance(rule, WindowRateRule):
                held = held[-rule.window :]
            failures = sum(episode.failed for episode in held)
            assert pattern.detail.startswith(f"{failures} of {len(held)} episodes failed"), seed
            fired += 1
    assert fired > 5, "the streams tell nothing"


def expected(issued: VerdictIssued) -> VerdictExpected:
    return VerdictExpected(
        event_id=derived_event_id("expected", issued.episode_id), run_id=issued.run_id, episode_id=issued.episode_id,
        attempt=1, producer_id="engine", producer_seq=0, occurred_at=1, trace_id=issued.trace_id, policy=issued.policy,
        policy_version=issued.policy_version, checkpoint=issued.checkpoint, task=issued.task, scene=issued.scene,
        perturbation=issued.perturbation, requested_at=1,
    )  # fmt: skip
