"""Each role tries what it must not do, on real PostgreSQL; what it is there for works."""

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.events import model
from stepwell.events.model import LogRecord
from stepwell.exceptions import ConfigurationError, DatabaseError, MigrationError, NotFoundError
from stepwell.projections.access import roles
from stepwell.projections.access.grants import settle
from stepwell.projections.access.roles import Limits
from stepwell.projections.access.row_filters import RowFilter, like, shell
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.database import connect
from stepwell.projections.on_read import fields
from stepwell.projections.rebuild.rebuilder import Rebuilder
from stepwell.projections.schema.files import SchemaFile, SchemaFiles, packaged
from stepwell.projections.schema.migrate import migrate, require_current
from stepwell.projections.schema.public_views import make_views
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

LIMITS = Limits(statement_s=60.0, idle_s=60.0)
SHORT = Limits(statement_s=1.0, idle_s=1.0)
PASSWORD = "a-password-of-the-tests"
DENIED = psycopg.errors.InsufficientPrivilege


@dataclass(frozen=True)
class Site:
    """A database with rows of two teams, and a user of each role."""

    url: str
    reader: str
    writer: str
    owner: str

    def run(self, statement: str, user: str | None = None) -> list[tuple[Any, ...]]:
        """One statement as this user, in a transaction that may write if the user may."""
        with psycopg.connect(user or self.url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def user(self, *granted: str, limits: Limits = LIMITS) -> str:
        """The URL of a new user with these roles."""
        name = f"user_{secrets.token_hex(4)}"
        self.run(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
        for role in granted:
            roles.grant(self.url, role, name, limits)
        return as_user(self.url, name)


def as_user(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}:{PASSWORD}@{parts.hostname}:{parts.port}"))


def name_of(url: str) -> str:
    return urlsplit(url).username or ""


def findings(url: str) -> set[tuple[str, str]]:
    """What is wrong with this database. Users belong to the server, and may be other tests'."""
    found = roles.look(url, LIMITS).findings
    return {(each.what, each.problem) for each in found if not each.what.startswith("user ")}


def of_team(team: str) -> list[LogRecord]:
    """Facts about one episode, its steps, verdict, pattern and dead letter; all names bear the team's."""
    run, policy, episode = f"{team}-run", f"{team}-policy", f"{team}-episode"
    told = [facts.again(fact, run_id=run) for fact in facts.episode(episode, steps=3)]
    told[0] = facts.again(told[0], policy=policy, requested_by=f"{team}-lead")
    mine: dict[str, Any] = {"run_id": run, "policy": policy}
    return [
        *told,
        facts.verdict(episode, outcome="failure", failure_type="task_not_completed", **mine),
        facts.expected(episode, **mine),
        facts.again(facts.pattern(f"{team}-trigger"), policy=policy),
        facts.again(facts.retrain(f"{team}-trigger"), policy=policy),
        facts.again(facts.answered(f"{team}-trigger", "accepted"), policy=policy),
        facts.acknowledged(f"{team}-trigger", policy=policy),
        facts.muted(policy),
        facts.telemetry(
            f"{team}-robot",
            0,
            episode_id=episode,
            attempt=1,
            resource=(model.Attribute(name="customer", value=f"{team}-customer"),),
        ),
        facts.dead_letter(episode_id=episode, source_offset=1 if team == "a" else 2),
    ]


@pytest.fixture(scope="module")
def site(new_database: Callable[[], str]) -> Iterator[Site]:
    url = new_database()
    migrate(url)
    roles.apply(url)
    bare = Site(url, "", "", "")
    made = Site(url, bare.user("reader"), bare.user("writer"), bare.user("owner"))
    log = MemoryLog()
    facts.publish(log, [*of_team("a"), *of_team("b"), facts.dead_letter(episode_id=None, source_offset=9),
                        facts.telemetry("a-machine", 0)])  # fmt: skip
    # As a writer: what a projector needs is what the role has.
    with Running(Projector(log, made.writer, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    connection = connect(made.writer, application="test")
    with connection:
        audit = audit_tables(log, facts.CODEC, connection)
    assert (audit.differences, audit.rows > 20) == ([], True)
    log.close()
    yield made
    # Users belong to the whole server; those of a database that is gone must not be in the way of the next one's.
    for user in (made.reader, made.writer, made.owner):
        roles.revoke(url, {made.reader: "reader", made.writer: "writer", made.owner: "owner"}[user], name_of(user))


def test_applied_roles_need_nothing_more_and_drift_is_found_and_mended(site: Site) -> None:
    assert findings(site.url) == set()
    site.run("GRANT INSERT ON stepwell.runs TO stepwell_reader")
    site.run("GRANT SELECT ON stepwell.settings TO PUBLIC")
    site.run("REVOKE SELECT ON stepwell.episode_results FROM stepwell_reader")
    site.run("REVOKE INSERT ON stepwell_g1.steps FROM stepwell_writer")
    site.run("GRANT USAGE ON SCHEMA stepwell_g1 TO stepwell_reader")
    site.run(f"GRANT CONNECT ON DATABASE {urlsplit(site.url).path[1:]} TO PUBLIC")
    site.run("ALTER VIEW stepwell.run_summary OWNER TO CURRENT_USER")
    assert findings(site.url) == {
        ("stepwell.runs", "stepwell_reader may change it"),
        ("stepwell.settings", "stepwell_reader may read it, and it is no view"),
        ("stepwell.episode_results", "stepwell_reader may not read it"),
        ("stepwell_g1.steps", "stepwell_writer may not write it"),
        ("schema stepwell_g1", "stepwell_reader may look into it"),
        (f"database {urlsplit(site.url).path[1:]}", "everybody (PUBLIC) has connect"),
        ("stepwell.run_summary", f"its owner is {name_of(site.url)}"),
    }
    roles.apply(site.url)
    assert findings(site.url) == set()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE stepwell.mine (a int)", "CREATE TABLE public.mine (a int)", "CREATE SCHEMA mine",
        "CREATE TEMP TABLE mine (a int)", "CREATE VIEW stepwell_g1.mine AS SELECT 1",
        "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "INSERT INTO stepwell.runs VALUES ('r', 'me', now())", "UPDATE stepwell.episodes SET policy = 'mine'",
        "DELETE FROM stepwell.verdicts", "TRUNCATE stepwell_g1.steps", "DROP VIEW stepwell.runs",
        "UPDATE stepwell.settings SET value = 1", "SELECT * FROM stepwell.settings",
        "SELECT * FROM stepwell.row_filters", "SELECT * FROM stepwell.generations",
        "SELECT * FROM stepwell_g1.steps", "SELECT * FROM stepwell_g1.sink_offsets",
        "INSERT INTO stepwell.row_filters (role) VALUES ('x')",
        "BEGIN; LOCK TABLE stepwell.steps IN ACCESS EXCLUSIVE MODE",
        "GRANT stepwell_owner TO CURRENT_USER", "SET ROLE stepwell_owner", "SET ROLE stepwell_writer",
        "CREATE ROLE mine", "ALTER SYSTEM SET work_mem = '1GB'", "SELECT pg_read_file('PG_VERSION')",
        "COPY (SELECT 1) TO PROGRAM 'true'", "COPY (SELECT 1) TO '/tmp/x'", "CREATE EXTENSION file_fdw",
        "SELECT usename, passwd FROM pg_shadow", "SET temp_file_limit = -1",
    ],
)  # fmt: skip
def test_a_reader_may_not(site: Site, statement: str) -> None:
    with pytest.raises(DENIED):
        site.run(statement, site.reader)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE stepwell.settings SET value = 1", "DELETE FROM stepwell.generations",
        "UPDATE stepwell.homes SET schema = 'stepwell_g1'", "INSERT INTO stepwell.row_filters (role) VALUES ('x')",
        "DROP TABLE stepwell_g1.steps", "TRUNCATE stepwell_g1.steps", "ALTER TABLE stepwell_g1.steps ADD mine int",
        "CREATE TABLE stepwell.mine (a int)", "CREATE TABLE stepwell_g1.mine (a int)", "CREATE SCHEMA mine",
        "CREATE OR REPLACE VIEW stepwell.runs AS SELECT 1", "INSERT INTO stepwell.schema_migrations VALUES ('s', 1)",
        "SET ROLE stepwell_owner", "CREATE ROLE mine", "SELECT pg_read_file('PG_VERSION')",
    ],
)  # fmt: skip
def test_a_writer_may_not(site: Site, statement: str) -> None:
    with pytest.raises(DENIED):
        site.run(statement, site.writer)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER SYSTEM SET work_mem = '1GB'",
        "SELECT pg_read_file('PG_VERSION')",
        "CREATE ROLE mine",
        "DROP SCHEMA public",
    ],
)
def test_an_owner_may_not(site: Site, statement: str) -> None:
    with pytest.raises(DENIED):
        site.run(statement, site.owner)


