"""Do the new tables say what the old ones say? Compared by count and digest, whole tables, in one snapshot.

The digest of a table is the sum of its rows' 64-bit hashes, so that the rows' order does not matter. Only where two
digests differ are rows set side by side, to count those that differ and to name the first.

Sums of doubles depend on the order in which they were added, in their last digits: two that are as near as that are the
same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection

__all__ = ["TableComparison", "compare_table", "compare_totals"]

# Words that name chunks, and the clock of the database.
_LEFT_OUT: Mapping[str, tuple[str, ...]] = {"dead_letters": ("recorded_at",)}
_INSTEAD: Mapping[tuple[str, str], str] = {
    ("dead_letters", "detail"): "CASE WHEN kind = 'refused' THEN '' ELSE detail END",
}

_SUMS = frozenset({"telemetry_minutes", "telemetry_hours", "telemetry_days"})
"""Tables with a sum of doubles (``value_sum``)."""


@dataclass(frozen=True, slots=True)
class TableComparison:
    """What came of one table.

    Attributes:
        table: its name.
        old, new: rows in either.
        differing: rows that only one has, or that are not the same in both.
        first: the first of them by key, in words; empty where none differs.
    """

    table: str
    old: int
    new: int
    differing: int = 0
    first: str = ""

    def __str__(self) -> str:
        if not self.differing:
            return f"table {self.table}: {self.old} rows, the same in both"
        counts = f"{self.differing} rows differ (old {self.old}, new {self.new})"
        return f"table {self.table}: {counts}; the first: {self.first}"


def compare_table(connection: Connection, table: str, old: str, new: str) -> TableComparison:
    """Compare a table in the schemas ``old`` and ``new``; within a transaction whose snapshot both are seen in.

    Args:
        connection: within that transaction.
        table: its name in both.
        old: schema of the one in force.
        new: schema of the other.
    """
    sides = sql.Identifier(old, table), sql.Identifier(new, table)
    columns = _columns(connection, table, sides)
    row = _row(table, columns)
    digests = [
        connection.execute(
            sql.SQL("SELECT count(*), sum(hash_record_extended({}, 0)) FROM {}").format(row, side)
        ).fetchone()
        for side in sides
    ]
    assert digests[0] is not None
    assert digests[1] is not None
    counts = digests[0][0], digests[1][0]
    if digests[0] == digests[1]:
        return TableComparison(table, *counts)
    if table in _SUMS:
        columns = [name for name in columns if name != "value_sum"]
        row = _row(table, columns)
    key = _key(connection, sides[0]) or columns
    differing, first = _first(connection, sides, key, columns, row)
    if table in _SUMS and not differing:
        differing, first = _sums_apart(connection, sides)
    return TableComparison(table, *counts, differing=differing, first=first)


def compare_totals(connection: Connection, table: str, old: str, new: str, counter: str) -> TableComparison:
    """Compare a table of sums that the database keeps by itself: whether the old one says more of any bucket.

    That it says less is no difference: an old aggregate may not have been refreshed since late rows came.
    """
    totals = sql.SQL("SELECT bucket, sum({}) AS total FROM {} GROUP BY bucket")
    sides = {
        side: totals.format(sql.Identifier(counter), sql.Identifier(schema, table))
        for side, schema in (("old", old), ("new", new))
    }
    row = connection.execute(sql.SQL(queries.load("rebuild")["lost_totals"]).format(**sides)).fetchone()
    assert row is not None
    rows_old, rows_new, lost, first, was, is_ = row
    if not lost:
        return TableComparison(table, rows_old, rows_new)
    words = f"bucket {first.isoformat()}: {counter} are {was} in the old table, {is_} in the new one"
    return TableComparison(table, rows_old, rows_new, differing=lost, first=words)


def _columns(connection: Connection, table: str, sides: Sequence[sql.Identifier]) -> list[str]:
    """Those that both have and that can be compared, in the order of the first."""
    names = [
        [name for (name,) in connection.execute(queries.load("rebuild")["columns"], {"relation": _text(side)})]
        for side in sides
    ]
    return [name for name in names[0] if name in names[1] and name not in _LEFT_OUT.get(table, ())]


def _key(connection: Connection, side: sql.Identifier) -> list[str]:
    rows = connection.execute(queries.load("rebuild")["key"], {"relation": _text(side)})
    return [name for (name,) in rows]


def _first(
    connection: Connection, sides: Sequence[sql.Identifier], key: Sequence[str], columns: Sequence[str],
    row: sql.Composable,
) -> tuple[int, str]:  # fmt: skip
    names = sql.SQL(", ").join(map(sql.Identifier, key))
    # By the hash of the key: a NULL in it (of a sum) is a value like any other there.
    hashed = sql.SQL(
        "SELECT {names}, hash_record_extended(ROW({names}), 1) AS key_hash, hash_record_extended({row}, 0) AS row_hash "
        "FROM {side}"
    )
    old, new = (hashed.format(names=names, row=row, side=side) for side in sides)
    either = sql.SQL(", ").join(sql.SQL("coalesce(o.{0}, n.{0})").format(sql.Identifier(name)) for name in key)
    # Rows that are the same in both go first: what is left is little where little differs.
    found = connection.execute(
        sql.SQL(
            "WITH o AS MATERIALIZED ({old} EXCEPT ALL {new}), n AS MATERIALIZED ({new} EXCEPT ALL {old}) "
            "SELECT {either}, o.row_hash IS NOT NULL, n.row_hash IS NOT NULL, count(*) OVER () "
            "FROM o FULL JOIN n USING (key_hash) ORDER BY {places} LIMIT 1"
        ).format(
            old=old,
            new=new,
            either=either,
            places=sql.SQL(", ").join(sql.SQL(str(place)) for place in range(1, len(key) + 1)),
        )
    ).fetchone()
    if found is None:
        return 0, ""
    *values, in_old, in_new, count = found
    identity = dict(zip(key, values, strict=True))
    where = ", ".join(f"{name}={_brief(value)}" for name, value in identity.items())
    if not in_old:
        return count, f"({where}) stands in the new table only"
    if not in_new:
        return count, f"({where}) stands in the old table only"
    return count, f"({where}): {_difference(connection, sides, identity, columns)}"


def _sums_apart(connection: Connection, sides: Sequence[sql.Identifier]) -> tuple[int, str]:
    """Of two tables that are the same but for their sums: rows whose sums are further apart than rounding explains."""
    old, new = sides
    statement = sql.SQL(queries.load("rebuild")["sums_apart"]).format(old=old, new=new)
    found = connection.execute(statement).fetchone()
    if found is None:
        return 0, ""
    bucket, series, partition, was, is_, count = found
    where = f"bucket={bucket.isoformat()}, series_id={series}, source_partition={partition}"
    return count, f"({where}): value_sum is {was!r} in the old table, {is_!r} in the new one"


def _difference(
    connection: Connection, sides: Sequence[sql.Identifier], identity: Mapping[str, Any], columns: Sequence[str]
) -> str:
    condition = sql.SQL(" AND ").join(
        sql.SQL("{} IS NOT DISTINCT FROM {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in identity
    )
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    old, new = (
        connection.execute(sql.SQL("SELECT {} FROM {} WHERE {}").format(listed, side, condition), identity).fetchone()
        for side in sides
    )
    if old is None or new is None:
        return "differs"
    parts = [
        f"{name} is {_brief(was)} in the old table, {_brief(is_)} in the new one"
        for name, was, is_ in zip(columns, old, new, strict=True)
        if repr(was) != repr(is_)
    ]
    return "; ".join(parts) or "differs"


def _row(table: str, columns: Sequence[str]) -> sql.Composable:
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(_value(table, name) for name in columns))


def _value(table: str, column: str) -> sql.Composable:
    instead = _INSTEAD.get((table, column))
    return sql.Identifier(column) if instead is None else sql.SQL(instead)


def _text(name: sql.Identifier) -> str:
    return name.as_string(None)


def _brief(value: Any) -> str:
    text = repr(value) if not hasattr(value, "isoformat") else value.isoformat()
    return text if len(text) <= 80 else text[:77] + "…"
