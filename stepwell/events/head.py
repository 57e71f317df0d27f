"""What every event carries, and the few words that heads and verdicts share."""

from typing import ClassVar, Final, Literal

import msgspec

Producer = Literal["sim", "agent", "host", "engine", "trainer", "operator"]
Origin = Literal["live", "import"]
Outcome = Literal["success", "failure", "error", "aborted"]
Fault = Literal["policy", "simulator", "infrastructure", "operator"]

EVALUATION: Final = "evaluation"
"""What an episode is run for, where nothing else is said. Detection rules count such episodes alone."""
REGRESSION: Final = "regression"
"""An episode that is run to judge a retrained checkpoint, or the old one beside it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The head that every event carries.

    Attributes:
        event_id: 16 bytes. A UUIDv7 for facts from outside; derived for what the engine makes.
        run_id: the run this episode was planned in.
        episode_id: the episode; empty for the few events that concern none.
        attempt: from 1.
        producer_id: one incarnation of the producer, e.g. ``sim-3f2a``.
        producer_seq: from 0, per episode, attempt and producer.
        occurred_at: when it happened, by the producer's clock (µs since 1970, UTC).
        trace_id: W3C trace id, 32 lower-case hex digits.
        sim_time: simulated seconds since the episode's start, where there is such a thing.
        step: the step that the event is about; see each class.
        origin: ``live``, or ``import`` for recordings brought in later.
    """

    TYPE: ClassVar[str]
    PRODUCER: ClassVar[Producer]

    event_id: bytes
    run_id: str
    episode_id: str
    attempt: int
    producer_id: str
    producer_seq: int
    occurred_at: int
    trace_id: str
    sim_time: float | None = None
    step: int | None = None
    origin: Origin = "live"