def test_who_has_no_role_cannot_even_connect(site: Site) -> None:
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(site.user())


def test_a_reader_reads_every_view_and_writes_nowhere_by_default(site: Site) -> None:
    views = [name for (name,) in site.run("SELECT viewname FROM pg_views WHERE schemaname = 'stepwell'")]
    assert len(views) > 30
    with psycopg.connect(site.reader, autocommit=True) as connection:
        for view in views:
            connection.execute(sql.SQL("SELECT * FROM stepwell.{} LIMIT 5").format(sql.Identifier(view)))
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
        assert connection.execute("SELECT count(*) FROM stepwell.steps").fetchone() == (6,)


def test_a_command_that_needs_more_than_a_reader_says_so(site: Site) -> None:
    with (
        connect(site.reader, application="test") as connection,
        pytest.raises(DatabaseError, match=r"may only read views.*stepwell_writer"),
    ):
        require_current(site.reader, connection)
    with pytest.raises(DatabaseError, match="may only read views"):
        roles.apply(site.reader)


def test_an_owner_migrates_and_what_is_made_later_has_its_grants(site: Site) -> None:
    files = packaged()
    more = SchemaFile(
        len(files.tables) + 1, "9999_more.sql", "CREATE TABLE more (a int); COMMENT ON TABLE more IS 'More.'"
    )
    view = SchemaFile(90, "90_more.sql", "CREATE OR REPLACE VIEW stepwell.more_still AS SELECT 1 AS one")
    with psycopg.connect(site.owner, autocommit=True) as connection, connection.transaction(force_rollback=True):
        connection.execute("SELECT set_config('search_path', 'stepwell_g1', true)")
        connection.execute(more.sql)
        connection.execute("INSERT INTO stepwell.homes VALUES ('more', 'stepwell_g1')")
        assert make_views(connection, (*files.views, view))
        rights = connection.execute("""
            SELECT has_table_privilege('stepwell_reader', 'stepwell.more', 'SELECT'),
                   has_table_privilege('stepwell_reader', 'stepwell.more_still', 'SELECT'),
                   has_table_privilege('stepwell_writer', 'stepwell_g1.more', 'INSERT'),
                   has_table_privilege('stepwell_reader', 'stepwell_g1.more', 'SELECT'),
                   (SELECT relowner::regrole::text FROM pg_class WHERE oid = 'stepwell_g1.more'::regclass)""")
        assert rights.fetchone() == (True, True, True, False, "stepwell_owner")
    assert migrate(site.owner, SchemaFiles(files.control, files.tables, files.views)) == []


