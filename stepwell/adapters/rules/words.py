"""What a rule looks for and what it promises, each in a short sentence for people."""

from stepwell.engine.ruleset import (
    Condition,
    FrozenRule,
    InARowRule,
    LimitRule,
    NonfiniteRule,
    OscillatingRule,
    RateRule,
    RuleSet,
    SaturatedRule,
    SequenceRule,
    ShiftRule,
    StagnationRule,
    StaleRule,
    StepRule,
    VerdictRule,
    WindowRateRule,
)

PROMISE_OF_STEPS = "exact: a label says what the recorded steps show"


def looks_for(rule: StepRule | VerdictRule) -> str:
    """What the rule looks for."""
    match rule:
        case LimitRule():
            side = f"above {rule.above:g} in magnitude" if rule.above is not None else f"below {rule.below:g}"
            return f"{rule.signal} {side} in {_k_in_m(rule.steps, rule.within)}"
        case NonfiniteRule():
            return f"NaN or infinity in {rule.signal} in {_k_in_m(rule.steps, rule.within)}"
        case SaturatedRule():
            return f"{rule.signal} at {rule.low:g} or {rule.high:g} in {_k_in_m(rule.steps, rule.within)}"
        case FrozenRule():
            return f"{rule.signal} unchanged (within {rule.tolerance:g}) {rule.steps} times in a row"
        case OscillatingRule():
            return (
                f"{rule.signal} turns back {rule.reversals} times within {rule.within} steps, "
                f"by {rule.amplitude:g} or more"
            )
        case StagnationRule():
            return f"{rule.signal} without a new best ({rule.direction}, by {rule.min_change:g}) for {rule.steps} steps"
        case StaleRule():
            return f"{rule.signal} the same to the bit {rule.steps} times in a row"
        case SequenceRule():
            return f"{_condition(rule.first)}, then not {_condition(rule.then)} within {_clock(rule)}"
        case InARowRule():
            return f"the same failure type in {rule.length} episodes in a row{_counted(rule)}"
        case WindowRateRule():
            return (
                f"more than {_percent(rule.limit)} failed of the last {rule.window} episodes "
                f"(of at least {rule.minimum}){_counted(rule)}"
            )
        case RateRule():
            return f"failure rate above {_percent(rule.limit)} (after {rule.minimum} episodes at least){_counted(rule)}"
        case ShiftRule():
            against = f"checkpoint {rule.baseline}" if rule.baseline is not None else "the checkpoint before"
            return f"success rate below that of {against} (after {rule.minimum} episodes of each){_counted(rule)}"


def judged_per(rule: StepRule | VerdictRule) -> str:
    """What the rule is judged for, each by itself."""
    if isinstance(rule, InARowRule | WindowRateRule | RateRule):
        return ", ".join(["policy", "version", "checkpoint", *rule.per])
    if isinstance(rule, ShiftRule):
        return ", ".join(["policy", "version", *rule.per])
    return "attempt"


def promised(rule: StepRule | VerdictRule) -> str:
    """What the rule promises."""
    match rule:
        case InARowRule() | WindowRateRule():
            promise = rule.promise
            return (
                f"on average at least {promise.average_run_length:,.0f} episodes until the first false alarm, "
                f"where {_percent(promise.baseline_rate)} fail"
            )
        case RateRule():
            return f"false alarm ever: at most {_percent(rule.level)}, where at most {_percent(rule.limit)} fail"
        case ShiftRule():
            return f"false alarm ever: at most {_percent(rule.level)}, where the success rate did not fall"
        case _:
            return PROMISE_OF_STEPS


def effect(rule: StepRule | VerdictRule) -> str:
    """What follows where it finds something."""
    if isinstance(rule, InARowRule | WindowRateRule | RateRule | ShiftRule):
        return "asks for retraining"
    return f"label; failure type {rule.assigns}" if rule.assigns else "label"


def counted_rules(rules: RuleSet) -> str:
    """How many rules of either sort the set has."""
    return f"{len(rules.steps)} over steps, {len(rules.verdicts)} over verdicts"


def _k_in_m(steps: int, within: int | None) -> str:
    if within is None or within == steps:
        return "any step" if steps == 1 else f"{steps} steps in a row"
    return f"{steps} of {within} steps"


def _condition(condition: Condition) -> str:
    side, number = (">", condition.above) if condition.above is not None else ("<", condition.below)
    return f"{condition.signal} {side} {number:g}"


def _clock(rule: SequenceRule) -> str:
    if rule.within_steps is not None:
        return f"{rule.within_steps} steps"
    if rule.within_sim_s is not None:
        return f"{rule.within_sim_s:g} s of simulated time"
    return f"{rule.within_wall_s:g} s of wall time"


def _counted(rule: VerdictRule) -> str:
    """Which failures count, where not all do."""
    parts = []
    if rule.counts.failure_types is not None:
        parts.append(f"type {' or '.join(rule.counts.failure_types)}")
    if rule.counts.labels is not None:
        parts.append(f"label {' or '.join(rule.counts.labels)}")
    return f"; counts failures with {' and '.join(parts)}" if parts else ""


def _percent(share: float) -> str:
    return f"{share * 100:g} %"
