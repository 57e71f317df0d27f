"""What keys there are in JSON columns and telemetry: looks for them, remembers them, and has the views made.

A look is bounded: the newest episodes of each task and policy, and some steps of each; the dictionary of metrics
whole. What it misses (a key that only older or rare rows have) is not lost: the column ``rest`` of each view shows it,
and a look at everything finds it. What was found once is remembered for good.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from stepwell.exceptions import ConfigurationError, MigrationError, NotFoundError
from stepwell.projections import queries
from stepwell.projections.database import Connection, connect, named_errors
from stepwell.projections.on_read import views as generated_views
from stepwell.projections.on_read.views import SOURCES, head_of
from stepwell.projections.schema.migrate import migrating, require_current

__all__ = ["Field", "apply", "describe", "drop", "look", "read_fields", "split"]

_EACH, _EPISODES, _ROWS = 20, 500, 200
"""How much a look takes in: episodes of each task and policy, of all, and rows of each episode."""
_SPANS_OF = timedelta(hours=6)
_NAME_MAX = 50
_KINDS = ("number", "text", "boolean", "json")


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a generated view.

    Attributes:
        view: name of the view.
        column: name of the column.
        path: the key, and the keys on the way to it.
        kind: ``number``, ``text``, ``boolean`` or ``json``.
        from_at: the column shows values from then on; None: from the first.
        until_at: the column shows values before then; None: to the last.
        first_seen: earliest time at which a look found it.
        last_seen: latest.
        meaning: in somebody's words; empty: nobody has said.
        made: whether the view is there.
    """

    view: str
    column: str
    path: tuple[str, ...]
    kind: str
    from_at: datetime | None
    until_at: datetime | None
    first_seen: datetime
    last_seen: datetime
    meaning: str
    made: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """A key and kind of value in the data, and in how many of the rows looked at."""

    view: str
    path: tuple[str, ...]
    kind: str
    count: int
    first: datetime
    last: datetime


def read_fields(url: str) -> list[Field]:
    """Every column that the views have, or would have if they were made. Reads the catalogue only."""
    with connect(url, application="stepwell views") as connection, named_errors(url):
        require_current(url, connection)
        rows = connection.execute(queries.load("fields")["shown"]).fetchall()
    return [Field(view, column, tuple(path), *rest) for view, column, path, *rest in rows]


def look(url: str, *, everything: bool = False) -> list[str]:
    """The columns that `apply` would add, as ``view.column``; changes nothing."""
    with connect(url, application="stepwell views") as connection, named_errors(url):
        require_current(url, connection)
        with connection.transaction(force_rollback=True):
            return _take_in(connection, everything=everything)


def apply(url: str, *, everything: bool = False) -> list[str]:
    """Look for keys, remember them, and bring the views up to date; the columns that came, as ``view.column``.

    Args:
        url: of the tables' owner.
        everything: look at all rows, however many there are, instead of the newest.

    Raises:
        MigrationError: the schema is not this version's, or a view of somebody else's is in the way.
        DatabaseUnavailableError: no server answers.
    """
    with migrating(url) as connection, named_errors(url):
        require_current(url, connection)
        with connection.transaction():
            added = _take_in(connection, everything=everything)
            _make(connection)
    return added


def drop(url: str) -> bool:
    """Drop the views; whether there were any. What was remembered stays.

    Raises:
        MigrationError: a view of somebody else's is in the way.
    """
    with migrating(url) as connection, named_errors(url), connection.transaction():
        try:
            return generated_views.drop(connection)
        except psycopg.errors.DependentObjectsStillExist as error:
            raise MigrationError(f"Something else is built on a generated view: {error.diag.message_detail}") from error


def describe(url: str, view: str, column: str, meaning: str) -> None:
    """Say what a column means: kept with it, and shown as the column's comment.

    Raises:
        NotFoundError: there is no such column.
    """
    with migrating(url) as connection, named_errors(url), connection.transaction():
        given = {"view": view, "column": column, "meaning": meaning}
        if connection.execute(queries.load("fields")["describe"], given).rowcount != 1:
            raise _unknown(view, column)
        _make(connection)


def split(url: str, view: str, column: str, at: datetime) -> str:
    """Say that a key means something else from a moment on: the column ends there, and a new one begins; its name.

    For what no program can see: a key whose values are of the same kind, in another unit or of another thing.

    Raises:
        NotFoundError: there is no such column, or it has ended before.
        ConfigurationError: the column began after that moment.
    """
    sql_ = queries.load("fields")
    with migrating(url) as connection, named_errors(url), connection.transaction():
        row = connection.execute(sql_["one_field"], {"view": view, "column": column}).fetchone()
        if row is None:
            raise _unknown(view, column)
        field, path, kind, from_at, first_seen, last_seen = row
        if from_at is not None and at <= from_at:
            raise ConfigurationError(f"{view}.{column} began at {from_at.isoformat()}, after {at.isoformat()}")
        connection.execute(sql_["end_field"], {"field": field, "at": at})
        name = _free_name(_names(connection, view), column)
        connection.execute(
            sql_["add_field"],
            {
                "view": view, "column": name, "path": path, "kind": kind, "from_at": at, "meaning": "",
                "first": max(first_seen, at), "last": max(last_seen, at),
            },
        )  # fmt: skip
        _make(connection)
    return name


