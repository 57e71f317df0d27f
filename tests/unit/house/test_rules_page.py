"""docs/rules.md says what the models of the rules say, and its examples are rules."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from stepwell.adapters.rules.file import SIGNALS, STEP_KINDS, VERDICT_KINDS, check_rules
from stepwell.adapters.yaml_lines import parse
from stepwell.engine.ruleset import RuleSet
from stepwell.exceptions import SpecError
from tests.unit.house.test_docs import cells, text_of

PAGE = text_of("rules.md")
COMMON_STEP = ("kind", "name", "assigns", "tasks", "scenes", "policies")
COMMON_VERDICT = ("kind", "name", "version", "per", "counts", "cooldown_episodes", "cooldown_s", "expires_s")
SECTIONS: list[tuple[str, type[BaseModel], tuple[str, ...]]] = [
    *((f"### `{kind}`", model, tuple(set(model.model_fields) - {*COMMON_STEP})) for kind, model in STEP_KINDS.items()),
    *(
        (f"### `{kind}`", model, tuple(set(model.model_fields) - {*COMMON_VERDICT}))
        for kind, model in VERDICT_KINDS.items()
    ),
    ("## The set", RuleSet, tuple(RuleSet.model_fields)),
    ("## Step rules", STEP_KINDS["limit"], COMMON_STEP),
    ("## Verdict rules", VERDICT_KINDS["rate"], COMMON_VERDICT),
]


@pytest.mark.parametrize(("heading", "model", "keys"), SECTIONS, ids=[heading for heading, *_ in SECTIONS])
def test_every_key_is_explained_with_its_default(heading: str, model: type[BaseModel], keys: tuple[str, ...]) -> None:
    said = {row[0].strip("`"): row for row in cells(PAGE, heading)[1:]}
    assert set(said) == set(keys)
    for name in keys:
        field, default = model.model_fields[name], said[name][2]
        assert ("required" in default) == field.is_required(), name
        if isinstance(field.default, int | float | str):
            assert default == f"`{field.default}`", name
        elif field.default is not PydanticUndefined and not isinstance(field.default, BaseModel):
            assert default in ("none", "the one before"), name


def test_limits_that_the_page_names_are_those_of_the_models() -> None:
    """Numbers like "1 to 1024" stand in the second column."""
    checked = 0
    for heading, model, keys in SECTIONS:
        said = {row[0].strip("`"): row[1].replace(",", "") for row in cells(PAGE, heading)[1:]}
        for name in keys:
            match = re.fullmatch(r"(\d+) to (\d+)", said[name])
            if match is None:
                continue
            schema = model.model_json_schema()["properties"][name]
            bounds = next(each for each in schema.get("anyOf", [schema]) if "maximum" in each)
            assert (bounds["minimum"], bounds["maximum"]) == (int(match[1]), int(match[2])), (heading, name)
            checked += 1
    assert checked > 12


def test_every_signal_is_explained() -> None:
    said = {row[0].strip("`") for row in cells(PAGE, "### Signals")[1:]}
    assert said == set(re.findall(r"[a-z_]+(?:\.NAME)?", SIGNALS.partition(" with ")[0])) - {"or"}


def test_the_examples_are_rules() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        assert check_rules(parse(example.encode(), "rules.md")).rule_set


def test_the_refusal_on_the_page_is_what_such_a_file_gets() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    bad = example.replace("kind: sequence", "kind: sequense").replace("    steps: 30", "    setps: 30")
    bad = bad.replace("labels: [grasped_but_not_lifted]", "labels: [grasped]")
    with pytest.raises(SpecError) as caught:
        check_rules(parse(bad.encode(), "my-rules.yaml"))
    told = re.search(r"```\nstepwell: (my-rules.*?)```", PAGE, re.DOTALL)
    assert told
    assert str(caught.value).splitlines() == [line.strip() for line in told[1].strip().splitlines()]


def test_the_page_names_the_examples_of_the_repository() -> None:
    repository = Path(__file__).parents[3]
    for path in re.findall(r"`(examples/rules/\w+\.yaml)`", PAGE):
        assert (repository / path).is_file()
