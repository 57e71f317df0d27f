"""``stepwell db roles``: who may do what in the database."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import opened_database
from stepwell.cli.tables import console, plain_table
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from stepwell.projections.access.roles import Limits, RolesState
    from stepwell.projections.access.row_filters import RowFilter

__all__ = ["register"]

# Options that go with an action.
_Harden = Annotated[
    bool,
    typer.Option("--harden", help="With --apply: also keep advisory locks and large objects to owner and writers."),
]
_ToAllReaders = Annotated[
    bool, typer.Option("--to-all-readers", help="With --unfilter of the last filter: every reader sees every row.")
]
_Fleet = Annotated[
    bool, typer.Option("--fleet", help="With --filter: also what belongs to no episode, e.g. machines' telemetry.")
]
_Every = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=1.0, help="With --cancel-overdue: again and again, for ever.")
]


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("roles")(roles)


def roles(
    *,
    show: Annotated[bool, typer.Option("--show", help="Show how the roles stand (default).")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Make the roles and use them in this database.")] = False,
    harden: _Harden = False,
    grant: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="ROLE USER", help="Give a user a role: owner, writer, reader, or one with a filter."),
    ] = None,
    revoke: Annotated[
        tuple[str, str] | None, typer.Option(metavar="ROLE USER", help="Take a role from a user.")
    ] = None,
    row_filter: Annotated[
        str | None, typer.Option("--filter", metavar="ROLE", help="Let a role's members see these rows only.")
    ] = None,
    runs: Annotated[str, typer.Option(help="With --filter: which runs; * stands for any text.")] = "*",
    policies: Annotated[str, typer.Option(help="With --filter: which policies.")] = "*",
    requested_by: Annotated[str, typer.Option(help="With --filter: whose episodes.")] = "*",
    fleet: _Fleet = False,
    unfilter: Annotated[str | None, typer.Option(metavar="ROLE", help="Drop the row filter of a role.")] = None,
    to_all_readers: _ToAllReaders = False,
    cancel_overdue: Annotated[
        bool, typer.Option("--cancel-overdue", help="End what readers do beyond their limits, now.")
    ] = False,
    every: _Every = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --show: print JSON.")] = False,
) -> None:
    """Show or set who may do what in the database: owner, writers, readers, and row filters per team.

    Users who log in are the site's own: make them first. The exit code is 1 when something is not as it should be
    (--show), or when a user still has by another role what was to be taken (--revoke).
    """
    from stepwell.projections.access import roles as database_roles
    from stepwell.projections.access.row_filters import RowFilter, like
    from stepwell.settings import get_settings

    actions = {"--show": show, "--apply": apply, "--grant": grant, "--revoke": revoke, "--filter": row_filter,
               "--unfilter": unfilter, "--cancel-overdue": cancel_overdue}  # fmt: skip
    _check_one(actions)
    filtering = fleet or {runs, policies, requested_by} != {"*"}
    _check_partners({
        "--harden": (harden, "--apply", apply),
        "--runs, --policies, --requested-by and --fleet": (filtering, "--filter ROLE", row_filter),
        "--to-all-readers": (to_all_readers, "--unfilter ROLE", unfilter),
        "--every": (every, "--cancel-overdue", cancel_overdue),
    })  # fmt: skip
    settings = get_settings()
    limits = database_roles.Limits(settings.reader_statement_timeout_s, settings.reader_idle_timeout_s)
    with opened_database(settings.database) as url:
        _warn_if_nobody_is_limited(url)
        if apply:
            database_roles.apply(url, harden=harden)
            print("The roles stepwell_owner, stepwell_writer and stepwell_reader are in use.")
        elif grant is not None:
            database_roles.grant(url, *grant, limits)
            _tell_granted(*grant, database_roles.look(url, limits))
        elif revoke is not None:
            _tell_revoked(*revoke, database_roles.revoke(url, *revoke))
        elif row_filter is not None:
            wanted = RowFilter(row_filter, like(runs), like(policies), like(requested_by), fleet)
            database_roles.set_filter(url, wanted)
            _tell_filtered(wanted)
        elif unfilter is not None:
            database_roles.drop_filter(url, unfilter, open_all=to_all_readers)
            print(f"{unfilter} has no row filter any more.")
        elif cancel_overdue:
            _cancel_overdue(url, limits, every)
        else:
            _show(database_roles.look(url, limits), limits, as_json=as_json)


def _check_one(actions: Mapping[str, object]) -> None:
    given = [name for name, value in actions.items() if value]
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} do not go together: one of {', '.join(actions)}")


def _check_partners(options: Mapping[str, tuple[object, str, object]]) -> None:
    """Each: whether it was given, what it goes with, and whether that was given."""
    for name, (given, partner, there) in options.items():
        if given and not there:
            verb = "go" if " and " in name else "goes"
            raise ConfigurationError(f"{name} {verb} with {partner}")


def _warn_if_nobody_is_limited(url: str) -> None:
    from stepwell.projections.access.roles import ignores_users

    if ignores_users(url):
        typer.echo(
            "This server (TimescaleDB as WebAssembly) takes every client for its superuser: roles and filters can be "
            "tried here, and limit nobody.",
            err=True,
        )


def _tell_granted(role: str, user: str, state: "RolesState") -> None:
    """That it was done, and what the user lacks all the same."""
    print(f"{user} has the role {role}.")
    for finding in state.findings:
        if finding.what == f"user {user}":
            print(f"But {user} {finding.problem}.")


def _tell_filtered(wanted: "RowFilter") -> None:
    """That it was done, and what stays empty on the team's dashboards."""
    print(f"Members of {wanted.role} see their rows. Readers whom no filter names see none.")
    if (wanted.runs, wanted.requested_by) != ("%", "%"):
        print(
            "They see no sums by minute, hour and day, no patterns and no requests to retrain: those are of a policy "
            "and may tell of others' runs. A filter by --policies alone shows them."
        )
    if not wanted.fleet:
        print("They see no telemetry of machines, nor anything else of no episode; --fleet shows it.")


