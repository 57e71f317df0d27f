"""Groups of a policy's failed episodes that went wrong alike, each with one episode to look at.

What an episode is known by: its failure type, its labels and when each was found, its length, its reward and its
metrics (not those that tell of the machine it ran on). Numbers are centred and divided by two standard deviations; they
then weigh about as much as the yes-or-no features beside them. Of features that say the same, one is kept.

Episodes are joined bottom-up by Ward's method. Of the numbers of clusters whose mean silhouette is within
`SILHOUETTE_NEAR` of the best, the least is taken: tight groups split further along any number that happens to be whole.
Where none reaches `SILHOUETTE_MIN`, there is one cluster: nothing sets the failures apart. Everything is worked out on
episodes in the order of their ids, so neither the order of the log nor a second run changes anything.

Sources: A. Gelman, Scaling regression inputs by dividing by two standard deviations, Stat. Med. 27 (2008) 2865-2873.
J. H. Ward, Hierarchical grouping to optimize an objective function, JASA 58 (1963) 236-244. P. J. Rousseeuw,
Silhouettes: a graphical aid to the interpretation and validation of cluster analysis, J. Comput. Appl. Math. 20 (1987)
53-65. L. Kaufman, P. J. Rousseeuw, Finding Groups in Data, Wiley 1990 (below 0.25: no substantial structure).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from stepwell.adapters.analysis.explain import FACTORS
from stepwell.adapters.analysis.verdicts import Sample, Wanted
from stepwell.events.model import VerdictIssued
from stepwell.exceptions import MissingPartError, NotFoundError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

FAILURES_MIN = 8
FAILURES_MAX = 2_000
"""Distances between all pairs are kept: 32 MB at this many. Beyond it the failures that ended last are taken."""
CLUSTERS_MAX = 8
SILHOUETTE_MIN = 0.25
SILHOUETTE_NEAR = 0.1
SAME = 0.999
"""Features that correlate this closely say the same."""
TRAITS_MAX = 3
SHARE_GAP_MIN = 0.2
PLAIN = ("n_steps", "total_reward")
"""Kept where a metric says the same."""
MACHINE_METRICS = frozenset({"inference_s_mean", "step_wall_s_mean", "wall_duration_s"})


@dataclass(frozen=True, slots=True)
class Trait:
    """One feature of a cluster against the other failures: means, or shares for what is yes or no.

    Attributes:
        feature: e.g. ``n_steps``, ``label=frozen``, ``perturbation=dark``.
        inside, outside: its mean (or share) in the cluster, and in all others.
        is_share: whether these are shares.
    """

    feature: str
    inside: float
    outside: float
    is_share: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """Failures that are alike.

    Attributes:
        representative: the medoid: the episode whose distances to the others of the cluster sum to the least.
        members: episode ids, sorted.
        apart: what sets it apart, by difference, largest first. Empty where there is only one cluster.
        where: values of task, scene, perturbation and seed that are commoner in it than outside, likewise. Clusters
            are made without looking at them. Differences below `SHARE_GAP_MIN` are left out.
    """

    representative: str
    members: tuple[str, ...]
    apart: tuple[Trait, ...]
    where: tuple[Trait, ...]


@dataclass(frozen=True, slots=True)
class Clustering:
    """All clusters, the largest first.

    Attributes:
        clusters: each failed episode is in exactly one.
        silhouette: the mean silhouette, from -1 to 1; None for a single cluster.
        features: what was compared.
        left_out: failures beyond `FAILURES_MAX`.
    """

    clusters: tuple[Cluster, ...]
    silhouette: float | None
    features: tuple[str, ...]
    left_out: int


def cluster(sample: Sample, wanted: Wanted) -> Clustering:
    """Group the failures.

    Raises:
        NotFoundError: too few failures.
        MissingPartError: scikit-learn is not installed.
    """
    failures = [verdict for verdict in sample.scored if wanted.failed(verdict)]
    if len(failures) < FAILURES_MIN:
        raise NotFoundError(f"too few failures to group: {len(failures)}; at least {FAILURES_MIN} are needed")
    latest = sorted(failures, key=lambda verdict: (verdict.ended_at, verdict.episode_id))[-FAILURES_MAX:]
    chosen = sorted(latest, key=lambda verdict: verdict.episode_id)
    table = _Features(chosen)
    labels, silhouette = _grouped(table.scaled)
    distances = _distances(table.scaled)
    clusters = [
        _describe(chosen, table, distances, [i for i, label in enumerate(labels) if label == number])
        for number in sorted(set(labels))
    ]
    clusters.sort(key=lambda each: (-len(each.members), each.members))
    return Clustering(tuple(clusters), silhouette, table.names, len(failures) - len(chosen))


class _Features:
    """Rows are episodes. ``raw`` is for people, ``scaled`` for distances; same columns."""

    def __init__(self, verdicts: Sequence[VerdictIssued]) -> None:
        np = _numpy()
        columns = _shares(verdicts) | _numbers(verdicts)
        self.shares = frozenset(_shares(verdicts))
        raw: list[Any] = []
        scaled: list[Any] = []
        names: list[str] = []
        for name, values in sorted(columns.items(), key=lambda each: (each[0] not in PLAIN, each[0])):
            column = np.array(values, dtype=np.float64)
            centred = column - column.mean()
            spread = 1.0 if name in self.shares else 2.0 * float(column.std())
            if float(np.abs(centred).max()) <= 1e-12 * max(1.0, float(np.abs(column).max())) or spread == 0.0:
                continue  # the same for all
            centred = centred / spread
            if any(_correlation(centred, known) > SAME for known in scaled):
                continue
            raw.append(column)
            scaled.append(centred)
            names.append(name)
        shape = (len(verdicts), 0)
        self.names = tuple(names)
        self.raw: Matrix = np.stack(raw, axis=1) if raw else np.zeros(shape)
        self.scaled: Matrix = np.stack(scaled, axis=1) if scaled else np.zeros(shape)


def _shares(verdicts: Sequence[VerdictIssued]) -> dict[str, list[float]]:
    """What an episode has or has not."""
    of_each = [
        {f"failure_type={verdict.failure_type}"} | {f"label={label}" for label in verdict.labels}
        for verdict in verdicts
    ]
    return {name: [float(name in each) for each in of_each] for name in sorted(set().union(*of_each))}


def _numbers(verdicts: Sequence[VerdictIssued]) -> dict[str, list[float]]:
    """What can be measured in at least half of the episodes; elsewhere the median of the others stands in."""
    of_each = [_measured(verdict) for verdict in verdicts]
    columns = {}
    for name in sorted(set().union(*of_each)):
        known = sorted(each[name] for each in of_each if name in each)
        if 2 * len(known) >= len(verdicts):
            columns[name] = [each.get(name, known[len(known) // 2]) for each in of_each]
    return columns


def _measured(verdict: VerdictIssued) -> dict[str, float]:
    found = {"n_steps": float(verdict.n_steps), "total_reward": verdict.total_reward}
    found |= {metric.name: metric.value for metric in verdict.metrics if metric.name not in MACHINE_METRICS}
    found |= {
        f"first step of {label}": float(step)
        for label, step in zip(verdict.labels, verdict.label_steps, strict=False)
        if step >= 0
    }
    return {name: value for name, value in found.items() if isfinite(value)}


def _correlation(left: Any, right: Any) -> float:
    norm = float((left @ left) * (right @ right)) ** 0.5
    return abs(float(left @ right)) / norm if norm else 0.0


def _grouped(scaled: "Matrix") -> tuple[list[int], float | None]:
    """A cluster number for each row, and the mean silhouette."""
    one = [0] * len(scaled)
    if not scaled.shape[1]:
        return one, None
    try:
        from sklearn.cluster import AgglomerativeClustering
        from sklearn.metrics import silhouette_score
    except ImportError as error:
        raise MissingPartError("grouping needs scikit-learn: pip install 'stepwell[analysis]'") from error
    distinct = len(_numpy().unique(scaled, axis=0))
    tried: list[tuple[float, list[int]]] = []
    for count in range(2, min(CLUSTERS_MAX, distinct, len(scaled) - 1) + 1):
        labels = AgglomerativeClustering(n_clusters=count, linkage="ward").fit_predict(scaled)
        tried.append((float(silhouette_score(scaled, labels)), labels.tolist()))
    best = max((silhouette for silhouette, _ in tried), default=0.0)
    if best < SILHOUETTE_MIN:
        return one, None
    silhouette, chosen = next(each for each in tried if each[0] >= max(best - SILHOUETTE_NEAR, SILHOUETTE_MIN))
    return chosen, silhouette


def _distances(scaled: "Matrix") -> "Matrix":
    """Euclidean, of all pairs."""
    np = _numpy()
    made = np.zeros((len(scaled), len(scaled)))
    for i, row in enumerate(scaled):
        made[i] = np.sqrt(((scaled - row) ** 2).sum(axis=1))
    return made  # type: ignore[no-any-return]


def _describe(
    verdicts: Sequence[VerdictIssued], table: _Features, distances: "Matrix", members: Sequence[int]
) -> Cluster:
    within = distances[members][:, members].sum(axis=1)
    medoid = min(range(len(members)), key=lambda i: (float(within[i]), i))
    rest = sorted(set(range(len(verdicts))) - set(members))
    apart: list[tuple[float, Trait]] = []
    for column, name in enumerate(table.names if rest else ()):
        gap = float(table.scaled[members, column].mean() - table.scaled[rest, column].mean())
        inside, outside = (float(table.raw[rows, column].mean()) for rows in (members, rest))
        apart.append((gap, Trait(name, inside, outside, name in table.shares)))
    apart.sort(key=lambda each: (-abs(each[0]), each[1].feature))
    return Cluster(
        verdicts[members[medoid]].episode_id,
        tuple(verdicts[i].episode_id for i in members),
        tuple(trait for gap, trait in apart[:TRAITS_MAX] if gap),
        _where([verdicts[i] for i in members], [verdicts[i] for i in rest]),
    )


def _where(inside: Sequence[VerdictIssued], outside: Sequence[VerdictIssued]) -> tuple[Trait, ...]:
    found = []
    for factor, of in FACTORS.items():
        mine, others = (Counter(map(of, verdicts)) for verdicts in (inside, outside))
        for value, count in mine.items():
            share, other = count / len(inside), others[value] / max(len(outside), 1)
            if outside and share >= other + SHARE_GAP_MIN:
                found.append(Trait(f"{factor}={value}", share, other, is_share=True))
    found.sort(key=lambda trait: (trait.outside - trait.inside, trait.feature))
    return tuple(found[:TRAITS_MAX])


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingPartError("this analysis needs NumPy: pip install 'stepwell[analysis]'") from error
    return np
