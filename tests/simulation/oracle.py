"""What an episode's records must come to: a second, slow and plain implementation of docs/state-machine.md.

It keeps everything it ever saw (no bounds, no digests, no snapshots, no batches) and works the verdict out afresh after
each record. It shares no code with the engine; a test asserts that it imports none of it. Facts come in as plain
dictionaries (see `oracle_records`).
"""

import math
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepwell.events.taxonomy import OUTCOME_OF_FAULT, fault_of

H = 64
ABSURD = 2**53
REMEMBERED_ACTIONS = 256
REQUESTS = ("episode::requested", "episode::retry_requested")
ENDS = ("episode::ended", "episode::failed", "episode::aborted")
FLIPS = ("episode::paused", "episode::resumed")
ENGINE_FACTS = ("episode::stalled", "episode::timed_out", "episode::sealed")
FACTS = (
    *REQUESTS, *ENDS, *FLIPS, "episode::claimed", "sim::ready", "agent::started", "agent::action_sent",
    "sim::step_done", "episode::checkpoint_saved", "episode::intervened",
)  # fmt: skip
PRODUCERS = ("host", "sim", "agent")
"""In the order in which their held facts are looked at."""


class Fact(NamedTuple):
    """One readable record. ``content``: its bytes, for telling repeats from equivocations; ``body``: its fields."""

    type: str
    producer: str
    seq: int
    content: bytes
    body: dict[str, Any]
    offset: int
    fingerprint: str


class Letter(NamedTuple):
    """A record that must stand among the dead letters."""

    offset: int
    kind: str
    reason: str


class Gap(NamedTuple):
    """Sequences of one producer that something waits for."""

    producer: str
    first: int
    last: int


@dataclass
class Stream:
    """What is known of one producer's facts. ``next``: the lowest sequence that has not had its turn."""

    incarnation: str | None = None
    next: int = 0
    limit: int | None = None
    held: dict[int, Fact] = field(default_factory=dict)
    done: dict[int, Fact] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    late: dict[int, Fact] = field(default_factory=dict)

    def lowest(self) -> Fact:
        return self.held[min(self.held)]


