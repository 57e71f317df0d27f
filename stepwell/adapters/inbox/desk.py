"""Whose turn it is: from the inbox to the handler and back. The same for threads and for asyncio.

Where requests are to survive a member that is lost for good with its disk (``adopt_after_s``), silence decides: a
request about which the log has heard nothing for so long, neither an answer nor a new ``accepted``, is given up by
whoever had it, and the member that has its partition now takes it. So a member says ``accepted`` when it begins, and
again every third of that time while it works.
"""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import structlog

from stepwell.adapters.inbox.store import FIRST_PAUSE_S, Arrival, Entry, Inbox
from stepwell.adapters.inbox.watch import OpenRequest, RequestWatch
from stepwell.engine.ports import TopicPartition
from stepwell.events.codec import Codec
from stepwell.events.model import Headers, RetrainRequested, RetrainWithdrawn
from stepwell.exceptions import ConfigurationError, EventError

_logger = structlog.get_logger(__name__)

FAILURES_MAX = 5
SIGNS_PER_SILENCE = 3
UNFINISHED_MAX = 256
"""Requests that a member takes before it has finished some."""
HELD_OFF_MAX = 16
"""Policies whose requests were put back and wait for their pause to end, before no more are taken."""
ASKED_LATELY_S = 5.0
"""Who asked so lately, and got nothing, will ask again."""


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

    def members_of(self, group: str) -> str:
        """The consumer group that members of ``group`` with this choice of policies form.

        What a group has passed by is gone for all its members. So those that want some policies only must not pass the
        others by in the name of everybody.
        """
        if self.policies is None:
            return group
        return f"{group}.only-{sha256(json.dumps(sorted(self.policies)).encode()).hexdigest()[:8]}"

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


@dataclass(frozen=True, slots=True)
class Room:
    """What can be taken from the log now.

    Attributes:
        busy: the policies that have something unfinished here.
        free: so many more requests could be started at once.
        left: so many more may be stored.
    """

    busy: frozenset[str]
    free: int
    left: int


class Desk:
    """Hands out what the inbox holds, and takes note of what became of it. Safe to share between threads."""

    def __init__(self, inbox: Inbox, watch: RequestWatch, codec: Codec, wanted: Wanted) -> None:
        self.inbox = inbox
        self.wanted = wanted
        self.watch = watch
        self._codec = codec
        self._out: dict[int, Entry] = {}
        self._said_at: dict[int, float] = {}
        self._askers: set[object] = set()
        self._asked_until = 0.0
        self._news = threading.Condition()
        inbox.recover(wanted.failures_max)

    # --- arriving ---

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

    def is_closed(self, arrival: Arrival) -> bool:
        """Whether it need not be taken, as far as `watch` has read; nothing is where closed ones are wanted, too."""
        if not self.wanted.only_open or arrival.kind != "requested":
            return False
        return self.watch.closed(arrival.trigger_id, arrival.policy) is not None

    # --- asking ---

    def ask(self, asker: object) -> None:
        """Somebody waits for a request; until `begin` or `asked`. Saying it twice says it once."""
        self._askers.add(asker)

    def asked(self, asker: object, *, served: bool) -> None:
        """Somebody waits no longer."""
        self._askers.discard(asker)
        if not served:
            self._asked_until = time.monotonic() + ASKED_LATELY_S

    def room(self) -> Room:
        """What can be taken from the log now: no more than somebody waits for, so that other members get the rest."""
        loads = self.inbox.loads()
        ready = sum(1 for each in loads if not each.working and not each.held_off and self.wanted.takes(each.policy))
        hungry = max(len(self._askers), 1 if time.monotonic() < self._asked_until else 0)
        if sum(1 for each in loads if each.held_off) >= HELD_OFF_MAX:
            hungry = 0
        left = max(UNFINISHED_MAX - sum(each.requests for each in loads), 0)
        return Room(frozenset(each.policy for each in loads), max(hungry - ready, 0), left)

    def wait(self, timeout_s: float) -> None:
        """Wait until something may be there to hand out."""
        with self._news:
            self._news.wait(timeout_s)

    def wake(self) -> None:
        """Let all look who `wait`."""
        with self._news:
            self._news.notify_all()

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

    def begin(self, entry: Entry, asker: object = None) -> bool:
        """Hand it out; False where somebody else has done so meanwhile. ``asker`` has asked for it."""
        # First, so that at no moment both the request and who waited for it count: else one more would be taken.
        asking = asker in self._askers
        self._askers.discard(asker)
        begun = self.inbox.begin(entry.number)
        if asking and not begun:
            self._askers.add(asker)
        if begun:
            self._asked_until = 0.0
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

        As from the log, no more than can be started: one of each policy that has none here.

        Args:
            owned: the group's committed position in each of them; what lies above comes by itself.
        """
        if self.wanted.adopt_after_s is None:
            return 0
        self.watch.refresh()
        before = time.time_ns() // 1000 - round(self.wanted.adopt_after_s * 1e6)
        room = self.room()
        busy = set(room.busy)
        silent: list[OpenRequest] = []
        for each in self.watch.open_requests():
            if len(silent) >= min(room.free, room.left):
                break
            if (
                each.policy not in busy
                and self.wanted.takes(each.policy)
                and each.offset < owned.get(each.source, 0)
                and self._heard_of(each) <= before
                and not self.inbox.knows(each.trigger_id)
            ):
                busy.add(each.policy)
                silent.append(each)
        arrivals = [
            Arrival("requested", each.trigger_id, each.policy, each.source, each.offset, each.value, each.headers)
            for each in silent
        ]
        for each in silent:
            _logger.warning("request_adopted", trigger_id=each.trigger_id, policy=each.policy)
        count = self.inbox.store(arrivals, adopted=True) if arrivals else 0
        self.wake()
        return count

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
