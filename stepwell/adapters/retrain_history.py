"""What was asked of training services and what became of it, read from the log."""

from dataclasses import dataclass

from stepwell.adapters.logs.reading import read_all
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered, RetrainRequested, RetrainWithdrawn
from stepwell.events.topics import RETRAIN_REQUESTS, RETRAIN_RESULTS


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One request. ``state`` is ``open``, ``withdrawn`` or the last answer's status."""

    request: RetrainRequested
    state: str


def read_requests(log: MessageLog, codec: Codec) -> list[RequestEntry]:
    """All requests in the order they were made, each once however often it was published."""
    requests: dict[str, RetrainRequested] = {}
    states: dict[str, str] = {}
    for event in read_all(log, codec, RETRAIN_REQUESTS):
        if isinstance(event, RetrainRequested):
            requests.setdefault(event.trigger_id, event)
        elif isinstance(event, RetrainWithdrawn):
            states[event.trigger_id] = "withdrawn"
    for event in read_all(log, codec, RETRAIN_RESULTS):
        if isinstance(event, RetrainAnswered):
            states[event.trigger_id] = event.status
    ordered = sorted(requests.values(), key=lambda request: request.occurred_at)
    return [RequestEntry(request, states.get(request.trigger_id, "open")) for request in ordered]
