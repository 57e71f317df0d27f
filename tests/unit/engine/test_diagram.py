"""The docs show the state machine that runs."""

from pathlib import Path

import pytest

from stepwell.engine import diagram, machine

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "state-machine.md"


def test_the_document_has_not_drifted(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagram.main(["--check", str(DOCUMENT)]) == 0
    assert capsys.readouterr().err == ""


def test_drift_is_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "docs" / "state-machine.md"
    copy.parent.mkdir()
    copy.write_text(DOCUMENT.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(machine, "TRANSITIONS", machine.TRANSITIONS[:-1])
    assert diagram.main(["--check", str(copy)]) == 1
    assert "has drifted" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert diagram.main(["--write"]) == 0
    assert diagram.main(["--check"]) == 0
    changed = copy.read_text(encoding="utf-8")
    assert changed.partition(diagram.BEGIN)[0] == DOCUMENT.read_text(encoding="utf-8").partition(diagram.BEGIN)[0]
    assert "`on_resume` | `is_paused`" not in changed


def test_wrong_usage_and_missing_markers(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagram.main([]) == 2
    assert "usage" in capsys.readouterr().err
    with pytest.raises(ValueError, match="needs the two lines"):
        diagram.with_generated("no markers")


def test_every_state_and_trigger_is_drawn() -> None:
    drawn = diagram.mermaid()
    for name in (*machine.STATES, *(set(machine.TRIGGERS) - {"on_pause", "on_resume"})):
        assert name in drawn
