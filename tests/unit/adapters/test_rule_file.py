"""A rule file is refused whole, each problem with file, line, key and what was expected; a good one is a rule set."""

import json
import re
from pathlib import Path

import pytest

from stepwell.adapters.rules.file import STEP_KINDS, VERDICT_KINDS, check_rules, load_rules, write_json_schema
from stepwell.adapters.rules.simulate import check_promise
from stepwell.adapters.rules.words import effect, judged_per, looks_for, promised
from stepwell.adapters.yaml_lines import parse
from stepwell.engine.labels import BUILT_IN_LABELS
from stepwell.engine.ruleset import BUILT_IN, RuleSet, read_canonical
from stepwell.exceptions import SpecError

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "examples" / "rules"


def rules(text: str) -> RuleSet:
    return check_rules(parse(text.encode(), "r.yaml"))


def refusal(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        rules(text)
    return str(caught.value).splitlines()


def step(line: str) -> str:
    return f"rule_set: a\nsteps:\n  - {{{line}}}\n"


def verdict(line: str) -> str:
    return f"rule_set: a\nverdicts:\n  - {{{line}}}\n"


# --- good files ---


def test_the_default_file_is_the_built_in_set() -> None:
    assert load_rules(EXAMPLES / "default.yaml") == BUILT_IN


def test_the_rich_example_has_every_kind() -> None:
    found = load_rules(EXAMPLES / "every_kind.yaml")
    assert {rule.kind for rule in found.steps} == set(STEP_KINDS)
    assert {rule.kind for rule in found.verdicts} == set(VERDICT_KINDS)
    assert read_canonical(found.canonical()) == found


@pytest.mark.parametrize(
    "path", sorted({*EXAMPLES.glob("*.yaml"), *REPOSITORY.glob("examples/*/rules.yaml")}), ids=lambda path: path.name
)
def test_the_rules_of_the_examples_keep_their_promises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.rules.simulate.EPISODES_IN_ALL", 100_000_000)  # half of what users wait for
    for rule in load_rules(path).verdicts:
        report = check_promise(rule, streams=10_000 if rule.kind == "window_rate" else 1_000)
        assert report.kept, report


def test_every_rule_can_be_told_in_words() -> None:
    found = load_rules(EXAMPLES / "every_kind.yaml")
    told = {rule.name: (looks_for(rule), judged_per(rule), promised(rule), effect(rule)) for rule in found.steps}
    told |= {rule.name: (looks_for(rule), judged_per(rule), promised(rule), effect(rule)) for rule in found.verdicts}
    assert all(all(texts) for texts in told.values())
    assert told["torque_too_high"][0] == "observation.joint_torque above 80 in magnitude in 3 of 5 steps"
    assert told["proprio_not_finite"][0] == "NaN or infinity in observation.proprio in any step"
    assert told["grasped_but_not_lifted"][0] == (
        "metric.grasp_success > 0.5, then not metric.lift_height > 0.04 within 40 steps"
    )
    assert told["drops_often"][0] == (
        "more than 50 % failed of the last 40 episodes (of at least 20); counts failures with label "
        "grasped_but_not_lifted"
    )
    assert told["row_in_scene"][1] == "policy, version, checkpoint, scene"
    assert told["fails_too_often"][2] == "false alarm ever: at most 1 %, where at most 30 % fail"


def test_a_set_without_rules_is_a_set() -> None:
    assert rules("rule_set: quiet\n") == RuleSet(rule_set="quiet")


# --- everything at once ---

BAD = """\
rule_set: Arm
versoin: 2
wait_s: yes
steps:
  - kind: limitt
    name: a
  - kind: limit
    name: b
    signal: torque
    above: 1
    limit: 5
  - kind: frozen
    name: b
    steps: 1
    nmae: x
  - 5
  - name: c
  - kind: in_a_row
    name: d
verdicts:
  - kind: window_rate
    name: w
    window: 10
    limit: 1.5
    promise: {baseline_rate: 0.1}
    per: [scene, scen]
"""


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    assert refusal(BAD) == [
        (
            "r.yaml:1: rule_set: expected a name of lower-case letters, digits and underscores that begins with a "
            "letter; found 'Arm'"
        ),
        "r.yaml:2: versoin: unknown key; did you mean version?; known here: rule_set, steps, verdicts, version, wait_s",
        "r.yaml:3: wait_s: input should be a valid number; found 'yes'",
        (
            "r.yaml:5: steps[0].kind: no kind of rule is called 'limitt'; did you mean limit?; expected one of: limit, "
            "nonfinite, saturated, frozen, oscillating, stagnation, stale, sequence"
        ),
        (
            "r.yaml:9: steps[1].signal: no signal; expected action, action_change, action_jerk, reward, inference_s, "
            "latency_s, step_wall_s, metric.NAME or observation.NAME, with one element [2] or some [0:3] where wanted; "
            "found 'torque'"
        ),
        (
            "r.yaml:11: steps[1].limit: unknown key; known here: above, assigns, below, kind, name, policies, scenes, "
            "signal, steps, tasks, within"
        ),
        "r.yaml:13: steps[2].name: two rules are named b; expected each name once",
        "r.yaml:14: steps[2].steps: input should be greater than or equal to 2; found 1",
        (
            "r.yaml:15: steps[2].nmae: unknown key; did you mean name?; known here: assigns, kind, name, policies, "
            "scenes, signal, steps, tasks, tolerance"
        ),
        "r.yaml:16: steps[3]: expected a rule with kind and name; found 5",
        (
            "r.yaml:17: steps[4]: kind: missing; expected one of: limit, nonfinite, saturated, frozen, oscillating, "
            "stagnation, stale, sequence"
        ),
        "r.yaml:18: steps[5].kind: rules of kind in_a_row stand under verdicts, not under steps",
        "r.yaml:21: verdicts[0].minimum: missing; rules of kind window_rate need it",
        "r.yaml:24: verdicts[0].limit: input should be less than 1; found 1.5",
        "r.yaml:25: verdicts[0].promise.average_run_length: missing; rules of kind window_rate need it",
        "r.yaml:26: verdicts[0].per[1]: input should be 'scene', 'task' or 'perturbation'; found 'scen'",
    ]


def test_at_most_twenty_are_told() -> None:
    many = "rule_set: a\nsteps:\n" + "  - {kind: nonsense, name: a}\n" * 30
    told = refusal(many)
    assert len(told) == 21
    assert told[-1].startswith("… and ")


# --- each kind of problem ---

WINDOW = "kind: window_rate, name: w, promise: {baseline_rate: 0.1, average_run_length: 10.0}"


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        # the file as a whole
        ("5\n", 1, "(whole file): expected a mapping with rule_set, steps and verdicts; found 5"),
        ("[]\n", 1, "(whole file): expected a mapping with rule_set, steps and verdicts; found []"),
        ("version: 2\n", 1, "rule_set: missing; expected the name of the set"),
        ("rule_set: a\nversion: 0\n", 2, "version: input should be greater than or equal to 1; found 0"),
        ("rule_set: a\nversion: 1.5\n", 2, "version: input should be a valid integer"),
        ("rule_set: a\nsteps:\n", 2, "steps: input should be a valid list; found None"),
        ("rule_set: a\nsteps: {}\n", 2, "steps: input should be a valid list; found {}"),
        ("rule_set: a\nwait_s: -1\n", 2, "wait_s: input should be greater than or equal to 0; found -1"),
        # signals
        (step("kind: nonfinite, name: n, signal: 'metric.d[0]'"), 3, "metric.d is one number and has no elements"),
        (step("kind: nonfinite, name: n, signal: 'action[3:3]'"), 3, "there are no such elements"),
        (step("kind: stagnation, name: n, signal: 'action[0:3]', direction: falling"), 3, "wants a single element"),
        (step("kind: stale, name: n, signal: action"), 3, "steps[0].signal: must be an observation"),
        (step("kind: frozen, name: n, signal: 'action[0:2000]'"), 3, "at most 1024 elements are looked at"),
        # windows that cannot be
        (step("kind: limit, name: n, signal: reward, above: 1, steps: 5, within: 3"), 3, "within (3) must not be less"),
        (step("kind: limit, name: n, signal: reward, above: 1, steps: 5000"), 3, "less than or equal to 1024"),
        (step("kind: oscillating, name: n, reversals: 19, within: 20"), 3, "20 steps can turn back 18 times at most"),
        (step("kind: frozen, name: n, steps: 1"), 3, "greater than or equal to 2; found 1"),
        (verdict(f"{WINDOW}, window: 10, minimum: 11, limit: 0.5"), 3, "minimum (11) is more than the window holds"),
        (verdict(f"{WINDOW}, window: 513, minimum: 11, limit: 0.5"), 3, "less than or equal to 512; found 513"),
        (verdict("kind: in_a_row, name: w, length: 129"), 3, "less than or equal to 128; found 129"),
        # limits that cannot be
        (step("kind: limit, name: n, signal: reward"), 3, "steps[0]: give either above or below (kind limit)"),
        (step("kind: limit, name: n, signal: reward, above: 1, below: 0"), 3, "give either above or below"),
        (step("kind: limit, name: n, signal: reward, above: -1"), 3, "above must not be negative"),
        (step("kind: limit, name: n, signal: reward, above: .nan"), 3, "input should be a finite number; found nan"),
        (step("kind: limit, name: n, signal: reward, above: '1'"), 3, "input should be a valid number; found '1'"),
        (step("kind: limit, name: n, signal: reward, above: true"), 3, "input should be a valid number; found True"),
        (step("kind: saturated, name: n, low: 1, high: -1"), 3, "low must be less than high"),
        (step("kind: saturated, name: n, tolerance: 1"), 3, "tolerance leaves no value between the bounds"),
        (
            verdict("kind: rate, name: w, limit: 0"),
            3, "verdicts[0].limit: input should be greater than or equal to 0.000000001; found 0",
        ),
        (verdict("kind: rate, name: w, limit: 0.2, level: 0.6"), 3, "less than or equal to 0.5; found 0.6"),
        # sequences
        (
            step("kind: sequence, name: n, first: {signal: metric.a, above: 1}, then: {signal: metric.b, above: 1}"),
            3, "give one of within_steps, within_sim_s and within_wall_s",
        ),
        (
            step("kind: sequence, name: n, first: {signal: metric.a}, then: 5, within_steps: 3"),
            3, "steps[0].first: give either above or below",
        ),
        # what counts
        (
            verdict("kind: rate, name: w, limit: 0.2, counts: {failure_types: [sim_exited]}"),
            3, "sim_exited: is the fault of simulator; only the policy's own failures feed a retrain rule",
        ),
        (verdict("kind: rate, name: w, limit: 0.2, counts: {labels: []}"), 3, "at least 1 item"),
        (
            verdict("kind: rate, name: w, limit: 0.2, counts: {labels: [zero_step]}"),
            3, "no step rule of this set gives the label 'zero_step'; did you mean zero_steps?",
        ),
        (verdict("kind: rate, name: w, limit: 0.2, per: [scene, scene]"), 3, "each only once"),
        (step("kind: nonfinite, name: n, assigns: broken"), 3, "steps[0].assigns: no failure type; known: "),
        (step("kind: nonfinite, name: zero_steps"), 3, "zero_steps is a built-in label; expected another name"),
        (step("kind: nonfinite"), 3, "steps[0].name: missing; rules of kind nonfinite need it"),
        (step("kind: [1], name: n"), 3, "steps[0].kind: no kind of rule is called [1]; expected one of: limit"),
        (verdict("kind: frozen, name: n"), 3, "rules of kind frozen stand under steps, not under verdicts"),
        (verdict("kind: window, name: n"), 3, "did you mean window_rate?"),
        # no YAML, or more than data
        ("rule_set: a\nsteps: [\n", 3, "not valid YAML"),
        ("rule_set: a\nrule_set: b\n", 2, "rule_set: the key stands twice"),
        ("rule_set: &x a\n", 1, "anchors and aliases are not allowed"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_work_is_refused_with_its_line(text: str, line: int, told: str) -> None:
    first = refusal(text)[0]
    assert first.startswith(f"r.yaml:{line}: "), first
    assert told in first


def test_one_wrong_key_is_told_once() -> None:
    """Each rule is judged by its own kind: nothing is told about all the kinds that it might have been."""
    assert len(refusal(step("kind: frozen, name: n, tolerence: 0.1"))) == 1
    assert len(refusal(verdict("kind: rate, name: w, limit: 0.2, windw: 3"))) == 1
    # "limit" is the name of a kind of step rule, too
    assert len(refusal(step("kind: limit, name: n, signal: nonsense, above: 1"))) == 1


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.yaml: cannot be read: No such file"):
        load_rules(tmp_path / "gone.yaml")


def test_the_built_in_labels_are_those_that_the_engine_gives() -> None:
    source = (REPOSITORY / "stepwell/engine/labels.py").read_text(encoding="utf-8")
    assert set(re.findall(r'found\["(\w+)"\] = -1', source)) == set(BUILT_IN_LABELS)


def test_the_json_schema_is_that_of_the_models(tmp_path: Path) -> None:
    path = REPOSITORY / "stepwell/schemas/rule-set.schema.json"
    write_json_schema(tmp_path / "made.json")
    assert path.read_text() == (tmp_path / "made.json").read_text(), "run: python -m stepwell.adapters.rules.file"
    schema = json.loads(path.read_text())
    assert set(schema["properties"]) == set(RuleSet.model_fields)
    kinds = {
        entry["properties"]["kind"]["const"]
        for entry in schema["$defs"].values()
        if "kind" in entry.get("properties", {})
    }
    assert kinds == {*STEP_KINDS, *VERDICT_KINDS}
