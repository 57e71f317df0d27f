"""``stepwell retrain list | show | ack | mute | unmute | mutes``: the trigger ledger, for people."""

import json
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.regress import print_before_after
from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, plain_table, short_line
from stepwell.exceptions import ConfigurationError, NotFoundError, SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.adapters.retrain_history import LedgerEntry
    from stepwell.adapters.retrain_mutes import Mute
    from stepwell.adapters.runs.before_after import BeforeAfter
    from stepwell.engine.ports import MessageLog
    from stepwell.events.codec import Codec
    from stepwell.events.model import EvidenceEpisode, RetrainRequested


class State(StrEnum):
    """Where a request can stand."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    ACCEPTED = "accepted"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    MUTED = "muted"


TriggerArgument = Annotated[
    str, typer.Argument(metavar="TRIGGER", help="Trigger id, or the beginning of one.", show_default=False)
]
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="The policy's name.", show_default=False)]
RuleOption = Annotated[str | None, typer.Option(help="Only requests of this rule. Default: of every rule.")]

EXIT_REFUSED = 1
MUTE_MAX_US = 366_000 * 86_400 * 1_000_000
NAME_MAX = 60
"""Of a rule's name; see `stepwell.engine.ruleset.Name`."""
STANDING_SHOWN = 5
"""So many of the requests that a mute does not hold back are named."""
SHORT_ID = 11
"""Characters of a trigger's id in the list: enough to find it by."""


def register(retrain: typer.Typer) -> None:
    """Add them to the group ``retrain``."""
    retrain.command("list")(list_requests)
    retrain.command("show")(show)
    retrain.command("ack")(acknowledge)
    retrain.command("mute")(mute)
    retrain.command("unmute")(unmute)
    retrain.command("mutes")(mutes)


# --- looking ------------------------------------------------------------------------------------------------------


def list_requests(
    policy: Annotated[list[str] | None, typer.Option(help="Only of this policy; may be repeated.")] = None,
    state: Annotated[list[State] | None, typer.Option(help="Only those that stand so; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each request.")] = False,
) -> None:
    """List the requests in the log, with what became of each; muted patterns too, of which nobody was asked."""
    from stepwell.adapters.retrain_history import read_ledger
    from stepwell.cli.times import span_text
    from stepwell.events.plain import as_text

    with opened_log(must_exist=True) as log:
        everything = read_ledger(log, codec_in_force())
    entries = [
        entry
        for entry in everything
        if (not policy or entry.about.policy in policy) and (not state or entry.state in {each.value for each in state})
    ]
    if as_json:
        for entry in entries:
            typer.echo(as_text(_as_plain(entry)))
        return
    short = _shortened([entry.trigger_id for entry in everything])
    now = time.time_ns() // 1000
    rows = []
    for entry in entries:
        about, answer = entry.about, entry.counting
        found = f"{len(about.evidence)} × {about.failure_type} ({about.rule})"
        rows.append((
            short[about.trigger_id], about.policy, about.checkpoint or "none", found, entry.state,
            span_text(now - about.occurred_at), answer.new_checkpoint or "" if answer else "",
            ": ".join(filter(None, (_whom(entry), _reason(entry)))),
        ))  # fmt: skip
    columns = ("trigger", "policy", "for checkpoint", "failure type (rule)", "state", "age", "new checkpoint", "said")
    console().print(plain_table(*columns, rows=rows, whole=("trigger", "state", "age")))
    if len(entries) < len(everything):
        typer.echo(f"{len(entries)} of {len(everything)}; without --policy and --state all are listed")


def show(
    trigger: TriggerArgument, as_json: Annotated[bool, typer.Option("--json", help="As a line of JSON.")] = False
) -> None:
    """Show one request: evidence, hard negatives, weights, regression spec, and what became of it, before and after."""
    from stepwell.adapters.retrain_history import find_entry
    from stepwell.events.plain import as_plain, as_text

    codec = codec_in_force()
    with opened_log(must_exist=True) as log:
        entry = find_entry(log, codec, trigger)
        regressions, trouble = _regressions(log, codec, entry)
    if as_json:
        history = {
            "answers": [as_plain(answer) for answer in entry.answers],
            "acknowledgements": [as_plain(each) for each in entry.acknowledgements],
            "regressions": [each.as_plain() for each in regressions],
            "regressions_trouble": trouble or None,
        }
        typer.echo(as_text(_as_plain(entry) | history))
        return
    out = console()
    _print_about(out, entry)
    _print_episodes(out, "evidence", entry.about.evidence)
    if entry.requested:
        _print_proposal(out, entry.request)
    _print_history(out, entry)
    print_before_after(out, regressions)
    if trouble:
        out.print(f"\nregression runs cannot be shown: {trouble}", markup=False, soft_wrap=True)