def test_a_new_generation_has_the_writers_grants_before_it_is_filled(site: Site) -> None:
    from stepwell.projections.schema.generations import make_generation

    with psycopg.connect(site.owner, autocommit=True) as connection, connection.transaction(force_rollback=True):
        schema = make_generation(connection, packaged().tables, made_from="log").schemas[0]
        settle(connection)
        may = connection.execute(
            "SELECT has_table_privilege('stepwell_writer', %s, 'INSERT'),"
            " has_schema_privilege('stepwell_reader', %s, 'USAGE')",
            (f"{schema}.steps", schema),
        )
        assert may.fetchone() == (True, False)


def test_a_reader_is_held_to_its_limits(site: Site) -> None:
    with psycopg.connect(site.user("reader", limits=SHORT), autocommit=True) as connection:
        began = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            connection.execute("SELECT pg_sleep(20)")
        assert time.monotonic() - began < 10
        connection.execute("BEGIN")
        time.sleep(2)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            connection.execute("SELECT 1")


def test_a_reader_that_raises_its_own_limits_is_ended_from_outside(site: Site) -> None:
    """A user may set these for itself: the limit that holds comes from somebody else."""
    errors: list[BaseException] = []

    def sleep() -> None:
        try:
            with psycopg.connect(site.reader, autocommit=True) as connection:
                connection.execute("SET statement_timeout = 0")
                connection.execute("SELECT pg_sleep(60)")
        except psycopg.Error as error:
            errors.append(error)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    with psycopg.connect(site.reader, autocommit=True) as holder:
        holder.execute("SET statement_timeout = 0")
        holder.execute("SELECT pg_advisory_lock_shared(1)")
        deadline = time.monotonic() + 30
        ended: set[tuple[str, str]] = set()
        while len(ended) < 2 and time.monotonic() < deadline:
            ended |= {(each.user, each.done) for each in roles.cancel_overdue(site.url, SHORT)}
            time.sleep(0.1)
        assert ended == {(name_of(site.reader), "cancelled"), (name_of(site.reader), "ended")}
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    sleeper.join(30)
    assert isinstance(errors[0], psycopg.errors.QueryCanceled)
    with pytest.raises(DatabaseError, match="may not do that"):
        roles.apply(site.writer)


