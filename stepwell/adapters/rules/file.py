"""A rule set, read from YAML and checked whole.

Nothing takes effect before everything has been checked: unknown keys and kinds, wrong types, windows that can never be
full, signals that are none, labels that no rule gives. Each problem names file, line, key and what was expected.

Every rule is judged by the model of its own kind, so that what is told about it is about this kind alone, not about
all that it might have been.
"""

import difflib
import json
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from stepwell.adapters.yaml_lines import Document, Path_, Problem, load
from stepwell.engine.labels import BUILT_IN_LABELS
from stepwell.engine.ruleset import RuleSet, StepRule, VerdictRule

SIGNALS = (
    "action, action_change, action_jerk, reward, inference_s, latency_s, step_wall_s, metric.NAME or observation.NAME, "
    "with one element [2] or some [0:3] where wanted"
)


def _by_kind(union: Any) -> dict[str, type[BaseModel]]:
    """Kind -> model, of an annotated union of rules."""
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(union)[0])}


STEP_KINDS = _by_kind(StepRule)
VERDICT_KINDS = _by_kind(VerdictRule)
_LISTS = {"steps": STEP_KINDS, "verdicts": VERDICT_KINDS}
_OTHER_LIST = {"steps": "verdicts", "verdicts": "steps"}


def load_rules(path: Path) -> RuleSet:
    """Read and check a rule file.

    Raises:
        SpecError: lists every problem (up to 20), each with file and line.
    """
    return check_rules(load(path))


def check_rules(document: Document) -> RuleSet:
    """As `load_rules`, for a document that has been read."""
    problems = _head_problems(document)
    if isinstance(document.data, dict):
        for where in _LISTS:
            problems += _list_problems(document, where)
        problems += _label_problems(document.data)
    if problems:
        raise document.errors(problems)
    return document.validate(RuleSet)


def _head_problems(document: Document) -> list[Problem]:
    """What is wrong with the set, its rules left aside."""
    if not isinstance(document.data, dict):
        return [((), f"expected a mapping with rule_set, steps and verdicts; found {_brief(document.data)}")]
    found = document.problems(RuleSet)
    return [
        (path, _plainly(path, message))
        for path, message in found
        if len(path) < 2 and not message.startswith("two rules are named")  # told with the second one's line
    ]


def _list_problems(document: Document, where: str) -> list[Problem]:
    rules = document.data.get(where)
    if not isinstance(rules, list):
        return []
    found: list[Problem] = []
    names: list[str] = []
    for i, rule in enumerate(rules):
        path: Path_ = (where, i)
        found += _rule_problems(document, path, rule)
        name = rule.get("name") if isinstance(rule, dict) else None
        if isinstance(name, str):
            if name in names:
                found.append(((*path, "name"), f"two rules are named {name}; expected each name once"))
            names.append(name)
    return found


def _rule_problems(document: Document, path: Path_, rule: Any) -> list[Problem]:
    where = str(path[0])
    kinds = _LISTS[where]
    if not isinstance(rule, dict):
        return [(path, f"expected a rule with kind and name; found {_brief(rule)}")]
    if "kind" not in rule:
        return [(path, f"kind: missing; expected one of: {', '.join(kinds)}")]
    kind = rule["kind"]
    model = kinds.get(kind) if isinstance(kind, str) else None
    if model is None:
        return [((*path, "kind"), _unknown_kind(where, kind))]
    inner = _part(document, path)
    return [((*path, *rest), _told(rest, message, kind)) for rest, message in inner.problems(model)]


def _unknown_kind(where: str, kind: Any) -> str:
    kinds, other = _LISTS[where], _OTHER_LIST[where]
    if isinstance(kind, str) and kind in _LISTS[other]:
        return f"rules of kind {kind} stand under {other}, not under {where}"
    every = [*kinds, *_LISTS[other]]
    meant = difflib.get_close_matches(kind, every, n=1) if isinstance(kind, str) else []
    hint = f"; did you mean {meant[0]}?" if meant else ""
    return f"no kind of rule is called {_brief(kind)}{hint}; expected one of: {', '.join(kinds)}"


def _part(document: Document, path: Path_) -> Document:
    """What stands at ``path``, as a document of its own."""
    data = document.data
    for key in path:
        data = data[key]
    depth = len(path)
    lines = {whole[depth:]: line for whole, line in document.lines.items() if whole[:depth] == path}
    return Document(document.source, data, lines)


def _told(path: Path_, message: str, kind: str) -> str:
    """The message in words that fit a rule."""
    if path and path[-1] == "signal" and message.startswith("string should match pattern"):
        return f"no signal; expected {SIGNALS}; found {message.partition('; found ')[2]}"
    if not path:  # about several keys at once: what was found is the whole rule, which stands there anyway
        return f"{message.partition('; found ')[0]} (kind {kind})"
    return _plainly(path, message) if message != "missing" else f"missing; rules of kind {kind} need it"


def _plainly(path: Path_, message: str) -> str:
    found = message.partition("; found ")[2]
    if path and message.startswith("string should match pattern"):
        return f"expected a name of lower-case letters, digits and underscores that begins with a letter; found {found}"
    if path == ("rule_set",) and message == "missing":
        return "missing; expected the name of the set"
    return message


def _label_problems(data: dict[str, Any]) -> list[Problem]:
    """Labels that no rule gives, or that two would: such a rule could not work."""
    found: list[Problem] = []
    steps = [rule if isinstance(rule, dict) else {} for rule in _list_of(data, "steps")]
    for i, rule in enumerate(steps):
        if rule.get("name") in BUILT_IN_LABELS:
            found.append((("steps", i, "name"), f"{rule['name']} is a built-in label; expected another name"))
    known = [*BUILT_IN_LABELS, *(rule["name"] for rule in steps if isinstance(rule.get("name"), str))]
    for i, rule in enumerate(_list_of(data, "verdicts")):
        counts = rule.get("counts") if isinstance(rule, dict) else None
        labels = counts.get("labels") if isinstance(counts, dict) else None
        for k, label in enumerate(labels if isinstance(labels, list) else ()):
            if isinstance(label, str) and label not in known:
                meant = difflib.get_close_matches(label, known, n=1)
                hint = f"; did you mean {meant[0]}?" if meant else ""
                message = f"no step rule of this set gives the label {label!r}{hint}; known: {', '.join(known)}"
                found.append((("verdicts", i, "counts", "labels", k), message))
    return found


def _list_of(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    return value if isinstance(value, list) else []


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def write_json_schema(path: Path) -> None:
    """Write the JSON Schema that editors use to check a rule file while it is written."""
    path.write_text(json.dumps(RuleSet.model_json_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_json_schema(Path(__file__).parents[2] / "schemas" / "rule-set.schema.json")
