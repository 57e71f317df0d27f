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


def upcast_episode_requested_v1_v2(fields: Fields) -> Fields:
    """Version 2 may carry the episode's definition, and says what it is run for; version 1 had neither."""
    return {**fields, "definition_json": "", "purpose": "evaluation"}


def upcast_episode_retry_requested_v1_v2(fields: Fields) -> Fields:
    """As for the first request."""
    return {**fields, "definition_json": "", "purpose": "evaluation"}


def upcast_verdict_issued_v1_v2(fields: Fields) -> Fields:
    """Version 2 says at which step each label was found (of version 1 nobody knows), and what the episode is for."""
    return {**fields, "label_steps": [], "purpose": "evaluation"}


def upcast_failure_pattern_detected_v1_v2(fields: Fields) -> Fields:
    """Version 2 says what was seen, and where each episode's facts stand."""
    return {**fields, "evidence": [_placed(episode) for episode in fields["evidence"]], "detail": ""}


def upcast_retrain_requested_v1_v2(fields: Fields) -> Fields:
    """Version 2 adds hard negatives, the weights' formula and the regression spec; version 1 asked for none of it."""
    return {
        **fields,
        "evidence": [_placed(episode) for episode in fields["evidence"]],
        "detail": "",
        "hard_negatives": [],
        "weights_formula": "",
        "regression_spec_json": "",
    }


def upcast_engine_position_saved_v1_v2(fields: Fields) -> Fields:
    """Version 2 says which rules are in force; before it there were only those that are built in."""
    return {**fields, "rules_json": ""}


def upcast_telemetry_sampled_v1_v2(fields: Fields) -> Fields:
    """Version 2 has the points as columns, of any kind and time; version 1 had gauges of one moment."""
    points, at = fields["points"], fields["sampled_at"]
    series = [{"metric": point["metric"], "unit": point["unit"], "attributes": point["attributes"]} for point in points]
    times = [at] * len(points)
    return {
        **fields,
        "series": series,
        "point_series": list(range(len(points))),
        "point_start_at": times,
        "point_at": times,
        "point_value": [point["value"] for point in points],
    }


def _placed(episode: Fields) -> Fields:
    """An evidence episode with the task and the place of its facts, as far as version 1 told: not at all."""
    return {**episode, "task": "", "events_partition": -1, "first_offset": -1, "last_offset": -1}


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("episode::failed", 1): upcast_episode_failed_v1_v2,
    ("episode::requested", 1): upcast_episode_requested_v1_v2,
    ("episode::retry_requested", 1): upcast_episode_retry_requested_v1_v2,
    ("verdict::issued", 1): upcast_verdict_issued_v1_v2,
    ("failure::pattern_detected", 1): upcast_failure_pattern_detected_v1_v2,
    ("retrain::requested", 1): upcast_retrain_requested_v1_v2,
    ("engine::position_saved", 1): upcast_engine_position_saved_v1_v2,
    ("telemetry::sampled", 1): upcast_telemetry_sampled_v1_v2,
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
