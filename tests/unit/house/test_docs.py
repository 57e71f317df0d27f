"""The documentation says what is there: links, paths, commands, tables of names."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from stepwell.adapters.policies.spec import DEFECT_OPTIONS, POLICY_KINDS
from stepwell.adapters.retrain_history import STATES
from stepwell.adapters.runs.spec import (
    DefectEntry,
    PerturbationEntry,
    PolicyEntry,
    RunSpec,
    SceneEntry,
    TimeoutEntry,
    check_spec,
)
from stepwell.adapters.simulators.catalogue import PERTURBATION_OPTIONS, SCENE_OPTIONS
from stepwell.adapters.yaml_lines import load
from stepwell.cli import build_app
from stepwell.engine.detection.requests import REGRESSION_FORMAT, WEIGHTS_FORMULA
from stepwell.events.model import EvidenceEpisode, RetrainRequested
from stepwell.events.taxonomy import FAILURE_TYPES, OUTCOME_OF_FAULT

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), REPOSITORY / "compose" / "README.md"])
ROOT_COMMAND: Any = typer.main.get_command(build_app())


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def cells(text: str, heading: str) -> list[list[str]]:
    """The rows of all tables in one section, without its subsections."""
    level = heading.partition(" ")[0]
    section = f"\n{text}".split(f"\n{heading}\n", 1)[1]
    section = re.split(rf"^#{{1,{len(level) + 1}}} ", section, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not set(row[0]) <= set("- ")]


# --- links and paths ---


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_paths_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:stepwell|tests|docs|examples|compose|benchmarks|requirements)/[\w./*-]*)`",
        page.read_text(encoding="utf-8"),
    )
    assert not [path for path in named if "NAME" not in path and "NNNN" not in path and not any(REPOSITORY.glob(path))]


def test_the_architecture_maps_every_room() -> None:
    named = set(re.findall(r"`(stepwell/[\w./-]+)`", text_of("architecture.md")))
    assert len(named) > 40
    for room in ("events", "engine", "projections", "adapters", "testing"):
        assert f"stepwell/{room}/" in named


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)", text_of("README.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == linked


def test_pages_that_the_code_names_exist() -> None:
    sources = [
        *REPOSITORY.glob("stepwell/**/*.py"),
        *REPOSITORY.glob("stepwell/**/*.sql"),
        *REPOSITORY.glob("examples/**/*.yaml"),
    ]
    named = {
        match for path in sources for match in re.findall(r"docs/[\w/-]+(?:\.md)?", path.read_text(encoding="utf-8"))
    }
    assert named
    assert not [name for name in named if not any(REPOSITORY.glob(name.removesuffix(".md") + "*"))]


# --- decisions ---


def test_decisions_have_one_form_and_stand_in_the_index() -> None:
    index = text_of("decisions/README.md")
    records = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "README.md")
    assert len(records) > 15
    numbers = []
    for record in records:
        number = re.match(r"(\d{4})-[a-z0-9-]+\.md", record.name)
        assert number, record.name
        numbers.append(int(number[1]))
        text = record.read_text(encoding="utf-8")
        title = text.splitlines()[0]
        assert title.startswith(f"# {int(number[1])}. "), record.name
        places = [text.find(f"\n**{part}.**") for part in ("Problem", "Decision", "Price")]
        assert -1 not in places, record.name
        assert places == sorted(places), record.name
        assert f"| [{int(number[1])}]({record.name}) | {title.partition('. ')[2]} |" in index, record.name
    assert len(set(numbers)) == len(numbers)


# --- commands ---


def commands(page: Path) -> Iterator[str]:
    """Every ``stepwell ...`` in code blocks and in running text."""
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language not in ("", "sh", "bash"):
            continue
        yield from re.findall(r"^\s*(?:\$ )?(?:STEPWELL_\w+=\S+ )*stepwell ([a-z].*)$", block, re.MULTILINE)
    yield from re.findall(r"`stepwell ([a-z][^`]*)`", without_code(text).replace("\n", " "))


def refusal(line: str) -> str | None:
    """Why the command line would not take this; None where it would. Nothing is run."""
    command, arguments = ROOT_COMMAND, shlex.split(line, comments=True)
    while hasattr(command, "commands"):
        if not arguments:
            return None  # the name of a group
        if arguments[0] not in command.commands:
            return f"there is no command {arguments[0]!r}"
        command = command.commands[arguments.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [each for each in arguments if each.startswith("--") and each.partition("=")[0] not in known]
    if unknown:
        return f"unknown options {unknown}"
    if arguments:
        try:
            command.make_context(command.name, list(arguments))
        except Exception as error:  # noqa: BLE001 (of a module that is private to Typer)
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist_with_their_options(page: Path) -> None:
    wrong = {line: why for line in commands(page) if "..." not in line and "|" not in line and (why := refusal(line))}
    assert not wrong


def test_the_check_of_commands_finds_what_is_wrong() -> None:
    assert len(list(commands(REPOSITORY / "README.md"))) > 10
    assert refusal("retrain listen --run x --group y") is None
    assert refusal("nonsense") is not None
    assert refusal("retrain nonsense") is not None
    assert refusal("replay ep-1 --nonsense") is not None
    assert refusal("replay ep-1 --last many") is not None


# --- failure types ---


def test_every_failure_type_is_explained_with_its_fault() -> None:
    page = text_of("failure-types.md")
    said = {row[0].strip("`"): (row[1], row[2]) for row in cells(page, "## The list")[1:]}
    assert list(said) == list(FAILURE_TYPES)
    for name, (fault, meaning) in FAILURE_TYPES.items():
        assert said[name][0] == fault
        assert said[name][1].startswith(meaning), f"{name}: begin with: {meaning}"
    outcomes = {row[0]: row[1].strip("`") for row in cells(page, "# Failure types")[1:]}
    assert outcomes == OUTCOME_OF_FAULT


# --- retrain requests ---


def test_the_request_on_the_page_has_every_field() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", text_of("training-services.md"), re.DOTALL)
    said = json.loads(example)
    assert list(said) == ["type", *RetrainRequested.__struct_fields__]
    (evidence,) = said["evidence"]
    assert list(evidence) == list(EvidenceEpisode.__struct_fields__)
    regression = json.loads(said["regression_spec_json"])
    assert regression["format"] == REGRESSION_FORMAT
    assert (regression["trigger_id"], said["weights_formula"]) == (said["trigger_id"], WEIGHTS_FORMULA)


def test_every_state_of_the_ledger_is_explained() -> None:
    said = [name for row in cells(text_of("training-services.md"), "## The ledger")[1:] for name in row[0].split()]
    assert sorted(name.strip("`") for name in said) == sorted(STATES)


# --- the task spec ---


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## The whole run", RunSpec),
        ("## Policies", PolicyEntry),
        ("## Scenes", SceneEntry),
        ("## Perturbations", PerturbationEntry),
        ("## Time-outs", TimeoutEntry),
    ],
)
def test_every_key_of_the_task_spec_is_explained(heading: str, model: type[BaseModel]) -> None:
    rows = cells(text_of("task-spec.md"), heading)
    start = next(number for number, row in enumerate(rows) if row[0] == "key")
    end = next(
        (number for number, row in enumerate(rows) if number > start and row[0] in ("kind", "simulator")), len(rows)
    )
    said = {row[0].strip("`"): row for row in rows[start + 1 : end]}
    assert list(said) == list(model.model_fields) or set(said) == set(model.model_fields)
    for name, field in model.model_fields.items():
        default = said[name][1] if model is TimeoutEntry else said[name][2]
        assert ("required" in default) == (field.is_required()), name
        if isinstance(field.default, int | float | str):
            shown = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
            assert default == f"`{shown}`", name


def options_named(heading: str, first: str) -> dict[str, set[str]]:
    """Name -> options, from the table whose head begins with ``first``."""
    rows = cells(text_of("task-spec.md"), heading)
    start = next(number for number, row in enumerate(rows) if row[0] == first)
    return {row[0].strip("`"): set(re.findall(r"`([a-z_]+)`", row[1])) for row in rows[start + 1 :]}


def test_every_option_of_the_task_spec_is_named() -> None:
    assert options_named("## Policies", "kind") == {kind: set(spec.options) for kind, spec in POLICY_KINDS.items()}
    assert options_named("## Scenes", "simulator") == {name: set(options) for name, options in SCENE_OPTIONS.items()}
    values = {"raise", "exit", "crash", "kill"}
    defects = {name: named - values for name, named in options_named("### Defects", "defect").items()}
    assert defects == {name: set(options) - {"at_step", "probability"} for name, options in DEFECT_OPTIONS.items()}
    perturbations = text_of("task-spec.md").split("## Perturbations")[1].split("\n## ")[0]
    assert set(PERTURBATION_OPTIONS) <= set(re.findall(r"`([a-z_]+)`", perturbations))
    assert set(DefectEntry.model_fields) == {"kind", "options"}


def test_the_example_of_the_task_spec_is_a_spec(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", text_of("task-spec.md"), re.DOTALL)
    path = tmp_path / "spec.yaml"
    path.write_text(example)
    from stepwell.adapters.runs.plan import plan

    assert len(plan(check_spec(load(path)), "run-1")) == 9