def _regressions(log: "MessageLog", codec: "Codec", entry: "LedgerEntry") -> "tuple[list[BeforeAfter], str]":
    """What the regression runs of a request came to, and why that cannot be told where it cannot."""
    from stepwell.adapters.runs.before_after import before_and_after

    if not entry.requested:
        return [], ""
    try:
        return before_and_after(log, codec, entry.trigger_id), ""
    except (NotFoundError, SpecError) as error:
        return [], str(error)


def _print_about(out: "Console", entry: "LedgerEntry") -> None:
    from stepwell.events.model import RetrainRequested
    from stepwell.events.plain import time_text

    about = entry.about
    facts = [
        ("trigger", about.trigger_id), ("state", entry.state), ("policy", about.policy),
        ("version", about.policy_version), ("checkpoint", about.checkpoint or "none"),
        ("failure type", about.failure_type), ("rule", f"{about.rule} version {about.rule_version}"),
        ("judged for", about.rule_key),
    ]  # fmt: skip
    if about.detail:
        facts.append(("seen", about.detail))
    if isinstance(about, RetrainRequested):
        facts += [("requested at", time_text(about.occurred_at)), ("requested by", about.requested_by)]
    else:
        facts += [("found at", time_text(about.occurred_at)), ("requested at", "not requested: the policy was muted")]
    if entry.withdrawal is not None:
        facts.append(("withdrawn", entry.withdrawal.reason))
    if entry.expiry is not None:
        facts.append(("expired", entry.expiry.reason))
    out.print(plain_table("request", "", rows=facts))


def _print_episodes(out: "Console", title: str, episodes: "tuple[EvidenceEpisode, ...]") -> None:
    rows = [
        (item.episode_id, item.attempt, item.scene, item.perturbation, item.seed, item.n_steps, _offsets(item))
        for item in episodes
    ]
    columns = ("episode", "attempt", "scene", "perturbation", "seed", "steps", "offsets")
    out.print(plain_table(*columns, rows=rows, whole=("episode",), title=f"\n{title}"))


def _offsets(item: "EvidenceEpisode") -> str:
    """Where its facts stand in the episode events."""
    if item.events_partition < 0:
        return ""
    return f"{item.events_partition}/{item.first_offset} to {item.last_offset}"


def _print_proposal(out: "Console", request: "RetrainRequested") -> None:
    if request.hard_negatives:
        _print_episodes(out, "hard negatives: further failures of the kind", request.hard_negatives)
    weights = [(item.scene, item.perturbation, f"{item.weight:.2f}") for item in request.sampling_weights]
    out.print(plain_table("scene", "perturbation", "weight", rows=weights, title="\nproposed weights of new data"))
    if request.weights_formula:
        out.print(f"\n{request.weights_formula}", markup=False, soft_wrap=True)
    if not request.regression_spec_json:
        return
    try:
        spec = json.dumps(json.loads(request.regression_spec_json), indent=2, ensure_ascii=False)
    except ValueError:  # others may write requests, too
        spec = request.regression_spec_json
    from stepwell.structured_logging import escape_text

    out.print("\nregression to run afterwards:")
    for line in spec.split("\n"):
        out.print(f"  {escape_text(line)}", markup=False, soft_wrap=True)


def _print_history(out: "Console", entry: "LedgerEntry") -> None:
    """Acknowledgements and answers, as they were recorded."""
    from stepwell.events.plain import time_text

    rows = [
        (item.occurred_at, item.acknowledged_by, "acknowledged", "", item.detail, "") for item in entry.acknowledgements
    ]
    beaten = entry.withdrawal is not None or entry.expiry is not None
    rows += [
        (item.occurred_at, item.producer_id, item.status, item.new_checkpoint or "", item.detail,
         "this one counts" if item is entry.counting and not beaten else "")
        for item in entry.answers
    ]  # fmt: skip
    if not entry.answers:
        out.print("\nno answer yet")
    if not rows:
        return
    # Each kind stays in the log's order; a clock that was wrong moves only kinds against each other.
    rows.sort(key=lambda row: row[0])
    told = [(time_text(at), *rest) for at, *rest in rows]
    columns = ("at", "by", "status", "checkpoint", "detail", "")
    out.print(plain_table(*columns, rows=told, title="\nanswers"))


