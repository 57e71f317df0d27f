"""What the detector knows of one policy, and as bytes.

Everything is bounded. Per policy: `WINDOW_MAX` verdicts and `KEPT_MAX` older ones of rows that go on, `FORGOTTEN_MAX`
revisions, `QUEUE_MAX` requested episodes, `MUTES_MAX` mutes, `STANDING_MAX` standing and `CLOSED_MAX` closed triggers.
Per rule `KEYS_MAX` keys: of a rule over rows each with a row of at most N - 1 episodes, of one in the order of requests
with counts, at most `EVIDENCE_MAX` failures (of many keys fewer, see `named_max`) and, where the rule has a window,
that many bits and cells, or else at most `CELLS_MAX` counts. A rule that would need more is parked, and a dead letter
says so.
"""

import functools
import hashlib
from collections.abc import Iterator

import msgspec

from stepwell.engine.detection.bearing import Entry, Key
from stepwell.engine.detection.ledger import CLOSED_MAX, STANDING_MAX, Ledger
from stepwell.engine.detection.mutes import MUTES_MAX, Mutes, holds
from stepwell.engine.ruleset import WINDOW_MAX
from stepwell.events.model import EvidenceEpisode

DETECTOR_VERSION = 3
"""Raise it whenever this package judges or keeps its state differently: snapshots of another version are folded again.
"""

FORGOTTEN_MAX = 2048
"""Episodes remembered by revision alone after they left the window: a late amendment must not pass for a new one."""

QUEUE_MAX = 4096
"""Requested episodes whose turn is kept; one more lets the longest outstanding one pass its turn."""

EVIDENCE_MAX = 64
"""Most episodes that a trigger of a rule in the order of requests names."""

KEYS_MAX = 4096
"""Keys that one rule tells apart for one policy; for one more the rule is parked."""

KEPT_MAX = 32_768
"""Episodes kept beyond the window because a row goes on; for one more the rule that keeps most is parked."""

NAMED_MAX = 32_768
"""Failures that the streams of one rule name, together."""

NAMED_MIN = 8
"""And at least so many for each."""

CELLS_MAX = 256
"""Cells whose failures a stream counts; those that come after them are left out of sampling weights."""

NEVER = 2**62
"""A rank that no episode reaches."""


Cell = tuple[str, str]
"""Scene and perturbation."""


def cell_of(evidence: EvidenceEpisode) -> Cell:
    """Where an episode took place."""
    return evidence.scene, evidence.perturbation


class Tally(msgspec.Struct, array_like=True):
    """Failures, and episodes that said anything."""

    failures: int = 0
    episodes: int = 0

    def add(self, failed: bool, sign: int = 1) -> None:
        """One episode more, or one less."""
        self.failures += sign if failed else 0
        self.episodes += sign


class Failure(msgspec.Struct, array_like=True):
    """A failure that a rule counted: evidence of a trigger to come."""

    rank: int
    evidence: EvidenceEpisode
    failure_type: str


class Stream(msgspec.Struct):
    """What a rule in the order of requests has seen under one key.

    Attributes:
        since: the first rank that counts; `NEVER` from a closing answer until the cool-down is over.
        trigger: the trigger that stands or cools down; empty for none.
        barred: its trigger has expired, and nothing has failed since.
        tally: the episodes from ``since`` on; of a rule with a window, those in it.
        cells: the same by cell, of a rule without a window.
        window: of a rule with a window, rank, failure and cell of each of its episodes.
        recent: counted failures, by rank: of each cell the last ones, as many of each as there is room for.
        order: of a rule that compares, how many keys were seen before this one.
        begun, total: of a rule that compares, all episodes of the key from rank ``begun`` on, whatever was answered.
        base, base_since, old: the key that this one is compared with, and its episodes from that rank on.
    """

    since: int
    trigger: str = ""
    barred: bool = False
    tally: Tally = msgspec.field(default_factory=Tally)
    cells: dict[Cell, Tally] = msgspec.field(default_factory=dict)
    window: list[tuple[int, bool, Cell]] = msgspec.field(default_factory=list)
    recent: list[Failure] = msgspec.field(default_factory=list)
    order: int = 0
    begun: int = 0
    total: Tally = msgspec.field(default_factory=Tally)
    base: Key | None = None
    base_since: int = 0
    old: Tally = msgspec.field(default_factory=Tally)


class Row(msgspec.Struct, array_like=True):
    """The failures of one type since the key's last episode that was none, as far as no trigger has taken them in."""

    failure_type: str
    episodes: list[str] = msgspec.field(default_factory=list)


