"""Every number of every rule: an absurd one is refused with its line, and what is let pass can be written and read."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from stepwell.adapters.rules.file import STEP_KINDS, VERDICT_KINDS, check_rules
from stepwell.adapters.rules.words import looks_for, promised
from stepwell.adapters.yaml_lines import parse
from stepwell.engine.ruleset import VERSION_MAX, Condition, RuleSet, RunPromise, read_canonical
from stepwell.exceptions import SpecError

PROMISE = {"baseline_rate": 0.1, "average_run_length": 10.0}
GRASP = {"signal": "reward", "above": 1.0}
NEEDED: dict[str, dict[str, Any]] = {
    "limit": {"signal": "action", "above": 1.0},
    "stagnation": {"signal": "reward", "direction": "falling"},
    "stale": {"signal": "observation.x"},
    "sequence": {"first": GRASP, "then": GRASP, "within_steps": 3},
    "in_a_row": {"promise": PROMISE},
    "window_rate": {"window": 10, "minimum": 5, "limit": 0.5, "promise": PROMISE},
    "rate": {"limit": 0.3},
}
INSTEAD = {"below": "above", "within_sim_s": "within_steps", "within_wall_s": "within_steps"}
"""Keys of which only one may be given."""
ABSURD = (
    ".inf", "-.inf", ".nan", "1.0e+308", "-1.0e+308", "5.0e-324", "-1", "-1.0", "0", "0.0", str(2**31), str(2**63 - 1),
    str(2**63), str(10**30), str(10**400),
)  # fmt: skip


def numbers_of(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Where a model has numbers, models inside it included."""
    for name, field in model.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        kinds |= {inner for kind in list(kinds) for inner in get_args(kind)}
        if kinds & {int, float}:
            yield (name,)
        for inner in kinds & {RunPromise, Condition}:
            for path in numbers_of(inner):
                yield name, *path


FIELDS = [
    (where, kind, path)
    for where, kinds in (("steps", STEP_KINDS), ("verdicts", VERDICT_KINDS))
    for kind, model in kinds.items()
    for path in numbers_of(model)
]


def with_number(where: str, kind: str, path: tuple[str, ...], number: str) -> str:
    """A rule file, as YAML's flow form, with a number in one place."""
    rule: dict[str, Any] = {"kind": kind, "name": "a", **NEEDED.get(kind, {})}
    inner = rule
    for key in path[:-1]:
        inner[key] = dict(inner[key])
        inner = inner[key]
    inner.pop(INSTEAD.get(path[-1], ""), None)
    inner[path[-1]] = number
    return f"rule_set: a\n{where}:\n  - {flow(rule)}\n"


def flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def refused_or_kept(text: str, line: int) -> RuleSet | None:
    try:
        found = check_rules(parse(text.encode(), "r.yaml"))
    except SpecError as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert f"r.yaml:{line}:" in told
        return None
    assert read_canonical(found.canonical()) == found
    return found


def test_the_numbers_are_found() -> None:
    assert len(FIELDS) > 50
    assert ("verdicts", "in_a_row", ("promise", "average_run_length")) in FIELDS
    assert ("steps", "sequence", ("then", "below")) in FIELDS
    assert ("steps", "sequence", ("within_wall_s",)) in FIELDS


@pytest.mark.parametrize(("where", "kind", "path"), FIELDS, ids=[f"{kind}-{'.'.join(p)}" for _, kind, p in FIELDS])
def test_a_number_is_refused_with_its_line_or_can_be_written_and_read(
    where: str, kind: str, path: tuple[str, ...]
) -> None:
    for number in ABSURD:
        found = refused_or_kept(with_number(where, kind, path, number), line=3)
        if number in (".inf", "-.inf", ".nan", str(10**400)):
            assert found is None, f"{number} was let pass"
        if found is not None:
            assert all(looks_for(rule) and promised(rule) for rule in (*found.steps, *found.verdicts))


@pytest.mark.parametrize("key", ["version", "wait_s"])
def test_the_numbers_of_a_set(key: str) -> None:
    for number in ABSURD:
        found = refused_or_kept(f"rule_set: a\n{key}: {number}\n", line=2)
        assert found is None or 0 <= found.wait_s <= 1


def test_a_version_leaves_room_for_the_next() -> None:
    assert refused_or_kept(f"rule_set: a\nversion: {VERSION_MAX}\n", line=2) is not None
    assert refused_or_kept(f"rule_set: a\nversion: {VERSION_MAX + 1}\n", line=2) is None
    assert refused_or_kept(f"rule_set: a\nversion: {2**63 - 1}\n", line=2) is None


def test_a_run_length_beyond_all_numbers_is_refused() -> None:
    """Canonical JSON knows no infinity: such a set could be checked, and then not be written."""
    text = with_number("verdicts", "in_a_row", ("promise", "average_run_length"), ".inf")
    with pytest.raises(SpecError, match=r"average_run_length: .*found inf"):
        check_rules(parse(text.encode(), "r.yaml"))
