"""A rule set's step rules, compiled: what has to be read at each moment, and which kernel looks at it.

An attempt carries the text of its rules (`stepwell.engine.ruleset.RuleSet.steps_canonical`); the text is compiled once
per process.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from stepwell.engine.facts import RequestFact
from stepwell.engine.ruleset import read_canonical
from stepwell.engine.steps.kernels import Kernel, SequenceKernel, kernel_of
from stepwell.engine.steps.memory import OPEN, PARKED, Done, StepMemory
from stepwell.engine.steps.signals import ROWS_MAX, Moment, Reader, Signal

PROGRAMS_MAX: Final = 256
"""Compiled rule sets kept at once; a process sees one for each activation that an open attempt began under."""

DETAIL_MAX: Final = 200
"""Characters kept of what a rule raised."""


class Failure(NamedTuple):
    """A rule that raised, in words."""

    rule: str
    detail: str


NONE: Final[tuple[Failure, ...]] = ()


class Rule(NamedTuple):
    """One compiled rule.

    Attributes:
        name: the label that it finds.
        assigns: failure type that it gives to a plain failure, or None.
        kernel: what looks.
        at_ready: whether it can see the first observation: all that it reads are observations.
        tasks, scenes, policies: names that it is for, see `stepwell.engine.ruleset.Scope`; None for all.
    """

    name: str
    assigns: str | None
    kernel: Kernel[Any]
    at_ready: bool
    tasks: Sequence[str] | None = None
    scenes: Sequence[str] | None = None
    policies: Sequence[str] | None = None

    def concerns(self, request: RequestFact | None) -> bool:
        """Whether it is for what was asked for; one for some only is for nothing of which nobody knows what it is."""
        if self.tasks is None and self.scenes is None and self.policies is None:
            return True
        return (
            request is not None
            and _is_among(request.task, self.tasks)
            and _is_among(request.scene, self.scenes)
            and _is_among(request.policy, self.policies)
        )


class Program:
    """The step rules of one set.

    Args:
        text: see the module.

    Attributes:
        title: ``NAME/VERSION SHA8``, the last the first eight hex digits of the SHA-256 of the text.
        rules: in the order of the set.
        observations, metrics: names that are read.
        reads_rows, reads_timing: whether rows of actions are read; ``inference_s`` or ``latency_s``.
        reads_latency: whether the times of observations have to be remembered.
        look_back: rows of actions that have to be remembered.

    Raises:
        pydantic.ValidationError: the text is no rule set of this version.
    """

    def __init__(self, text: str) -> None:
        found = read_canonical(text)
        self.title = f"{found.rule_set}/{found.version} {sha256(text.encode()).hexdigest()[:8]}"
        self._slots: dict[object, int] = {}
        self._readers: list[Reader] = []
        rules = []
        signals: set[Signal] = set()
        for rule in found.steps:
            kernel = kernel_of(rule, self._slot_of)
            signals.update(kernel.signals)
            at_ready = all(signal.base == "observation" for signal in kernel.signals)
            rules.append(Rule(rule.name, rule.assigns, kernel, at_ready, rule.tasks, rule.scenes, rule.policies))
        self.rules = tuple(rules)
        self._see = tuple((at, rule.kernel.see) for at, rule in enumerate(rules))
        self._see_ready = tuple((at, rule.kernel.see) for at, rule in enumerate(rules) if rule.at_ready)
        bases = {signal.base for signal in signals}
        self.observations = frozenset(signal.name for signal in signals if signal.base == "observation")
        self.metrics = frozenset(signal.name for signal in signals if signal.base == "metric")
        self.reads_rows = any(base.startswith("action") for base in bases)
        self.reads_latency = "latency_s" in bases
        self.reads_timing = self.reads_latency or "inference_s" in bases
        self.look_back = ROWS_MAX if "action_jerk" in bases else int("action_change" in bases)
        self._ticking = [(at, rule) for at, rule in enumerate(self.rules) if isinstance(rule.kernel, SequenceKernel)]

    def fresh(self) -> StepMemory:
        """What is remembered of an attempt before its first moment."""
        return StepMemory([OPEN] * len(self.rules), [rule.kernel.fresh() for rule in self.rules])

    def see(self, memory: StepMemory, moment: Moment, *, label_step: int, ready: bool = False) -> Sequence[Failure]:
        """Let every rule that has not found its label look at a moment. ``label_step``: what a label found now says."""
        found = memory.found
        if OPEN not in found:
            return NONE
        readings: list[Any] = []
        broken: dict[int, str] = {}
        for read in self._readers:
            try:
                readings.append(read(moment, readings))
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - parks the rules that read it
                broken[len(readings)] = _said(error)
                readings.append(None)
        failures = self._park_readers(memory, broken) if broken else []
        at, states = moment.at, memory.states
        for index, see in self._see_ready if ready else self._see:
            if found[index] == OPEN:
                try:
                    if see(states[index], readings, at):
                        found[index] = label_step
                        states[index] = Done()
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever a rule raises, it is parked
                    failures.append(_park(memory, index, self.rules[index], _said(error)))
        return failures

    def _park_readers(self, memory: StepMemory, broken: dict[int, str]) -> list[Failure]:
        """Park the rules that read what could not be read."""
        failures = []
        for index, rule in enumerate(self.rules):
            raised = next((broken[slot] for slot in rule.kernel.slots if slot in broken), None)
            if raised is not None and memory.found[index] == OPEN:
                failures.append(_park(memory, index, rule, raised))
        return failures

    def gap(self, memory: StepMemory) -> None:
        """Steps were lost before the next moment."""
        for index, rule in enumerate(self.rules):
            if memory.found[index] == OPEN:
                rule.kernel.gap(memory.states[index])

    def tick(self, memory: StepMemory, now_us: int, label_step: int) -> Sequence[Failure]:
        """Time has passed by the engine's clock, and nothing came; see `SequenceKernel`."""
        failures: list[Failure] = []
        for index, rule in self._ticking:
            if memory.found[index] != OPEN:
                continue
            assert isinstance(rule.kernel, SequenceKernel)
            try:
                if rule.kernel.tick(memory.states[index], now_us):  # type: ignore[arg-type]  # its own kind of state
                    memory.found[index] = label_step
                    memory.states[index] = Done()
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                failures.append(_park(memory, index, rule, _said(error)))
        return failures

    def labels(self, memory: StepMemory | None, request: RequestFact | None) -> dict[str, int]:
        """The labels found by the rules that concern what was asked for, with their steps.

        Every rule looks at every attempt: the request may be the last to come.
        """
        return {rule.name: step for rule, step in self._found(memory, request)}

    def assigned(self, memory: StepMemory | None, request: RequestFact | None) -> str | None:
        """The failure type that a plain failure gets, or None."""
        found = self._found(memory, request)
        return next((rule.assigns for rule, _ in found if rule.assigns is not None), None)

    def _found(self, memory: StepMemory | None, request: RequestFact | None) -> list[tuple[Rule, int]]:
        if memory is None:
            return []
        pairs = zip(self.rules, memory.found, strict=True)
        return [(rule, step) for rule, step in pairs if step >= 0 and rule.concerns(request)]

    def _slot_of(self, key: object, make: Callable[[], Reader]) -> int:
        slot = self._slots.get(key)
        if slot is None:
            reader = make()
            slot = self._slots[key] = len(self._readers)
            self._readers.append(reader)
        return slot


@lru_cache(maxsize=PROGRAMS_MAX)
def program_of(text: str) -> Program:
    """The compiled rules of a text.

    Raises:
        pydantic.ValidationError: the text is no rule set of this version.
    """
    return Program(text)


def _is_among(name: str, scope: Sequence[str] | None) -> bool:
    if scope is None:
        return True
    return any(name.startswith(entry[:-1]) if entry.endswith("*") else name == entry for entry in scope)


def _park(memory: StepMemory, index: int, rule: Rule, detail: str) -> Failure:
    memory.found[index] = PARKED
    memory.states[index] = Done()
    return Failure(rule.name, detail)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:DETAIL_MAX]
