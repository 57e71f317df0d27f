"""Rule sets as data: what detectors look for, and what each rule promises.

A rule set has two parts. *Step rules* look at the steps of an attempt, in the engine, and put labels into its verdict
(and a failure type, where they say so). *Verdict rules* look at the verdicts of one policy, in the detector, and open
triggers. A set is written in YAML (``stepwell patterns check FILE``), takes effect by an event (`RulesActivated`) and
is named in every verdict and trigger that came of it. docs/rules.md is the users' page.

Everything here is plain validated data; the code that judges stands in `stepwell.engine.steps` and
`stepwell.engine.detection`.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from stepwell.events.taxonomy import FAILURE_TYPES

NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
SIGNAL_PATTERN = (
    r"^(action|action_change|action_jerk|reward|inference_s|latency_s|step_wall_s|"
    r"metric\.[A-Za-z0-9_./-]+|observation\.[A-Za-z0-9_./-]+)(\[\d+(:\d+)?\])?$"
)
WINDOW_MAX = 512
"""Verdicts kept per policy; only these can be amended in place."""
ROW_MAX = WINDOW_MAX // 4
STEPS_MAX = 1024
"""The longest look back of a step rule, in steps."""
RULES_MAX = 64
ELEMENTS_MAX = 1024
"""Elements of one signal at most; of more nothing is read."""
VERSION_MAX = 1_000_000
"""A version goes up only: a slip of the keyboard must not leave a name without a next one."""
SPAN_MAX_S = 366 * 86400.0
RATE_MIN = 1e-9
"""Rates and levels below it are slips, and their reciprocals and powers are no numbers to reckon with."""
RUN_LENGTH_MAX = 1e15


def _elements(signal: str) -> str:
    """Refuse elements that cannot be there."""
    base, bracket, inside = signal.partition("[")
    if not bracket:
        return signal
    if base.startswith("metric.") or base in ("reward", "inference_s", "latency_s", "step_wall_s"):
        raise ValueError(f"{base} is one number and has no elements to choose from")
    first, colon, end = inside.removesuffix("]").partition(":")
    if colon and int(first) >= int(end):
        raise ValueError("there are no such elements; [0:3] means elements 0, 1 and 2")
    if colon and int(end) - int(first) > ELEMENTS_MAX:
        raise ValueError(f"at most {ELEMENTS_MAX} elements are looked at")
    return signal


def _one_element(signal: str) -> str:
    """Refuse what is plainly more than one number."""
    _, bracket, inside = signal.partition("[")
    first, colon, end = inside.removesuffix("]").partition(":")
    if bracket and colon and int(end) - int(first) > 1:
        raise ValueError("wants a single element, e.g. [0]")
    return signal


Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
Signal = Annotated[str, Field(pattern=SIGNAL_PATTERN, max_length=120), AfterValidator(_elements)]
Scalar = Annotated[Signal, AfterValidator(_one_element)]
"""A signal of one number."""
Number = Annotated[float, Field(allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=RATE_MIN, lt=1.0, allow_inf_nan=False)]
Level = Annotated[float, Field(ge=RATE_MIN, le=0.5, allow_inf_nan=False)]
Version = Annotated[int, Field(ge=1, le=VERSION_MAX)]
Scope = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=64)]
"""Names; one that ends in ``*`` stands for every name that begins so."""
Part = Literal["scene", "task", "perturbation"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# --- step rules ---------------------------------------------------------------------------------------------------


class _StepRule(_Strict):
    name: Name = Field(description="the label that it puts into the verdict")
    assigns: str | None = Field(
        None,
        description="failure type that an attempt gets which found the label and then failed its task; the first rule "
        "of the set that says so wins",
    )
    tasks: Scope | None = Field(None, description="only in these tasks; all where left out")
    scenes: Scope | None = Field(None, description="only in these scenes; all where left out")
    policies: Scope | None = Field(None, description="only for these policies; all where left out")

    @field_validator("assigns")
    @classmethod
    def _known_type(cls, value: str | None) -> str | None:
        if value is not None and value not in FAILURE_TYPES:
            raise ValueError(f"no failure type; known: {', '.join(sorted(FAILURE_TYPES))}")
        return value


class _KInM(_StepRule):
    steps: Annotated[int, Field(ge=1, le=STEPS_MAX)] = Field(1, description="K: so many steps")
    within: Annotated[int, Field(ge=1, le=STEPS_MAX)] | None = Field(
        None, description="M: of so many; K where left out"
    )

    @model_validator(mode="after")
    def _k_in_m(self) -> Self:
        if self.within is not None and self.within < self.steps:
            raise ValueError(f"within ({self.within}) must not be less than steps ({self.steps})")
        return self


class LimitRule(_KInM):
    """A signal beyond a limit in K of M steps: joint torque, contact force, jerk, latency."""

    kind: Literal["limit"]
    signal: Signal
    above: Number | None = Field(None, description="the largest magnitude of its elements is above this")
    below: Number | None = Field(None, description="its smallest element is below this")

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("give either above or below")
        if self.above is not None and self.above < 0.0:
            raise ValueError("above must not be negative: it is compared with magnitudes, so it would always hold")
        return self


class NonfiniteRule(_KInM):
    """NaN or infinity in a signal in K of M steps."""

    kind: Literal["nonfinite"]
    signal: Signal = "action"


class SaturatedRule(_KInM):
    """Any element of a signal at or beyond its bounds in K of M steps."""

    kind: Literal["saturated"]
    signal: Signal = "action"
    low: Number = -1.0
    high: Number = 1.0
    tolerance: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1e-6

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low must be less than high")
        if 2 * self.tolerance >= self.high - self.low:
            raise ValueError("tolerance leaves no value between the bounds that is not at one")
        return self


class FrozenRule(_StepRule):
    """A signal that does not move: no element changed by more than ``tolerance`` from one step to the next, K times in
    a row.
    """

    kind: Literal["frozen"]
    signal: Signal = "action"
    tolerance: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1e-6
    steps: Annotated[int, Field(ge=2, le=STEPS_MAX)] = 20


class OscillatingRule(_StepRule):
    """One element of a signal turns back at least ``reversals`` times within M steps, each time by ``amplitude`` or
    more.
    """

    kind: Literal["oscillating"]
    signal: Signal = "action"
    amplitude: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.1
    reversals: Annotated[int, Field(ge=2, le=STEPS_MAX)] = 8
    within: Annotated[int, Field(ge=3, le=STEPS_MAX)] = 20

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.reversals > self.within - 2:
            raise ValueError(f"{self.within} steps can turn back {self.within - 2} times at most")
        return self


class StagnationRule(_StepRule):
    """A scalar signal that ought to fall (or rise) has not reached a new best by ``min_change`` for K steps."""

    kind: Literal["stagnation"]
    signal: Scalar
    direction: Literal["falling", "rising"]
    min_change: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1e-6
    steps: Annotated[int, Field(ge=2, le=STEPS_MAX)] = 50


class StaleRule(_StepRule):
    """The same observation, to the bit, K times in a row: a sensor that hangs."""

    kind: Literal["stale"]
    signal: Signal = Field(description="an observation, e.g. observation.proprio")
    steps: Annotated[int, Field(ge=2, le=STEPS_MAX)] = 10

    @field_validator("signal")
    @classmethod
    def _observed(cls, value: str) -> str:
        if not value.startswith("observation."):
            raise ValueError("must be an observation, e.g. observation.proprio")
        return value


class Condition(_Strict):
    """When a moment of a sequence is there: the signal's (single) element compared with a number."""

    signal: Scalar
    above: Number | None = None
    below: Number | None = None

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("give either above or below")
        return self


