"""What all the records of a log must come to: verdicts, dead letters, triggers, rows of the tables. In one pass."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from stepwell.events.ids import trigger_id_for
from stepwell.events.model import EvidenceEpisode
from tests.simulation.oracle import Episode
from tests.simulation.oracle_records import Raw, activated_steps, decode, fact_of

EVENTS = "stepwell.episode-events"
ROW_OF = 5
RULE = ("same_failure_in_a_row", 1)

Key = tuple[Any, ...]


class World:
    """Everything that follows from the records of ``stepwell.episode-events``, given in the order of each partition."""

    def __init__(self, records: Iterable[Raw]) -> None:
        self.episodes: dict[tuple[int, str], Episode] = {}
        self.raw: dict[tuple[int, int], Raw] = {}
        self.unreadable: set[tuple[int, int]] = set()
        self.runs: dict[str, tuple[str, int]] = {}
        self.episode_rows: dict[str, dict[str, Any]] = {}
        self.requested: dict[Key, tuple[Any, ...]] = {}
        self.claimed: dict[Key, tuple[Any, ...]] = {}
        self.steps: dict[Key, tuple[Any, ...]] = {}
        self.actions: dict[Key, tuple[Any, ...]] = {}
        self.rules: dict[int, str] = {}
        for raw in records:
            self._take(raw)

    def _take(self, raw: Raw) -> None:
        place = (raw.partition, raw.offset)
        self.raw[place] = raw
        activated = activated_steps(raw)
        if activated is not None:
            self.rules[raw.partition] = activated
            return
        fact = fact_of(raw)
        if fact is None:
            self.unreadable.add(place)
            return
        assert raw.key is not None
        name = (raw.partition, raw.key.decode())
        if name not in self.episodes:
            self.episodes[name] = Episode(name[1])
        self.episodes[name].rules = self.rules.get(raw.partition, "")
        self.episodes[name].take(fact)
        self._rows(raw, fact.type, fact.body)

    def _rows(self, raw: Raw, type_name: str, body: dict[str, Any]) -> None:
        place = (raw.partition, raw.offset)
        attempt = (body["episode_id"], body["attempt"])
        fact = (*attempt, body["producer_seq"], body["producer_id"], body["occurred_at"])
        if type_name == "episode::requested":
            asked = (body["occurred_at"], body["requested_by"])
            known = self.runs.get(body["run_id"])
            if known is None or asked[0] < known[1]:
                self.runs[body["run_id"]] = (asked[1], asked[0])
            self.episode_rows.setdefault(body["episode_id"], body | {"place": place})
        if type_name in ("episode::requested", "episode::retry_requested"):
            self.requested.setdefault(attempt, (body["occurred_at"], body.get("reason"), body.get("from_checkpoint")))
        elif type_name == "episode::claimed":
            self.claimed.setdefault(attempt, (body["occurred_at"], body["host"], body["pid"]))
        elif type_name == "sim::step_done":
            self.steps.setdefault(fact, (body["step"], body["action_seq"], body["reward"], body["success"], *place))
        elif type_name == "agent::action_sent":
            self.actions.setdefault(fact, (body["first_step"], body["n_steps"], body["inference_s"], *place))

    @property
    def letters(self) -> set[tuple[int, int, str, str]]:
        """(partition, offset, kind, reason) of every dead letter; the reason of unreadable ones is left open."""
        found = {(*place, "unreadable", "") for place in self.unreadable}
        for (partition, _), episode in self.episodes.items():
            found |= {(partition, *letter) for letter in episode.letters}
        return found

    @property
    def attempts(self) -> dict[tuple[str, int], Any]:
        """Every attempt by episode and number."""
        return {
            (name, number): attempt
            for (_, name), episode in self.episodes.items()
            for number, attempt in episode.attempts.items()
        }

    def open_attempts(self) -> list[tuple[str, int]]:
        """Attempts that will still change: not sealed, taken by somebody, and not held still by a pause (for a day)."""
        return [
            name
            for name, attempt in self.attempts.items()
            if not attempt.sealed
            and any(stream.incarnation is not None for stream in attempt.streams.values())
            and not (attempt.paused and attempt.end_state is None)
        ]


def triggers(records: Iterable[Raw]) -> dict[str, dict[str, Any]]:
    """The triggers that the verdicts in ``stepwell.policy-events`` must have opened, nobody having answered any.

    First attempts in a row, of one policy, version and checkpoint, that failed alike by the policy's fault; errors,
    aborted and helped ones are skipped, and so is what was not run as an evaluation. Once open, a trigger takes in
    everything of its kind.
    """
    rows: dict[Key, list[Key]] = defaultdict(list)
    latest: dict[Key, tuple[dict[str, Any], Raw]] = {}
    found: dict[str, dict[str, Any]] = {}
    opened: set[Key] = set()
    for raw in records:
        decoded = decode(raw)
        assert decoded is not None
        schema, body = decoded
        if schema.type != "verdict::issued":
            continue
        name = (raw.key, body["episode_id"], body["attempt"])
        before = latest.get(name)
        latest[name] = (body, raw)
        row = (body["policy"], body["policy_version"], body["checkpoint"])
        if before is not None:
            assert bearing(before[0]) == bearing(body), "the workload must not amend what a detector rests on"
            continue
        if bearing(body) is None:
            continue
        rows[row].append((bearing(body), name))
        tail = rows[row][-ROW_OF:]
        kind = (row, bearing(body))
        alike = len(tail) == ROW_OF and {entry[0] for entry in tail} == {bearing(body)}
        if not alike or bearing(body) == "success" or kind in opened:
            continue
        opened.add(kind)
        evidence = [_evidence(*latest[entry[1]]) for entry in tail]
        key = f"policy={row[0]} version={row[1]} checkpoint={row[2] or 'none'} failure={body['failure_type']}"
        found[trigger_id_for(*RULE, key, evidence)] = {
            "policy": row[0],
            "failure_type": body["failure_type"],
            "evidence": [(entry.episode_id, entry.partition, entry.offset) for entry in evidence],
        }
    return found


def bearing(verdict: dict[str, Any]) -> str | None:
    """The failure type that counts, ``success``, or None: says nothing about the policy."""
    if verdict["purpose"] != "evaluation":
        return None
    if verdict["attempt"] != 1 or not verdict["autonomous"] or verdict["outcome"] in ("error", "aborted"):
        return None
    return "success" if verdict["outcome"] == "success" else str(verdict["failure_type"])


def _evidence(verdict: dict[str, Any], raw: Raw) -> EvidenceEpisode:
    return EvidenceEpisode(
        episode_id=verdict["episode_id"],
        attempt=verdict["attempt"],
        revision=verdict["revision"],
        partition=raw.partition,
        offset=raw.offset,
        scene=verdict["scene"],
        perturbation=verdict["perturbation"],
        seed=verdict["seed"],
        n_steps=verdict["n_steps"],
    )
