"""One host per run and machine; a restarted one is the same."""

import json
from pathlib import Path

import pytest

from stepwell.adapters.runs.identity import hold_identity
from stepwell.exceptions import ConfigurationError


def test_a_restarted_host_is_the_same_and_another_run_s_is_not(tmp_path: Path) -> None:
    with hold_identity(tmp_path, "r1") as first:
        pass
    with hold_identity(tmp_path, "r1") as again, hold_identity(tmp_path, "r2") as other:
        assert again.producer_id == first.producer_id
        assert other.producer_id != first.producer_id


def test_nobody_else_can_hold_it_meanwhile(tmp_path: Path) -> None:
    with (
        hold_identity(tmp_path, "r1"),
        pytest.raises(ConfigurationError, match="run 'r1' is being run by another process on this machine"),
        hold_identity(tmp_path, "r1"),
    ):
        pass
    with hold_identity(tmp_path, "r1"):
        pass


@pytest.mark.parametrize("left", ["", '{"produ', "[]", "null", '{"producer_id": null}', '{"producer_id": ""}', "\0\0"])
def test_a_half_written_file_gives_a_new_identity_that_is_kept(tmp_path: Path, left: str) -> None:
    file = tmp_path / "runs" / "r1" / "host.json"
    file.parent.mkdir(parents=True)
    file.write_text(left)
    with hold_identity(tmp_path, "r1") as identity:
        assert identity.producer_id.startswith("host-")
    assert json.loads(file.read_text()) == {"producer_id": identity.producer_id}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with (
        pytest.raises(ConfigurationError, match=r"runs.r1: cannot be written: .*; set STEPWELL_HOME"),
        hold_identity(tmp_path, "r1"),
    ):
        pass
