"""``stepwell retrain list | show | ack | mute | unmute | mutes``: the ledger as the log tells it."""

import json
import re
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.retrain_history import STATES, read_ledger
from stepwell.adapters.runs.before_after import BeforeAfter, CellResult
from stepwell.adapters.runs.identity import operator
from stepwell.adapters.runs.recurrence import Recurrence
from stepwell.adapters.runs.regression import regression_run_id
from stepwell.cli import build_app
from stepwell.cli.retrain_ledger import State
from stepwell.engine.paired import Pairs
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import (
    EvidenceEpisode,
    LogRecord,
    RetrainAcknowledged,
    RetrainExpired,
    RetrainMuted,
    RetrainRequested,
    RetrainUnmuted,
)
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import ConfigurationError, NotFoundError
from tests.integration.projections.facts import (
    answered,
    now_us,
    pattern,
    publish,
    requested,
    retrain,
    verdict,
    withdrawn,
)

CODEC = Codec()


def invoke(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(build_app(), ["retrain", *arguments])
    if isinstance(result.exception, ConfigurationError | NotFoundError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result


def request(trigger: str, policy: str = "p", at: int = 0, **more: Any) -> RetrainRequested:
    return msgspec.structs.replace(retrain(trigger), policy=policy, occurred_at=now_us() + at, **more)


def answer(trigger: str, status: str, **more: Any) -> LogRecord:
    return msgspec.structs.replace(answered(trigger, status), **more)


def expired(trigger: str) -> RetrainExpired:
    event = withdrawn(trigger)
    head = {name: getattr(event, name) for name in event.__struct_fields__ if name != "reason"}
    return RetrainExpired(**head, reason="open for 3 days")


def events(log: MessageLog) -> list[LogRecord]:
    kinds = (RetrainAcknowledged, RetrainMuted, RetrainUnmuted)
    return [event for event in read_all(log, CODEC, POLICY_EVENTS) if isinstance(event, kinds)]


def rows(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip().startswith(start)]


# --- list and show ---


def every_state(log: MessageLog) -> None:
    """One trigger in each state, named after it."""
    names = [name for name in STATES if name != "muted"]
    publish(log, [pattern(f"t-{name}") for name in STATES])
    publish(log, [request(f"t-{name}", at=i) for i, name in enumerate(names)])
    publish(log, [answer(f"t-{name}", name) for name in ("accepted", "done", "failed", "rejected")])
    publish(log, [expired("t-expired"), withdrawn("t-withdrawn")])
    for name in ("acknowledged", "accepted", "open"):
        if name != "open":
            invoke("ack", f"t-{name}", "--detail", "on it")


def test_every_state_is_told(log: MessageLog) -> None:
    assert tuple(each.value for each in State) == STATES
    every_state(log)
    assert {entry.trigger_id: entry.state for entry in read_ledger(log, CODEC)} == {
        f"t-{name}": name for name in STATES
    }
    told = {row[0]: row for row in rows(invoke("list").output, "t-")}
    assert {name: row[7] for name, row in told.items()} == {f"t-{name}"[:11]: name for name in STATES}
    assert told["t-acknowled"][9:] == [f"{operator()}:", "on", "it"]
    assert told["t-done"][9:] == ["c2", "trainer-1:", "ok"]
    assert told["t-expired"][9:] == ["open", "for", "3", "days"]


def test_withdrawn_and_expired_beat_answers_and_the_first_closing_answer_counts(log: MessageLog) -> None:
    publish(log, [request("t-1"), request("t-2"), request("t-3"), expired("t-1"), withdrawn("t-2")])
    publish(log, [answer(f"t-{n}", status) for n in (1, 2, 3) for status in ("accepted", "failed", "done")])
    entries = {entry.trigger_id: entry for entry in read_ledger(log, CODEC)}
    assert [entries[f"t-{n}"].state for n in (1, 2, 3)] == ["expired", "withdrawn", "failed"]
    assert all(entry.closed for entry in entries.values())
    assert "this one counts" not in invoke("show", "t-1").output
    assert invoke("show", "t-3").output.count("this one counts") == 1


def test_an_answer_or_acknowledgement_for_another_policy_changes_nothing(log: MessageLog) -> None:
    publish(log, [request("t-1", "a"), answer("t-1", "done", policy="b")])
    other = RetrainAcknowledged(
        **{name: getattr(withdrawn("t-1"), name) for name in ("run_id", "episode_id", "attempt", "producer_id")},
        event_id=bytes(15) + b"\1", producer_seq=0, occurred_at=now_us(), trace_id="1" * 32, trigger_id="t-1",
        policy="b", detail="", acknowledged_by="x",
    )  # fmt: skip
    publish(log, [other])
    assert [entry.state for entry in read_ledger(log, CODEC)] == ["open"]


def test_list_by_policy_and_state(log: MessageLog) -> None:
    publish(
        log, [request("t-1", "a", 1), request("t-2", "b", 2), request("t-3", "a", 3), answer("t-3", "done", policy="a")]
    )
    shown = invoke("list", "--policy", "a").output
    assert [row[0] for row in rows(shown, "t-")] == ["t-1", "t-3"]
    assert "2 of 3; without --policy and --state all are listed" in shown
    assert [row[0] for row in rows(invoke("list", "--policy", "a", "--state", "open").output, "t-")] == ["t-1"]
    lines = [
        json.loads(line) for line in invoke("list", "--state", "done", "--state", "open", "--json").output.splitlines()
    ]
    assert [(line["trigger_id"], line["state"]) for line in lines] == [
        ("t-1", "open"),
        ("t-2", "open"),
        ("t-3", "done"),
    ]


def test_list_as_json_has_the_whole_request(log: MessageLog) -> None:
    publish(log, [request("t-1", detail="14 of 20 failed; limit 0.3"), answer("t-1", "failed", detail="disk full")])
    invoke("ack", "t-1", code=1)
    (line,) = invoke("list", "--json").output.splitlines()
    told = json.loads(line)
    assert told["type"] == "retrain::requested"
    assert (told["state"], told["detail"], told["answer_detail"]) == (
        "failed",
        "14 of 20 failed; limit 0.3",
        "disk full",
    )
    assert (told["trainer"], told["new_checkpoint"], told["acknowledged_by"]) == ("trainer-1", "c2", None)


def test_show_tells_everything_in_the_request(log: MessageLog) -> None:
    (evidence,) = retrain("t-1").evidence
    more: dict[str, Any] = {
        "detail": "14 of 20 failed; limit 0.3",
        "evidence": (msgspec.structs.replace(evidence, events_partition=2, first_offset=40, last_offset=93),),
        "hard_negatives": (
            EvidenceEpisode(
                episode_id="e-hard", attempt=1, revision=1, partition=0, offset=9, scene="shelf", perturbation="heavy",
                seed=12, n_steps=80,
            ),
        ),
        "weights_formula": "w(c) = failures of c / failures",
        "regression_spec_json": '{"format":"stepwell-regression/1","cells":[{"scene":"table","seeds":[7]}]}',
    }  # fmt: skip
    publish(log, [request("t-1", **more)])
    shown = invoke("show", "t").output
    flat = [" ".join(line.split()) for line in shown.splitlines()]
    for line in (
        "state open", "seen 14 of 20 failed; limit 0.3", "e 1 table none 7 2 2/40 to 93", "e-hard 1 shelf heavy 12 80",
        "table none 1.00", "w(c) = failures of c / failures", '"format": "stepwell-regression/1",', "no answer yet",
    ):  # fmt: skip
        assert line in flat, shown
    assert shown.index("evidence") < shown.index("hard negatives") < shown.index("proposed weights")


def test_show_tells_all_that_was_said_in_order(log: MessageLog) -> None:
    publish(log, [request("tr-abc"), request("tr-abd"), withdrawn("tr-abd")])
    invoke("ack", "tr-abc", "--detail", "looking")
    invoke("answer", "tr-abc", "accepted", "--detail", "queued")
    invoke("answer", "tr-abc", "done", "--checkpoint", "c-2", "--group", "b")
    changed = invoke("answer", "tr-abc", "failed", "--detail", "disk full").output
    assert changed == "tr-abc  done before: the answer is kept and changes nothing\n"
    shown = invoke("show", "tr-abc").output
    given = [line.split()[1:] for line in shown.splitlines() if line.strip().startswith("20")]
    assert given == [
        [operator(), "acknowledged", "looking"], ["trainer", "accepted", "queued"],
        ["b", "done", "c-2", "this", "one", "counts"], ["trainer", "failed", "disk", "full"],
    ]  # fmt: skip
    plain = json.loads(invoke("show", "tr-abc", "--json").output)
    assert (plain["state"], plain["new_checkpoint"], plain["trainer"]) == ("done", "c-2", "b")
    assert [each["status"] for each in plain["answers"]] == ["accepted", "done", "failed"]
    assert [each["acknowledged_by"] for each in plain["acknowledgements"]] == [operator()]
    assert "amended" in invoke("show", "tr-abd").output


def test_a_muted_pattern_is_shown_and_asks_nobody(log: MessageLog) -> None:
    publish(log, [pattern("t-1")])
    assert "not requested: the policy was muted" in invoke("show", "t-1").output
    assert json.loads(invoke("show", "t-1", "--json").output)["type"] == "failure::pattern_detected"
    for command in (["ack", "t-1"], ["answer", "t-1", "done"]):
        with pytest.raises(NotFoundError, match="no request in the log begins with 't-1'"):
            invoke(*command)
    publish(log, [request("t-1")])  # the mute has ended
    assert [entry.state for entry in read_ledger(log, CODEC)] == ["open"]


def test_terminal_controls_and_markup_from_outside_take_no_effect(log: MessageLog) -> None:
    publish(log, [request("t-1", "[red]p", detail="\x1b[2J[bold]x", regression_spec_json="\x1b[2J{")])
    shown = invoke("show", "t-1").output + invoke("list").output
    assert "\x1b" not in shown
    assert "[red]p" in shown
    assert "[bold]x" in shown


def test_show_tells_before_and_after_where_the_regression_was_run(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(log, [request("t-1")])
    cell = CellResult(
        "table", again=1, again_scored=1, again_succeeded=1, fresh=10, pairs=Pairs(both=2, lost=1, gained=6, neither=1)
    )
    beside = CellResult("chair", fresh=10, pairs=Pairs(both=7, lost=3))
    found = Recurrence("rows", 2, "too_few", 20, 5, 36, 5, 20)
    result = BeforeAfter(
        trigger_id="t-1", run_id="regress-t-1-c2", policy="p", policy_version="1", failure_type="task_not_completed",
        baseline_checkpoint="c1", checkpoint="c2", cells=(cell,), total=cell, others=(beside,), others_total=beside,
        unfinished=0, recurrence=found, opened=(),
    )  # fmt: skip
    monkeypatch.setattr("stepwell.adapters.runs.before_after.before_and_after", lambda *_: [result])
    shown = invoke("show", "t-1").output
    assert "p: c1 before, c2 after" in shown
    assert "6 gained, 1 lost" in shown
    assert "fresh seeds in other cells, 10 pairs: -30 points (-60 to +4); 0 gained, 3 lost" in shown
    assert "task_not_completed with c2: 5 of 20, 25 % (11 to 47) of the fresh episodes" in shown
    assert "rule rows version 2 on them: too few episodes to tell (20 of minimum 36)" in shown
    (told,) = json.loads(invoke("show", "t-1", "--json").output)["regressions"]
    assert (told["checkpoint"], told["cells"][0]["name"]) == ("c2", "table")
    assert (told["others"][0]["fresh"]["lost"], told["recurrence"]["finding"]) == (3, "too_few")


def test_show_says_why_a_regression_run_cannot_be_shown(log: MessageLog) -> None:
    again = requested("e-again", run_id=regression_run_id("t-1", "c2"), checkpoint="c2")
    publish(log, [request("t-1", regression_spec_json="{"), again])
    shown = invoke("show", "t-1").output
    assert "regression runs cannot be shown: " in shown
    assert "no answer yet" in shown
    assert json.loads(invoke("show", "t-1", "--json").output)["regressions_trouble"]


# --- ack ---


def test_ack_writes_who_and_what_to_the_policy(log: MessageLog) -> None:
    publish(log, [request("tr-abc", "pol")])
    assert invoke("ack", "tr-a", "--detail", "mine").output == f"tr-abc  pol  acknowledged by {operator()}\n"
    (event,) = events(log)
    assert isinstance(event, RetrainAcknowledged)
    assert (event.trigger_id, event.policy, event.detail, event.acknowledged_by) == (
        "tr-abc",
        "pol",
        "mine",
        operator(),
    )
    assert re.fullmatch(r"\S+@\S+", event.acknowledged_by)


@pytest.mark.parametrize("state", ["done", "withdrawn", "expired"])
def test_there_is_nothing_to_acknowledge_about_what_is_closed(log: MessageLog, state: str) -> None:
    every_state(log)
    before = len(events(log))
    told = invoke("ack", f"t-{state}", code=1).output
    assert told == f"t-{state}  {state} already: nothing to acknowledge, nothing was written\n"
    assert len(events(log)) == before


def test_commands_want_one_request(log: MessageLog) -> None:
    publish(log, [request("tr-abc"), request("tr-abd")])
    for command in (["show"], ["ack"]):
        for name, why in (("tr-x", "no request in the log begins with 'tr-x'"), ("tr-ab", "2 requests begin with")):
            with pytest.raises(NotFoundError, match=why):
                invoke(*command, name)
    assert events(log) == []


# --- mutes ---


def test_mute_writes_until_when_why_and_by_whom(log: MessageLog) -> None:
    publish(log, [msgspec.structs.replace(verdict("e-1"), policy="p")])
    before = now_us()
    told = invoke("mute", "p", "--rule", "same_failure_in_a_row", "--for", "3d", "--reason", "retraining anyway")
    assert told.output.startswith("p  rule same_failure_in_a_row muted until 20")
    assert told.stderr == ""
    (event,) = events(log)
    assert isinstance(event, RetrainMuted)
    assert (event.policy, event.rule, event.reason) == ("p", "same_failure_in_a_row", "retraining anyway")
    assert event.muted_by == operator()
    assert event.until is not None
    assert 3 * 86_400_000_000 <= event.until - before < 3 * 86_400_000_000 + 60_000_000
    listed = rows(invoke("mutes").output, "p ")
    assert listed[0][:2] == ["p", "same_failure_in_a_row"]
    assert listed[0][-3:] == [operator(), "retraining", "anyway"]


def test_a_mute_ends_by_its_time_or_by_unmute(log: MessageLog) -> None:
    invoke("mute", "a", "--reason", "x")
    invoke("mute", "b", "--until", "2999-01-01", "--reason", "y")
    publish(log, [msgspec.structs.replace(event, policy="c", until=now_us() - 1) for event in events(log)[:1]])
    assert [row[0] for row in rows(invoke("mutes").output, "")[2:]] == ["a", "b"]
    assert invoke("unmute", "a").output == "a  every rule unmuted\n"
    lines = [json.loads(line) for line in invoke("mutes", "--all", "--json").output.splitlines()]
    assert {line["policy"]: (line["in_force"], line["ended_by"]) for line in lines} == {
        "a": (False, operator()), "b": (True, ""), "c": (False, ""),
    }  # fmt: skip
    assert next(line for line in lines if line["policy"] == "b")["until"] == "2999-01-01T00:00:00.000000Z"
    shown = invoke("mutes", "--all").output
    assert f"unmuted by {operator()}" in shown
    assert "(over)" in shown
    invoke("mute", "a", "--reason", "again")
    assert [row[0] for row in rows(invoke("mutes").output, "")[2:]] == ["b", "a"]


def test_unmute_wants_the_very_mute(log: MessageLog) -> None:
    invoke("mute", "a", "--rule", "r", "--reason", "x")
    before = len(events(log))
    told = invoke("unmute", "a", code=1).output
    assert told == "a  every rule not muted, nothing was written; muted are: rule r\n"
    assert invoke("unmute", "b", code=1).output == "b  every rule not muted, nothing was written\n"
    assert len(events(log)) == before
    invoke("unmute", "a", "--rule", "r")
    assert invoke("mutes").output == "nothing is muted\n"


def test_a_name_that_the_log_does_not_know_is_noted(log: MessageLog) -> None:
    publish(log, [msgspec.structs.replace(verdict("e-1"), policy="reach-expert")])
    told = invoke("mute", "reach-exprt", "--rule", "same_failure_in_row", "--reason", "x").stderr
    assert "the log has no verdict of a policy reach-exprt yet; did you mean reach-expert?" in told
    assert "no rule same_failure_in_row is in force; did you mean same_failure_in_a_row?" in told


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--for", "3"], r"--for '3': expected a number with s, m, h, d or w behind it"),
        (["--for", "-3d"], r"--for '-3d': expected"),
        (["--until", "tomorrow"], "--until 'tomorrow': expected a date or a time in ISO 8601"),
        (["--until", "2020-01-01"], "is over already; nothing was written"),
        (["--for", "3d", "--until", "2999-01-01"], "give either --for or --until"),
        (["--reason", " "], "--reason: say why"),
    ],
)
def test_a_mute_that_makes_no_sense_is_refused(log: MessageLog, arguments: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        invoke("mute", "p", *(["--reason", "x"] if "--reason" not in arguments else []), *arguments)
    assert events(log) == []
