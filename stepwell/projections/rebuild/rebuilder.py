"""Makes the tables again from the log, beside those in use, and puts them in their place: ``stepwell db rebuild``.

1. **Fill.** A new generation of the tables is filled by a projector of its own. Live writes go on.
2. **Carry over** what the log no longer tells.
3. **Compare.** Writers are held off for a moment, until old and new have read exactly as far; one snapshot then sees
   both, and whole tables are compared in it while writers go on.
4. **Hand over.** Again exactly as far, the views are pointed at the new tables in one transaction.
5. **Drop** the old tables.

Each step can be done again, so a rebuild that was killed goes on where it was. See docs/rebuild.md.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import psycopg

from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import (
    ConfigurationError,
    DatabaseUnavailableError,
    LogUnavailableError,
    PositionLostError,
    RebuildError,
    SinkFencedError,
)
from stepwell.projections import queries
from stepwell.projections.database import Connection, connect, named_errors
from stepwell.projections.rebuild.carry_over import (
    COUNTED_BY,
    Lows,
    carry_after,
    carry_before,
    carry_sums,
    lows_of,
    recount_carried,
    recount_outcomes,
)
from stepwell.projections.rebuild.compare import TableComparison, compare_table, compare_totals
from stepwell.projections.rebuild.families import POSITIONS
from stepwell.projections.rebuild.fill import Filler, Follower, Positions, read_positions, take_up_all
from stepwell.projections.rebuild.hand_over import drop_retired, put_in_force, relations_of, rest_retired
from stepwell.projections.rebuild.pulse import EndedError, Pulse
from stepwell.projections.rebuild.retired import copy_lost_sums, retire_again, sum_up
from stepwell.projections.rebuild.state import (
    RebuildState,
    begin_or_resume,
    end,
    enter_step,
    give_up,
    hold,
    note_carried,
    note_compared,
    read_status,
    unfinished,
)
from stepwell.projections.schema import generations
from stepwell.projections.schema.files import PLAIN
from stepwell.projections.schema.generations import Homes, read_homes
from stepwell.projections.schema.migrate import require_current
from stepwell.projections.upkeep import tune
from stepwell.projections.upkeep.tuning import Tuning
from stepwell.projections.writing.projector import GROUP

__all__ = ["Outcome", "Rebuilder"]

_T = TypeVar("_T")

_NEAR_RECORDS = 5_000
"""So little behind, following goes on in this process."""
_CLOSE_RECORDS = 200
"""So little is left to be written while writers are held off, at the rates of which we know."""
_APPROACH_S = 20.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.2, 5.0
_IN_THE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.QueryCanceled)
_OVERTAKEN_MAX = 2
"""After so many tries in which writers came before our look, they are held off while tables are compared. Only where
one backend serves all clients does a lock not outlast its transaction; there a transaction holds all others off anyway.
"""
_SAY_EVERY_S = 5.0
# Which rows of it there are hangs on how the log was cut into batches.
_NOT_COMPARED = (*POSITIONS, "step_gaps")
_DERIVED_ROWS = {"verdict_changes"}
"""Made of other rows, and named by a place in the log all the same."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rebuild ended.

    Attributes:
        generation: the schema that it made.
        ended: ``done``, ``differs`` (kept, to be looked at), ``stopped`` (can be gone on with) or ``cancelled``.
        comparisons: one a table, where it came so far.
        carried: rows taken over from the old tables, by table.
        dropped: schemas that were dropped.
    """

    generation: str
    ended: str
    comparisons: Sequence[TableComparison] = ()
    carried: dict[str, int] = field(default_factory=dict)
    dropped: Sequence[str] = ()

    @property
    def differing(self) -> list[TableComparison]:
        return [comparison for comparison in self.comparisons if comparison.differing]


class Rebuilder:
    """One rebuild, or the rest of one.

    Args:
        log: to make the tables from.
        locate: gives the database's URL; asked before each connection.
        codec: decodes the records.
        tables: the tables to make again, with those that go with them; None: all.
        made_from: ``log``; there is no ``archive`` yet.
        accept_differences: hand over although old and new differ.
        keep_old: leave the old tables; `drop_old` drops them.
        tuning: how TimescaleDB is to keep the new tables; None: as it is by default.
        stop: ends it for now when set.
        say: told in words what goes on.
        patience_s: how long to try for the moment in which nobody stands in the way.
    """

    def __init__(
        self,
        log: MessageLog,
        locate: Callable[[], str],
        codec: Codec,
        *,
        tables: Sequence[str] | None = None,
        made_from: str = "log",
        accept_differences: bool = False,
        keep_old: bool = False,
        tuning: Tuning | None = None,
        stop: threading.Event | None = None,
        say: Callable[[str], None] = lambda _words: None,
        patience_s: float = 600.0,
    ) -> None:
        if made_from != "log":
            raise ConfigurationError(_no_source(made_from))
        self._log = log
        self._locate = locate
        self._codec = codec
        self._tables = tables
        self._made_from = made_from
        self._accept = accept_differences
        self._keep_old = keep_old
        self._tuning = tuning or Tuning()
        self._stop = stop or threading.Event()
        self._say = say
        self._patience_s = patience_s
        self._carried: dict[str, int] = {}
        self._summed_until: datetime | None = None
        self._uncounted = True  # whoever began this rebuild may have copied rows
        self._overtaken = 0
        self._comparisons: list[TableComparison] = []

    def run(self) -> Outcome:
        """Begin, or take up what was begun, and go on to the end.

        Once begun, a database or a log that is away is waited for.

        Raises:
            ConfigurationError: no such table, or an unfinished rebuild is of others.
            MigrationError: the schema is not this version's.
            RebuildError: another process rebuilds; or nobody would let the views be changed; or something else is
                built on the old tables.
            DatabaseUnavailableError: no server answers at the start.
        """
        connection = self._connect()
        try:
            with named_errors(self._locate()):
                hold(connection)
                state, resumed = begin_or_resume(connection, self._tables, self._made_from, keep_old=self._keep_old)
                status = read_status(connection)
                self._carried = {} if status is None else dict(status.carried)
            self._say(f"{'Going on with' if resumed else 'Making'} {state.generation} from the {self._made_from}")
            with Pulse(self._locate, state.generation, self._stop) as pulse:
                while True:
                    try:
                        return self._go_on(connection, state, pulse)
                    except EndedError:
                        return self._ended(state, pulse)
                    except (DatabaseUnavailableError, LogUnavailableError) as error:
                        connection.close()
                        if not pulse.to_end:
                            self._say(f"Waiting: {error}")
                            connection = self._connect_again(pulse) or connection
        finally:
            connection.close()

    def _connect(self) -> Connection:
        url = self._locate()
        connection = connect(url, application="stepwell rebuild")
        # Statements are few here, and what is prepared would have to be prepared again after each change of a table.
        connection.prepare_threshold = None
        try:
            with named_errors(url):
                require_current(url, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_again(self, pulse: Pulse) -> Connection | None:
        """As soon as the database is there; None where the rebuild is to end meanwhile."""
        pause = _RETRY_MIN_S
        while not pulse.to_end:
            self._stop.wait(pause)
            pause = min(pause * 2, _RETRY_MAX_S)
            with contextlib.suppress(DatabaseUnavailableError):
                connection = self._connect()
                try:
                    with named_errors(self._locate()):
                        hold(connection)
                except BaseException:
                    connection.close()
                    raise
                return connection
        return None

    def _ended(self, state: RebuildState, pulse: Pulse) -> Outcome:
        if not pulse.cancelled:
            return Outcome(state.generation, "stopped", self._comparisons, self._carried)
        with contextlib.closing(self._connect()) as connection, named_errors(self._locate()):
            give_up(connection, state.generation)
            return Outcome(state.generation, "cancelled", dropped=drop_retired(connection))

    # --- the steps ---

    def _go_on(self, connection: Connection, state: RebuildState, pulse: Pulse) -> Outcome:
        pulse.check()
        pulse.watch(connection)
        try:
            with named_errors(self._locate()):
                now = unfinished(connection)
                if now is not None and not now.handed_over:
                    with self._both(connection, state) as both:
                        if not self._compared(both, pulse):
                            return Outcome(state.generation, "differs", self._comparisons, self._carried)
                        self._hand_over(both, pulse)
                pulse.watch(None)
                tune.apply(connection, read_homes(connection).schemas[0], self._tuning)
                dropped: Sequence[str] = ()
                if state.keep_old:
                    rest_retired(connection)
                else:
                    self._say("Dropping the old tables")
                    dropped = drop_retired(connection)
                end(connection, state.generation)
                return Outcome(state.generation, "done", self._comparisons, self._carried, dropped)
        except DatabaseUnavailableError:
            pulse.check()  # its statement may have been broken off because it is to end
            raise
        finally:
            pulse.watch(None)

    @contextlib.contextmanager
    def _both(self, connection: Connection, state: RebuildState) -> "Iterator[_Both]":
        old = read_homes(connection)
        with contextlib.ExitStack() as stack:
            new_side, old_side = (Follower(self._log, self._codec, connection, homes) for homes in (state.homes, old))
            stack.callback(new_side.close)
            stack.callback(old_side.close)
            yield _Both(connection, state, old, new_side, old_side)

    def _fill(self, both: "_Both", pulse: Pulse) -> None:
        """Bring the new tables near the old ones, by a projector of their own."""
        state, connection = both.state, both.connection
        for homes in (both.old, state.homes):
            take_up_all(self._log, connection, homes, state.scope.topics)
        said_at = 0.0
        while (left := both.behind()) > _NEAR_RECORDS:
            try:
                with Filler(self._log, self._locate, self._codec, state.homes, state.scope.topics) as filler:
                    while left > _NEAR_RECORDS:
                        if time.monotonic() - said_at > _SAY_EVERY_S:
                            said_at = time.monotonic()
                            self._say(f"Filling {state.generation}: {left} records to go")
                        pulse.wait(0.2)
                        filler.check()
                        left = both.behind()
            except PositionLostError:
                take_up_all(self._log, connection, state.homes, state.scope.topics)
                self._carry_before(both)

    def _approach(self, both: "_Both", pulse: Pulse) -> None:
        """Follow closely, so that little is left to be done while writers are held off."""
        deadline = time.monotonic() + _APPROACH_S
        while both.follow() > _CLOSE_RECORDS and time.monotonic() < deadline:
            pulse.check()

    def _carry_before(self, both: "_Both") -> None:
        """Before anything is filled, and again where the log's retention was faster than we."""
        state, connection = both.state, both.connection
        found = carry_before(connection, both.schema, state.generation, both.tables, both.lows(self._log))
        self._note_carried(connection, state, found)
        self._uncounted |= any(found.values())

    def _recount_carried(self, both: "_Both") -> None:
        """Sum on plain tables what was copied, when all that the log tells is filled in."""
        if both.plain and self._uncounted:
            with both.connection.transaction():
                lows = both.lows(self._log)
                recount_carried(both.connection, both.state.homes, both.schema, both.state.generation, lows)
            self._uncounted = False

    def _carry_after(self, both: "_Both") -> None:
        """While writers are held off, and both are as far as each other."""
        state, connection, lows = both.state, both.connection, both.lows(self._log)
        schemas = both.schema, state.generation
        found = carry_after(connection, *schemas, both.tables, lows)
        if both.plain:
            found |= carry_sums(connection, *schemas, lows, after=self._summed_until, before=None)
            if POLICY_EVENTS in lows and "verdicts" in both.tables:
                recount_outcomes(connection, state.homes)
        elif both.alike:
            found |= copy_lost_sums(connection, *schemas, lows)
        retire_again(connection, *schemas, both.relations, hypertables=not both.plain)
        self._note_carried(connection, state, found)

    def _sum_up(self, both: "_Both") -> None:
        """What can be done about sums while others write."""
        connection, generation = both.connection, both.state.generation
        self._recount_carried(both)
        if not both.plain:
            sum_up(connection, generation, both.relations)
        elif both.alike:
            lows = both.lows(self._log)
            with connection.transaction():
                both.state.homes.show(connection)
                topics = list(both.state.scope.topics)
                row = connection.execute(
                    queries.load("rebuild")["read_until"], {"sink": GROUP, "topics": topics}
                ).fetchone()
                until = row[0] if row is not None else None
                if until is not None:
                    found = carry_sums(connection, both.schema, generation, lows, after=None, before=until)
                    self._note_carried(connection, both.state, found)
            self._summed_until = until

    def _settle_jobs(self, connection: Connection, generation: str, *, on: bool) -> None:
        """Settings as configured from the start, but no compression and no retention before it is in force."""
        self._switch_jobs(connection, generation, on=True)  # what is off would count as not as configured
        tune.apply(connection, generation, self._tuning)
        if not on:
            self._switch_jobs(connection, generation, on=False)

    def _switch_jobs(self, connection: Connection, generation: str, *, on: bool) -> None:
        for _, _, job_id in tune.jobs_of(connection, generation):
            connection.execute(queries.load("rebuild")["switch_job"], {"job_id": job_id, "on": on})

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """What is rolled back was not taken over."""
        before = dict(self._carried)
        try:
            yield
        except BaseException:
            self._carried = before
            raise

    def _note_carried(self, connection: Connection, state: RebuildState, found: dict[str, int]) -> None:
        for table, count in found.items():
            self._carried[table] = self._carried.get(table, 0) + count
        note_carried(connection, state.generation, self._carried)

    def _compared(self, both: "_Both", pulse: Pulse) -> bool:
        """Fill, carry over and compare; whether the new tables may be handed over."""
        connection, generation = both.connection, both.state.generation
        if both.has_jobs:
            self._settle_jobs(connection, generation, on=False)
        enter_step(connection, generation, "carrying over")
        self._carry_before(both)
        enter_step(connection, generation, "filling")
        self._fill(both, pulse)
        enter_step(connection, generation, "comparing")
        self._approach(both, pulse)
        self._sum_up(both)
        self._say("Comparing the new tables with the old ones")
        self._comparisons = self._without_others(both, pulse, lambda: self._compare_once(both, pulse))
        found = {comparison.table: comparison.old for comparison in self._comparisons}
        differences = [str(comparison) for comparison in self._comparisons if comparison.differing]
        note_compared(connection, generation, found, differences)
        return self._accept or not differences

    def _compare_once(self, both: "_Both", pulse: Pulse) -> list[TableComparison] | None:
        """None: somebody wrote in between."""
        connection, sql = both.connection, queries.load("rebuild")
        held = False
        try:
            with self._counting(), connection.transaction():
                connection.execute(sql["low_limits"])
                connection.execute(sql["lock_writers_out"])
                held = True
                both.make_even()
                self._carry_after(both)
                if self._overtaken >= _OVERTAKEN_MAX:
                    return self._compare_all(both, pulse)
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                if not both.even():
                    self._overtaken += 1
                    return None
                connection.execute(sql["let_writers_in"])
                held = False
                return self._compare_all(both, pulse)
        finally:
            if held and not connection.closed:
                connection.execute(sql["let_writers_in"])

    def _compare_all(self, both: "_Both", pulse: Pulse) -> list[TableComparison]:
        found = [self._compare_table(both, table, pulse) for table in both.compared]
        for family, counter in COUNTED_BY.items():
            # What the database sums by itself follows from the tables, except over what is in them no more.
            table = f"{family}_days"
            if table in both.relations and table not in both.compared:
                found.append(compare_totals(both.connection, table, both.schema, both.state.generation, counter))
                if found[-1].differing:
                    self._say(str(found[-1]))
        return found

    def _compare_table(self, both: "_Both", table: str, pulse: Pulse) -> TableComparison:
        pulse.check()
        comparison = compare_table(both.connection, table, both.schema, both.state.generation)
        if comparison.differing:
            self._say(str(comparison))
        return comparison

    def _hand_over(self, both: "_Both", pulse: Pulse) -> None:
        self._fill(both, pulse)
        self._recount_carried(both)
        if not both.plain:
            self._approach(both, pulse)
            sum_up(both.connection, both.state.generation, both.relations)
        enter_step(both.connection, both.state.generation, "handing over")
        if both.has_jobs:
            self._settle_jobs(both.connection, both.state.generation, on=True)
        self._say(f"Handing over to {both.state.generation}")
        self._without_others(both, pulse, lambda: self._hand_over_once(both))

    def _hand_over_once(self, both: "_Both") -> bool:
        connection, sql = both.connection, queries.load("rebuild")
        with connection.transaction():
            connection.execute(sql["low_limits"])
            connection.execute(sql["lock_migrators_out"])
            generations.lock_exclusively(connection)
            both.make_even()
            put_in_force(connection, both.state)
        return True

    def _without_others(self, both: "_Both", pulse: Pulse, act: Callable[[], _T | None]) -> _T:
        """Do what needs a lock that others may hold, as often as it takes.

        It is waited for so briefly that a reader never waits long behind us, and that of two who wait for each other
        it is always we who let go.
        """
        pause, deadline, said = _RETRY_MIN_S, time.monotonic() + self._patience_s, False
        while True:
            self._approach(both, pulse)
            with contextlib.suppress(*_IN_THE_WAY):
                done = act()
                if done is not None:
                    return done
            who = _blockers(both.connection)
            if time.monotonic() > deadline:
                raise RebuildError(
                    f"For {self._patience_s:.0f} s somebody has stood in the way{who}. What was made is kept: end "
                    "that, then run the same command again."
                )
            if who and not said:
                said = True
                self._say(f"Waiting for others{who}")
            pulse.wait(pause)
            pause = min(pause * 2, _RETRY_MAX_S)


