"""Debian's programs: brought as root, else the command is said; no service starts meanwhile."""

import os
from pathlib import Path

import pytest

from stepwell.adapters.parts import debian
from stepwell.adapters.parts.debian import Program
from stepwell.exceptions import MissingPartError

THING = Program("thing", "thing-package", "thing.service")
# Stands in for apt-get alone: it notes what it is asked and whether services are held back, and "installs" the command.
APT_GET = """#!/bin/sh
echo "$* policy=$(cat "$POLICY" 2>/dev/null | tail -1)" >> "$NOTES"
case "$*" in
    *install*) [ -n "$BREAKS" ] && { echo "E: no such package" >&2; exit 100; }; cp "$0" "$BIN/thing" ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with its own apt-get and systemctl; we are its root."""
    place = tmp_path / "bin"
    place.mkdir()
    for command, text in (("apt-get", APT_GET), ("systemctl", '#!/bin/sh\necho "systemctl $*" >> "$NOTES"\n')):
        (place / command).write_text(text)
        (place / command).chmod(0o755)
    for name, value in {
        "PATH": f"{place}:/usr/bin:/bin", "BIN": str(place), "NOTES": str(tmp_path / "notes"), "BREAKS": "",
        "POLICY": str(tmp_path / "policy-rc.d"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(debian, "_POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def notes(machine: Path) -> list[str]:
    return (machine / "notes").read_text().splitlines()


def test_what_is_missing_is_installed_without_its_service_starting(machine: Path) -> None:
    assert debian.bring([THING]) == ["thing-package"]
    update, install, disable = notes(machine)
    assert " update " in f" {update} "
    assert "install --quiet --yes --no-install-recommends thing-package policy=exit 101" in install
    assert disable == "systemctl --quiet disable thing.service"
    assert not (machine / "policy-rc.d").exists()
    assert debian.bring([THING]) == []
    assert len(notes(machine)) == 3


def test_a_policy_of_the_machines_own_stands(machine: Path) -> None:
    (machine / "policy-rc.d").write_text("#!/bin/sh\nexit 104\n")
    debian.bring([THING])
    assert notes(machine)[1].endswith("policy=exit 104")
    assert (machine / "policy-rc.d").read_text().endswith("exit 104\n")


def test_who_is_not_root_is_told_the_command(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPartError, match=r"as root: apt-get update && apt-get install .* thing-package"):
        debian.bring([THING])
    assert not (machine / "notes").exists()


def test_what_apt_says_is_shown_when_it_fails(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKS", "yes")
    with pytest.raises(MissingPartError, match=r"(?s)exit code 100.*no such package"):
        debian.bring([THING])
    assert not (machine / "policy-rc.d").exists()


def test_a_program_is_found_or_its_package_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine / "bin"))
    with pytest.raises(MissingPartError, match=r"'promtool' is not installed\. Run `make parts` as root"):
        debian.program("promtool")
    (machine / "bin" / "promtool").write_text("#!/bin/sh\n")
    (machine / "bin" / "promtool").chmod(0o755)
    assert debian.program("promtool") == str(machine / "bin" / "promtool")