class Attempt:
    """The fold of one attempt. ``rules``: the text of the step rules in force at its first record."""

    def __init__(self, episode: "Episode", number: int, rules: str = "") -> None:
        self.episode = episode
        self.rules = rules
        self.number = number
        self.streams = {name: Stream() for name in PRODUCERS}
        self.live = "INIT"
        self.end_state: str | None = None
        self.end: Fact | None = None
        self.sealed = False
        self.paused = False
        self.flag_unknown = False
        self.flips = 0
        self.first_step = self.next_step = self.covered_to = 0
        self.coverage_unknown = False
        self.may_skip = False
        self.actions: dict[int, tuple[int, int]] = {}
        self.forgotten: set[int] = set()
        self.executed: set[int] = set()
        self.applied: list[Fact] = []
        self.refused: set[tuple[str, str, bytes]] = set()
        self.violations = self.duplicates = self.lost_claims = 0
        self.overflow = False
        self.touched = False
        self.fingerprints: set[str] = set()
        self.first_offset = self.last_offset = -1
        self.run_id = ""
        self.revisions: list[dict[str, Any]] = []

    # --- arrival ---

    def take(self, fact: Fact) -> None:
        """One record, in the log's order."""
        if self.sealed:
            if fact.type not in REQUESTS and fact.producer != "engine":
                self.episode.letter(fact, "after_seal", "after_seal")
            return
        if self.first_offset < 0:
            self.first_offset, self.run_id = fact.offset, fact.body["run_id"]
        self.last_offset = fact.offset
        if fact.producer == "engine":
            self._engine_fact(fact)
        else:
            self._arrive(fact)
        self._revise()

    def _arrive(self, fact: Fact) -> None:
        stream = self.streams[fact.producer]
        if not 0 <= fact.seq <= ABSURD:
            self.refuse(fact, "bad_sequence")
        elif not self._own(fact, stream):
            if fact.type == "episode::claimed":
                self.lost_claims += 1
            else:
                self.refuse(fact, "foreign")
        elif fact.seq in stream.lost:
            stream.lost.discard(fact.seq)
            stream.late[fact.seq] = fact
        elif (code := self._repeat(fact, stream)) is not None:
            if code == "duplicate":
                self.duplicates += 1
            else:
                self.refuse(fact, code)
        elif stream.limit is not None and fact.seq > stream.limit:
            self.refuse(fact, self._beyond(fact))
        else:
            self.fingerprints.add(fact.fingerprint)
            stream.held[fact.seq] = fact
            self.drain()
            self._relieve(stream)

    def _own(self, fact: Fact, stream: Stream) -> bool:
        """Whether it comes from the attempt's incarnation of its producer; the first one binds."""
        if fact.type in REQUESTS:
            return True
        if stream.incarnation is None:
            stream.incarnation = fact.body["producer_id"]
        return bool(stream.incarnation == fact.body["producer_id"])

    def _repeat(self, fact: Fact, stream: Stream) -> str | None:
        known = stream.held.get(fact.seq) or stream.done.get(fact.seq) or stream.late.get(fact.seq)
        if known is None:
            return None
        asked = fact.type in REQUESTS
        same = known.content == fact.content
        old = fact.seq < stream.next - H
        return "duplicate" if asked or same or old else "equivocation"

    def _beyond(self, fact: Fact) -> str:
        return "second_end" if fact.type in ENDS else "beyond_end"

    def refuse(self, fact: Fact, code: str) -> None:
        """Record a violation; the same record again is a duplicate."""
        mark = (code, fact.producer + "/" + fact.body["producer_id"], fact.content)
        if mark in self.refused:
            self.duplicates += 1
            return
        self.refused.add(mark)
        self.violations += 1
        self.episode.letter(fact, "violation", code)

    # --- order ---

    def drain(self) -> None:
        """Give every held fact its turn whose turn it is."""
        moved = True
        while moved:
            moved = False
            for stream in self.streams.values():
                fact = stream.held.get(stream.next)
                if fact is not None and self._ready(fact):
                    del stream.held[fact.seq]
                    stream.done[fact.seq] = fact
                    stream.next += 1
                    self._turn(fact)
                    moved = True
        following = self.episode.attempts.get(self.number + 1)
        if following is not None and not following.sealed and self.end_standing() is not None:
            following.drain()
            following._revise()

    def _ready(self, fact: Fact) -> bool:
        """Whether a fact whose predecessors had their turn waits for nothing else."""
        return self._waits_for(fact) is None

    def _waits_for(self, fact: Fact) -> tuple[str, int] | None:
        """Producer and sequence that it waits for by the rules 1 to 3; producer ``end`` by rule 4."""
        sim, agent = self.streams["sim"], self.streams["agent"]
        if fact.producer == "agent":
            return ("sim", sim.next) if self.live == "INIT" and not self._never_ready() else None
        if fact.type == "sim::step_done":
            named = fact.body["action_seq"]
            if self.live == "INIT" or named < agent.next or named > ABSURD:
                return None
            last = self._announced("last_agent_seq")
            return None if last is not None and named > last else ("agent", named)
        if fact.type in ENDS and fact.seq > 0 and self.end_state is None and not bad_value(fact):
            for name, stream in (("sim", sim), ("agent", agent)):
                last = fact.body[f"last_{name}_seq"]
                if last is not None and last >= stream.next:
                    return name, last
        if fact.type == "episode::retry_requested" and fact.seq == 0 and self.number > 1:
            before = self.episode.attempts.get(self.number - 1)
            return ("end", 0) if before is None or before.end_standing() is None else None
        return None

    def _coming_end(self) -> Fact | None:
        """The end that was applied, or that is the host's next fact."""
        if self.end is not None or self.end_state is not None:
            return self.end
        host = self.streams["host"]
        fact = host.held.get(host.next)
        return fact if fact is not None and fact.type in ENDS and fact.seq > 0 and not bad_value(fact) else None

    def _announced(self, name: str) -> int | None:
        end = self._coming_end()
        last: int | None = None if end is None else end.body[name]
        return last

    def _never_ready(self) -> bool:
        """Whether an end says that the simulator wrote nothing more, though it was never ready."""
        last = self._announced("last_sim_seq")
        return last is not None and last < self.streams["sim"].next

    def end_standing(self) -> dict[str, Any] | None:
        """The end of this attempt, once a valid one is in the log, applied or held, or it timed out."""
        if self.end is not None:
            return self.end.body
        if self.end_state is not None:
            return {}
        held = [fact for _, fact in sorted(self.streams["host"].held.items())]
        return next((f.body for f in held if f.type in ENDS and f.seq > 0 and not bad_value(f)), None)

    # --- loss ---

    def gap(self, fact: Fact) -> Gap | None:
        """What a producer's lowest held fact waits for; None by rule 4."""
        stream = self.streams[fact.producer]
        if fact.seq > stream.next:
            return Gap(fact.producer, stream.next, fact.seq - 1)
        waits = self._waits_for(fact)
        assert waits is not None, "a fact whose turn it is must not be held"
        name, last = waits
        if name == "end":
            return None
        other = self.streams[name]
        if other.next in other.held:
            return self.gap(other.held[other.next])
        return Gap(name, other.next, min([last, *(seq - 1 for seq in other.held)]))

    def _give_up(self, fact: Fact) -> None:
        """Declare lost what this held fact waits for."""
        gap = self.gap(fact)
        if gap is None:
            stream = self.streams["host"]
            request = stream.held.pop(stream.next)
            stream.done[request.seq] = request
            stream.next += 1
            self.refuse(request, "retry_without_end")
        else:
            stream = self.streams[gap.producer]
            assert gap.first == stream.next <= gap.last
            stream.lost |= set(range(gap.first, gap.last + 1))
            stream.next = gap.last + 1
            self._lost(gap.producer)
        self.drain()

    def _lost(self, producer: str) -> None:
        """A lost fact counts as applied with unknown content."""
        if producer == "sim":
            self.may_skip = True
            if self.live == "INIT":
                self.live, self.coverage_unknown = "SIM_READY", True
        elif producer == "agent":
            self.coverage_unknown = True
            if self.live == "SIM_READY":
                self.live = "AGENT_RUNNING"
        else:
            self.flag_unknown = True

    def _relieve(self, stream: Stream) -> None:
        while len(stream.held) > H:
            self.overflow = True
            self._give_up(stream.lowest())

    # --- turns ---

    def _turn(self, fact: Fact) -> None:
        """Judge a fact whose turn it is; apply it or record why not."""
        code = self._illegal(fact) or bad_value(fact)
        if code is not None:
            self.refuse(fact, code)
            return
        self.applied.append(fact)
        _EFFECTS.get(fact.type, Attempt._nothing)(self, fact)

    def _illegal(self, fact: Fact) -> str | None:
        if fact.producer == "host":
            return self._illegal_of_host(fact)
        if fact.type == "sim::ready":
            return None if self.live == "INIT" else "illegal"
        if fact.type == "agent::started":
            return None if self.live in ("INIT", "SIM_READY") else "illegal"
        if bad_value(fact):
            return None  # judged as that
        if fact.type == "agent::action_sent":
            known_coverage = self.live != "INIT" and not self.coverage_unknown
            return "hole" if known_coverage and fact.body["first_step"] > self.covered_to else None
        return self._illegal_step(fact)

    def _illegal_of_host(self, fact: Fact) -> str | None:
        right = REQUESTS[0] if self.number == 1 else REQUESTS[1]
        if fact.type in ENDS and self.end_state is not None:
            return "second_end"
        if fact.type == "episode::claimed" and fact.seq != 1:
            return "misplaced_claim"
        if fact.seq == 0:
            if fact.type not in REQUESTS:
                return "no_request"
            if fact.type != right:
                return "wrong_request"
            before = self.episode.attempts.get(self.number - 1)
            end = None if before is None else before.end_standing()
            return "retry_after_success" if end is not None and is_success(end) else None
        if fact.type in REQUESTS:
            return "misplaced_request"
        if fact.type in FLIPS:
            wanted = fact.type == "episode::resumed"
            right_flag = self.flag_unknown or self.paused == wanted
            return None if self.end_state is None and right_flag else "illegal"
        return None

    def _illegal_step(self, fact: Fact) -> str | None:
        if self.live == "INIT":
            return "illegal"
        step, named = fact.body["step"], fact.body["action_seq"]
        if not (step == self.next_step or (self.may_skip and step >= self.next_step)):
            return "not_next_step"
        if self._unknown_action(named):
            return None
        if named in self.forgotten:
            return None if step < self.covered_to else "not_covered"
        first, end = self.actions.get(named, (0, 0))
        return None if first <= step < end else "not_covered"

    def _unknown_action(self, seq: int) -> bool:
        agent = self.streams["agent"]
        return seq in agent.lost or seq in agent.late

    # --- effects ---

    def _nothing(self, fact: Fact) -> None:
        pass

    def _on_ready(self, fact: Fact) -> None:
        agent = self.streams["agent"]
        self.live = "AGENT_RUNNING" if agent.lost or agent.late else "SIM_READY"
        self.first_step = self.next_step = self.covered_to = fact.body["first_step"]

    def _on_started(self, _fact: Fact) -> None:
        if self.live != "INIT":
            self.live = "AGENT_RUNNING"

    def _on_action(self, fact: Fact) -> None:
        first = fact.body["first_step"]
        if self.live == "INIT":
            return
        self.actions[fact.seq] = (first, first + fact.body["n_steps"])
        self.covered_to = max(self.covered_to, first + fact.body["n_steps"])
        waiting = [seq for seq, (_, end) in self.actions.items() if end > self.next_step and seq not in self.forgotten]
        self.forgotten |= set(sorted(waiting)[:-REMEMBERED_ACTIONS])
        self._live_from_counters()

    def _on_step(self, fact: Fact) -> None:
        step, named = fact.body["step"], fact.body["action_seq"]
        self.next_step = step + 1
        self.may_skip = False
        if self._unknown_action(named):
            self.covered_to = max(self.covered_to, step + 1)
        else:
            self.executed.add(named)
        self._live_from_counters()

    def _live_from_counters(self) -> None:
        steps = any(fact.type == "sim::step_done" for fact in self.applied)
        self.live = "STEP_COMPLETE" if steps and self.covered_to == self.next_step else "AGENT_RUNNING"

    def _on_flip(self, fact: Fact) -> None:
        self.paused = fact.type == "episode::paused"
        self.flag_unknown = False
        self.flips += 1

    def _on_end(self, fact: Fact) -> None:
        self.end = fact
        self.end_state = {"ended": "EPISODE_DONE", "failed": "FAILED", "aborted": "ABORTED"}[fact.type.split("::")[1]]
        self.streams["host"].limit = fact.seq
        for name in ("sim", "agent"):
            self.streams[name].limit = fact.body[f"last_{name}_seq"]
        for stream in self.streams.values():
            if stream.limit is None:
                continue
            for seq in sorted(seq for seq in stream.held if seq > stream.limit):
                beyond = stream.held.pop(seq)
                self.refuse(beyond, self._beyond(beyond))
            counted = [seq for seq in (*stream.done, *stream.late) if seq > stream.limit]
            if counted:  # one letter for all of them, with the record at which it was noticed: maybe another attempt's
                self.violations += len(counted)
                self.episode.letters.append(Letter(self.episode.offset, "violation", "beyond_end"))

    # --- the engine's own facts ---

    def owes(self) -> tuple[str, int] | None:
        """Who owes the next event, and its sequence."""
        for stream in self.streams.values():
            if stream.held:
                gap = self.gap(stream.lowest())
                return ("host", self.streams["host"].next) if gap is None else (gap.producer, gap.first)
        if self.end_state is not None:
            return None
        host, sim = self.streams["host"], self.streams["sim"]
        if self.paused:
            owner = "host"
        elif self.live == "INIT":
            owner = "host" if host.incarnation is None and sim.incarnation is None else "sim"
        else:
            owner = "sim" if self.covered_to > self.next_step else "agent"
        return owner, self.streams[owner].next

    def _note_silence(self, fact: Fact) -> None:
        """A report of silence whose token fits tells step rules that time has passed, where nothing waits."""
        waiting = any(stream.held for stream in self.streams.values())
        fits = (*(self.owes() or ()), self.flips) == tuple(fact.body[name] for name in ("owed", "owed_seq", "flips"))
        if fits and not waiting and not self.paused:
            self.applied.append(fact)

    def _engine_fact(self, fact: Fact) -> None:
        if fact.type != "episode::sealed":
            self._note_silence(fact)
        if fact.type == "episode::sealed":
            if self.end_standing() is None:
                return
            while waiting := [stream for stream in self.streams.values() if stream.held]:
                self._give_up(waiting[0].lowest())
            self.sealed = True
        elif fact.type == "episode::timed_out":
            owed = self.owes()
            if owed is None or (*owed, self.flips) != tuple(fact.body[name] for name in ("owed", "owed_seq", "flips")):
                return
            waiting = [stream for stream in self.streams.values() if stream.held]
            if waiting:
                self._give_up(waiting[0].lowest())
            else:
                self.end_state = "FAILED"
                self.timed_out = fact
                self.drain()

    # --- the verdict ---

    timed_out: Fact | None = None

    def phase(self) -> str:
        """The state as users see it."""
        return self.end_state or self.live

    def _revise(self) -> None:
        if self.end_state is None:
            return
        content = self.verdict()
        if content is not None and (not self.revisions or not same(self.revisions[-1], content)):
            self.revisions.append(content)

    def verdict(self) -> dict[str, Any] | None:
        """The content of the verdict; None before the end."""
        if self.end_state is None:
            return None
        from tests.simulation.oracle_verdict import content_of

        return content_of(self)