class RuleState(msgspec.Struct, dict=True):
    """What one rule of the set in force has seen.

    Attributes:
        digest: of the rule; another rule under the same name starts anew.
        since_number: the first episode that it reads, in the order of the log.
        since_rank: and in the order of requests.
        seen: keys seen so far.
        streams: by key, of rules in the order of requests.
        rows: by key, of rules over rows: the row that its last episode belongs to.
    """

    digest: str
    since_number: int = 0
    since_rank: int = 0
    seen: int = 0
    streams: dict[Key, Stream] = msgspec.field(default_factory=dict)
    rows: dict[Key, Row] = msgspec.field(default_factory=dict)

    @functools.cached_property
    def compared(self) -> dict[Key | None, list[Key]]:
        """The keys that are compared with a key; None: with none yet. Worked out, and no part of the state."""
        found: dict[Key | None, list[Key]] = {}
        for key, stream in self.streams.items():
            found.setdefault(stream.base, []).append(key)
        return found

    def changed(self) -> None:
        """A key came, or is compared with another: what was worked out holds no more."""
        self.__dict__.clear()


class PolicyState(msgspec.Struct):
    """What the detector knows of one policy.

    Attributes:
        policy: its name.
        window: the last `WINDOW_MAX` episodes by episode id, in the order of the log.
        kept: older ones, in the same order, that belong to a row that goes on.
        forgotten: the last revision of episodes that left both, oldest first.
        queue: episodes whose turn has not come, in the order of requests.
        held: those of them whose verdict is there, with when it came (µs), in the order of the log.
        recorded: episodes recorded so far; the next one's number.
        admitted: episodes that had their turn; the next one's rank.
        rules: the rules in force, by name.
        parked: rules that raised, with the offset at which they did.
        ledger: its triggers.
        mutes: see `stepwell.engine.detection.mutes`.
        now: the latest time that the log has told (µs).
        last_offset: the last record that is in here.
        published: how many events went out; the next one's ``producer_seq``.
        ignored: records that changed nothing (repeats, old revisions, answers to nobody).
    """

    policy: str
    window: dict[str, Entry] = msgspec.field(default_factory=dict)
    kept: dict[str, Entry] = msgspec.field(default_factory=dict)
    forgotten: dict[str, int] = msgspec.field(default_factory=dict)
    queue: dict[str, None] = msgspec.field(default_factory=dict)
    held: dict[str, int] = msgspec.field(default_factory=dict)
    recorded: int = 0
    admitted: int = 0
    rules: dict[str, RuleState] = msgspec.field(default_factory=dict)
    parked: dict[str, int] = msgspec.field(default_factory=dict)
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    mutes: Mutes = msgspec.field(default_factory=dict)
    now: int = 0
    last_offset: int = -1
    published: int = 0
    ignored: int = 0

    def muted(self, rule: str) -> bool:
        """Whether requests of this rule are held back."""
        return holds(self.mutes, rule)

    def hold(self, episode: str, entry: Entry) -> None:
        """Put a new entry at the window's end."""
        entry.number = self.recorded
        self.recorded += 1
        self.window[episode] = entry

    def entry(self, episode: str) -> Entry | None:
        """The episode's verdict, where it can still be amended in place."""
        return self.window.get(episode) or self.kept.get(episode)

    def entries(self) -> Iterator[Entry]:
        """All of these, in the order of the log."""
        yield from self.kept.values()
        yield from self.window.values()

    def latest(self) -> Iterator[Entry]:
        """All of these, the newest first."""
        yield from reversed(self.window.values())
        yield from reversed(self.kept.values())

    def replace(self, episode: str, entry: Entry) -> None:
        """Put an amended entry in the old one's place."""
        place = self.window if episode in self.window else self.kept
        entry.number, entry.rank = place[episode].number, place[episode].rank
        place[episode] = entry

    def keep(self, episode: str) -> None:
        """Let the oldest episode leave the window, but not go."""
        self.kept[episode] = self.window.pop(episode)

    def forget(self, episode: str) -> None:
        """Let an episode go; its revision stays known for a while."""
        entry = self.window.pop(episode, None) or self.kept.pop(episode)
        self.forgotten[episode] = entry.evidence.revision
        while len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PolicyState)


def named_max(keys: int) -> int:
    """How many failures each stream names where there are so many."""
    return min(EVIDENCE_MAX, max(NAMED_MIN, NAMED_MAX // max(1, keys)))


def dump(state: PolicyState) -> bytes:
    """The state as canonical bytes: equal states give equal bytes."""
    return _ENCODER.encode(state)


def load(data: bytes) -> PolicyState:
    """The state that `dump` wrote."""
    return _DECODER.decode(data)


def _detector_hash() -> str:
    bounds = (WINDOW_MAX, FORGOTTEN_MAX, QUEUE_MAX, EVIDENCE_MAX, KEYS_MAX, MUTES_MAX, STANDING_MAX, CLOSED_MAX)
    more = (KEPT_MAX, NAMED_MAX, NAMED_MIN, CELLS_MAX)
    return hashlib.sha256(repr((DETECTOR_VERSION, bounds, more)).encode()).hexdigest()[:32]


DETECTOR_HASH = _detector_hash()
"""Of the code that judges and of its bounds; the rules themselves are events and no part of it."""
