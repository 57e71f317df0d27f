"""``stepwell db roles`` and ``stepwell db views`` as a user runs them, on a database of their own."""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.cli import build_app
from stepwell.events import model
from stepwell.exceptions import ConfigurationError, NotFoundError
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from stepwell.settings import get_settings
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

Stepwell = Callable[..., Any]


@pytest.fixture(scope="module")
def url(new_database: Callable[[], str]) -> str:
    made = new_database()
    migrate(made)
    log = MemoryLog()
    told = [facts.requested("e-1"), facts.verdict("e-1", metrics=(model.Metric(name="reach_m", value=0.5),))]
    facts.publish(log, told)
    with Running(Projector(log, made, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    log.close()
    return made


@pytest.fixture
def stepwell(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stepwell]:
    monkeypatch.setenv("STEPWELL_DATABASE", url)
    get_settings.cache_clear()
    yield lambda *arguments: CliRunner().invoke(build_app(), ["db", *arguments])
    get_settings.cache_clear()


def test_roles_from_nothing_to_a_filtered_reader(stepwell: Stepwell, url: str) -> None:
    user, team = f"user_{secrets.token_hex(4)}", f"team_{secrets.token_hex(4)}"
    before = stepwell("roles")
    assert before.exit_code == 1
    assert "Next: stepwell db roles --apply" in before.output
    assert "are in use" in stepwell("roles", "--apply", "--harden").output
    assert isinstance(stepwell("roles", "--grant", "reader", user).exception, NotFoundError)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN")
    assert stepwell("roles", "--grant", "reader", user).output == f"{user} has the role reader.\n"
    shown = json.loads(stepwell("roles", "--json").output)
    (member,) = [each for each in shown["members"] if each["user"] == user]
    assert member["role"] == "stepwell_reader"
    assert "statement_timeout=30000ms" in member["settings"]
    filtered = stepwell("roles", "--filter", team, "--runs", "a-*", "--fleet")
    assert filtered.exit_code == 0
    assert "They see no sums by minute, hour and day" in filtered.output
    assert "--fleet shows it" not in filtered.output
    again = stepwell("roles", "--grant", "reader", user).output
    assert f"But {user} is a reader whom no row filter names, and sees no rows." in again
    assert stepwell("roles", "--grant", team, user).exit_code == 0
    table = stepwell("roles", "--show").output
    assert all(word in table for word in (team, "a-*", "yes", user)), table
    # Users belong to the server: other tests' may be there, and be lacking something.
    assert not re.search(rf"user {user} +is a reader", table)
    assert stepwell("roles", "--cancel-overdue").output == "No reader is over its limits.\n"
    assert isinstance(stepwell("roles", "--unfilter", team).exception, ConfigurationError)
    assert stepwell("roles", "--unfilter", team, "--to-all-readers").exit_code == 0
    by_policy = stepwell("roles", "--filter", team, "--policies", "a-*").output
    assert "no sums" not in by_policy
    assert "--fleet shows it" in by_policy
    assert stepwell("roles", "--unfilter", team, "--to-all-readers").exit_code == 0
    still = stepwell("roles", "--revoke", "reader", user)
    assert (still.exit_code, still.output.split(":")[0]) == (1, f"{user} still has the rights of reader, by {team}")
    assert stepwell("roles", "--revoke", team, user).output == f"{user} has the role {team} no more.\n"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP ROLE {user}, {team}")
    findings = json.loads(stepwell("roles", "--json").output)["findings"]
    assert [each for each in findings if not each["what"].startswith("user ")] == []


def test_a_server_that_knows_no_users_is_told(timescale_url: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(timescale_url)
    for database, told in ((timescale_url, True), (url, False)):
        monkeypatch.setenv("STEPWELL_DATABASE", database)
        get_settings.cache_clear()
        output = CliRunner().invoke(build_app(), ["db", "roles"]).output
        assert ("limit nobody" in output) == told
    get_settings.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("roles", "--apply", "--grant", "reader", "bob"), "--apply and --grant do not go together"),
        (("roles", "--harden"), "goes with --apply"),
        (("roles", "--runs", "a-*"), "go with --filter"),
        (("roles", "--every", "60"), "goes with --cancel-overdue"),
        (("roles", "--to-all-readers"), "goes with --unfilter"),
        (("views", "--apply", "--drop"), "wants one of"),
        (("views", "--split", "a.b"), "goes with --at"),
        (("views", "--split", "a", "--at", "2026-01-01"), "expected VIEW.COLUMN"),
    ],
)
def test_what_does_not_go_together_is_said(stepwell: Stepwell, arguments: tuple[str, ...], told: str) -> None:
    error = stepwell(*arguments).exception
    assert isinstance(error, ConfigurationError)
    assert told in str(error)


def test_views_from_nothing_to_a_split_column(stepwell: Stepwell, url: str) -> None:
    assert "new verdict_metrics.reach_m" in stepwell("views").output
    assert "new verdict_metrics.reach_m" in stepwell("views", "--apply", "--all").output
    assert stepwell("views", "--describe", "verdict_metrics.reach_m", "how far, in m").exit_code == 0
    split = stepwell("views", "--split", "verdict_metrics.reach_m", "--at", "2026-01-01").output
    assert split.endswith("from then on it is verdict_metrics.reach_m_2.\n")
    columns = json.loads(stepwell("views", "--show", "--json").output)["columns"]
    told = [(each["column"], each["meaning"]) for each in columns if each["view"] == "verdict_metrics"]
    assert told == [("reach_m", "how far, in m"), ("reach_m_2", "")]
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT reach_m, reach_m_2 FROM stepwell_views.verdict_metrics").fetchall()
    assert rows == [(None, 0.5)]
    assert stepwell("views", "--drop").output == "The views are dropped.\n"
    assert "how far, in m" in stepwell("views").output
