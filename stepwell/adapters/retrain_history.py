"""The trigger ledger as the log tells it: what was asked of training services, and what became of it.

    muted ──mute ends──> open ──a person acknowledges──> acknowledged
                          │ ──a service accepts──> accepted
                          └──> done, failed, rejected (answered) · expired · withdrawn

The detector judges (`stepwell.engine.detection.ledger`); this reads the same from what it published and from what
was answered:

* The first answer that closes a request counts. Later ones stay in the log and change nothing.
* The detector withdraws, or lets expire, only what was not closed; so either beats any answer, and of a trigger that
  it closed at most an ``accepted`` counts.
* A service's ``accepted`` says more than a person's acknowledgement.
* A pattern without a request stands muted; a service that has it from the patterns can answer it all the same.
"""

from dataclasses import dataclass

from stepwell.adapters.logs.reading import read_all, read_of_type
from stepwell.engine.detection.ledger import ANSWERS, CLOSING_ANSWERS
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import (
    PatternDetected,
    RetrainAcknowledged,
    RetrainAnswered,
    RetrainExpired,
    RetrainRequested,
    RetrainWithdrawn,
)
from stepwell.events.topics import FAILURE_PATTERNS, POLICY_EVENTS, RETRAIN_REQUESTS, RETRAIN_RESULTS
from stepwell.exceptions import NotFoundError

STATES = ("open", "acknowledged", "accepted", "done", "failed", "rejected", "expired", "withdrawn", "muted")
STANDING = ("open", "acknowledged", "accepted")
"""What a closing answer can still end."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One trigger and what came of it.

    Attributes:
        about: the request; of a muted trigger the pattern, which says as much but proposes nothing.
        answers: every answer to it, in the log's order.
        acknowledgements: every one, in the log's order.
        withdrawal: set once it has lost its evidence.
        expiry: set once it has stood open for too long.
    """

    about: RetrainRequested | PatternDetected
    answers: tuple[RetrainAnswered, ...] = ()
    acknowledgements: tuple[RetrainAcknowledged, ...] = ()
    withdrawal: RetrainWithdrawn | None = None
    expiry: RetrainExpired | None = None

    @property
    def trigger_id(self) -> str:
        """Its id, which never changes."""
        return self.about.trigger_id

    @property
    def requested(self) -> bool:
        """Whether training services were asked."""
        return isinstance(self.about, RetrainRequested)

    @property
    def request(self) -> RetrainRequested:
        """What was asked.

        Raises:
            NotFoundError: nothing was, because the policy was muted.
        """
        if not isinstance(self.about, RetrainRequested):
            raise NotFoundError(
                f"trigger {self.trigger_id} is muted: its pattern was published, but nothing was asked of anyone"
            )
        return self.about

    @property
    def counting(self) -> RetrainAnswered | None:
        """The answer that counts: the first that closes the request, else the last ``accepted``.

        Where the detector has closed it, a closing answer came too late and is none.
        """
        known = [answer for answer in self.answers if answer.status in ANSWERS]
        if self.withdrawal is not None or self.expiry is not None:
            known = [answer for answer in known if answer.status not in CLOSING_ANSWERS]
        closing = next((answer for answer in known if answer.status in CLOSING_ANSWERS), None)
        return closing or (known[-1] if known else None)

    @property
    def acknowledged(self) -> tuple[str, str]:
        """Who acknowledged it last, and the last thing that was said with it; empty where nothing was."""
        if not self.acknowledgements:
            return "", ""
        details = (each.detail for each in reversed(self.acknowledgements) if each.detail)
        return self.acknowledgements[-1].acknowledged_by, next(details, "")

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.withdrawal is not None:
            return "withdrawn"
        if self.expiry is not None:
            return "expired"
        if self.counting is not None:
            return self.counting.status
        if not self.requested:
            return "muted"
        return "acknowledged" if self.acknowledgements else "open"

    @property
    def closed(self) -> bool:
        """Whether no answer can change the state any more."""
        return self.state not in STANDING


def read_ledger(log: MessageLog, codec: Codec) -> list[LedgerEntry]:
    """All triggers, muted ones too, in the order of their opening; each once however often it was published."""
    about: dict[str, RetrainRequested | PatternDetected] = {}
    withdrawals: dict[str, RetrainWithdrawn] = {}
    expiries: dict[str, RetrainExpired] = {}
    answers: dict[tuple[str, str], list[RetrainAnswered]] = {}
    acknowledgements: dict[tuple[str, str], list[RetrainAcknowledged]] = {}
    for event in read_all(log, codec, RETRAIN_REQUESTS):
        if isinstance(event, RetrainRequested):
            about.setdefault(event.trigger_id, event)
        elif isinstance(event, RetrainWithdrawn):
            withdrawals.setdefault(event.trigger_id, event)
        elif isinstance(event, RetrainExpired):
            expiries.setdefault(event.trigger_id, event)
    for pattern in read_of_type(log, codec, FAILURE_PATTERNS, PatternDetected):
        about.setdefault(pattern.trigger_id, pattern)
    # An answer or acknowledgement that names another policy is none.
    for answer in read_of_type(log, codec, RETRAIN_RESULTS, RetrainAnswered):
        answers.setdefault((answer.trigger_id, answer.policy), []).append(answer)
    for seen in read_of_type(log, codec, POLICY_EVENTS, RetrainAcknowledged):
        acknowledgements.setdefault((seen.trigger_id, seen.policy), []).append(seen)
    return [
        LedgerEntry(
            each,
            tuple(answers.get((each.trigger_id, each.policy), ())),
            tuple(acknowledgements.get((each.trigger_id, each.policy), ())),
            withdrawals.get(each.trigger_id),
            expiries.get(each.trigger_id),
        )
        for each in sorted(about.values(), key=lambda each: each.occurred_at)
    ]


def read_requests(log: MessageLog, codec: Codec) -> list[LedgerEntry]:
    """As `read_ledger`, without those that nobody was asked about."""
    return [entry for entry in read_ledger(log, codec) if entry.requested]


def find_entry(log: MessageLog, codec: Codec, trigger: str) -> LedgerEntry:
    """The entry with this trigger id, or the one whose id begins so.

    Raises:
        NotFoundError: there is none, or more than one.
    """
    return _only(read_ledger(log, codec), trigger)


def find_request(log: MessageLog, codec: Codec, trigger: str) -> LedgerEntry:
    """As `find_entry`, among those that were asked of training services."""
    return _only(read_requests(log, codec), trigger)


def _only(entries: list[LedgerEntry], trigger: str) -> LedgerEntry:
    found = [entry for entry in entries if entry.trigger_id == trigger]
    found = found or [entry for entry in entries if trigger and entry.trigger_id.startswith(trigger)]
    if len(found) > 1:
        names = ", ".join(entry.trigger_id for entry in found[:5])
        raise NotFoundError(f"{len(found)} requests begin with {trigger!r}: {names} …; give more of the id")
    if not found:
        raise NotFoundError(f"no request in the log begins with {trigger!r}; stepwell retrain list lists them")
    return found[0]
