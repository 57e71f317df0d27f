import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TARGETS = {"help", "install", "demo", "demo-kafka", "closed-loop", "test", "check", "bench", "soak", "lock", "clean"}


def make(*arguments: str) -> str:
    # The tests themselves may run under make, whose flags are handed down.
    clean = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    done = subprocess.run(["make", *arguments], cwd=REPOSITORY, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_describes_every_command() -> None:
    described = {line.split()[1]: line.split(None, 2)[2] for line in make("help").splitlines()}
    assert set(described) >= TARGETS
    assert all(described.values())


def test_plain_make_shows_the_help() -> None:
    assert make() == make("help")


def test_every_folder_of_tests_is_run() -> None:
    """The quick ones first. What starts services and simulators mostly waits, so it shares the cores by file."""
    quick, slow = [line for line in make("--dry-run", "test").splitlines() if "-m pytest" in line]
    named = {word for line in (quick, slow) for word in line.split() if word.startswith("tests")}
    root = Path(__file__).parents[2]
    holding = {f"tests/{path.relative_to(root).parts[0]}" for path in root.rglob("test_*.py")}
    assert named == holding
    assert all("--dist=loadfile" in line for line in (quick, slow))


def test_what_tests_and_demo_need_is_brought_by_their_own_command() -> None:
    for target, needs in {
        "test": (
            "parts.debian install",
            "parts.kafka install",
            "parts.registry install",
            "parts.timescale install",
            "simulators.install",
        ),
        "demo": ("simulators.install", "examples/demo/run.py"),
        "demo-kafka": ("parts.kafka install", "parts.timescale install", "simulators.install", "run.py --kafka"),
    }.items():
        recipe = make("--dry-run", target)
        assert all(need in recipe for need in needs), target