class Episode:
    """The fold of one episode: its attempts, and the letters that its records must have brought about."""

    def __init__(self, episode_id: str) -> None:
        self.episode_id = episode_id
        self.attempts: dict[int, Attempt] = {}
        self.letters: list[Letter] = []
        self.offset = -1
        self.rules = ""
        """The step rules in force for attempts that begin now."""

    def letter(self, fact: Fact, kind: str, reason: str) -> None:
        """Note a dead letter."""
        self.letters.append(Letter(fact.offset, kind, reason))

    def take(self, fact: Fact) -> None:
        """One record, in the log's order."""
        self.offset = fact.offset
        if fact.type not in FACTS and fact.type not in ENGINE_FACTS:
            self.letter(fact, "violation", "unexpected_type")
        elif fact.body["episode_id"] != self.episode_id:
            self.letter(fact, "violation", "wrong_episode")
        elif fact.body["attempt"] < 1:
            self.letter(fact, "violation", "bad_attempt")
        elif fact.body["attempt"] in self.attempts or fact.type in FACTS:  # the engine's facts begin no attempt
            number = fact.body["attempt"]
            if number not in self.attempts:
                self.attempts[number] = Attempt(self, number, self.rules)
            self.attempts[number].take(fact)


def is_success(end: dict[str, Any]) -> bool:
    """Whether an end is a success."""
    return bool("success" in end and end["success"] is True)


