"""Install simulator environments from their locks: ``python -m stepwell.adapters.simulators.install [NAME...]``.

Each set becomes a virtual environment of its own below `environments_directory`. Installing twice does nothing: a stamp
with the lock's digest tells that the environment is whole and current. uv is used where it is there, else pip.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from stepwell.adapters.parts import exclusive, parts_directory
from stepwell.exceptions import ConfigurationError, MissingPartError, StepwellError

NAMES = ("gymnasium", "metaworld", "robosuite")
LOCKS = Path(__file__).parents[1] / "environments"
PYTHON = "3.11"
STAMP = "stepwell-lock.sha256"

# What is compiled or cached on first use is made while installing, so that the first episode is not late.
_WARM_UP = {
    "robosuite": (
        "import robosuite;"
        "e = robosuite.make('Lift', robots='Panda', has_renderer=False, has_offscreen_renderer=False,"
        " use_camera_obs=False); e.reset(); e.step([0.0] * 7)"
    ),
    "metaworld": "import metaworld.policies",
    "gymnasium": "import gymnasium.envs.mujoco",
}


def environments_directory() -> Path:
    """Where simulator environments are installed."""
    return parts_directory() / "simulators"


def environment_digest(name: str) -> str:
    """SHA-256 of the set's lock, in hex: what `sim::ready` names as the environment."""
    return hashlib.sha256(_lock_of(name).read_bytes()).hexdigest()


def environment_python(name: str) -> Path:
    """The interpreter of an installed set.

    Raises:
        ConfigurationError: there is no such set.
        MissingPartError: it is not installed, or was installed from another lock.
    """
    directory = environments_directory() / name
    digest = environment_digest(name)
    if _stamp(directory) != digest:
        state = "was installed from another lock" if directory.exists() else "is not installed"
        raise MissingPartError(
            f"The simulator environment '{name}' {state} ({directory})."
            f" Install it with: python -m stepwell.adapters.simulators.install {name}"
        )
    return _python_of(directory)


def install(names: Sequence[str] = NAMES, say: Callable[[str], None] = print) -> None:
    """Install simulator sets; those that are current already are left alone.

    Raises:
        ConfigurationError: a name is unknown.
        StepwellError: an installer failed; the message ends with what it said.
    """
    for name in names:
        digest = environment_digest(name)
        directory = environments_directory() / name
        with exclusive(directory.with_name(f"{name}.lock")):
            if _stamp(directory) == digest:
                say(f"{name}: installed already, in {directory}")
                continue
            say(f"{name}: installing into {directory}")
            shutil.rmtree(directory, ignore_errors=True)
            _make(name, directory)
            (directory / STAMP).write_text(digest + "\n")
            say(f"{name}: done")


def write_locks(names: Sequence[str] = NAMES) -> None:
    """Resolve ``requirements.in`` of each set anew into its lock. Needs uv."""
    uv = shutil.which("uv")
    if uv is None:
        raise MissingPartError("Locks are written with uv: https://docs.astral.sh/uv/getting-started/installation/")
    for name in names:
        folder = _lock_of(name).parent
        overrides = ["--override", "overrides.txt"] if (folder / "overrides.txt").exists() else []
        _run(
            [uv, "pip", "compile", "--quiet", "--upgrade", "--python-version", PYTHON, "--generate-hashes",
             "--no-emit-index-url", "--no-emit-find-links",
             "--custom-compile-command", "python -m stepwell.adapters.simulators.install --lock",
             *overrides, "requirements.in", "-o", "requirements.txt"],
            cwd=folder,
        )  # fmt: skip


def _lock_of(name: str) -> Path:
    if name not in NAMES:
        raise ConfigurationError(f"There is no simulator set '{name}'; there are {', '.join(NAMES)}.")
    return LOCKS / name / "requirements.txt"


def _stamp(directory: Path) -> str | None:
    try:
        return (directory / STAMP).read_text().strip()
    except OSError:
        return None


def _python_of(directory: Path) -> Path:
    return directory / "bin" / "python"


def _make(name: str, directory: Path) -> None:
    lock = str(_lock_of(name))
    python = str(_python_of(directory))
    # --no-deps: the lock is complete, and it leaves out on purpose what overrides.txt names.
    if uv := shutil.which("uv"):
        _run([uv, "venv", "--quiet", "--python", PYTHON, str(directory)])
        _run([uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "--no-deps", "-r", lock])
    else:
        _run([_interpreter(), "-m", "venv", str(directory)])
        _run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", lock])
    _run([python, "-c", _WARM_UP[name]], env={**os.environ, "MUJOCO_GL": "disabled"})


def _interpreter() -> str:
    if ".".join(map(str, sys.version_info[:2])) == PYTHON:
        return sys.executable
    found = shutil.which(f"python{PYTHON}")
    if found is None:
        raise MissingPartError(f"The simulators' locks are for Python {PYTHON}: install python{PYTHON}, or uv.")
    return found


def _run(command: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise StepwellError(f"'{' '.join(command[:4])} ...' failed with exit status {done.returncode}:\n{said}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.adapters.simulators.install", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; all by default")
    parser.add_argument("--lock", action="store_true", help="write the locks anew instead of installing")
    chosen = parser.parse_args()
    names = chosen.names or NAMES
    try:
        if chosen.lock:
            write_locks(names)
        else:
            install(names)
    except StepwellError as error:
        raise SystemExit(f"error: {error}") from error
