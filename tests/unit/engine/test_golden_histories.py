"""Golden histories: verdicts checked by hand, and the rule that a changed result needs a new fold version.

Each file says why it is there, holds the events in the log's order, the step rules in force where there are some, and
what every attempt must come to.
``RESULTS.json`` beside them holds digests of everything that was folded, with the ``FOLD_VERSION`` that folded it.
Bring it up to date, after raising the version, with: ``python -m tests.unit.engine.test_golden_histories``.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.engine.replay import FoldedHistory, fold_history
from stepwell.engine.ruleset import RuleSet
from stepwell.engine.snapshot import canonical
from stepwell.engine.verdict import content_of
from stepwell.engine.version import FOLD_VERSION
from stepwell.events import model
from stepwell.events.model import Event
from tests.unit.engine.stories import attempt_of, position_at

HISTORIES = Path(__file__).resolve().parents[2] / "golden" / "histories"
RESULTS = HISTORIES / "RESULTS.json"
NAMES = sorted(path.stem for path in HISTORIES.glob("*.json") if path != RESULTS)
KINDS = {kind.TYPE: kind for kind in vars(model).values() if isinstance(kind, type) and "TYPE" in vars(kind)}


def _load(name: str) -> dict[str, Any]:
    return json.loads((HISTORIES / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _event(row: dict[str, Any]) -> Event:
    fields = {name: value for name, value in row.items() if name != "type"}
    event = msgspec.convert(fields, KINDS[row["type"]], strict=False)
    assert isinstance(event, Event)
    return event


def golden_events(name: str) -> list[Event]:
    """The events of a history, in the log's order."""
    return [_event(row) for row in _load(name)["events"]]


def golden_rules(name: str) -> str:
    """The step rules in force, as an attempt carries them."""
    found = _load(name).get("rules")
    return RuleSet.model_validate(found).steps_canonical() if found else ""


def _fold(name: str) -> FoldedHistory:
    rules = golden_rules(name)
    return fold_history((event, position_at(offset, event, rules)) for offset, event in enumerate(golden_events(name)))


def _ranges(entries: tuple[model.SequenceRange, ...]) -> list[list[object]]:
    return [[entry.producer, entry.first, entry.last] for entry in entries]


def test_there_are_histories() -> None:
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_what_was_worked_out_by_hand(name: str) -> None:
    folded = _fold(name)
    expected = _load(name)["expect"]
    assert sorted(map(str, folded.verdicts)) == sorted(expected)
    for number, verdict in folded.verdicts.items():
        wanted = dict(expected[str(number)])
        metrics = {entry.name: entry.value for entry in verdict.metrics}
        certificate = verdict.certificate
        for metric, value in wanted.pop("metrics").items():
            assert metrics.pop(metric) == value, metric
        assert "reward_max" not in metrics
        assert wanted.pop("certificate") == {
            **{field: getattr(certificate, field) for field in certificate.__struct_fields__ if field != "notes"},
            "notes": list(certificate.notes),
            "lost": _ranges(certificate.lost),
            "late": _ranges(certificate.late),
        }
        assert attempt_of(folded.state, number).phase == wanted.pop("phase")
        labels = wanted.pop("labels")
        assert list(verdict.labels) == labels
        assert list(verdict.label_steps) == wanted.pop("label_steps", [-1] * len(labels))
        assert verdict.total_reward == float(wanted.pop("total_reward"))
        assert {field: getattr(verdict, field) for field in wanted} == wanted


def _digests() -> dict[str, str]:
    found = {}
    for name in NAMES:
        folded = _fold(name)
        sha = hashlib.sha256(canonical(folded.state))
        for verdict in folded.verdicts.values():
            # The hash of the fold is left out: it changes with every version, the results need not.
            origin = msgspec.structs.replace(verdict.provenance, fold_hash="")
            sha.update(content_of(msgspec.structs.replace(verdict, provenance=origin)))
        found[name] = sha.hexdigest()
    return found


def test_a_changed_result_comes_with_a_new_fold_version() -> None:
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))
    changed = [name for name, digest in _digests().items() if recorded["results"].get(name) != digest]
    if changed and recorded["fold_version"] == FOLD_VERSION:
        pytest.fail(f"the fold gives other results for {changed}: raise FOLD_VERSION in stepwell/engine/version.py")
    mend = "check the histories by hand, then: python -m tests.unit.engine.test_golden_histories"
    assert recorded["fold_version"] == FOLD_VERSION, mend
    assert not changed, mend


if __name__ == "__main__":
    text = json.dumps({"fold_version": FOLD_VERSION, "results": _digests()}, indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")
