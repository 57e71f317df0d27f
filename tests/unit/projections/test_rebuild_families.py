"""Which tables are made again together."""

import pytest

from stepwell.events.topics import EPISODE_EVENTS, EPISODE_SNAPSHOTS, POLICY_EVENTS, TELEMETRY
from stepwell.exceptions import ConfigurationError
from stepwell.projections.rebuild.families import FAMILIES, scope_of
from stepwell.projections.schema.generations import Homes
from stepwell.projections.tables import KINDS
from stepwell.projections.writing.rows import PROJECTED_TOPICS


def test_all_is_everything_from_every_topic() -> None:
    scope = scope_of(None)
    assert (scope.families, scope.relations, scope.topics) == (FAMILIES, None, PROJECTED_TOPICS)


def test_a_table_brings_those_that_share_its_records_and_its_sums() -> None:
    scope = scope_of(["steps"])
    assert scope.relations is not None
    assert scope.relations >= {"steps", "episodes", "runs", "episode_attempts", "step_minutes", "step_gaps"}
    assert scope.relations.isdisjoint({"actions", "verdicts", "sink_offsets"})
    assert scope.topics == (EPISODE_EVENTS, EPISODE_SNAPSHOTS)
    assert scope_of(["step_days"]).relations == scope.relations, "a sum is asked for by what it sums"


def test_several_tables_are_read_from_what_feeds_any_of_them() -> None:
    scope = scope_of(["verdicts", "spans"])
    assert set(scope.topics) == {POLICY_EVENTS, TELEMETRY}


def test_dead_letters_may_come_from_any_record_so_that_all_are_made_again() -> None:
    assert scope_of(["dead_letters"]) == scope_of(None)


@pytest.mark.parametrize("name", ["step", "sink_offsets", "generations", ""])
def test_what_no_record_makes_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"can be made again: .*Those there are: actions, "):
        scope_of([name])


def test_every_kind_of_row_belongs_to_a_family_and_its_record_is_whole() -> None:
    of = {relation: family for family in FAMILIES for relation in family.relations}
    assert {kind.target for kind in KINDS.values()} <= set(of)
    for together in (("runs", "episodes", "episode_attempts"), ("telemetry_series", "telemetry_points")):
        assert len({of[table].tables for table in together}) == 1


def test_a_generation_for_some_tables_takes_their_rows_only() -> None:
    homes = Homes(("stepwell_g2",), "plain", active=False, relations=scope_of(["steps"]).relations)
    assert [homes.takes(table) for table in ("steps", "actions")] == [True, False]
    assert Homes(("stepwell_g1",), "plain").takes("actions")
