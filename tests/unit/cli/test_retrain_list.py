"""``stepwell retrain list``: what stands in each column, and what does not."""

import json

from stepwell.engine.ports import MessageLog
from tests.integration.projections.facts import acknowledged, publish, withdrawn
from tests.unit.cli.test_retrain_ledger import answer, expired, invoke, log, request, rows

__all__ = ["log"]


def test_the_last_thing_said_with_an_ack_stays(log: MessageLog) -> None:
    publish(log, [request("t-1"), acknowledged("t-1"), acknowledged("t-1", acknowledged_by="bob", detail="")])
    (row,) = rows(invoke("list").output, "t-1")
    assert row[-3:] == ["bob", "on", "it"]
    told = json.loads(invoke("list", "--json").output)
    assert (told["acknowledged_by"], told["acknowledged_detail"]) == ("bob", "on it")
    publish(log, [acknowledged("t-1", detail="mended")])
    assert rows(invoke("list").output, "t-1")[0][-2:] == ["ada", "mended"]


def test_an_answer_after_the_closing_does_not_show(log: MessageLog) -> None:
    publish(log, [request("t-1"), request("t-2"), answer("t-2", "accepted", producer_id="early"), expired("t-1")])
    publish(log, [withdrawn("t-2"), *(answer(f"t-{n}", "done", producer_id="late") for n in (1, 2))])
    told = {line["trigger_id"]: line for line in map(json.loads, invoke("list", "--json").output.splitlines())}
    shown = ("state", "trainer", "new_checkpoint", "answer_detail")
    assert [told["t-1"][name] for name in shown] == ["expired", None, None, None]
    assert [told["t-2"][name] for name in shown] == ["withdrawn", "early", "c2", "ok"]
    assert "late" not in invoke("list").output
