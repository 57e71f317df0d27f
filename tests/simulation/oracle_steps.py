"""What the step rules must find in an attempt: a second, plain implementation. Part of the oracle; see `oracle`.

It works everything out afresh from the facts that the attempt applied: first what each rule's signal was at every
moment, then by the rule's own words whether and where it holds. Rules come as plain dictionaries, from their JSON.
"""

import hashlib
import itertools
import json
import math
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.oracle import Attempt, Fact

Body = dict[str, Any]
Series = list[Any]

LARGE_BYTES, MANY_ELEMENTS, REMEMBERED = 32_768, 1024, 64
SIZES = {"float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
CODES = {"float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "uint8": "B", "bool": "?"}
TICKS = ("episode::stalled", "episode::timed_out")


class Moment:
    """``sim::ready`` or a step, with what it was done with. ``anew``: steps were lost before it."""

    def __init__(self, at: int, body: Body, *, ready: bool, anew: bool) -> None:
        self.at, self.body, self.ready, self.anew = at, body, ready, anew
        self.label_step = at + 1 if ready else at
        self.chunk: Body | None = None
        self.latency: float | None = None
        self.ticks: list[int] = []


def found_labels(attempt: "Attempt") -> dict[str, int]:
    """The labels of the attempt's rules, with the step of each."""
    if not attempt.rules:
        return {}
    moments = moments_of(attempt)
    found = {}
    for rule in json.loads(attempt.rules)["steps"]:
        step = FINDERS[rule["kind"]](rule, moments)
        if step is not None and _is_for(rule, attempt):
            found[rule["name"]] = step
    return found


def _is_for(rule: Body, attempt: "Attempt") -> bool:
    """Whether the rule names task, scene and policy of the request, or leaves them open."""
    named = {key: rule.get(key) for key in ("tasks", "scenes", "policies") if rule.get(key) is not None}
    request = next(
        (fact.body for fact in attempt.applied if fact.type.endswith(("::requested", "::retry_requested"))), None
    )
    for key, names in named.items():
        if request is None:
            return False
        value = request[{"tasks": "task", "scenes": "scene", "policies": "policy"}[key]]
        if not any(value == name or (name[-1] == "*" and value.startswith(name[:-1])) for name in names):
            return False
    return True


def assigned(attempt: "Attempt") -> str | None:
    """The failure type of the first rule that found its label and assigns one."""
    if not attempt.rules:
        return None
    found = found_labels(attempt)
    types = [rule["assigns"] for rule in json.loads(attempt.rules)["steps"] if rule["name"] in found]
    return next((name for name in types if name is not None), None)


def rule_set(attempt: "Attempt") -> str:
    """As provenance names it."""
    if not attempt.rules:
        return "step-labels/1"
    body = json.loads(attempt.rules)
    return (
        f"step-labels/1 {body['rule_set']}/{body['version']} {hashlib.sha256(attempt.rules.encode()).hexdigest()[:8]}"
    )


# --- moments ------------------------------------------------------------------------------------------------------


def moments_of(attempt: "Attempt") -> list[Moment]:
    """Every moment, in the simulator's order."""
    chunks = {fact.seq: fact for fact in attempt.applied if fact.type == "agent::action_sent"}
    first_use: dict[int, float | None] = {}
    moments: list[Moment] = []
    for fact in attempt.applied:
        if fact.type == "sim::ready":
            moments.append(Moment(fact.body["first_step"] - 1, fact.body, ready=True, anew=False))
        elif fact.type == "sim::step_done":
            step = fact.body["step"]
            moment = Moment(step, fact.body, ready=False, anew=not moments or moments[-1].at != step - 1)
            chunk = known_chunk(attempt, chunks, fact.body["action_seq"])
            if chunk is not None:
                if chunk.seq not in first_use:
                    first_use[chunk.seq] = latency_at(moments, moment, chunk.body)
                moment.chunk, moment.latency = chunk.body, first_use[chunk.seq]
            moments.append(moment)
        elif fact.type in TICKS and moments:
            moments[-1].ticks.append(fact.body["occurred_at"])
    return moments


def known_chunk(attempt: "Attempt", chunks: dict[int, "Fact"], seq: int) -> "Fact | None":
    return None if seq in attempt.forgotten else chunks.get(seq)


def latency_at(before: list[Moment], moment: Moment, chunk: Body) -> float | None:
    """Seconds from the observation that a chunk was computed from to the chunk."""
    observed = chunk["observed_step"]
    if observed is None or moment.anew:
        return None
    for other in before[::-1][:REMEMBERED]:
        if other.at + 1 == observed:
            return float((chunk["occurred_at"] - other.body["occurred_at"]) / 1_000_000)
        if other.anew:
            return None
    return None


# --- signals ------------------------------------------------------------------------------------------------------


def series_of(signal: str, moments: list[Moment]) -> Series:
    """The elements of a signal at each moment, None where unknown."""
    return [elements_at(signal, moments, index) for index in range(len(moments))]


def elements_at(signal: str, moments: list[Moment], index: int) -> list[float] | None:
    path, _, inside = signal.partition("[")
    base, _, name = path.partition(".")
    moment = moments[index]
    if base == "observation":
        tensor = next((entry for entry in moment.body["observation"] if entry["name"] == name), None)
        return None if tensor is None else chosen(numbers(tensor), inside)
    if moment.ready:
        return None
    if base == "metric":
        values = [entry["value"] for entry in moment.body["metrics"] if entry["name"] == name]
        return values[:1] or None
    if base in ("reward", "step_wall_s"):
        return single(moment.body[base])
    if base == "inference_s":
        return single(None if moment.chunk is None else moment.chunk["inference_s"])
    if base == "latency_s":
        return single(moment.latency)
    return difference({"action": 0, "action_change": 1, "action_jerk": 3}[base], moments, index, inside)


def single(number: float | None) -> list[float] | None:
    return None if number is None else [number]


def difference(order: int, moments: list[Moment], index: int, inside: str) -> list[float] | None:
    """The action's difference of an order, from the rows of the last moments."""
    rows = []
    for back in range(order + 1):
        if index - back < 0 or moments[index - back].ready:
            return None
        row = row_at(moments[index - back])
        if row is None or (back < order and moments[index - back].anew):
            return None
        rows.append(row)
    if len({len(row) for row in rows}) > 1:
        return None
    weights = {0: (1.0,), 1: (1.0, -1.0), 3: (1.0, -3.0, 3.0, -1.0)}[order]
    mixed = []
    for column in zip(*rows, strict=True):
        total = column[0]
        for weight, value in zip(weights[1:], column[1:], strict=True):
            total = total + weight * value
        mixed.append(total)
    return chosen(mixed, inside)


def row_at(moment: Moment) -> list[float] | None:
    """The row of the chunk that was applied."""
    chunk = moment.chunk
    if chunk is None:
        return None
    count, shape = chunk["n_steps"], chunk["action"]["shape"]
    flat = numbers(chunk["action"])
    if flat is None or len(flat) % count or (count > 1 and (not shape or shape[0] != count)):
        return None
    width = len(flat) // count
    start = (moment.at - chunk["first_step"]) * width
    return flat[start : start + width] if width <= MANY_ELEMENTS else None


def numbers(tensor: Body) -> list[float] | None:
    """All elements as floats; None where the tensor is not to be read."""
    code, data = CODES.get(tensor["dtype"]), tensor["data"]
    if code is None or not data or len(data) > LARGE_BYTES or len(data) % SIZES[tensor["dtype"]]:
        return None
    return [float(number) for (number,) in struct.iter_unpack(f"<{code}", data)]


def chosen(flat: list[float] | None, inside: str) -> list[float] | None:
    if flat is None:
        return None
    if inside:
        first, colon, end = inside[:-1].partition(":")
        last = int(end) if colon else int(first) + 1
        if last > len(flat):
            return None
        flat = flat[int(first) : last]
    return flat if 0 < len(flat) <= MANY_ELEMENTS else None


def content_at(signal: str, moment: Moment) -> Any:
    """What tells an observation from another one."""
    path, _, inside = signal.partition("[")
    name = path.partition(".")[2]
    tensor = next((entry for entry in moment.body["observation"] if entry["name"] == name), None)
    if tensor is None:
        return None
    form = (tensor["dtype"], tuple(tensor["shape"]))
    if not inside:
        digest = tensor["sha256"] if tensor["uri"] is not None else hashlib.sha256(tensor["data"]).digest()
        return None if digest is None else (form, digest)
    if chosen(numbers(tensor), inside) is None:
        return None
    first, colon, end = inside[:-1].partition(":")
    size = SIZES[tensor["dtype"]]
    return form, tensor["data"][int(first) * size : (int(end) if colon else int(first) + 1) * size]


# --- kinds --------------------------------------------------------------------------------------------------------


def looked_at(moments: list[Moment], *signals: str) -> list[Moment]:
    """The moments that a rule sees: the first observation only where it reads nothing but observations."""
    if all(signal.startswith("observation.") for signal in signals):
        return moments
    return [moment for moment in moments if not moment.ready]


def in_a_row(moments: list[Moment], known: Series, index: int) -> int:
    """So many moments up to this one follow one another with known values."""
    count = 0
    while index >= 0 and known[index] is not None:
        count += 1
        if moments[index].anew:
            break
        index -= 1
    return count


def find_k_in_m(rule: Body, moments: list[Moment], hit: Any) -> int | None:
    series = series_of(rule["signal"], moments)
    seen = looked_at(moments, rule["signal"])
    known = [value for value, moment in zip(series, moments, strict=True) if moment in seen]
    window = rule["within"] or rule["steps"]
    for index, moment in enumerate(seen):
        reach = min(window, in_a_row(seen, known, index))
        recent = known[index - reach + 1 : index + 1] if reach else []
        if sum(bool(hit(values)) for values in recent) >= rule["steps"]:
            return moment.label_step
    return None


def find_limit(rule: Body, moments: list[Moment]) -> int | None:
    if rule["above"] is not None:
        return find_k_in_m(rule, moments, lambda values: any(abs(x) > rule["above"] for x in values))
    return find_k_in_m(rule, moments, lambda values: any(x < rule["below"] for x in values))


def find_nonfinite(rule: Body, moments: list[Moment]) -> int | None:
    return find_k_in_m(rule, moments, lambda values: not all(map(math.isfinite, values)))


def find_saturated(rule: Body, moments: list[Moment]) -> int | None:
    low, high = rule["low"] + rule["tolerance"], rule["high"] - rule["tolerance"]
    return find_k_in_m(rule, moments, lambda values: any(x <= low or x >= high for x in values))


def known_series(rule: Body, moments: list[Moment]) -> tuple[list[Moment], Series]:
    seen = looked_at(moments, rule["signal"])
    both = zip(series_of(rule["signal"], moments), moments, strict=True)
    return seen, [value for value, moment in both if moment in seen]


def find_frozen(rule: Body, moments: list[Moment]) -> int | None:
    seen, known = known_series(rule, moments)
    for index, moment in enumerate(seen):
        if in_a_row(seen, known, index) <= rule["steps"]:
            continue
        recent = known[index - rule["steps"] : index + 1]
        if all(
            len(a) == len(b) and all(abs(x - y) <= rule["tolerance"] for x, y in zip(a, b, strict=True))
            for a, b in itertools.pairwise(recent)
        ):
            return moment.label_step
    return None


def find_stale(rule: Body, moments: list[Moment]) -> int | None:
    known = [content_at(rule["signal"], moment) for moment in moments]
    for index, moment in enumerate(moments):
        enough = in_a_row(moments, known, index) >= rule["steps"]
        if enough and len(set(known[index - rule["steps"] + 1 : index + 1])) == 1:
            return moment.label_step
    return None


def find_stagnation(rule: Body, moments: list[Moment]) -> int | None:
    seen, known = known_series(rule, moments)
    known = [values if values is not None and len(values) == 1 else None for values in known]
    falling = rule["direction"] == "falling"
    for index, moment in enumerate(seen):
        run = known[index - in_a_row(seen, known, index) + 1 : index + 1] if known[index] is not None else []
        best: float | None = None
        since = 0
        for (value,) in run:
            signed = -value if falling else value
            better = not math.isnan(signed) if best is None else (signed > best and signed - best >= rule["min_change"])
            best, since = (signed, 0) if better else (best, since + 1)
        if since >= rule["steps"]:
            return moment.label_step
    return None


def reversals(values: list[tuple[int, float]], amplitude: float) -> list[int]:
    """Where one element turns back. Pairs of index and value, NaN left out."""
    start, rising = None, False
    for here in range(len(values)):
        value, before = values[here][1], [entry[1] for entry in values[:here]]
        if before and (value - min(before) >= amplitude or max(before) - value >= amplitude):
            start, rising = here, value - min(before) >= amplitude
            break
    found: list[int] = []
    while start is not None:
        turned = None
        for here in range(start + 1, len(values)):
            way = [entry[1] for entry in values[start : here + 1]]
            away = max(way) - way[-1] if rising else way[-1] - min(way)
            if away >= amplitude:
                turned = here
                break
        if turned is not None:
            found.append(values[turned][0])
        start, rising = turned, not rising
    return found


def find_oscillating(rule: Body, moments: list[Moment]) -> int | None:
    seen, known = known_series(rule, moments)
    earliest = None
    index = 0
    while index < len(seen):
        if known[index] is None:
            index += 1
            continue
        end = index + 1
        while (
            end < len(seen) and known[end] is not None and not seen[end].anew and len(known[end]) == len(known[index])
        ):
            end += 1
        for column in range(len(known[index])):
            values = [(at, known[at][column]) for at in range(index, end) if not math.isnan(known[at][column])]
            turned = reversals(values, rule["amplitude"])
            for last in range(rule["reversals"] - 1, len(turned)):
                if turned[last] - turned[last - rule["reversals"] + 1] < rule["within"]:
                    at = turned[last]
                    earliest = at if earliest is None else min(earliest, at)
                    break
        index = end
    return None if earliest is None else seen[earliest].label_step


def holds(condition: Body, moments: list[Moment], index: int) -> bool | None:
    """Whether a condition holds at a moment; None where unknown. What a step does not say does not hold."""
    signal = condition["signal"]
    values = elements_at(signal, moments, index)
    if values is not None and len(values) == 1:
        return values[0] > condition["above"] if condition["above"] is not None else values[0] < condition["below"]
    base, _, name = signal.partition("[")[0].partition(".")
    body = moments[index].body
    said = {
        "metric": lambda: any(entry["name"] == name for entry in body["metrics"]),
        "observation": lambda: any(entry["name"] == name for entry in body["observation"]),
        "reward": lambda: body["reward"] is not None,
        "step_wall_s": lambda: body["step_wall_s"] is not None,
    }
    return False if base in said and not said[base]() else None


def clock_of(rule: Body, moment: Moment) -> tuple[Any, float]:
    """What the rule's clock says at a moment, and how long it waits."""
    if rule["within_steps"] is not None:
        return moment.at, rule["within_steps"]
    if rule["within_sim_s"] is not None:
        return moment.body["sim_time"], rule["within_sim_s"]
    return moment.body["occurred_at"], rule["within_wall_s"] * 1_000_000


def find_sequence(rule: Body, moments: list[Moment]) -> int | None:
    seen = looked_at(moments, rule["first"]["signal"], rule["then"]["signal"])
    firsts, thens = (
        [holds(rule[which], moments, at) for at, moment in enumerate(moments) if moment in seen]
        for which in ("first", "then")
    )
    index = 0
    while index < len(seen):
        end = index
        before = index == 0 or firsts[index - 1] is False
        if firsts[index] and before and not seen[index].anew:
            outcome, end = wait_end(rule, seen, thens, index)
            if outcome == "missed":
                return seen[end].label_step
        index = end + 1
    return None


def wait_end(rule: Body, seen: list[Moment], thens: Series, start: int) -> tuple[str, int]:
    """How a wait that begins at a moment ends, and at which one."""
    since, within = clock_of(rule, seen[start])
    if thens[start] is None or since is None or thens[start]:
        return "answered", start
    for at in range(start, len(seen)):
        now = clock_of(rule, seen[at])[0]
        if at > start:
            if seen[at].anew or thens[at] is None or now is None:
                return "given up", at
            if now - since > within or (now - since >= within and not thens[at]):
                return "missed", at
            if thens[at]:
                return "answered", at
        if rule["within_wall_s"] is not None and any(tick - since > within for tick in seen[at].ticks):
            return "missed", at
    return "open", len(seen)


FINDERS = {
    "limit": find_limit,
    "nonfinite": find_nonfinite,
    "saturated": find_saturated,
    "frozen": find_frozen,
    "oscillating": find_oscillating,
    "stagnation": find_stagnation,
    "stale": find_stale,
    "sequence": find_sequence,
}
