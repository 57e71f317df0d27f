"""How complete the evidence behind a verdict is."""

from typing import Final

from stepwell.engine.state import LIST_LIMIT, AttemptState, ProducerState
from stepwell.events.model import Certificate, SequenceRange

_COUNT_LIMIT: Final = 2**63 - 1

NOTES: Final[dict[str, str]] = {
    "late": "facts came after they had been given up; their content is not in the numbers",
    "lost": "facts never came",
    "no request": "the fact that says what was asked for never came or was refused",
    "overflow": "more facts were out of order than are held; the gaps were given up",
    "step count differs": "the end announces another number of steps than the facts give",
    "tail unknown": "the end does not say which facts were the last",
    "waiting": "facts are in the log that wait for missing ones",
}
"""Every note that a certificate can carry, with its meaning."""


def certificate_of(attempt: AttemptState) -> Certificate:
    """The certificate of an ended attempt, as of now."""
    producers = attempt.producers()
    lost_count = sum(producer.lost_count for producer in producers)
    late_count = sum(producer.late_count for producer in producers)
    notes = _notes(attempt, lost_count, late_count)
    return Certificate(
        status="incomplete" if notes else "complete",
        notes=notes,
        lost=_ranges([(producer, producer.lost) for producer in producers]),
        late=_ranges([(producer, producer.late) for producer in producers]),
        lost_count=min(lost_count, _COUNT_LIMIT),
        late_count=late_count,
        duplicate_count=attempt.duplicate_count,
        violation_count=min(attempt.violation_count, _COUNT_LIMIT),
        nonfinite_count=attempt.nonfinite_events,
    )


def steps_of(attempt: AttemptState) -> int:
    """Steps done: as the end announces them, else as the facts give them."""
    announced = attempt.end.n_steps if attempt.end else None
    return attempt.next_step - attempt.first_step if announced is None else announced


def tail_known(attempt: AttemptState) -> bool:
    """Whether the end says which facts of simulator and agent were the last."""
    end = attempt.end
    return end is not None and end.last_sim_seq is not None and end.last_agent_seq is not None


def _notes(attempt: AttemptState, lost_count: int, late_count: int) -> tuple[str, ...]:
    notes = []
    if late_count:
        notes.append("late")
    if lost_count:
        notes.append("lost")
    if attempt.request is None:
        notes.append("no request")
    if attempt.overflow:
        notes.append("overflow")
    if not lost_count and not late_count and steps_of(attempt) != attempt.next_step - attempt.first_step:
        notes.append("step count differs")
    if not tail_known(attempt):
        notes.append("tail unknown")
    if attempt.held_count:
        notes.append("waiting")
    return tuple(notes)


def _ranges(lists: list[tuple[ProducerState, list[list[int]]]]) -> tuple[SequenceRange, ...]:
    entries = [
        SequenceRange(producer=producer.name, first=first, last=last)
        for producer, entries in lists
        for first, last in entries
    ]
    return tuple(entries[:LIST_LIMIT])
