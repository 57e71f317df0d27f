"""Old events read as new ones, one version at a time.

An upcaster takes the fields of version N of a type (a dict, nested records as dicts) and gives those of version N + 1.
They are chained when a record is decoded, so whoever reads events only knows the current classes. An upcaster never
changes once released: recorded events must decode to the same values for ever (a golden corpus holds it to that).
"""

from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]
Upcaster = Callable[[Fields], Fields]


def upcast_episode_failed_v1_v2(fields: Fields) -> Fields:
    """Version 2 says who broke; in version 1 that followed from the failure type (``sim_``, ``agent_``, else host)."""
    kind = fields["failure_type"]
    policy_broke = kind.startswith("agent_") or kind == "invalid_action"
    component = "agent" if policy_broke else "sim" if kind.startswith("sim_") else "host"
    return {**fields, "component": component}


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("episode::failed", 1): upcast_episode_failed_v1_v2,
}
"""(type, version it reads) -> upcaster to the next version."""


def upcast(type_name: str, version: int, latest: int, fields: Fields) -> Fields:
    """Bring the fields of ``version`` up to ``latest``.

    Raises:
        KeyError: a step is missing from the table (a test proves that none is).
    """
    for step in range(version, latest):
        fields = UPCASTERS[type_name, step](fields)
    return fields
