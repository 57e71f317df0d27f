"""``stepwell patterns explain | cluster``: a policy's failures looked into, on demand, from the log."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, counted, plain_table

if TYPE_CHECKING:
    from stepwell.adapters.analysis.cluster import Cluster, Trait
    from stepwell.adapters.analysis.explain import Explanation
    from stepwell.adapters.analysis.verdicts import Sample, Wanted

PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="Name of the policy.", show_default=False)]
VersionOption = Annotated[str | None, typer.Option(help="Of this version; the one judged last where left out.")]
CheckpointOption = Annotated[str | None, typer.Option(help="Of this checkpoint; likewise.")]
RunOption = Annotated[str | None, typer.Option("--run", help="Only episodes of this run.")]
TypeOption = Annotated[str | None, typer.Option("--failure-type", help="Only failures of this type.")]
LabelOption = Annotated[str | None, typer.Option(help="Only failures with this label.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One line of JSON each.")]

LIMIT = 15


def explain(
    policy: PolicyArgument,
    version: VersionOption = None,
    checkpoint: CheckpointOption = None,
    run_id: RunOption = None,
    failure_type: TypeOption = None,
    label: LabelOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many of what does not stand, too.")] = LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Rank which task, scene, perturbation or seed explains a policy's failures.

    Counts the last verdict of each first attempt that ended in success or failure. Each value is compared with the
    others among episodes that are alike in all else, by an exact test; P values are corrected for their number (Holm).
    """
    from stepwell.adapters.analysis.explain import ALPHA
    from stepwell.adapters.analysis.explain import explain as ranking
    from stepwell.adapters.analysis.verdicts import Wanted

    wanted = Wanted(policy, version, checkpoint, run_id, failure_type, label)
    sample = _sample(wanted)
    explained = ranking(sample, wanted)
    if as_json:
        _print_json([_explanation(test) for test in explained.tests])
        return
    out = console()
    _say(out, f"{_judged(wanted, sample)}: {explained.failures} of {explained.episodes} failed{_way(wanted)}", sample)
    found = [test for test in explained.tests if test.significant]
    shown = [*found, *[test for test in explained.tests if not test.significant][:limit]]
    rows = [_explanation_row(test) for test in shown]
    columns = ("factor", "value", "failed", "others", "odds ratio (95 %)", "P", "P corrected", "goes with")
    out.print(plain_table(*columns, rows=rows, whole=("failed", "others", "odds ratio (95 %)")))
    more = [f"{test.factor} {test.value}" for test in found if test.more]
    if more:
        out.print(f"stands at {ALPHA:.0%}: failures are likelier with {', '.join(more)}", markup=False)
    elif found:
        out.print(f"stands at {ALPHA:.0%}: failures are rarer with {found[0].factor} {found[0].value}", markup=False)
    else:
        out.print(f"nothing stands at {ALPHA:.0%}: chance alone could have made every difference here", markup=False)
    hidden = len(explained.tests) - len(shown)
    notes = [f"{counted(hidden, 'test')} not shown; --limit shows more"] if hidden else []
    notes += [f"{counted(explained.untested, 'value')} with too few episodes to test"] if explained.untested else []
    for note in notes:
        out.print(f"({note})", markup=False)


