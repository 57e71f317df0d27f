"""``stepwell retrain list``: what stands in each column, and what does not; and what a mute says of what stands."""

import json

import pytest
from rich.console import Console

from stepwell.cli.retrain_ledger import _shortened
from stepwell.engine.ports import MessageLog
from tests.integration.projections.facts import acknowledged, pattern, publish, withdrawn
from tests.unit.cli.test_retrain_ledger import answer, expired, invoke, request, rows

HOUR = 3_600_000_000


def test_the_list_says_what_for_since_when_and_what_came_of_it(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = "tr-oat2tcggej2objzuq7bm4ej2nf", "tr-oat2tcggej3objzuq7bm4ej2nf"
    publish(log, [request(first, checkpoint="c1", rule="drops", at=-50 * HOUR), answer(first, "done", detail="")])
    publish(log, [request(second, "another", at=-HOUR), request("t-later", checkpoint=None, at=HOUR)])
    shown = invoke("list").output
    assert rows(shown, "tr-") == [
        ["tr-oat2tcggej2", "p", "c1", "1", "×", "task_not_completed", "(drops)", "done", "2d", "c2", "trainer-1"],
        ["tr-oat2tcggej3", "another", "none", "1", "×", "task_not_completed", "(in-a-row)", "open", "1h"],
    ]
    assert rows(shown, "t-later")[0][2::6] == ["none", "0s"]
    assert invoke("show", "tr-oat2tcggej3").exit_code == 0  # what the list names a trigger by is enough for the others
    monkeypatch.setattr("stepwell.cli.retrain_ledger.console", lambda: Console(width=120))
    narrow = invoke("list").output.splitlines()
    assert max(map(len, narrow)) <= 120
    assert len(narrow) <= 2 + 2 * 3, "a rule may stand below its failure type"


def test_ids_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    assert _shortened(["tr-aaaaaaaaaaaa", "tr-b"]) == {"tr-aaaaaaaaaaaa": "tr-aaaaaaaa", "tr-b": "tr-b"}
    assert _shortened(["tr-aaaaaaaaaaaa", "tr-aaaaaaaaaa"])["tr-aaaaaaaaaaaa"] == "tr-aaaaaaaaaaa"
    assert _shortened([]) == {}


def test_the_last_thing_said_with_an_ack_stays(log: MessageLog) -> None:
    publish(log, [request("t-1"), acknowledged("t-1"), acknowledged("t-1", acknowledged_by="bob", detail="")])
    (row,) = rows(invoke("list").output, "t-1")
    assert row[-3:] == ["bob:", "on", "it"]
    told = json.loads(invoke("list", "--json").output)
    assert (told["acknowledged_by"], told["acknowledged_detail"]) == ("bob", "on it")
    publish(log, [acknowledged("t-1", detail="mended")])
    assert rows(invoke("list").output, "t-1")[0][-2:] == ["ada:", "mended"]


def test_an_answer_after_the_closing_does_not_show(log: MessageLog) -> None:
    publish(log, [request("t-1"), request("t-2"), answer("t-2", "accepted", producer_id="early"), expired("t-1")])
    publish(log, [withdrawn("t-2"), *(answer(f"t-{n}", "done", producer_id="late") for n in (1, 2))])
    told = {line["trigger_id"]: line for line in map(json.loads, invoke("list", "--json").output.splitlines())}
    shown = ("state", "trainer", "new_checkpoint", "answer_detail")
    assert [told["t-1"][name] for name in shown] == ["expired", None, None, None]
    assert [told["t-2"][name] for name in shown] == ["withdrawn", "early", "c2", "ok"]
    assert "late" not in invoke("list").output


def test_a_mute_names_the_requests_that_it_does_not_hold_back(log: MessageLog) -> None:
    publish(log, [request("t-1"), request("t-2", rule="drops"), request("t-3"), request("t-4", "another")])
    publish(log, [answer("t-1", "accepted"), answer("t-3", "done"), pattern("t-5")])
    said = [invoke("mute", "p", *more, "--reason", "x").stdout.splitlines()[1:] for more in ([], ["--rule", "drops"])]
    assert said == [
        ["2 standing requests are still handed out: t-1, t-2"], ["1 standing request is still handed out: t-2"],
    ]  # fmt: skip
    assert invoke("mute", "nobody", "--reason", "x").stdout.splitlines() == ["nobody  every rule muted until unmuted"]
    publish(log, [request(f"u-{i}", "many") for i in range(7)])
    (_, told) = invoke("mute", "many", "--reason", "x").stdout.splitlines()
    assert told == "7 standing requests are still handed out: u-0, u-1, u-2, u-3, u-4 and 2 more"