def _as_plain(entry: "LedgerEntry") -> dict[str, Any]:
    from stepwell.events.plain import as_plain

    answer = entry.counting
    return as_plain(entry.about) | {
        "state": entry.state,
        "new_checkpoint": answer.new_checkpoint if answer else None,
        "trainer": answer.producer_id if answer else None,
        # "detail" is the request's own: what was seen
        "answer_detail": answer.detail if answer else None,
        "acknowledged_by": entry.acknowledged[0] or None,
        "acknowledged_detail": entry.acknowledged[1] or None,
        "withdrawn_reason": entry.withdrawal.reason if entry.withdrawal else None,
        "expired_reason": entry.expiry.reason if entry.expiry else None,
    }


def _shortened(trigger_ids: list[str]) -> dict[str, str]:
    """The beginnings by which each can be named, all of one length, `SHORT_ID` or more."""
    length = SHORT_ID
    while len({each[:length] for each in trigger_ids}) < len(trigger_ids):
        length += 1
    return {each: each[:length] for each in trigger_ids}


def _whom(entry: "LedgerEntry") -> str:
    """Who brought it where it stands, of those outside."""
    if entry.counting is not None:
        return entry.counting.producer_id
    return entry.acknowledged[0]


def _reason(entry: "LedgerEntry") -> str:
    """Why it stands where it stands, shortly."""
    if entry.withdrawal is not None:
        return short_line(entry.withdrawal.reason)
    if entry.expiry is not None:
        return short_line(entry.expiry.reason)
    if entry.counting is not None:
        return short_line(entry.counting.detail)
    return short_line(entry.acknowledged[1])


# --- saying something ---------------------------------------------------------------------------------------------


def acknowledge(
    trigger: TriggerArgument,
    detail: Annotated[str, typer.Option(help="What there is to say about it.")] = "",
) -> None:
    """Say that someone has seen a request and is at it. It stays open, and can be answered as before."""
    from stepwell.adapters import retrain_mutes
    from stepwell.adapters.retrain_history import find_request
    from stepwell.adapters.runs.identity import operator

    codec, who = codec_in_force(writing=True), operator()
    with opened_log(must_exist=True) as log:
        entry = find_request(log, codec, trigger)
        if entry.closed:
            typer.echo(f"{entry.trigger_id}  {entry.state} already: nothing to acknowledge, nothing was written")
            raise typer.Exit(EXIT_REFUSED)
        retrain_mutes.acknowledge(log, codec, entry, detail, who)
    typer.echo(f"{entry.trigger_id}  {entry.about.policy}  acknowledged by {who}")


def mute(
    policy: PolicyArgument,
    reason: Annotated[str, typer.Option(help="Why; whoever looks at the ledger sees it.", show_default=False)],
    rule: RuleOption = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="So long, e.g. 90m, 12h, 3d, 2w.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Until then, e.g. 2026-12-24T08:00Z.", show_default=False)
    ] = None,
) -> None:
    """Ask for no retraining of a policy for a while. Patterns are still found, published and listed as muted.

    Requests that stand already are still handed out and can be answered; a mute holds back further ones only.

    When the mute ends, by its time or by 'unmute', patterns that still hold are requested. Without --for and --until it
    lasts until 'unmute'.
    """
    from stepwell.adapters import retrain_mutes
    from stepwell.adapters.runs.identity import operator

    if rule is not None:
        _refuse_no_name(rule)
    end = _end_of_mute(for_, until)
    if not reason.strip():
        raise ConfigurationError("--reason: say why, for whoever wonders later where the requests are")
    codec = codec_in_force(writing=True)
    with opened_log(must_exist=True) as log:
        _warn_of_strangers(log, codec, policy, rule)
        retrain_mutes.mute(log, codec, policy, rule, until=end, reason=reason, who=operator())
        standing = _standing(log, codec, policy, rule)
    typer.echo(f"{policy}  {_which(rule)} muted {_till(end)}")
    if standing:
        are = "request is" if len(standing) == 1 else "requests are"
        more = f" and {len(standing) - STANDING_SHOWN} more" if len(standing) > STANDING_SHOWN else ""
        typer.echo(f"{len(standing)} standing {are} still handed out: {', '.join(standing[:STANDING_SHOWN])}{more}")


def unmute(policy: PolicyArgument, rule: RuleOption = None) -> None:
    """End a mute: patterns that still hold are requested now. Give --rule where the mute has one."""
    from stepwell.adapters import retrain_mutes
    from stepwell.adapters.runs.identity import operator

    codec, now = codec_in_force(writing=True), time.time_ns() // 1000
    with opened_log(must_exist=True) as log:
        standing = [
            each for each in retrain_mutes.read_mutes(log, codec) if each.event.policy == policy and each.in_force(now)
        ]
        if rule not in [each.event.rule for each in standing]:
            others = f"; muted are: {', '.join(_which(each.event.rule) for each in standing)}" if standing else ""
            typer.echo(f"{policy}  {_which(rule)} not muted, nothing was written{others}")
            raise typer.Exit(EXIT_REFUSED)
        retrain_mutes.unmute(log, codec, policy, rule, operator())
    typer.echo(f"{policy}  {_which(rule)} unmuted")