def cluster(
    policy: PolicyArgument,
    version: VersionOption = None,
    checkpoint: CheckpointOption = None,
    run_id: RunOption = None,
    failure_type: TypeOption = None,
    label: LabelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group a policy's failed episodes by how they failed, each group with an episode that stands for it.

    Compared are failure type, labels, length, reward and metrics. The same log always gives the same groups.
    """
    from stepwell.adapters.analysis.cluster import cluster as grouping
    from stepwell.adapters.analysis.verdicts import Wanted

    wanted = Wanted(policy, version, checkpoint, run_id, failure_type, label)
    sample = _sample(wanted)
    made = grouping(sample, wanted)
    if as_json:
        _print_json([_cluster(number, each) for number, each in enumerate(made.clusters, 1)])
        return
    out = console()
    total = sum(len(each.members) for each in made.clusters)
    _say(out, f"{_judged(wanted, sample)}: {counted(total, 'failure')}{_way(wanted)}", sample)
    rows = [
        (number, len(each.members), each.representative, _traits(each.apart), _traits(each.where))
        for number, each in enumerate(made.clusters, 1)
    ]
    out.print(plain_table("group", "size", "episode", "apart by", "where", rows=rows))
    if made.silhouette is None:
        out.print("one group: nothing that was compared sets these failures apart")
    else:
        out.print("means and shares: in the group | outside")
        out.print(f"mean silhouette {made.silhouette:.2f} (1: far apart, 0: touching)")
    out.print(f"compared: {', '.join(made.features) or 'nothing differs'}", markup=False)
    if made.left_out:
        out.print(f"(the latest {total}; {counted(made.left_out, 'failure')} before them left out)")


def _sample(wanted: "Wanted") -> "Sample":
    from stepwell.adapters.analysis.verdicts import read_sample

    with opened_log(must_exist=True) as log:
        return read_sample(log, codec_in_force(), wanted)


def _judged(wanted: "Wanted", sample: "Sample") -> str:
    return f"{wanted.policy} version {sample.version}, checkpoint {sample.checkpoint or 'none'}"


def _way(wanted: "Wanted") -> str:
    said = [f"as {wanted.failure_type}"] if wanted.failure_type else []
    said += [f"with label {wanted.label}"] if wanted.label else []
    return f" {' '.join(said)}" if said else ""


def _say(out: Any, text: str, sample: "Sample") -> None:
    left_out = f" ({counted(sample.left_out, 'first attempt')} left out: not scored)" if sample.left_out else ""
    out.print(text + left_out, markup=False)


def _explanation(test: "Explanation") -> dict[str, Any]:
    return {
        "factor": test.factor, "value": test.value, "failures": test.failures, "episodes": test.episodes,
        "other_failures": test.other_failures, "other_episodes": test.other_episodes,
        "odds_ratio": test.odds_ratio.estimate, "odds_ratio_low": test.odds_ratio.low,
        "odds_ratio_high": test.odds_ratio.high, "p_value": test.odds_ratio.p_value, "p_corrected": test.adjusted,
        "significant": test.significant, "goes_with": list(test.goes_with),
    }  # fmt: skip


def _explanation_row(test: "Explanation") -> tuple[str, ...]:
    ratio = test.odds_ratio
    return (
        test.factor, test.value,
        f"{test.failures} of {test.episodes}", f"{test.other_failures} of {test.other_episodes}",
        f"{_odds(ratio.estimate)} ({_odds(ratio.low)} to {_odds(ratio.high)})", f"{ratio.p_value:.2g}",
        f"{test.adjusted:.2g}{' *' if test.significant else ''}", ", ".join(test.goes_with),
    )  # fmt: skip


def _odds(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.3g}"


def _cluster(number: int, each: "Cluster") -> dict[str, Any]:
    return {
        "group": number, "size": len(each.members), "representative": each.representative,
        "apart": [_trait(trait) for trait in each.apart], "where": [_trait(trait) for trait in each.where],
        "episodes": list(each.members),
    }  # fmt: skip


def _trait(trait: "Trait") -> dict[str, Any]:
    return {"feature": trait.feature, "inside": trait.inside, "outside": trait.outside, "is_share": trait.is_share}


def _traits(traits: "tuple[Trait, ...]") -> str:
    form = {True: "{:.0%}", False: "{:.3g}"}
    return "\n".join(
        f"{trait.feature} {form[trait.is_share].format(trait.inside)} | {form[trait.is_share].format(trait.outside)}"
        for trait in traits
    )


def _print_json(rows: list[dict[str, Any]]) -> None:
    from stepwell.events.plain import as_text

    for row in rows:
        typer.echo(as_text(row))