def _tell_revoked(role: str, user: str, still: Sequence[str]) -> None:
    if not still:
        print(f"{user} has the role {role} no more.")
        return
    print(f"{user} still has the rights of {role}, by {', '.join(still)}: revoke that, too, or let its giver do it.")
    raise typer.Exit(1)


def _cancel_overdue(url: str, limits: "Limits", every_s: float | None) -> None:
    """Once, or until something fails: whoever watches over this process starts it again."""
    from stepwell.projections.access.roles import cancel_overdue

    while True:
        ended = cancel_overdue(url, limits)
        for each in ended:
            print(f"{each.done} {each.user} (process {each.pid}) after {each.after_s:.0f} s", flush=True)
        if every_s is None:
            break
        time.sleep(every_s)
    if not ended:
        print("No reader is over its limits.")


def _show(state: "RolesState", limits: "Limits", *, as_json: bool) -> None:
    from stepwell.projections.access.row_filters import shell

    if as_json:
        print(json.dumps(asdict(state), indent=2))
    elif state.missing:
        print(f"Not in use here: {', '.join(state.missing)}.\nNext: stepwell db roles --apply")
    else:
        out = console()
        rows = [(member.role, member.user, ", ".join(member.settings)) for member in state.members]
        out.print(plain_table("role", "user", "limits", rows=rows))
        print(f"Limits of readers: a statement {limits.statement_s:g} s, idle in a transaction {limits.idle_s:g} s.")
        if state.filters:
            filters = [
                (each.role, shell(each.runs), shell(each.policies), shell(each.requested_by), "yes" * each.fleet)
                for each in state.filters
            ]
            out.print(plain_table("filtered role", "runs", "policies", "requested by", "fleet", rows=filters))
        if state.findings:
            out.print(plain_table("of", "not as it should be", rows=[(f.what, f.problem) for f in state.findings]))
        else:
            print("All grants are as they should be.")
    if state.missing or state.findings:
        raise typer.Exit(1)
