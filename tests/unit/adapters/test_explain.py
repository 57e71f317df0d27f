"""What explains failures: planted causes are found first, noise explains nothing, confounding does not mislead."""

import itertools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from scipy.stats import fisher_exact
from scipy.stats.contingency import odds_ratio

from stepwell.adapters.analysis.exact import Stratum, common_odds_ratio, holm
from stepwell.adapters.analysis.explain import Explained, explain
from stepwell.adapters.analysis.verdicts import Sample, Wanted
from stepwell.events.model import VerdictIssued
from stepwell.exceptions import NotFoundError
from tests.unit.engine.verdicts import verdict

WANTED = Wanted("expert")


def episode(number: int, failed: bool, **values: object) -> VerdictIssued:
    plain = verdict(f"ep-{number:05}", "task_not_completed" if failed else None)
    return msgspec.structs.replace(plain, **values)


def sample(*verdicts: VerdictIssued) -> Sample:
    return Sample("1", None, tuple(sorted(verdicts, key=lambda each: each.episode_id)), 0)


def matrix(failing: Callable[[str, str, int], float], seed: int, seeds: int = 8) -> Sample:
    """Scenes x perturbations x seeds, each episode failing with the chance that is given for it."""
    generator = np.random.default_rng(seed)
    cells = itertools.product(("desk", "shelf", "floor"), ("none", "dark", "push"), range(seeds))
    return sample(
        *(
            episode(
                number, generator.random() < failing(scene, perturbation, each),
                scene=scene, perturbation=perturbation, seed=each,
            )
            for number, (scene, perturbation, each) in enumerate(cells)
        )
    )  # fmt: skip


def first(explained: Explained) -> str:
    return f"{explained.tests[0].factor}={explained.tests[0].value}"


# --- planted causes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("cause", "failing"),
    [
        ("perturbation=dark", lambda scene, perturbation, seed: 0.85 if perturbation == "dark" else 0.15),
        ("scene=shelf", lambda scene, perturbation, seed: 0.85 if scene == "shelf" else 0.15),
        ("seed=3", lambda scene, perturbation, seed: 1.0 if seed == 3 else 0.1),
    ],
)
def test_a_planted_cause_is_found_first(cause: str, failing: Callable[[str, str, int], float], seed: int) -> None:
    explained = explain(matrix(failing, seed), WANTED)
    assert first(explained) == cause
    assert explained.tests[0].significant
    assert explained.tests[0].more
    assert explained.tests[0].odds_ratio.low > 1.0


def test_a_task_is_found_where_each_scene_belongs_to_one_task() -> None:
    generator = np.random.default_rng(1)
    scenes = {"lift-1": "lift", "lift-2": "lift", "open-1": "open", "open-2": "open"}
    found = explain(
        sample(
            *(
                episode(
                    number, generator.random() < (0.8 if scenes[scene] == "open" else 0.1),
                    scene=scene, task=scenes[scene], seed=seed, perturbation=perturbation,
                )
                for number, (scene, seed, perturbation) in enumerate(
                    itertools.product(scenes, range(6), ("none", "dark"))
                )
            )
        ),
        WANTED,
    )  # fmt: skip
    assert first(found) == "task=open"
    assert found.tests[0].goes_with == ("scene",)  # no scene has two tasks: what is left is the perturbation
    assert found.tests[0].significant


# --- noise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.3, 0.5])
def test_noise_explains_nothing_in_95_of_100_datasets(rate: float) -> None:
    false = sum(
        any(test.significant for test in explain(matrix(lambda *_: rate, seed), WANTED).tests) for seed in range(200)
    )
    assert false <= 10


# --- confounding --------------------------------------------------------------------------------------------------


def test_a_perturbation_is_not_blamed_for_the_scene_it_was_mostly_run_in() -> None:
    """The shelf fails half of the time, the desk hardly; dark was run on the shelf mostly, and does nothing."""
    generator = np.random.default_rng(5)
    rates = {"shelf": 0.6, "desk": 0.05}
    plan = [("shelf", "dark")] * 60 + [("shelf", "none")] * 20 + [("desk", "dark")] * 20 + [("desk", "none")] * 60
    verdicts = [
        episode(number, generator.random() < rates[scene], scene=scene, perturbation=perturbation, seed=number)
        for number, (scene, perturbation) in enumerate(plan)
    ]
    explained = explain(sample(*verdicts), WANTED)
    failed = [[0, 0], [0, 0]]
    for each in verdicts:
        failed[each.perturbation == "dark"][each.outcome == "failure"] += 1
    assert fisher_exact(failed).pvalue < 0.001  # looked at by itself it seems to be the cause
    by_name = {f"{test.factor}={test.value}": test for test in explained.tests}
    assert first(explained) == "scene=shelf"
    assert not by_name["perturbation=dark"].significant
    assert not by_name["perturbation=dark"].goes_with