class SequenceRule(_StepRule):
    """``first``, then ``then`` within a time, else the label: "grasp, then lift within 40 steps".

    The time runs in steps, in simulated seconds or in wall seconds (by the simulator's clock). An attempt that ends
    before its time is up has missed nothing.
    """

    kind: Literal["sequence"]
    first: Condition
    then: Condition
    within_steps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    within_sim_s: Annotated[float, Field(gt=0.0, le=SPAN_MAX_S, allow_inf_nan=False)] | None = None
    within_wall_s: Annotated[float, Field(gt=0.0, le=SPAN_MAX_S, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if sum(item is not None for item in (self.within_steps, self.within_sim_s, self.within_wall_s)) != 1:
            raise ValueError("give one of within_steps, within_sim_s and within_wall_s")
        return self


StepRule = Annotated[
    LimitRule
    | NonfiniteRule
    | SaturatedRule
    | FrozenRule
    | OscillatingRule
    | StagnationRule
    | StaleRule
    | SequenceRule,
    Field(discriminator="kind"),
]


# --- verdict rules ------------------------------------------------------------------------------------------------


class Counted(_Strict):
    """Which failures a rule counts; all of the policy's where nothing is said."""

    failure_types: Annotated[list[str], Field(min_length=1)] | None = None
    labels: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="failures with any of these")

    @field_validator("failure_types")
    @classmethod
    def _of_the_policy(cls, value: list[str] | None) -> list[str] | None:
        for name in value or ():
            fault = FAILURE_TYPES.get(name, (None, ""))[0]
            if fault is None:
                raise ValueError(f"{name}: no failure type; known: {', '.join(sorted(FAILURE_TYPES))}")
            if fault != "policy":
                raise ValueError(f"{name}: is the fault of {fault}; only the policy's own failures feed a retrain rule")
        return value


class _VerdictRule(_Strict):
    name: Name
    version: Version = Field(1, description="stands in trigger ids; raise it with every change")
    per: list[Part] = Field([], description="judged for each policy, version and checkpoint, and for each of these")
    counts: Counted = Counted()
    cooldown_episodes: Annotated[int, Field(ge=0, le=100_000)] = Field(
        10, description="after an answer so many further episodes of its key are its aftermath and open nothing"
    )
    cooldown_s: Annotated[float, Field(ge=0.0, le=SPAN_MAX_S, allow_inf_nan=False)] = Field(
        0.0, description="and so many seconds"
    )
    expires_s: Annotated[float, Field(gt=0.0, le=10 * SPAN_MAX_S, allow_inf_nan=False)] | None = Field(
        None, description="a request that nobody has closed for so long expires"
    )

    @field_validator("per")
    @classmethod
    def _once(cls, value: list[Part]) -> list[Part]:
        if len(set(value)) != len(value):
            raise ValueError("each only once")
        return value


class RunPromise(_Strict):
    """An average run length: with every episode failing independently at ``baseline_rate``, so many counted episodes
    pass on average before the rule opens its first trigger by chance alone.
    """

    baseline_rate: Rate
    average_run_length: Annotated[float, Field(ge=1.0, le=RUN_LENGTH_MAX, allow_inf_nan=False)]


class InARowRule(_VerdictRule):
    """The same failure type N times in a row, in the order in which the verdicts were recorded."""

    kind: Literal["in_a_row"]
    length: Annotated[int, Field(ge=1, le=ROW_MAX)] = 5
    promise: RunPromise = RunPromise(baseline_rate=0.1, average_run_length=100_000.0)


class WindowRateRule(_VerdictRule):
    """More than a share of the last ``window`` episodes failed, of at least ``minimum``; in the order of requests."""

    kind: Literal["window_rate"]
    window: Annotated[int, Field(ge=2, le=WINDOW_MAX)]
    minimum: Annotated[int, Field(ge=2, le=WINDOW_MAX)]
    limit: Rate = Field(description="fires above this share")
    promise: RunPromise

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.minimum > self.window:
            raise ValueError(f"minimum ({self.minimum}) is more than the window holds ({self.window})")
        return self


class RateRule(_VerdictRule):
    """The failure rate is beyond a limit, judged at every episode by a test that holds at any time: the chance ever to
    fire while the true rate is at most ``limit`` is at most ``level``, however long the stream.
    """

    kind: Literal["rate"]
    limit: Rate
    level: Level = 0.01
    minimum: Annotated[int, Field(ge=1, le=WINDOW_MAX)] = 5


class ShiftRule(_VerdictRule):
    """A checkpoint's success rate fell against the one before, judged at every episode: the chance to fire at all while
    it did not fall is at most ``level``.
    """

    kind: Literal["shift"]
    level: Level = 0.01
    minimum: Annotated[int, Field(ge=1, le=WINDOW_MAX)] = Field(5, description="episodes of each of the two")
    baseline: str | None = Field(None, description="checkpoint to compare with; the one before where left out")


VerdictRule = Annotated[InARowRule | WindowRateRule | RateRule | ShiftRule, Field(discriminator="kind")]


# --- the set ------------------------------------------------------------------------------------------------------


class RuleSet(_Strict):
    """A whole rule set."""

    rule_set: Name
    version: Version = 1
    wait_s: Annotated[float, Field(ge=0.0, le=30 * 86400.0, allow_inf_nan=False)] = Field(
        3600.0,
        description="rules that go by the order of requests wait so long for a slower episode requested earlier",
    )
    steps: Annotated[list[StepRule], Field(max_length=RULES_MAX)] = []
    verdicts: Annotated[list[VerdictRule], Field(max_length=RULES_MAX)] = []

    @model_validator(mode="after")
    def _names(self) -> Self:
        for rules in (self.steps, self.verdicts):
            seen: set[str] = set()
            for rule in rules:
                if rule.name in seen:
                    raise ValueError(f"two rules are named {rule.name}")
                seen.add(rule.name)
        return self

    def canonical(self) -> str:
        """The set as canonical JSON: equal sets give equal text."""
        return _canonical(self.model_dump(mode="json"))

    def steps_canonical(self) -> str:
        """The step rules alone, with the set's name: what an attempt is judged by; empty where there are none."""
        if not self.steps:
            return ""
        body = self.model_dump(mode="json", include={"rule_set", "version", "steps"})
        return _canonical(body)

    def sha256(self) -> bytes:
        """Digest of `canonical`."""
        return hashlib.sha256(self.canonical().encode()).digest()


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def read_canonical(text: str) -> RuleSet:
    """The set that `RuleSet.canonical` wrote.

    Raises:
        pydantic.ValidationError: it is none, or of a later version of this module.
    """
    return RuleSet.model_validate_json(text)


BUILT_IN = RuleSet(
    rule_set="built_in",
    version=1,
    verdicts=[InARowRule(kind="in_a_row", name="same_failure_in_a_row")],
)
"""In force until a set is activated."""