def bad_value(fact: Fact) -> str | None:
    """Whether a step, a count or a sequence in a fact is negative or absurdly large."""
    body = fact.body
    least: dict[str, int] = {}
    if fact.type == "sim::ready":
        least = {"first_step": 0}
    elif fact.type == "agent::action_sent":
        if body["first_step"] + body["n_steps"] > ABSURD:
            return "bad_value"
        least = {"first_step": 0, "n_steps": 1}
    elif fact.type == "sim::step_done":
        least = {"step": 0, "action_seq": -(2**63)}
    elif fact.type in ENDS:
        least = {"n_steps": 0, "last_sim_seq": -1, "last_agent_seq": -1}
    for name, minimum in least.items():
        if body[name] is None:
            if fact.type in ENDS:
                continue
            return "bad_value"
        if not minimum <= body[name] <= ABSURD:
            return "bad_value"
    return None


def same(one: Any, other: Any) -> bool:
    """Equal, floats to the bit."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)


def taxonomy(failure_type: str) -> tuple[str, str]:
    """Outcome and fault of a failure type."""
    fault = fault_of(failure_type)
    return OUTCOME_OF_FAULT[fault], fault


_EFFECTS = {
    "sim::ready": Attempt._on_ready,
    "agent::started": Attempt._on_started,
    "agent::action_sent": Attempt._on_action,
    "sim::step_done": Attempt._on_step,
    "episode::paused": Attempt._on_flip,
    "episode::resumed": Attempt._on_flip,
    **dict.fromkeys(ENDS, Attempt._on_end),
}
