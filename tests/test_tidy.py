"""Habits that keep the repository readable, held by a test so that nobody has to remember them."""

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("adapters", "engine", "events", "projections", "schemas")
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600

# Call -> what to write instead.
BANNED_CALLS = {
    "datetime.utcnow": "datetime.now(tz=UTC)",
    "datetime.datetime.utcnow": "datetime.now(tz=UTC)",
    "datetime.utcfromtimestamp": "datetime.fromtimestamp(seconds, tz=UTC)",
    "datetime.datetime.utcfromtimestamp": "datetime.fromtimestamp(seconds, tz=UTC)",
    "self._driver.list_consumer_group_offsets": "a consumer's committed(): the admin's call can end the process",
    "yaml.load": "yaml.safe_load, or stepwell.adapters.yaml_lines for files of users",
    "yaml.unsafe_load": "yaml.safe_load",
    "yaml.full_load": "yaml.safe_load",
    "pickle.load": "a msgspec type: a pickle runs what it holds",
    "pickle.loads": "a msgspec type: a pickle runs what it holds",
    "os.system": "subprocess.run with a list",
    "os.popen": "subprocess.run with a list",
    "eval": "ast.literal_eval, or a parser",
    "exec": "a function",
    "tempfile.mktemp": "tempfile.mkstemp or TemporaryDirectory",
    "logging.basicConfig": "stepwell.structured_logging.configure_logging",
    "asyncio.get_event_loop": "asyncio.get_running_loop, or asyncio.run",
    "pytest.skip": "a failure with the command that brings what is missing",
    "pytest.importorskip": "a plain import: tests need all parts",
    "pytest.mark.skip": "a test that runs",
    "pytest.mark.skipif": "a test that runs",
}

# (file, call) -> why it may stand.
ALLOWED_CALLS = {
    (
        "stepwell/events/avro_types.py",
        "exec",
    ): "compiles readers and writers from the packaged schemas, as dataclasses does",
}

# In events/ and engine/ time, chance and files come in as data; import-linter holds back the modules, this the calls.
IMPURE_CALLS = {
    "datetime.now": "a timestamp as an argument",
    "datetime.datetime.now": "a timestamp as an argument",
    "date.today": "a timestamp as an argument",
    "uuid.uuid1": "stepwell.events.ids",
    "uuid.uuid4": "stepwell.events.ids",
    "uuid4": "stepwell.events.ids",
    "hash": "hashlib: hash() of text differs from process to process",
    "id": "a key of the data: id() differs from run to run",
    "open": "bytes as an argument, or importlib.resources for packaged files",
    "input": "an argument",
}

# Put together here, so that this file does not hold what it looks for.
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]).join([r"\b(?:", r")\b"]))
NOT_IMPLEMENTED = "NotImplemented" + "Error"
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "home/[a-z]+", "Us" + "ers"]) + ")/")
_HOSTS = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("maven", "org"),
    ("deb.debian", "org"),
    ("crates", "io"),
)
REGISTRY_HOSTS = re.compile("|".join(re.escape(".".join(parts)) for parts in _HOSTS))