def test_hardened_readers_hold_no_locks_and_store_no_objects(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url)
    roles.apply(url)
    own = Site(url, "", "", "")
    reader, writer = own.user("reader"), own.user("writer")
    statements = ("SELECT pg_advisory_xact_lock(5783366172)", "SELECT lo_from_bytea(0, '\\x00')", "SELECT lo_create(0)")
    for statement in statements:
        own.run(statement, reader)  # what any user of a database may do
    roles.apply(url, harden=True)
    for statement in statements:
        with pytest.raises(DENIED):
            own.run(statement, reader)
    own.run(statements[0], writer)
    for role, user in (("reader", reader), ("writer", writer)):
        roles.revoke(url, role, name_of(user))


# --- row filters ---


@pytest.fixture
def teams(site: Site) -> Iterator[Site]:
    """Two teams' filters, of which ``team_a`` is the reader's."""
    roles.set_filter(site.url, RowFilter("team_a", runs="a-%"))
    roles.set_filter(site.url, RowFilter("team_b", runs="b-%"))
    yield site
    for each in roles.look(site.url, LIMITS).filters:
        roles.drop_filter(site.url, each.role, open_all=True)


TEAMS_COLUMNS = ("run_id", "episode_id", "policy", "trigger_id", "requested_by", "worker_id", "resource")


def seen_by(site: Site, user: str) -> dict[str, set[str]]:
    """By view, all texts in columns that bear a team's name."""
    columns = site.run(f"""
        SELECT c.table_name, array_agg(c.column_name::text) FROM information_schema.columns c
        JOIN pg_views v ON v.schemaname = 'stepwell' AND v.viewname = c.table_name
        WHERE c.table_schema = 'stepwell' AND c.column_name = ANY('{{{",".join(TEAMS_COLUMNS)}}}') GROUP BY 1""")
    found: dict[str, set[str]] = {}
    with psycopg.connect(user, autocommit=True) as connection:
        for view, names in columns:
            chosen = sql.SQL(", ").join(map(sql.Identifier, names))
            rows = connection.execute(sql.SQL("SELECT {} FROM stepwell.{}").format(chosen, sql.Identifier(view)))
            texts = [
                text for row in rows for cell in row for text in (cell.values() if isinstance(cell, dict) else [cell])
            ]
            found[view] = {text for text in texts if isinstance(text, str) and text}
    return found


OF_EPISODES = {
    "actions", "awaited_verdicts", "dead_letters", "episode_attempts", "episode_results", "episodes",
    "expected_verdicts", "latest_verdicts", "protocol_violations", "run_summary", "running_now", "runs", "step_log",
    "steps", "verdicts",
}  # fmt: skip


