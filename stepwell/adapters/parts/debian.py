"""Programs from Debian's packages that tests and demonstrations use: Prometheus with promtool, and Chromium.

``python -m stepwell.adapters.parts.debian install`` brings what is missing, where it may (as root, with apt-get); else
it says the command that somebody who may has to run. A package's service is neither started nor left enabled: whoever
wants a program starts it as a process of their own.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.exceptions import MissingPartError, StepwellError

__all__ = ["PROGRAMS", "Program", "bring", "program"]

_POLICY = Path("/usr/sbin/policy-rc.d")
_LOCK_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Program:
    """One program that a Debian package brings.

    Attributes:
        command: its name on the search path.
        package: the Debian package.
        service: the systemd unit that the package would start; empty where there is none.
    """

    command: str
    package: str
    service: str = ""


PROGRAMS = (
    Program("prometheus", "prometheus", "prometheus.service"),
    Program("promtool", "prometheus", "prometheus.service"),
    Program("chromium", "chromium"),
)
# A page drawn without fonts shows boxes; Chromium only recommends them.
_WITH = {"chromium": ("fonts-liberation",)}


def program(command: str) -> str:
    """The path of one of `PROGRAMS`.

    Raises:
        MissingPartError: it is not installed; with the command that brings it.
    """
    if path := shutil.which(command):
        return path
    package = next(each.package for each in PROGRAMS if each.command == command)
    raise MissingPartError(
        f"The command '{command}' is not installed. Run `make parts` as root, or: {_install_command([package])}"
    )


def bring(programs: Sequence[Program] = PROGRAMS) -> list[str]:
    """Install the packages of the programs that are missing; the names of the packages that were installed.

    Raises:
        MissingPartError: something is missing, and this is not root on a Debian system, or apt-get failed.
    """
    missing = [each for each in programs if shutil.which(each.command) is None]
    if not missing:
        return []
    packages = sorted({name for each in missing for name in (each.package, *_WITH.get(each.package, ()))})
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        named = ", ".join(each.command for each in missing)
        raise MissingPartError(f"Not installed: {named}. On Debian or Ubuntu, as root: {_install_command(packages)}")
    with _services_held_back():
        _apt_get("update", "--quiet")
        _apt_get("install", "--quiet", "--yes", "--no-install-recommends", *packages)
    for unit in sorted({each.service for each in missing if each.service}):
        _disable(unit)
    still = [each.command for each in missing if shutil.which(each.command) is None]
    if still:
        raise MissingPartError(f"apt-get installed {', '.join(packages)}, but {', '.join(still)} is not to be found.")
    return packages


def _install_command(packages: Sequence[str]) -> str:
    return f"apt-get update && apt-get install --no-install-recommends {' '.join(packages)}"


def _apt_get(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", "-o", f"DPkg::Lock::Timeout={_LOCK_TIMEOUT_S}", *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise MissingPartError(f"{' '.join(command)} failed with exit code {done.returncode}. It said:\n{said}")


@contextlib.contextmanager
def _services_held_back() -> Iterator[None]:
    """Have Debian's package scripts start no service meanwhile; a policy that the machine has of its own stands."""
    try:
        handle = os.open(_POLICY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    except FileExistsError:
        yield
        return
    with os.fdopen(handle, "w") as file:
        file.write("#!/bin/sh\nexit 101\n")
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _disable(unit: str) -> None:
    """Keep a service that its package enabled from starting with the machine."""
    if systemctl := shutil.which("systemctl"):
        subprocess.run([systemctl, "--quiet", "disable", unit], capture_output=True, check=False)


def main(arguments: list[str] | None = None) -> int:
    """``install`` brings the programs that are missing."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.adapters.parts.debian", description=main.__doc__)
    parser.add_argument("command", choices=["install"])
    parser.parse_args(arguments)
    try:
        brought = bring()
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"From Debian: {', '.join(brought)}." if brought else "Prometheus, promtool and Chromium are there.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