def tracked(*patterns: str) -> list[Path]:
    """Files that git keeps or would keep, without links."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return sorted(path for name in listed if (path := REPOSITORY / name).is_file() and not path.is_symlink())


SOURCES = {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in tracked("*.py")}
TREES = {name: ast.parse(text, name) for name, text in SOURCES.items()}


def texts() -> Iterator[tuple[str, str]]:
    """Every tracked text file."""
    for path in tracked():
        try:
            yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a golden file of encoded events


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from ((ast.unparse(each), each.lineno) for each in node.decorator_list)


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 30
    assert "stepwell/settings.py" in SOURCES


def test_functions_are_short() -> None:
    long = [
        f"{name}:{node.lineno}: {node.name} has {length} lines"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, f"more than {FUNCTION_LINES_MAX} lines"


def test_modules_are_short() -> None:
    long = [
        f"{name}: {lines} lines" for name, text in SOURCES.items() if (lines := text.count("\n")) > MODULE_LINES_MAX
    ]
    assert not long, f"more than {MODULE_LINES_MAX} lines"


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        if not name.startswith("requirements/") and name != "LICENSE" and not name.endswith(".json")
        for number, line in enumerate(text.splitlines(), 1)
        if UNFINISHED.search(line) or (NOT_IMPLEMENTED in line and name.endswith(".py"))
    ]
    assert not found


def test_no_banned_call() -> None:
    found = [
        f"{name}:{line}: {call}: write {BANNED_CALLS[call]}"
        for name, tree in TREES.items()
        for call, line in calls(tree)
        if call in BANNED_CALLS and (name, call) not in ALLOWED_CALLS
    ]
    assert not found


def test_every_allowance_is_used() -> None:
    used = {(name, call) for name, tree in TREES.items() for call, _ in calls(tree)}
    assert set(ALLOWED_CALLS) <= used


def test_pure_rooms_stay_pure() -> None:
    found = [
        f"{name}:{line}: {call}: take {IMPURE_CALLS[call]}"
        for name, tree in TREES.items()
        if name.startswith(("stepwell/events/", "stepwell/engine/"))
        for call, line in calls(tree)
        if call in IMPURE_CALLS
    ]
    assert not found


def test_the_library_does_not_print() -> None:
    """Commands print; everything else logs, or answers its caller."""
    found = [
        f"{name}:{line}"
        for name, tree in TREES.items()
        if name.startswith("stepwell/") and not name.startswith(("stepwell/cli/", "stepwell/adapters/parts/"))
        for call, line in calls(tree)
        if call == "print"
    ]
    assert not found, "use structlog, or give the text back"


def test_ignores_carry_a_code() -> None:
    bare = [
        f"{name}:{number}"
        for name, text in SOURCES.items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(r"#\s*type:\s*ignore(?!\[)|#\s*noqa(?!:)|pragma:\s*no cover", line)
        and name != "tests/test_tidy.py"
    ]
    assert not bare, "name what is ignored, and cover every line"


def test_nothing_names_a_machine_or_a_registry() -> None:
    found = [
        f"{name}:{number}: {match[0]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line))
    ]
    assert not found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_stand_at_the_top_as_links(room: str) -> None:
    link = REPOSITORY / room
    assert link.is_symlink()
    assert os.readlink(link) == f"stepwell/{room}"  # noqa: PTH115 (the text of the link is what counts)
    assert link.is_dir()


def test_every_locked_requirement_has_a_hash() -> None:
    for path in tracked("requirements/*.txt", "simulators/*/requirements.txt"):
        blocks = re.split(r"\n(?=[A-Za-z0-9])", "\n" + path.read_text(encoding="utf-8"))
        pinned = [block for block in blocks if re.match(r"[A-Za-z0-9._\[\]-]+==", block)]
        assert pinned, path
        assert all("--hash=sha256:" in block for block in pinned), path
        assert not re.search(r"^\s*-(?:-index-url|-extra-index-url|f |-find-links)", path.read_text(), re.MULTILINE), (
            path
        )


def test_every_make_target_in_the_texts_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        (name, target)
        for name, text in texts()
        if name.endswith((".md", ".py")) or name == ".ci/run"
        for target in re.findall(r"(?:`|^|exec )make ([a-z-]+)", text, re.MULTILINE)
    }
    assert {target for _, target in named} <= targets, sorted(named)


def test_continuous_integration_runs_make_test_alone() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "exec make test"
    assert [line for line in commands if "make" in line] == ["exec make test"]


def test_the_locks_hold_every_declared_dependency() -> None:
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {
        "runtime": project["project"]["dependencies"],
        "all": [each for extra in project["project"]["optional-dependencies"].values() for each in extra],
        "dev": [each for each in project["dependency-groups"]["dev"] if isinstance(each, str)],
    }
    for lock, requirements in declared.items():
        text = (REPOSITORY / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
        locked = {name.lower().replace("_", "-") for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}
        for requirement in requirements:
            name = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert name
            assert name[0].lower() in locked | {"stepwell"}, (
                f"{requirement} is not in requirements/{lock}.txt: make lock"
            )
