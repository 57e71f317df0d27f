"""What the tables say of rules and of the ledger: the same as the detector and ``stepwell retrain list``."""

from collections.abc import Callable
from typing import Any

from stepwell.adapters.retrain_history import read_ledger
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing, partition_copies
from stepwell.engine.ruleset import BUILT_IN, FrozenRule, RuleSet
from stepwell.events.topics import EPISODE_EVENTS, POLICY_EVENTS
from tests.integration.projections import facts

Query = Callable[..., list[tuple[Any, ...]]]
MINUTE = 60_000_000


def test_retrain_status(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    """The first closing answer counts, as in the detector's ledger; the detector's own closing beats any answer."""
    given = {
        "t-1": [], "t-2": ["done"], "t-3": ["accepted", "failed"], "t-4": ["done", "failed", "accepted"],
        "t-5": ["accepted", "accepted"], "t-6": ["perhaps"], "t-7": [], "t-8": ["accepted"], "t-9": ["accepted"],
    }  # fmt: skip
    facts.publish(log, [facts.retrain(trigger) for trigger in given])
    facts.publish(log, [facts.pattern("t-1"), facts.pattern("m-1"), facts.pattern("m-2"), facts.pattern("m-3")])
    facts.publish(log, [facts.withdrawn("t-2"), facts.expired("t-9"), facts.withdrawn("m-2")])
    facts.publish(log, [facts.answered(trigger, status) for trigger, said in given.items() for status in said])
    facts.publish(log, [facts.again(facts.answered("t-9", "done"), producer_id="late", detail="too late")])
    facts.publish(log, [facts.again(facts.answered("t-1", "done"), policy="another"), facts.answered("m-3", "done")])
    facts.publish(log, [facts.acknowledged("t-7"), facts.acknowledged("t-7", acknowledged_by="bob")])
    facts.publish(log, [facts.acknowledged("t-8"), facts.acknowledged("t-6", policy="another")])
    drain()
    rows = query("SELECT trigger_id, status, closed_reason, acknowledged_by FROM stepwell.retrain_status ORDER BY 1")
    assert rows == [
        ("m-1", "muted", None, None), ("m-2", "withdrawn", "amended", None), ("m-3", "done", None, None),
        ("t-1", "open", None, None), ("t-2", "withdrawn", "amended", None), ("t-3", "failed", None, None),
        ("t-4", "done", None, None), ("t-5", "accepted", None, None), ("t-6", "open", None, None),
        ("t-7", "acknowledged", None, "bob"), ("t-8", "accepted", None, "ada"), ("t-9", "expired", "nobody came", None),
    ]  # fmt: skip
    listed = {entry.trigger_id: entry.state for entry in read_ledger(log, facts.CODEC)}
    assert {trigger: status for trigger, status, _, _ in rows} == listed
    assert query("SELECT count(*) FROM stepwell.retrain_answers WHERE trigger_id = 't-4'") == [(3,)]
    # What the detector closed shows no answer that came too late, but who had accepted it.
    assert query(
        "SELECT trigger_id, trainer, answered_at IS NULL, new_checkpoint, detail FROM stepwell.retrain_status"
        " WHERE trigger_id IN ('t-2', 't-9') ORDER BY 1"
    ) == [("t-2", None, True, None, None), ("t-9", "trainer-1", False, "c2", "ok")]
    assert query(
        "SELECT trigger_id, seen, evidence_episodes, requested_at IS NULL, opened_at IS NULL"
        " FROM stepwell.retrain_status WHERE trigger_id IN ('m-1', 't-1') ORDER BY 1"
    ) == [("m-1", "3 in a row", 1, True, False), ("t-1", "3 in a row", 1, False, False)]


def test_a_request_says_all_that_was_proposed(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    facts.publish(log, [facts.retrain("t-1"), facts.again(facts.retrain("t-2"), regression_spec_json="")])
    drain()
    assert query(
        "SELECT evidence->0->>'last_offset', evidence->0->>'task', hard_negatives->0->>'episode_id', weights_formula,"
        " regression_spec->>'format' FROM stepwell.retrain_requests ORDER BY trigger_id"
    ) == [("20", "metaworld/reach-v3", "e", "share of the evidence", spec) for spec in ("stepwell-regression/1", None)]


def test_the_last_word_on_a_mute_counts(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    now = facts.now_us()
    facts.publish(log, [
        facts.muted("ended"), facts.unmuted("ended"),
        facts.muted("over", until=now - MINUTE),
        facts.muted("again"), facts.unmuted("again"), facts.muted("again", until=now + 60 * MINUTE, reason="again"),
        facts.muted("longer", until=now - MINUTE), facts.muted("longer"),
        facts.muted("two"), facts.muted("two", "in_a_row"), facts.unmuted("two"),
        facts.unmuted("never"),
    ])  # fmt: skip
    drain()
    assert query(
        "SELECT policy, rule, muted_until IS NULL, muted_by, reason FROM stepwell.mutes_in_force ORDER BY 1"
    ) == [
        ("again", None, False, "ada", "again"), ("longer", None, True, "ada", "camera swapped"),
        ("two", "in_a_row", True, "ada", "camera swapped"),
    ]  # fmt: skip
    assert query("SELECT count(*) FROM stepwell.retrain_mutes") == [(12,)]


def test_rule_sets_are_known_from_their_home_alone(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    assert query("SELECT FROM stepwell.rules_in_force") == []
    later = RuleSet(
        rule_set="lab", version=3, steps=[FrozenRule(kind="frozen", name="still", steps=9)], verdicts=BUILT_IN.verdicts
    )
    for rules in (facts.RULES, later):
        event = facts.activated(rules)
        copies = [partition_copies(facts.CODEC, event, topic, range(4)) for topic in (EPISODE_EVENTS, POLICY_EVENTS)]
        home = outgoing(facts.CODEC, event)
        facts.send(log, [*copies[0], *copies[1], home._replace(key=b"lab"), home])
    drain()
    drain()
    assert query("SELECT rule_set, version, rules->'steps'->0->>'steps', activated_by FROM stepwell.rule_sets"
                 " ORDER BY source_offset") == [("lab", 2, "20", "ada"), ("lab", 3, "9", "ada")]  # fmt: skip
    assert query("SELECT rule_set, version, judges, rule, kind FROM stepwell.rules_in_force ORDER BY judges") == [
        ("lab", 3, "steps", "still", "frozen"), ("lab", 3, "verdicts", "same_failure_in_a_row", "in_a_row"),
    ]  # fmt: skip
    assert query("SELECT sha256 FROM stepwell.rule_sets WHERE version = 3") == [(later.sha256(),)]
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(0,)]
    for table in ("runs", "episodes", "episode_attempts", "verdicts"):
        assert query(f"SELECT count(*) FROM stepwell.{table}") == [(0,)]


def test_a_set_of_another_form_stands_and_has_no_rules(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    for text in ("[]", "7", "null", '{"steps": 7, "verdicts": [8]}', "no JSON"):
        facts.publish(log, [facts.activated(rules_json=text, sha256=facts.digest(text))])
    drain()
    assert query("SELECT count(*) FROM stepwell.rule_sets") == [(5,)]
    assert query("SELECT FROM stepwell.rules_in_force") == []


def test_awaited_verdicts_stand_in_the_order_of_requests(
    log: MessageLog, running: Callable[..., Any], query: Query
) -> None:
    facts.publish(log, [facts.expected(f"e-{number}") for number in (3, 1, 2)])
    facts.publish(log, [facts.expected("other", policy="p"), facts.expected("e-3")])
    facts.publish(log, [facts.verdict("e-1"), facts.again(facts.verdict("e-2"), attempt=2)])
    with running() as projector:
        projector.wait_reported()
    rows = query("SELECT policy, place, episode_id, waiting_s FROM stepwell.awaited_verdicts ORDER BY policy, place")
    assert [row[:3] for row in rows] == [
        ("p", 1, "other"), ("reach-expert", 1, "e-3"), ("reach-expert", 2, "e-2"),
    ]  # fmt: skip
    assert all(0 <= row[3] < 600 for row in rows)
    query("DELETE FROM stepwell.sink_offsets")
    assert query("SELECT DISTINCT waiting_s, as_of FROM stepwell.awaited_verdicts") == [(None, None)]


def test_labels_with_the_steps_at_which_they_were_found(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    facts.publish(log, [
        facts.verdict("e-1", labels=("early",), label_steps=(3,)),
        facts.verdict("e-1", 2, labels=("nonfinite_action", "slow"), label_steps=(-1, 7)),
        facts.verdict("e-2", labels=("slow",), label_steps=()), facts.verdict("e-3", labels=(), label_steps=()),
    ])  # fmt: skip
    drain()
    assert query("SELECT episode_id, label, step FROM stepwell.labelled_steps ORDER BY 1, 2") == [
        ("e-1", "nonfinite_action", None), ("e-1", "slow", 7), ("e-2", "slow", None),
    ]  # fmt: skip


def test_each_rule_that_failed_on_a_record_is_seen(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    letters = [
        facts.dead_letter(kind="rule_failed", reason=rule, detail="division by zero") for rule in ("still", "jerky")
    ]
    facts.publish(log, [*letters, letters[0], facts.dead_letter()])
    drain()
    assert query("SELECT rule, detail, source_offset, episode_id FROM stepwell.rule_failures ORDER BY 1") == [
        (rule, "division by zero", 3, "e-1") for rule in ("jerky", "still")
    ]
    assert query("SELECT count(*) FROM stepwell.protocol_violations") == [(1,)]


def test_what_an_episode_was_run_for_can_be_asked_for(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    for purpose in ("evaluation", "regression"):
        about = {"purpose": purpose, "labels": ("slow",)}
        told = [facts.requested(f"of-{purpose}", purpose=purpose), facts.verdict(f"of-{purpose}", **about)]
        facts.publish(log, [*told, facts.expected(f"to-{purpose}", purpose=purpose)])
    drain()
    wanted = [("of-evaluation", "evaluation"), ("of-regression", "regression")]
    for table in ("episodes", "verdicts", "labelled_steps"):
        assert query(f"SELECT episode_id, purpose FROM stepwell.{table} ORDER BY 1") == wanted
    assert query("SELECT episode_id, purpose FROM stepwell.expected_verdicts ORDER BY 1") == [
        ("to-evaluation", "evaluation"), ("to-regression", "regression"),
    ]  # fmt: skip
    assert query("SELECT episode_id FROM stepwell.awaited_verdicts") == [("to-evaluation",)]


def test_the_definition_of_an_episode_can_be_asked_for(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    texts = {"e-1": '{"scene":{"name":"table"}}', "e-2": "", "e-3": "no JSON", "e-4": "[" * 50_000 + "]" * 50_000}
    facts.publish(log, [facts.requested(name, definition_json=text) for name, text in texts.items()])
    drain()
    assert query(
        "SELECT definition->'scene'->>'name', definition IS NULL, jsonb_typeof(definition) FROM stepwell.episodes"
        " ORDER BY episode_id"
    ) == [("table", False, "object"), (None, True, None), (None, False, "string"), (None, False, "string")]
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(0,)]