def _unknown(view: str, column: str) -> NotFoundError:
    return NotFoundError(f"There is no column {column!r} of {view!r} that is in use. See: stepwell db views --show")


def _make(connection: Connection) -> None:
    try:
        generated_views.make(connection)
    except psycopg.errors.DependentObjectsStillExist as error:
        raise MigrationError(
            f"A generated view must change, and something else is built on it: {error.diag.message_detail}. Drop that, "
            "run the command again, and make it again."
        ) from error


def _take_in(connection: Connection, *, everything: bool) -> list[str]:
    """Look, and write down what was found, in the caller's transaction; the columns that came."""
    sql_ = queries.load("fields")
    found = [*_in_documents(connection, everything=everything), *_in_telemetry(connection)]
    known = {
        (view, tuple(path), kind): field
        for field, view, path, kind, _ in connection.execute(sql_["known_fields"]).fetchall()
    }
    taken: dict[str, set[str]] = {}
    added = []
    # The kind that most rows have takes the plain name.
    for each in sorted(found, key=lambda one: (one.view, one.path, -one.count, _KINDS.index(one.kind))):
        seen = {"first": each.first, "last": each.last}
        field = known.get((each.view, each.path, each.kind))
        if field is not None:
            connection.execute(sql_["saw_field"], {"field": field, **seen})
            continue
        names = taken.setdefault(each.view, _names(connection, each.view))
        other_kind = any((each.view, each.path) == key[:2] for key in known)
        plain = _plain(each.path)
        name = _free_name(names, f"{plain}_{each.kind}" if other_kind else plain)
        names.add(name)
        known[each.view, each.path, each.kind] = None
        row = {"view": each.view, "column": name, "path": list(each.path), "kind": each.kind, **seen}
        connection.execute(sql_["add_field"], {**row, "from_at": None, "meaning": ""})
        added.append(f"{each.view}.{name}")
    return added


def _in_documents(connection: Connection, *, everything: bool) -> Iterable[_Found]:
    sql_ = queries.load("fields")
    limits: dict[str, Any] = {"each": _EACH, "episodes": _EPISODES, "rows": _ROWS}
    limits["since"] = datetime.now(tz=UTC) - _SPANS_OF
    if everything:
        limits = dict.fromkeys(limits)
    for source in SOURCES:
        for path, *rest in connection.execute(sql_[source.view], {**limits, "depth": source.depth}).fetchall():
            yield _Found(source.view, tuple(path), *rest)


def _in_telemetry(connection: Connection) -> Iterable[_Found]:
    """Keys of the metrics' attributes. A metric that is new, in this unit and kind, gets a view."""
    sql_ = queries.load("fields")
    views = {tuple(rest): view for view, *rest in connection.execute(sql_["metric_views"])}
    for metric, unit, kind, path, value_kind, count, first, last in connection.execute(sql_["metrics"]).fetchall():
        view = views.get((metric, unit, kind))
        if view is None:
            view = _view_name(set(views.values()), metric, unit, kind)
            views[metric, unit, kind] = view
            connection.execute(sql_["add_metric_view"], {"view": view, "metric": metric, "unit": unit, "kind": kind})
        if path is not None:
            yield _Found(view, tuple(path), value_kind, count, first, last)


def _names(connection: Connection, view: str) -> set[str]:
    rows = connection.execute(queries.load("fields")["column_names"]).fetchall()
    return {*head_of(view), "rest", *(column for of, column in rows if of == view)}


def _view_name(taken: set[str], metric: str, unit: str, kind: str) -> str:
    """``metric_NAME``; of a metric that has a view already in another unit or kind, with those behind it."""
    plain, named = (f"metric_{_plain(keys)}" for keys in ((metric,), (metric, unit, kind)))
    return next(name for name in (plain, named, *(f"{named}_{n}" for n in range(2, 10_000))) if name not in taken)


def _free_name(taken: set[str], first: str) -> str:
    """A name that no column of the view has: this one, or with a number behind it."""
    return next(name for name in (first, *(f"{first}_{n}" for n in range(2, 10_000))) if name not in taken)


def _plain(path: Iterable[str]) -> str:
    """Keys as an SQL name that needs no quotes. Two that become the same are told apart by numbers."""
    whole = ".".join(path)
    name = re.sub(r"[^a-z0-9]+", "_", whole.lower()).strip("_") or "key"
    name = f"k_{name}" if name[0].isdigit() else name
    if len(name) <= _NAME_MAX:
        return name
    return f"{name[: _NAME_MAX - 9]}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