def test_a_team_sees_its_own_rows_in_every_view_and_nobody_elses(teams: Site) -> None:
    everything = seen_by(teams, teams.writer)
    both = {view for view, texts in everything.items() if any(t[:2] == "a-" for t in texts) and any(t[:2] == "b-" for t in texts)}  # fmt: skip # noqa: E501
    assert both >= OF_EPISODES - {"awaited_verdicts", "running_now"} | {"failure_patterns", "retrain_requests", "retrain_status"}  # fmt: skip # noqa: E501
    team = teams.user("team_a")
    seen = seen_by(teams, team)
    assert all(not text.startswith("b-") for texts in seen.values() for text in texts), seen
    for view in both:
        if view in OF_EPISODES:
            assert {t for t in everything[view] if t.startswith("a-")} == {t for t in seen[view] if t.startswith("a-")}
    # A row that names a policy only may tell of other teams' runs.
    assert seen["failure_patterns"] == seen["retrain_requests"] == set()
    assert teams.run("SELECT count(*) FROM stepwell.dead_letters", team) == [(1,)]
    assert teams.run("SELECT count(*) FROM stepwell.sink_offsets", team) == teams.run("SELECT count(*) FROM stepwell.sink_offsets")  # fmt: skip # noqa: E501
    assert {name for (name,) in teams.run("SELECT DISTINCT episode_id FROM stepwell.step_log", team)} == {"a-episode"}
    # What a sender says of itself goes with its points; the machine's are of no episode.
    assert {"a-robot", "b-robot", "a-customer", "b-customer", "a-machine"} <= everything["telemetry_series"]
    assert {text for text in seen["telemetry_series"] if text[1] == "-"} == {"a-robot", "a-customer"}
    assert teams.run("SELECT count(*) FROM stepwell.telemetry", team) == [(2,)]


def test_policies_and_requesters_filter_too(teams: Site) -> None:
    roles.set_filter(teams.url, RowFilter("team_p", policies="b-%"))
    roles.set_filter(teams.url, RowFilter("team_r", requested_by="b-lead"))
    by_policy, by_name = teams.user("team_p"), teams.user("team_r")
    assert seen_by(teams, by_policy)["retrain_requests"] >= {"b-trigger", "b-policy"}
    for user in (by_policy, by_name):
        seen = seen_by(teams, user)
        assert all(not text.startswith("a-") for texts in seen.values() for text in texts), seen
        assert {"b-run", "b-episode"} <= seen["episode_results"]
        assert seen["run_summary"] >= {"b-run"}


def test_a_reader_whom_no_filter_names_sees_nothing_and_one_of_all_sees_all(teams: Site) -> None:
    assert teams.run("SELECT count(*) FROM stepwell.episodes", teams.reader) == [(0,)]
    told = {(each.what, each.problem) for each in roles.look(teams.url, LIMITS).findings}
    assert (f"user {name_of(teams.reader)}", "is a reader whom no row filter names, and sees no rows") in told
    roles.set_filter(teams.url, RowFilter("ops", fleet=True))
    ops = teams.user("ops")
    assert seen_by(teams, ops) == seen_by(teams, teams.writer)
    assert teams.run("SELECT count(*) FROM stepwell.dead_letters", ops) == [(3,)]


def answer(connection: psycopg.Connection[tuple[object, ...]], statement: str) -> str:
    """The rows of a statement, or what it failed with, as text."""
    try:
        return str(connection.execute(statement.encode()).fetchall())
    except psycopg.Error as error:
        return str(error)


def test_a_team_does_not_get_round_its_filter(teams: Site) -> None:
    team = teams.user("team_a")
    with psycopg.connect(team, autocommit=True) as connection:
        # Neither by being somebody else ...
        connection.execute("SET ROLE stepwell_reader")
        assert connection.execute("SELECT count(*) FROM stepwell.episodes").fetchone() == (0,)
        connection.execute("RESET ROLE")
        with pytest.raises(DENIED):
            connection.execute("SET ROLE team_b")
        with pytest.raises(DENIED):
            connection.execute("SET SESSION AUTHORIZATION stepwell_owner")
        # ... nor by what an error says about rows that are not shown ...
        for leak in (
            "run_id::int = 0",
            "1 / (CASE WHEN run_id = 'b-run' THEN 0 ELSE 1 END) = 1",
            "policy::xml IS NULL",
        ):
            for view in ("episodes", "episode_results", "verdicts"):
                said = answer(connection, f"SELECT run_id FROM stepwell.{view} WHERE {leak}")
                assert "b-" not in said, (view, leak, said)
                assert "division by zero" not in said, (view, leak)
        # ... nor by looking into the tables, or into the filters.
        for table in ("stepwell_g1.episodes", "stepwell.row_filters"):
            with pytest.raises(DENIED):
                connection.execute(f"SELECT * FROM {table}")