def mutes(
    every: Annotated[bool, typer.Option("--all", help="Those that ended, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each mute.")] = False,
) -> None:
    """List what is muted now, until when, by whom and why."""
    from stepwell.adapters.retrain_mutes import read_mutes
    from stepwell.events.plain import as_plain, as_text, time_text

    now = time.time_ns() // 1000
    with opened_log(must_exist=True) as log:
        found = [each for each in read_mutes(log, codec_in_force()) if every or each.in_force(now)]
    if as_json:
        for each in found:
            typer.echo(as_text(as_plain(each.event) | {"in_force": each.in_force(now), "ended_by": each.ended_by}))
        return
    if not found:
        typer.echo("nothing is muted" if not every else "nothing was ever muted")
        return
    rows = [
        (each.event.policy, each.event.rule or "every rule", time_text(each.event.occurred_at), _ends(each, now),
         each.event.muted_by, each.event.reason)
        for each in found
    ]  # fmt: skip
    console().print(plain_table("policy", "rule", "muted at", "until", "by", "reason", rows=rows))


def _standing(log: "MessageLog", codec: "Codec", policy: str, rule: str | None) -> list[str]:
    """The requests that a mute of this policy and rule came too late for."""
    from stepwell.adapters.retrain_history import STANDING, read_requests

    return [
        entry.trigger_id
        for entry in read_requests(log, codec)
        if entry.about.policy == policy and rule in (None, entry.about.rule) and entry.state in STANDING
    ]


def _end_of_mute(span: str | None, until: str | None) -> int | None:
    """When the mute ends (µs since 1970 UTC); None where it does not by itself."""
    from stepwell.cli.times import moment_us, span_us

    now = time.time_ns() // 1000
    if span is not None and until is not None:
        raise ConfigurationError("give either --for or --until")
    if span is not None:
        length = span_us(span, "--for")
        if not length:
            raise ConfigurationError(f"--for {span!r}: such a mute is over already; nothing was written")
        return now + length
    if until is None:
        return None
    end = moment_us(until, "--until")
    if end <= now:
        raise ConfigurationError(f"--until {until!r} is over already; nothing was written")
    if end - now > MUTE_MAX_US:
        raise ConfigurationError(
            f"--until {until!r} is over a thousand years ahead; without --for and --until a mute lasts until unmuted"
        )
    return end


def _refuse_no_name(rule: str) -> None:
    """Refuse what no rule can be named: such a mute would never mute anything."""
    import re

    from stepwell.engine.ruleset import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN, rule) or len(rule) > NAME_MAX:
        raise ConfigurationError(
            f"--rule {rule!r}: no name of a rule; expected lower-case letters, digits and underscores, a letter first, "
            f"{NAME_MAX} characters at most; 'stepwell patterns list' names the rules in force"
        )


def _warn_of_strangers(log: "MessageLog", codec: "Codec", policy: str, rule: str | None) -> None:
    """A mute may come before its policy's first verdict; mostly an unknown name is a slip."""
    from stepwell.adapters.retrain_mutes import known_policies
    from stepwell.adapters.rules.in_force import rules_in_force

    policies = known_policies(log)
    if policy not in policies:
        _note(f"the log has no verdict of a policy {policy} yet", policy, policies)
    if rule is None:
        return
    names = [each.name for each in rules_in_force(log, codec).verdicts]
    if rule not in names:
        _note(f"no rule {rule} is in force", rule, names)


def _note(told: str, name: str, known: list[str]) -> None:
    import difflib

    meant = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {meant[0]}?" if meant else ""
    typer.echo(f"note: {told}{hint}", err=True)


def _which(rule: str | None) -> str:
    return f"rule {rule}" if rule is not None else "every rule"


def _till(end: int | None) -> str:
    from stepwell.events.plain import time_text

    return "until unmuted" if end is None else f"until {time_text(end)}"


def _ends(mute: "Mute", now: int) -> str:
    from stepwell.events.plain import time_text

    if mute.ended_by:
        return f"unmuted by {mute.ended_by}"
    if mute.event.until is None:
        return "unmuted"
    return time_text(mute.event.until) + ("" if mute.in_force(now) else " (over)")
