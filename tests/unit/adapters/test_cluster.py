"""Groups of failures: planted groups are found again, whatever the order, each with one of its own to stand for it."""

import random

import msgspec
import numpy as np
import pytest

from stepwell.adapters.analysis.cluster import Clustering, cluster
from stepwell.adapters.analysis.verdicts import Sample, Wanted
from stepwell.events.model import Metric, VerdictIssued
from stepwell.exceptions import NotFoundError
from tests.unit.engine.verdicts import verdict

WANTED = Wanted("expert")


def failure(number: int, group: str, generator: np.random.Generator) -> VerdictIssued:
    """``drop`` ends early with low reward, ``stuck`` runs out of steps at a distance, ``shaking`` has a label."""
    steps, reward, distance = {"drop": (30, -2.0, 0.1), "stuck": (200, 1.0, 0.9), "shaking": (200, 4.0, 0.1)}[group]
    return msgspec.structs.replace(
        verdict(f"{group}-{number:04}"),
        n_steps=steps + int(generator.integers(0, 5)),
        total_reward=reward + 0.2 * generator.normal(),
        labels=("oscillating",) if group == "shaking" else (),
        label_steps=(int(generator.integers(10, 20)),) if group == "shaking" else (),
        metrics=(
            Metric(name="distance_m", value=distance + 0.02 * generator.normal()),
            Metric(name="wall_duration_s", value=float(generator.random() * 100)),
        ),
        perturbation="dark" if group == "stuck" else "none",
        ended_at=number,
    )


def failures(seed: int = 0, sizes: tuple[int, ...] = (20, 15, 8)) -> list[VerdictIssued]:
    generator = np.random.default_rng(seed)
    groups = [group for group, size in zip(("drop", "stuck", "shaking"), sizes, strict=True) for _ in range(size)]
    return [failure(number, group, generator) for number, group in enumerate(groups)]


def grouped(verdicts: list[VerdictIssued]) -> Clustering:
    return cluster(Sample("1", None, tuple(verdicts), 0), WANTED)


@pytest.mark.parametrize("seed", range(10))
def test_planted_groups_are_found_again(seed: int) -> None:
    made = grouped(failures(seed))
    assert [len(each.members) for each in made.clusters] == [20, 15, 8]
    for each in made.clusters:
        assert len({member.partition("-")[0] for member in each.members}) == 1
        assert each.representative in each.members
    assert made.silhouette is not None
    assert made.silhouette > 0.5
    assert "wall_duration_s" not in made.features


def test_neither_order_nor_repetition_changes_anything() -> None:
    verdicts = failures(3)
    shuffled = verdicts.copy()
    random.Random(1).shuffle(shuffled)
    assert grouped(shuffled) == grouped(verdicts) == grouped(list(reversed(verdicts)))


def test_each_group_says_what_sets_it_apart_and_where_it_happened() -> None:
    drop, stuck, shaking = grouped(failures()).clusters
    assert {trait.feature for trait in drop.apart} & {"n_steps", "total_reward"}
    (label,) = [trait for trait in shaking.apart if trait.feature == "label=oscillating"]
    assert (label.inside, label.outside, label.is_share) == (1.0, 0.0, True)
    assert stuck.apart[0].feature == "distance_m"
    assert stuck.apart[0].inside == pytest.approx(0.9, abs=0.05)
    assert (stuck.where[0].feature, stuck.where[0].inside, stuck.where[0].outside) == ("perturbation=dark", 1.0, 0.0)
    assert all(trait.feature != "perturbation=dark" for trait in drop.where)


def test_the_representative_is_nearest_to_all() -> None:
    """Two fives of lengths: the middle one of each."""
    lengths = [10, 11, 12, 13, 14, 100, 101, 102, 103, 104]
    verdicts = [
        msgspec.structs.replace(verdict(f"ep-{length}"), n_steps=length) for length in lengths
    ]  # fmt: skip
    assert sorted(each.representative for each in grouped(verdicts).clusters) == ["ep-102", "ep-12"]


def test_failures_without_structure_are_one_group() -> None:
    def together(count: int) -> Clustering:
        return grouped([verdict(f"ep-{number}") for number in range(count)])

    made = together(12)
    assert [len(each.members) for each in made.clusters] == [12]
    assert made.silhouette is None
    assert made.features == ()
    assert made.clusters[0].apart == made.clusters[0].where == ()


def test_features_that_say_the_same_are_taken_once() -> None:
    verdicts = [
        msgspec.structs.replace(each, metrics=(*each.metrics, Metric(name="actions_sent", value=2.0 * each.n_steps)))
        for each in failures()
    ]
    features = grouped(verdicts).features
    assert "n_steps" in features
    assert "actions_sent" not in features


def test_numbers_that_are_none_are_left_out() -> None:
    verdicts = [
        msgspec.structs.replace(each, total_reward=float("nan"), metrics=(Metric(name="rare", value=1.0),) * (i < 3))
        for i, each in enumerate(failures())
    ]
    assert not {"total_reward", "rare"} & set(grouped(verdicts).features)


def test_successes_take_no_part() -> None:
    made = grouped([*failures(), *(verdict(f"fine-{number}", None) for number in range(30))])
    assert sum(len(each.members) for each in made.clusters) == 43


def test_only_the_latest_of_very_many_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.analysis.cluster.FAILURES_MAX", 23)
    made = grouped(failures())
    assert made.left_out == 20
    assert [len(each.members) for each in made.clusters] == [15, 8]


def test_noise_is_not_split_into_groups() -> None:
    generator = np.random.default_rng(4)
    verdicts = [
        msgspec.structs.replace(
            verdict(f"ep-{number}"),
            metrics=tuple(Metric(name=f"m{i}", value=float(generator.normal())) for i in range(6)),
        )
        for number in range(200)
    ]
    assert grouped(verdicts).silhouette is None


def test_too_few_failures_are_refused() -> None:
    with pytest.raises(NotFoundError, match="too few failures to group: 7; at least 8 are needed"):
        grouped(failures(sizes=(3, 2, 2)))