def test_a_filter_whose_role_is_gone_lets_nobody_in_and_breaks_nothing(teams: Site) -> None:
    gone = f"gone_{secrets.token_hex(3)}"
    roles.set_filter(teams.url, RowFilter(gone, runs="b-%"))
    teams.run(f"DROP ROLE {gone}")
    assert teams.run("SELECT count(*) FROM stepwell.episodes", teams.user("team_a")) == [(1,)]


def test_without_filters_the_views_are_plain_again(site: Site) -> None:
    barriers = "SELECT count(*) FROM pg_class WHERE relnamespace = 'stepwell'::regnamespace AND reloptions @> '{security_barrier=true}'"  # fmt: skip # noqa: E501
    roles.set_filter(site.url, RowFilter("team_a", runs="a-%"))
    assert site.run(barriers)[0][0] > 20
    with pytest.raises(ConfigurationError, match=r"last row filter.*every row.*--to-all-readers"):
        roles.drop_filter(site.url, "team_a")
    assert site.run(barriers)[0][0] > 20, "nothing was opened by mistake"
    roles.drop_filter(site.url, "team_a", open_all=True)
    assert site.run(barriers) == [(0,)]
    assert site.run("SELECT count(*) FROM stepwell.episodes", site.reader) == [(2,)]


@pytest.mark.parametrize("pattern", ["a-*", "*", "50%_done\\x", "plain"])
def test_patterns_are_shell_patterns(pattern: str) -> None:
    assert shell(like(pattern)) == pattern
    assert re.fullmatch(r"(?:[^%\\]|\\.|%)*", like(pattern))


# --- who may set this up ---


def test_an_owner_of_the_database_who_may_make_roles_needs_no_superuser(
    new_database: Callable[[], str], postgres_server: str
) -> None:
    name, url = f"dba_{secrets.token_hex(4)}", new_database()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD '{PASSWORD}'")
        connection.execute(f"ALTER DATABASE {urlsplit(url).path[1:]} OWNER TO {name}")
        # Roles that others made: whoever is to grant them must have been given that.
        connection.execute(f"GRANT stepwell_owner, stepwell_writer, stepwell_reader TO {name} WITH ADMIN OPTION")
    mine = as_user(url, name)
    migrate(mine)
    roles.apply(mine)
    roles.set_filter(mine, RowFilter(f"team_{name}", runs="x-%"))
    assert findings(mine) == set()
    roles.drop_filter(mine, f"team_{name}", open_all=True)
    assert migrate(mine) == []


def test_who_has_a_right_by_another_role_still_has_it_and_that_is_said(teams: Site) -> None:
    user = name_of(both := teams.user("reader", "team_a"))
    assert roles.revoke(teams.url, "reader", user) == ("team_a",)
    assert teams.run("SELECT count(*) FROM stepwell.episodes", both) == [(1,)]
    assert roles.revoke(teams.url, "team_a", user) == ()
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(both)


def test_a_role_that_another_has_given_stays_and_that_is_said(site: Site) -> None:
    """PostgreSQL takes from a user what the same role has given it, and else warns and does nothing."""
    giver, user = f"giver_{secrets.token_hex(4)}", name_of(site.user())
    site.run(f"CREATE ROLE {giver}; GRANT stepwell_reader TO {giver} WITH ADMIN OPTION")
    site.run(f"SET ROLE {giver}; GRANT stepwell_reader TO {user}")
    assert roles.revoke(site.url, "reader", user) == ("stepwell_reader",)
    site.run(f"SET ROLE {giver}; REVOKE stepwell_reader FROM {user}")
    assert roles.revoke(site.url, "reader", user) == ()


def test_what_cannot_be_granted_is_said(site: Site) -> None:
    with pytest.raises(NotFoundError, match="no user 'nobody_here'"):
        roles.grant(site.url, "reader", "nobody_here", LIMITS)
    with pytest.raises(NotFoundError, match="no role 'king'"):
        roles.grant(site.url, "king", name_of(site.reader), LIMITS)
    with pytest.raises(ConfigurationError, match="superuser"):
        roles.grant(site.url, "reader", name_of(site.url), LIMITS)
    with pytest.raises(ConfigurationError, match="reads already"):
        roles.grant(site.url, "reader", name_of(site.writer), LIMITS)
    with pytest.raises(ConfigurationError, match="takes no row filter"):
        roles.set_filter(site.url, RowFilter("stepwell_reader"))
    with pytest.raises(NotFoundError, match="has no row filter"):
        roles.drop_filter(site.url, "team_z")


