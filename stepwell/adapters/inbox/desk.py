"""Whose turn it is: from the inbox to the handler and back. The same for threads and for asyncio.

Where requests are to survive a member that is lost for good with its disk (``adopt_after_s``), silence decides: a
request about which the log has heard nothing for so long, neither an answer nor a new ``accepted``, is given up by
whoever had it, and the member that has its partition now takes it. So a member says ``accepted`` when it begins, and
again every third of that time while it works.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from stepwell.adapters.inbox.store import FIRST_PAUSE_S, Arrival, Entry, Inbox
from stepwell.adapters.inbox.watch import OpenRequest, RequestWatch
from stepwell.engine.ports import RecordBatch, TopicPartition
from stepwell.events.codec import Codec
from stepwell.events.model import Headers, RetrainRequested, RetrainWithdrawn
from stepwell.exceptions import ConfigurationError, EventError, LogUnavailableError

_logger = structlog.get_logger(__name__)

FAILURES_MAX = 5
SIGNS_PER_SILENCE = 3


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request, with where it stood in the log.

    Attributes:
        event: the request, or its withdrawal.
        source, offset: its place in ``stepwell.retrain-requests``.
        failures: how often it was begun before without coming to an end: the handler failed, or its process died.
    """

    event: RetrainRequested | RetrainWithdrawn
    source: TopicPartition
    offset: int
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a member hands out.

    Attributes:
        policies: only requests for these; None for all.
        withdrawals: `RetrainWithdrawn` too.
        only_open: pass over what is closed by the time it is its turn.
        failures_max: park a request that was begun so often without coming to an end.
        retry_pause_s: pause before a request whose handler failed comes again; doubles each time, up to ten minutes.
        adopt_after_s: take requests that were silent for so long; None: never.
    """

    policies: frozenset[str] | None = None
    withdrawals: bool = False
    only_open: bool = True
    failures_max: int = FAILURES_MAX
    retry_pause_s: float = FIRST_PAUSE_S
    adopt_after_s: float | None = None

    def __post_init__(self) -> None:
        if self.failures_max < 1:
            raise ConfigurationError("failures_max must be 1 or more")
        if self.retry_pause_s < 0:
            raise ConfigurationError("retry_pause_s must not be negative")
        if self.adopt_after_s is not None and not self.adopt_after_s > 0:
            raise ConfigurationError("adopt_after_s must be above 0; None leaves other members' requests alone")

    def takes(self, policy: str) -> bool:
        """Whether requests for a policy are wanted."""
        return self.policies is None or policy in self.policies


class Desk:
    """Hands out what the inbox holds, and takes note of what became of it. Safe to share between threads."""

    def __init__(self, inbox: Inbox, watch: RequestWatch, codec: Codec, wanted: Wanted) -> None:
        self.inbox = inbox
        self.wanted = wanted
        self.watch = watch
        self._codec = codec
        self._out: dict[int, Entry] = {}
        self._said_at: dict[int, float] = {}
        inbox.recover(wanted.failures_max)

    # --- arriving ---

    def arrivals(self, batch: RecordBatch) -> list[Arrival]:
        """What a batch holds for this member."""
        columns = zip(batch.offsets, batch.values, batch.headers, strict=True)
        found = (self.arrival(batch.source, offset, value, headers) for offset, value, headers in columns)
        return [each for each in found if each is not None]

    def arrival(self, source: TopicPartition, offset: int, value: bytes | None, headers: Headers) -> Arrival | None:
        """A record as the inbox keeps it; None where it concerns nobody here."""
        try:
            event = self._codec.decode(value, headers)
        except EventError as error:
            _logger.error("unreadable_request", partition=source.partition, offset=offset, reason=str(error))
            return Arrival("unreadable", "", "", source, offset, value, headers, f"cannot be read: {error}")
        if isinstance(event, RetrainRequested) and self.wanted.takes(event.policy):
            return Arrival("requested", event.trigger_id, event.policy, source, offset, value, headers)
        if isinstance(event, RetrainWithdrawn) and self.wanted.withdrawals and self.wanted.takes(event.policy):
            return Arrival("withdrawn", event.trigger_id, event.policy, source, offset, value, headers)
        return None

    def still_wanted(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Those that are not closed by now, where that matters and the log can tell; the rest need not be stored."""
        if not (self.wanted.only_open and arrivals):
            return arrivals
        try:
            self.watch.refresh()
        except LogUnavailableError:
            return arrivals  # asked again when it is their turn
        return [
            each
            for each in arrivals
            if each.kind != "requested" or self.watch.closed(each.trigger_id, each.policy) is None
        ]

    # --- working ---

    def find(self) -> tuple[Entry, Delivery] | None:
        """What could be handed out next, if it is still open; changes nothing of that. May ask the log.

        Raises:
            LogUnavailableError: the log cannot tell now whether it is open.
            InboxError: the inbox failed.
        """
        fresh = not self._asks_log()
        while due := [each for each in self.inbox.due() if each.kind == "unreadable" or self.wanted.takes(each.policy)]:
            for entry in due:
                if entry.kind == "requested" and not fresh:
                    self.watch.refresh()
                    fresh = True
                delivery = self._delivery(entry)
                if delivery is not None:
                    return entry, delivery
            # All of these were put away; behind them may be others.
        return None

    def begin(self, entry: Entry) -> bool:
        """Hand it out; False where somebody else has done so meanwhile."""
        begun = self.inbox.begin(entry.number)
        if begun:
            self._out[entry.number] = entry
            self._said_at[entry.number] = time.monotonic()
        return begun

    def out(self) -> list[Entry]:
        """What is handed out now, in the order in which that happened."""
        return list(self._out.values())

    def out_of(self, delivery: Delivery) -> Entry | None:
        """The entry of a delivery that is out."""
        place = (delivery.source, delivery.offset)
        return next((each for each in self.out() if (each.source, each.offset) == place), None)

    def finish(self, entry: Entry, reason: str) -> None:
        """Its handler is done with it."""
        self.inbox.finish(entry.number, reason)
        self._take_in(entry)

    def put_back(self, entry: Entry) -> None:
        """Nobody has worked on it: it comes again at once, and nothing is counted."""
        self.inbox.put_back(entry.number)
        self._take_in(entry)

    def fail(self, entry: Entry, reason: str, *, pause: bool = True) -> bool:
        """Its handler failed; True where that was once too often, and it is parked."""
        pause_s = self.wanted.retry_pause_s if pause else 0.0
        parked = self.inbox.fail(entry.number, reason, self.wanted.failures_max, pause_s)
        self._take_in(entry)
        if parked:
            _logger.error("request_parked", trigger_id=entry.trigger_id, policy=entry.policy, reason=reason)
        return parked

    # --- other members ---

    @property
    def adopts(self) -> bool:
        """Whether silence gives requests away."""
        return self.wanted.adopt_after_s is not None

    def unsaid(self) -> list[Entry]:
        """What is worked on and about which the log should hear again."""
        if self.wanted.adopt_after_s is None:
            return []
        before = time.monotonic() - self.wanted.adopt_after_s / SIGNS_PER_SILENCE
        return [each for each in self.out() if each.kind == "requested" and self._said_at[each.number] <= before]

    def said(self, entry: Entry) -> None:
        """The log has heard of it."""
        if entry.number in self._out:
            self._said_at[entry.number] = time.monotonic()

    def adopt(self, owned: Mapping[TopicPartition, int]) -> int:
        """Take what others have given up, of the partitions that are this member's; how many requests that were.

        Args:
            owned: the group's committed position in each of them; what lies above comes by itself.
        """
        if self.wanted.adopt_after_s is None:
            return 0
        self.watch.refresh()
        before = time.time_ns() // 1000 - round(self.wanted.adopt_after_s * 1e6)
        silent = [
            each
            for each in self.watch.open_requests()
            if self.wanted.takes(each.policy)
            and each.offset < owned.get(each.source, 0)
            and self._heard_of(each) <= before
            and not self.inbox.knows(each.trigger_id)
        ]
        arrivals = [
            Arrival("requested", each.trigger_id, each.policy, each.source, each.offset, each.value, each.headers)
            for each in silent
        ]
        for each in silent:
            _logger.warning("request_adopted", trigger_id=each.trigger_id, policy=each.policy)
        return self.inbox.store(arrivals, adopted=True) if arrivals else 0

    def _heard_of(self, request: OpenRequest) -> int:
        sign = self.watch.sign(request.trigger_id, request.policy)
        return max(request.appended_at, sign.at) if sign is not None else request.appended_at

    def _elsewhere(self, entry: Entry) -> bool:
        """Whether another member has said not long ago that it works on this."""
        sign = self.watch.sign(entry.trigger_id, entry.policy)
        if self.wanted.adopt_after_s is None or sign is None:
            return False
        own = {entry.claims[at : at + 16] for at in range(0, len(entry.claims), 16)}
        return sign.event_id not in own and sign.at > time.time_ns() // 1000 - self.wanted.adopt_after_s * 1e6

    def _asks_log(self) -> bool:
        return self.wanted.only_open or self.adopts

    def _delivery(self, entry: Entry) -> Delivery | None:
        """The delivery of an entry; None, and it is put away, where nobody need get it."""
        arrival = self.arrival(entry.source, entry.offset, entry.value, entry.headers)
        if arrival is None:
            self.inbox.finish(entry.number, "not asked for")
            return None
        if arrival.kind == "unreadable":
            self.inbox.park(entry.number, arrival.reason)
            return None
        if entry.kind == "unreadable":  # a newer version of Stepwell can read it; it comes round again
            self.inbox.reread(entry.number, arrival)
            return None
        if arrival.kind == "requested" and self.wanted.only_open:
            how = self.watch.closed(entry.trigger_id, entry.policy)
            if how is not None:
                self.inbox.finish(entry.number, f"passed over: {how}")
                return None
        if arrival.kind == "requested" and self._elsewhere(entry):
            assert self.wanted.adopt_after_s is not None, "else nothing is elsewhere"
            self.inbox.hold_off(entry.number, self.wanted.adopt_after_s / SIGNS_PER_SILENCE)
            return None
        event = self._codec.decode(entry.value, entry.headers)
        assert isinstance(event, RetrainRequested | RetrainWithdrawn), "arrival() let nothing else through"
        return Delivery(event, entry.source, entry.offset, entry.failures)

    def _take_in(self, entry: Entry) -> None:
        self._out.pop(entry.number, None)
        self._said_at.pop(entry.number, None)
