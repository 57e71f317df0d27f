"""What was asked of training services and what became of it, read from the log.

Which answer counts is the detector's to say (`stepwell.engine.ledger`): the first that closes the request. Later ones
stay in the log and change nothing. The detector withdraws only what was not closed, so a withdrawal beats any answer.
"""

from dataclasses import dataclass

from stepwell.adapters.logs.reading import read_all
from stepwell.engine.ledger import ANSWERS, CLOSING_ANSWERS
from stepwell.engine.ports import MessageLog, TopicPartition
from stepwell.engine.reading import read_range, watermarks_of
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered, RetrainRequested, RetrainWithdrawn
from stepwell.events.topics import RETRAIN_REQUESTS, RETRAIN_RESULTS
from stepwell.exceptions import EventError, NotFoundError


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One request and what came of it.

    Attributes:
        request: what was asked.
        answers: every answer to it, in the log's order.
        withdrawal: set once the request has lost its evidence.
    """

    request: RetrainRequested
    answers: tuple[RetrainAnswered, ...] = ()
    withdrawal: RetrainWithdrawn | None = None

    @property
    def counting(self) -> RetrainAnswered | None:
        """The answer that counts: the first that closes the request, else the last ``accepted``."""
        known = [answer for answer in self.answers if answer.status in ANSWERS]
        closing = next((answer for answer in known if answer.status in CLOSING_ANSWERS), None)
        return closing or (known[-1] if known else None)

    @property
    def state(self) -> str:
        """``open``, ``withdrawn``, or the status of the answer that counts."""
        if self.withdrawal is not None:
            return "withdrawn"
        return self.counting.status if self.counting is not None else "open"

    @property
    def closed(self) -> bool:
        """Whether no answer can change the state any more."""
        return self.state not in ("open", "accepted")


def read_requests(log: MessageLog, codec: Codec) -> list[RequestEntry]:
    """All requests in the order they were made, each once however often it was published."""
    requests: dict[str, RetrainRequested] = {}
    withdrawals: dict[str, RetrainWithdrawn] = {}
    answers: dict[tuple[str, str], list[RetrainAnswered]] = {}
    for event in read_all(log, codec, RETRAIN_REQUESTS):
        if isinstance(event, RetrainRequested):
            requests.setdefault(event.trigger_id, event)
        elif isinstance(event, RetrainWithdrawn):
            withdrawals.setdefault(event.trigger_id, event)
    for event in read_all(log, codec, RETRAIN_RESULTS):
        if isinstance(event, RetrainAnswered):  # one for another policy answers nothing
            answers.setdefault((event.trigger_id, event.policy), []).append(event)
    return [
        RequestEntry(
            request, tuple(answers.get((request.trigger_id, request.policy), ())), withdrawals.get(request.trigger_id)
        )
        for request in sorted(requests.values(), key=lambda request: request.occurred_at)
    ]


def find_request(log: MessageLog, codec: Codec, trigger: str) -> RequestEntry:
    """The request with this trigger id, or the one whose id begins so.

    Raises:
        NotFoundError: there is none, or more than one.
    """
    entries = read_requests(log, codec)
    found = [entry for entry in entries if entry.request.trigger_id == trigger]
    found = found or [entry for entry in entries if trigger and entry.request.trigger_id.startswith(trigger)]
    if len(found) > 1:
        names = ", ".join(entry.request.trigger_id for entry in found[:5])
        raise NotFoundError(f"{len(found)} requests begin with {trigger!r}: {names} …; give more of the id")
    if not found:
        raise NotFoundError(f"no request in the log begins with {trigger!r}; stepwell retrain list lists them")
    return found[0]


class ClosedRequests:
    """Which requests are closed, kept up with the log as it grows."""

    def __init__(self, log: MessageLog, codec: Codec) -> None:
        self._log = log
        self._codec = codec
        self._positions: dict[TopicPartition, int] = {}
        self._answered: set[tuple[str, str]] = set()
        self._withdrawn: set[str] = set()

    def holds(self, request: RetrainRequested) -> bool:
        """Whether the request has been closed by now; reads on only where it has not been before.

        Raises:
            LogUnavailableError: the log does not answer. What was read stays known; call again.
        """
        if not self._known(request):
            for topic in (RETRAIN_REQUESTS, RETRAIN_RESULTS):
                for source, mark in watermarks_of(self._log, topic).items():
                    self._read_on(source, max(self._positions.get(source, 0), mark.low), mark.high)
        return self._known(request)

    def _known(self, request: RetrainRequested) -> bool:
        return (request.trigger_id, request.policy) in self._answered or request.trigger_id in self._withdrawn

    def _read_on(self, source: TopicPartition, start: int, end: int) -> None:
        for batch in read_range(self._log, source, start, end):
            for value, headers in zip(batch.values, batch.headers, strict=True):
                try:
                    event = self._codec.decode(value, headers)
                except EventError:
                    continue
                if isinstance(event, RetrainWithdrawn):
                    self._withdrawn.add(event.trigger_id)
                elif isinstance(event, RetrainAnswered) and event.status in CLOSING_ANSWERS:
                    self._answered.add((event.trigger_id, event.policy))
            self._positions[source] = batch.end
