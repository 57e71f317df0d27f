"""Episodes of regression runs feed no rule: the loop from request to mend ends."""

import json
from typing import Any

import msgspec
import pytest

from stepwell.engine.detection.bearing import bearing
from stepwell.engine.detection.state import dump
from stepwell.events.model import REGRESSION, Event, RetrainRequested
from tests.unit.engine.detection.stories import OPENED, Story, answer, expected, failed, kinds, rules, the_request, won

ROW = {"kind": "in_a_row", "name": "row", "length": 5, "per": ["scene"]}
RATE = {"kind": "rate", "name": "often", "limit": 0.2, "level": 0.01}
SHIFT = {"kind": "shift", "name": "worse", "level": 0.01}


def regression_of(request: RetrainRequested, round_: int, purpose: str) -> list[Event]:
    """What a regression run records of a perfect mend: the new checkpoint wins, the old one fails as before."""
    events: list[Event] = []
    spec = json.loads(request.regression_spec_json)
    for cell in spec["cells"]:
        name, where = f"r{round_}{cell['scene']}", {"scene": cell["scene"], "purpose": purpose}
        count = len(cell["seeds"]) + spec["fresh_seeds_per_cell"]
        events += [won(f"{name}-after{i}", checkpoint="b", **where) for i in range(count)]
        events += [failed(f"{name}-before{i}", checkpoint="a", seed=1000 + i, **where) for i in range(10)]
    return events


def requests(events: list[Event]) -> list[RetrainRequested]:
    return [event for event in events if isinstance(event, RetrainRequested)]


def test_a_perfect_mend_ends_the_loop() -> None:
    """As evaluations, the old checkpoint's failures in the regression run would ask for it again, forever."""
    for purpose, again in ((REGRESSION, 0), ("evaluation", 3)):
        story = Story()
        out = story.tell(*[failed(f"e{i}", checkpoint="a", scene=f"s{i % 2}", seed=i) for i in range(10)])
        rounds = 0
        while requests(out) and rounds < 3:
            request = the_request(out)
            story.tell(answer(request.trigger_id))
            rounds += 1
            out = story.tell(*regression_of(request, rounds, purpose))
        assert (rounds, len(requests(out))) == ((1, 0) if not again else (3, 1))


def test_a_regression_run_of_the_failed_cells_is_no_shift() -> None:
    """The new checkpoint mends the hard scene in part; only that scene is run, so its rate looks worse than the old."""
    story = Story(rules(ROW, SHIFT, RATE))
    told = [
        (failed if scene == 7 else won)(f"a{scene}-{seed}", checkpoint="a", scene=f"s{scene}")
        for scene in range(20)
        for seed in range(20)
    ]
    request = the_request(story.tell(*told))
    story.tell(answer(request.trigger_id))
    run = [
        (failed if i % 5 in (0, 2) else won)(f"b{i}", checkpoint="b", scene="s7", purpose=REGRESSION) for i in range(25)
    ]
    beside = [failed(f"a-again{i}", checkpoint="a", scene="s7", purpose=REGRESSION) for i in range(10)]
    assert story.tell(*run, *beside) == []
    assert not any(key.checkpoint == "b" for rule in story.state.rules.values() for key in rule.streams)


@pytest.mark.parametrize("purpose", [REGRESSION, "training"])
def test_they_have_no_place_in_window_rows_or_queue(purpose: str) -> None:
    """Nothing of the state changes but the count of what was ignored, where the log stands and its time."""
    story = Story(rules(ROW, RATE | {"minimum": 5}))
    story.tell(*[failed(f"e{i}") for i in range(4)])
    before = dump(story.state)
    told = [expected("r0", purpose=purpose), won("r0", purpose=purpose), failed("r1", purpose=purpose),
            failed("r1", purpose=purpose, revision=1)]  # fmt: skip
    assert story.tell(*told) == []
    assert story.state.ignored == len(told)
    after: Any = msgspec.structs.replace(story.state)
    first = Story(rules(ROW, RATE | {"minimum": 5}))
    first.tell(*[failed(f"e{i}") for i in range(4)])
    assert dump(first.state) == before
    after.ignored, after.now, after.last_offset = 0, first.state.now, first.state.last_offset
    assert dump(after) == before
    assert kinds(story.tell(failed("e4"))) == OPENED * 2
    assert bearing(failed("x", purpose=purpose)) == "silent"


def test_an_evaluation_that_is_amended_into_something_else_is_silent() -> None:
    story = Story(rules(ROW))
    story.tell(*[failed(f"e{i}") for i in range(5)])
    assert kinds(story.tell(failed("e2", purpose=REGRESSION, revision=1))) == ["withdrawn"]