def test_roles_need_the_schema_and_filters_need_the_roles(new_database: Callable[[], str]) -> None:
    url = new_database()
    for ask in (roles.apply, lambda url: roles.look(url, LIMITS)):
        with pytest.raises(MigrationError, match="Run: stepwell db migrate"):
            ask(url)
    migrate(url)
    with pytest.raises(ConfigurationError, match="roles --apply"):
        roles.set_filter(url, RowFilter("team_a"))
    assert roles.look(url, LIMITS).missing == ("stepwell_owner", "stepwell_writer", "stepwell_reader")


def test_roles_and_filters_hold_over_hypertables_and_aggregates(timescale_url: str) -> None:
    """The server has one session for everybody, so roles are taken within a transaction."""
    migrate(timescale_url)
    roles.apply(timescale_url)
    assert findings(timescale_url) == set()
    log = MemoryLog()
    facts.publish(log, [*of_team("a"), *of_team("b")])
    with Running(Projector(log, timescale_url, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    log.close()
    roles.set_filter(timescale_url, RowFilter("team_a", runs="a-%"))
    seen, series = {}, {}
    for role in ("stepwell_owner", "stepwell_writer", "team_a", "stepwell_reader"):
        with psycopg.connect(timescale_url, autocommit=True) as connection, connection.transaction():
            connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            for view in ("steps", "episode_results", "outcome_days", "telemetry"):
                connection.execute(sql.SQL("SELECT * FROM stepwell.{} LIMIT 1").format(sql.Identifier(view)))
            seen[role] = connection.execute("SELECT DISTINCT episode_id FROM stepwell.steps ORDER BY 1").fetchall()
            series[role] = connection.execute("SELECT DISTINCT worker_id FROM stepwell.telemetry_series ORDER BY 1").fetchall()  # fmt: skip # noqa: E501
            if role != "stepwell_reader":
                continue
            with pytest.raises(DENIED), connection.transaction():
                connection.execute("SELECT * FROM stepwell_g1.steps")
    both = [("a-episode",), ("b-episode",)]
    robots = [("a-robot",), ("b-robot",)]
    assert series == {"stepwell_owner": robots, "stepwell_writer": robots, "team_a": robots[:1], "stepwell_reader": []}
    assert seen == {"stepwell_owner": both, "stepwell_writer": both, "team_a": both[:1], "stepwell_reader": []}


def test_over_a_rebuild_rights_filters_and_generated_views_stay(new_database: Callable[[], str]) -> None:
    """The owner rebuilds, a writer goes on writing, a team goes on reading: each by its role alone."""
    url = new_database()
    migrate(url)
    roles.apply(url)
    own = Site(url, "", "", "")
    owner, writer = own.user("owner"), own.user("writer")
    log = MemoryLog()
    facts.publish(log, [*of_team("a"), *of_team("b")])
    with Running(Projector(log, writer, facts.CODEC), log) as projector:
        projector.wait_caught_up()
        fields.apply(owner)
        roles.set_filter(url, RowFilter("team_a", runs="a-%"))
        team = own.user("team_a")
        outcome = Rebuilder(log, lambda: owner, facts.CODEC).run()
        assert (outcome.ended, outcome.generation) == ("done", "stepwell_g2")
        facts.publish(log, [facts.requested("a-later", run_id="a-run", policy="a-policy")])
        projector.wait_caught_up()
    log.close()
    assert own.run("SELECT DISTINCT schema FROM stepwell.homes") == [("stepwell_g2",)]
    assert findings(url) == set()
    assert own.run("SELECT episode_id FROM stepwell.episodes ORDER BY 1", team) == [("a-episode",), ("a-later",)]
    assert own.run("SELECT count(path_length_m) FROM stepwell_views.step_metrics", team) == [(3,)]
    for table in ("stepwell_g2.steps", "stepwell.row_filters"):
        with pytest.raises(DENIED):
            own.run(f"SELECT * FROM {table}", team)
    roles.drop_filter(url, "team_a", open_all=True)