def test_what_was_only_run_together_is_said_to_go_together() -> None:
    verdicts = [
        episode(number, number % 2 == 0 and number % 10 != 0, seed=number,
                scene="shelf" if number % 2 == 0 else "desk", perturbation="dark" if number % 2 == 0 else "none")
        for number in range(60)
    ]  # fmt: skip
    explained = explain(sample(*verdicts), WANTED)
    assert {f"{test.factor}={test.value}": test.goes_with for test in explained.tests} == {
        "scene=shelf": ("perturbation=dark",),
        "perturbation=dark": ("scene=shelf",),
        "scene=desk": ("perturbation=none",),
        "perturbation=none": ("scene=desk",),
    }
    assert explained.untested == 60  # every seed was run once


# --- which failures, and how many ---------------------------------------------------------------------------------


def test_only_failures_of_the_wanted_kind_count() -> None:
    kinds = {"dark": "agent_timeout", "push": "task_not_completed", "none": None}
    verdicts = [
        msgspec.structs.replace(
            verdict(f"ep-{number}", kinds[perturbation]), perturbation=perturbation, labels=("slow",) * (number % 2)
        )
        for number, perturbation in enumerate(("none", "dark", "push") * 12)
    ]
    timeouts = explain(sample(*verdicts), Wanted("expert", failure_type="agent_timeout"))
    assert (timeouts.failures, timeouts.episodes) == (12, 36)
    assert first(timeouts) == "perturbation=dark"
    slow = explain(sample(*verdicts), Wanted("expert", label="slow"))
    assert slow.failures == 12
    assert first(explain(sample(*verdicts), Wanted("expert", failure_type="task_not_completed"))) == "perturbation=push"


@pytest.mark.parametrize(("episodes", "failures"), [(19, 10), (40, 2), (40, 38)])
def test_too_few_are_refused(episodes: int, failures: int) -> None:
    verdicts = [episode(number, number < failures, scene=f"s{number % 2}") for number in range(episodes)]
    with pytest.raises(
        NotFoundError, match=rf"{episodes} scored first attempts, {failures} of them failures; at least"
    ):
        explain(sample(*verdicts), WANTED)


# --- the exact test -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_one_stratum_is_fishers_exact_test(seed: int) -> None:
    generator = np.random.default_rng(seed)
    exposed, others = generator.integers(2, 40, 2).tolist()
    failed, others_failed = int(generator.integers(0, exposed + 1)), int(generator.integers(1, others))
    result = common_odds_ratio([Stratum(exposed, failed, others, others_failed)])
    assert result is not None
    table = [[failed, exposed - failed], [others_failed, others - others_failed]]
    assert result.p_value == pytest.approx(fisher_exact(table).pvalue, rel=1e-9)
    reference = odds_ratio(table, kind="conditional")
    interval = reference.confidence_interval(0.95)
    assert result.estimate == pytest.approx(reference.statistic, rel=1e-6)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), rel=1e-6)


def test_several_strata_are_what_counting_every_table_gives() -> None:
    strata = [Stratum(3, 2, 4, 1), Stratum(5, 4, 2, 1), Stratum(2, 2, 6, 3)]
    chances: dict[int, float] = {0: 1.0}
    for exposed, failed, others, others_failed in strata:
        total, all_failed = exposed + others, failed + others_failed
        made: dict[int, float] = {}
        for known, chance in chances.items():
            for x in range(max(0, all_failed - others), min(exposed, all_failed) + 1):
                ways = math.comb(exposed, x) * math.comb(others, all_failed - x) / math.comb(total, all_failed)
                made[known + x] = made.get(known + x, 0.0) + chance * ways
        chances = made
    seen = chances[8]
    result = common_odds_ratio(strata)
    assert result is not None
    assert result.p_value == pytest.approx(sum(c for c in chances.values() if c <= seen * (1 + 1e-9)), rel=1e-9)
    tilted = {s: c * result.estimate**s for s, c in chances.items()}
    assert sum(s * c for s, c in tilted.items()) / sum(tilted.values()) == pytest.approx(8, rel=1e-6)
    low = {s: c * result.low**s for s, c in chances.items()}
    assert sum(c for s, c in low.items() if s >= 8) / sum(low.values()) == pytest.approx(0.025, rel=1e-6)


def test_strata_that_tell_nothing_change_nothing() -> None:
    told = Stratum(10, 8, 12, 3)
    silent = [Stratum(5, 5, 5, 5), Stratum(4, 0, 9, 0), Stratum(0, 0, 7, 3), Stratum(7, 2, 0, 0)]
    assert common_odds_ratio([told, *silent]) == common_odds_ratio([told])
    assert common_odds_ratio(silent) is None


def test_all_against_none_is_an_infinite_odds_ratio() -> None:
    result = common_odds_ratio([Stratum(10, 10, 10, 0)])
    assert result is not None
    assert result.estimate == result.high == math.inf
    assert result.low > 1.0
    mirrored = common_odds_ratio([Stratum(10, 0, 10, 10)])
    assert mirrored is not None
    assert mirrored.estimate == mirrored.low == 0.0
    assert mirrored.high < 1.0


def test_thousands_of_episodes_do_not_run_over() -> None:
    result = common_odds_ratio([Stratum(4000, 2400, 6000, 3000)] * 2)
    assert result is not None
    assert result.estimate == pytest.approx(1.5, rel=0.01)
    assert 1.4 < result.low < result.estimate < result.high < 1.6
    assert 0.0 < result.p_value < 1e-20


def test_holm_steps_down() -> None:
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
