"""A spec is refused whole, with file, line and what was expected, before anything starts; a good one fixes the ids."""

import json
from pathlib import Path

import pytest

from stepwell.adapters.runs.plan import plan
from stepwell.adapters.runs.spec import RunSpec, check_spec
from stepwell.adapters.yaml_lines import parse
from stepwell.exceptions import SpecError

GOOD = """\
run: nightly
seeds: [1, 2]
repetitions: 2
scenes:
  - name: reach
    task: metaworld/reach-v3
  - name: balance
    task: gymnasium/InvertedPendulum-v5
    options: {success_steps: 100}
perturbations:
  - name: none
  - name: heavy
    options: {mass_scale: 2.0}
    scenes: [balance]
policies:
  - name: expert
    kind: metaworld_expert
    scenes: [reach]
  - name: random
    kind: random
"""


def spec(text: str = GOOD) -> RunSpec:
    return check_spec(parse(text.encode(), "s.yaml"))


def refusal(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec(text)
    return str(caught.value).splitlines()


def test_the_matrix_is_policies_by_scenes_by_perturbations_by_seeds_by_repetitions() -> None:
    episodes = plan(spec(), "r1")
    cells = {(e.policy.name, e.scene, e.perturbation) for e in episodes}
    assert cells == {
        ("expert", "reach", "none"),
        ("random", "reach", "none"),
        ("random", "balance", "none"),
        ("random", "balance", "heavy"),
    }
    assert len(episodes) == 4 * 2 * 2
    assert len({e.episode_id for e in episodes}) == len(episodes)


def test_ids_follow_from_run_and_cell_alone() -> None:
    first = [e.episode_id for e in plan(spec(), "r1")]
    assert first == [e.episode_id for e in plan(spec(), "r1")]
    assert not set(first) & {e.episode_id for e in plan(spec(), "r2")}


def test_other_seeds_added_later_leave_the_old_episodes_their_ids() -> None:
    old = {e.episode_id for e in plan(spec(), "r1")}
    new = {e.episode_id for e in plan(spec(GOOD.replace("[1, 2]", "[0, 1, 2]")), "r1")}
    assert old < new


def test_an_edited_definition_asks_for_other_episodes() -> None:
    old = {e.episode_id: e for e in plan(spec(), "r1")}
    new = {e.episode_id: e for e in plan(spec(GOOD.replace("mass_scale: 2.0", "mass_scale: 3.0")), "r1")}
    assert {e.perturbation for i, e in old.items() if i not in new} == {"heavy"}


def test_a_scene_s_own_step_budget_wins() -> None:
    text = GOOD.replace("task: metaworld/reach-v3", "task: metaworld/reach-v3\n    max_steps: 7") + "max_steps: 190\n"
    assert {(e.scene, e.max_steps) for e in plan(spec(text), "r")} == {("reach", 7), ("balance", 190)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("run: nightly", "run: nightly\nruns: 1", "s.yaml:2: runs: unknown key; did you mean run?; known here: "),
        ("run: nightly", "run: 7", "s.yaml:1: run: input should be a valid string; found 7"),
        ("run: nightly", "run: a/b", "s.yaml:1: run: string should match pattern"),
        ("[1, 2]", "[1, 1]", "s.yaml:2: seeds[1]: the seed 1 stands twice"),
        ("[1, 2]", "[-1]", "s.yaml:2: seeds[0]: input should be greater than or equal to 0; found -1"),
        ("[1, 2]", "[true]", "s.yaml:2: seeds[0]: input should be a valid integer; found True"),
        ("[1, 2]", "[]", "s.yaml:2: seeds: list should have at least 1 item"),
        ("repetitions: 2", "repetitions: 0", "s.yaml:3: repetitions: input should be greater than or equal to 1"),
        ("repetitions: 2", "repetitions: '2'", "s.yaml:3: repetitions: input should be a valid integer; found '2'"),
        ("reach-v3", "reech-v3", "s.yaml:6: scenes[0].task: there is no metaworld task 'reech-v3'"),
        ("metaworld/reach-v3", "reach-v3", "s.yaml:6: scenes[0].task: there is no simulator ''"),
        ("{success_steps: 100}", "{}", "s.yaml:9: scenes[1].options: gymnasium/InvertedPendulum-v5 has no success"),
        ("success_steps: 100", "succes_steps: 100", "s.yaml:9: scenes[1].options.succes_steps: there is no option"),
        ("success_steps: 100", "success_steps: -1", "s.yaml:9: scenes[1].options.success_steps: -1 does not fit"),
        ("mass_scale: 2.0", "mass_scale: 0", "s.yaml:13: perturbations[1].options.mass_scale: 0 does not fit"),
        (
            "scenes: [balance]",
            "scenes: [balanse]",
            "s.yaml:14: perturbations[1].scenes[0]: no scene is named 'balanse'",
        ),
        (
            "scenes: [reach]",
            "scenes: [balance]",
            "s.yaml:17: policies[0].kind: policy 'expert' (metaworld_expert) cannot",
        ),
        ("kind: random", "kind: randomly", "s.yaml:20: policies[1].kind: there is no policy kind 'randomly'"),
        ("name: random", "name: expert", "s.yaml:19: policies[1].name: the name 'expert' stands twice"),
        (
            "kind: random",
            "kind: random\n    defects: [{kind: noise}]",
            "s.yaml:21: policies[1].defects[0].options.sigma: is missing; expected a standard deviation",
        ),
        (
            "kind: random",
            "kind: random\n    defects: [{knd: noise}]",
            "s.yaml:21: policies[1].defects[0].knd: unknown key; did you mean kind?; known here: kind, options",
        ),
        (
            "scenes: [reach]",
            "scenes: [raech]",
            "s.yaml:18: policies[0].scenes[0]: no scene is named 'raech'; did you mean reach?",
        ),
        (
            "success_steps: 100",
            "success_steps: 501",
            "s.yaml:9: scenes[1].options.success_steps: 501 steps are never reached, max_steps ends the",
        ),
        (
            "success_steps: 100",
            "success_steps: 100, time_limit: 99",
            "s.yaml:9: scenes[1].options.success_steps: 100 steps are never reached, time_limit ends the",
        ),
    ],
)
def test_refuses_with_file_line_and_what_was_expected(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert any(line.startswith(expected) for line in refusal(GOOD.replace(old, new, 1))), refusal(
        GOOD.replace(old, new, 1)
    )


def test_all_that_is_wrong_is_told_at_once() -> None:
    """What stands in entries that can be read is judged, whatever is wrong elsewhere."""
    text = GOOD.replace("run: nightly", "rum: nightly").replace("[1, 2]", "[1, 1]").replace("reach-v3", "reech-v3")
    text = text.replace("mass_scale: 2.0", "mass_scale: 0").replace("scenes: [reach]", "scenes: [raech]")
    text = text.replace("kind: random", "kind: randomly") + "  - name: third\n    knd: random\n"
    assert [":".join(line.split(":")[1:3]) for line in refusal(text)] == [
        "1: rum",
        "1: run",
        "2: seeds[1]",
        "6: scenes[0].task",
        "13: perturbations[1].options.mass_scale",
        "18: policies[0].scenes[0]",
        "20: policies[1].kind",
        "21: policies[2].kind",
        "22: policies[2].knd",
    ]


def test_success_at_the_last_step_can_be_reached() -> None:
    options = "success_steps: 100, time_limit: 100"
    spec(GOOD.replace("success_steps: 100", options) + "max_steps: 100\n")


def test_refuses_a_policy_that_needs_what_the_scene_does_not_give() -> None:
    text = """\
run: x
seeds: [1]
scenes: [{name: lift, task: robosuite/Lift, options: {observations: [robot0_eef_pos]}}]
policies: [{name: p, kind: lift_expert}]
"""
    assert any("needs the observation 'cube_pos'" in line for line in refusal(text))


def test_refuses_an_empty_matrix() -> None:
    text = GOOD.replace("  - name: random\n    kind: random\n", "").replace("  - name: none\n", "")
    assert refusal(text) == ["s.yaml:1: (whole file): the matrix is empty: no policy and perturbation share a scene"]


def test_refuses_a_matrix_that_nobody_can_mean() -> None:
    text = GOOD.replace("repetitions: 2", "repetitions: 10000").replace("[1, 2]", str(list(range(100))))
    assert "at most 1000000 are allowed" in refusal(text)[0]


def test_the_published_json_schema_is_the_one_in_force() -> None:
    path = Path(__file__).parents[3] / "stepwell/schemas/run-spec.schema.json"
    assert json.loads(path.read_text()) == RunSpec.model_json_schema(), (
        "regenerate it: python -m stepwell.adapters.runs.spec"
    )
