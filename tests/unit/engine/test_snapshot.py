"""Snapshots: exact, refused where another fold made them, markers never refused."""

import math
import struct

import msgspec
import pytest

from stepwell.engine import machine, version
from stepwell.engine.replay import ReplayStep, fold_history, replay
from stepwell.engine.snapshot import SnapshotRefusedError, canonical, dump, load, restore, seal_marker, snapshot_record
from stepwell.engine.state import EpisodeState, SealedAttempt
from tests.unit.engine.stories import (
    EPISODE,
    Story,
    attempt_of,
    fold,
    position_at,
    sealed,
    stalled,
    timed_out,
)


def test_numbers_survive_to_the_bit() -> None:
    odd_nan = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    story = Story().begin()
    for step, reward in enumerate([0.1, 0.2, odd_nan, -0.0]):
        story.step(step, story.action(step).producer_seq, reward=reward)
    attempt = attempt_of(fold(story.facts))
    again = load(dump(attempt))
    assert math.isnan(again.total_reward)
    assert struct.pack("<d", again.total_reward) == struct.pack("<d", attempt.total_reward)
    assert dump(again) == dump(attempt)


def test_a_snapshot_of_another_fold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = attempt_of(fold(Story().begin().facts))
    state, record = dump(attempt), snapshot_record(attempt)
    assert restore(record) == attempt
    monkeypatch.setattr("stepwell.engine.snapshot.FOLD_HASH", "0" * 32)
    with pytest.raises(SnapshotRefusedError, match="fold the attempt again"):
        load(state)
    with pytest.raises(SnapshotRefusedError, match=EPISODE):
        restore(record)


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x92\xa1x\x90"])
def test_a_damaged_snapshot_is_refused(damage: bytes) -> None:
    with pytest.raises(SnapshotRefusedError, match="no snapshot"):
        load(damage)


def test_a_marker_is_restored_whatever_fold_wrote_it() -> None:
    story = Story().begin()
    story.end()
    attempt = attempt_of(fold([*story.facts, sealed()]))
    record = msgspec.structs.replace(snapshot_record(attempt), fold_hash="another")
    marker = restore(record)
    assert marker == seal_marker(attempt) == SealedAttempt(EPISODE, 1, "success", 1, 5)
    assert canonical(EpisodeState(EPISODE, {1: marker})) != canonical(EpisodeState(EPISODE))


def test_the_hash_covers_table_guards_version_rules_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version._fold_hash() == version.FOLD_HASH
    changes: list[tuple[object, str, object]] = [
        (version, "FOLD_VERSION", version.FOLD_VERSION + 1),
        (version, "RULE_SET", "other/1"),
        (version, "HOLD_LIMIT", 65),
        (machine, "TABLE", ()),
        (machine, "GUARD_MEANINGS", {}),
    ]
    for owner, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert version._fold_hash() != version.FOLD_HASH


def told(*facts: object) -> list[ReplayStep]:
    return list(replay((fact, position_at(offset, fact)) for offset, fact in enumerate(facts)))  # type: ignore[arg-type,misc]


def test_replay_tells_the_fate_of_every_event() -> None:
    story = Story().begin().run(1)
    action = story.action(1)
    step = story.step(1, action.producer_seq)
    lost = story.action(2)
    after = story.action(3)
    story.end()
    claim = story.facts[1]
    other = msgspec.structs.replace(claim, producer_id="host-2")
    steps = told(
        *story.facts[:6], other, step, action, action, stalled("agent", 3), after, timed_out("agent", 3), lost,
        msgspec.structs.replace(step, producer_id="sim-2"), timed_out("sim", 1), story.facts[-1], sealed(), step,
        story.facts[0],
    )  # fmt: skip
    assert [entry.fate for entry in steps[6:]] == [
        "lost_claim", "held", "applied", "duplicate", "noted", "held", "noted", "late", "refused", "stale", "applied",
        "noted", "after_seal", "duplicate",
    ]  # fmt: skip
    released = steps[8]
    assert (released.before, released.after, released.released, released.next_step) == (
        "STEP_COMPLETE", "STEP_COMPLETE", 1, 2,
    )  # fmt: skip
    assert (steps[0].before, steps[0].after, steps[0].trigger) == ("", "INIT", None)
    assert (steps[7].waiting, steps[7].owes, steps[7].owes_seq) == (1, "agent", 2)
    assert steps[-3].revision == 1
    assert steps[4].trigger == "on_action_sent"


def test_replay_of_what_starts_no_attempt() -> None:
    (only,) = told(sealed())
    assert (only.fate, only.before, only.after, only.next_step, only.owes) == ("stale", "", "", 0, None)


def test_a_history_gives_every_verdict() -> None:
    story = Story().begin().run(1)
    story.fail()
    second = Story(attempt=2).begin()
    facts = [*story.facts, *second.facts]
    folded = fold_history((fact, position_at(offset, fact)) for offset, fact in enumerate(facts))
    assert {number: verdict.outcome for number, verdict in folded.verdicts.items()} == {1: "failure"}
    assert fold_history([]).state == EpisodeState("")