@dataclass(slots=True)
class _Both:
    """Old and new tables, and those who bring them as far as each other."""

    connection: Connection
    state: RebuildState
    old: Homes
    new_side: Follower
    old_side: Follower
    tables: list[str] = field(init=False)
    relations: list[str] = field(init=False)
    compared: list[str] = field(init=False)

    def __post_init__(self) -> None:
        scope = self.state.scope
        old, new = (relations_of(self.connection, schema) for schema in (self.schema, self.state.generation))
        there = set(old) & set(new)
        filled = {table for family in scope.families for table in family.tables} | _DERIVED_ROWS
        chosen = there if scope.relations is None else scope.relations & there
        self.relations = sorted(chosen)
        self.tables = sorted(filled & chosen)
        # What the database sums by itself follows from the tables.
        self.compared = [
            name for name in self.relations if not old[name] and not new[name] and name not in _NOT_COMPARED
        ]

    @property
    def schema(self) -> str:
        """That of the old tables."""
        return self.old.schemas[0]

    @property
    def plain(self) -> bool:
        """Whether the new tables are plain ones."""
        return self.state.homes.storage == PLAIN

    @property
    def has_jobs(self) -> bool:
        """Whether the new tables can have jobs already: what those call comes with the views of such tables."""
        return self.alike and not self.plain

    @property
    def alike(self) -> bool:
        """Whether both are kept in the same way."""
        return self.state.homes.storage == self.old.storage

    def lows(self, log: MessageLog) -> Lows:
        """Topics whose beginning is gone."""
        return lows_of(log, self.state.scope.topics)

    def _positions(self) -> tuple[Positions, Positions]:
        topics = set(self.state.scope.topics)
        old, new = (
            {source: at for source, at in read_positions(self.connection, homes).items() if source.topic in topics}
            for homes in (self.old, self.state.homes)
        )
        return old, new

    def behind(self) -> int:
        """Offsets by which the new tables are behind the old ones."""
        old, new = self._positions()
        return sum(max(0, at - new.get(source, at)) for source, at in old.items())

    def even(self) -> bool:
        """Whether both have read exactly as far, as the transaction sees it."""
        old, new = self._positions()
        return old == new

    def follow(self) -> int:
        """Bring both near each other; how many records that were. Others may write meanwhile."""
        old, new = self._positions()
        written = self.new_side.follow({source: at for source, at in old.items() if at > new.get(source, at)})
        # Where nobody else writes the old tables, they are as far behind as they were left.
        with contextlib.suppress(SinkFencedError):
            written += self.old_side.follow({source: at for source, at in new.items() if at > old.get(source, at)})
        return written

    def make_even(self) -> None:
        """Bring both to exactly the same positions; while writers are held off."""
        self.follow()
        if not self.even():
            raise RebuildError("Old and new tables do not come as far as each other: partitions were added. Try again.")


def _blockers(connection: Connection) -> str:
    rows = connection.execute(queries.load("rebuild")["blockers"]).fetchall()
    who = [f"process {pid} ({name or 'unnamed'}), {seconds:.0f} s in its transaction" for pid, name, seconds in rows]
    return f": {'; '.join(who)}" if who else ""


def _no_source(made_from: str) -> str:
    if made_from == "archive":
        return (
            "There is no archive of the log yet: tables are made again from the log, and what its retention has taken "
            "is carried over from the tables in use. Run: stepwell db rebuild --from log"
        )
    return f"Tables cannot be made from {made_from!r}; only from: log. Run: stepwell db rebuild --from log"
