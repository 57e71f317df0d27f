"""What no event can hold is the failure of the component that gave it, and takes no sequence."""

from collections.abc import Callable
from typing import Any

import pytest

from stepwell.adapters.policies import Chunk, PolicyDescription
from stepwell.adapters.processes import InvalidActionError, ProcessFailedError
from stepwell.adapters.runs.recorder import AttemptRecorder
from stepwell.adapters.simulators import StepResult
from stepwell.events.arrays import tensor
from stepwell.events.model import ActionSent, EpisodeFailed, Event, LogRecord
from tests.unit.runs.places import CODEC, ME, planned

NAN = float("nan")


def step(**changes: Any) -> StepResult:
    given: dict[str, Any] = {
        "observation": (), "reward": 1.0, "success": None, "terminated": False, "truncated": False, "metrics": (),
        "warnings": (), "state_digest": b"d", "sim_time": 0.1, "step_wall_s": 0.01,
    }  # fmt: skip
    return StepResult(**(given | changes))


def chunk(values: list[list[float]], inference_s: float = 0.01) -> Chunk:
    made = tensor("action", values) if values else tensor("action", b"", "float64", (0, 1))
    return Chunk(action=made, n_steps=len(values), inference_s=inference_s)


@pytest.fixture
def facts() -> list[Event]:
    return []


@pytest.fixture
def recorder(facts: list[Event]) -> AttemptRecorder:
    def publish(record: LogRecord) -> None:
        CODEC.encode(record)
        assert isinstance(record, Event)
        facts.append(record)

    return AttemptRecorder(publish, planned()[0], 1, ME, 2)


@pytest.mark.parametrize(
    ("give", "failure_type", "component"),
    [
        (lambda r: r.action_sent(0, chunk([])), "invalid_action", "agent"),
        (lambda r: r.action_sent(0, chunk([[1.0]], inference_s=NAN)), "invalid_action", "agent"),
        (lambda r: r.step_done(0, step(step_wall_s=-1.0)), "sim_exception", "sim"),
        (lambda r: r.step_done(0, step(sim_time=NAN)), "sim_exception", "sim"),
        (lambda r: r.step_done(0, step(state_digest=bytes(1000))), "sim_exception", "sim"),
        (
            lambda r: r.agent_started(PolicyDescription(name="p" * 2_000_000, version="1", checkpoint=None, needs=())),
            "agent_exception",
            "agent",
        ),
    ],
)
def test_an_unfit_answer_is_its_component_s_failure(
    recorder: AttemptRecorder,
    facts: list[Event],
    give: Callable[[AttemptRecorder], None],
    failure_type: str,
    component: str,
) -> None:
    with pytest.raises(ProcessFailedError, match="cannot be recorded") as caught:
        give(recorder)
    assert (caught.value.failure_type, caught.value.component) == (failure_type, component)
    recorder.failed(failure_type, component, str(caught.value))
    (failed,) = facts
    assert isinstance(failed, EpisodeFailed)
    assert (failed.last_sim_seq, failed.last_agent_seq, failed.n_steps, failed.producer_seq) == (-1, -1, 0, 2)


def test_after_a_refused_action_the_next_one_follows_without_a_hole(
    recorder: AttemptRecorder, facts: list[Event]
) -> None:
    recorder.action_sent(0, chunk([[1.0], [2.0]]))
    recorder.step_done(0, step())
    with pytest.raises(InvalidActionError):
        recorder.action_sent(1, chunk([]))
    recorder.step_done(1, step())
    assert [(type(fact).__name__, fact.producer_seq) for fact in facts] == [
        ("ActionSent", 0), ("StepDone", 0), ("StepDone", 1),
    ]  # fmt: skip
    assert isinstance(facts[0], ActionSent)
    assert facts[0].n_steps == 2
    assert [fact.action_seq for fact in facts[1:]] == [0, 0]  # type: ignore[attr-defined]
    assert recorder.n_steps == 2
