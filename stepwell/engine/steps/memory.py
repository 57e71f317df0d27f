"""What step rules remember of an attempt between two steps: small, bounded, exact in snapshots.

All are msgspec structs laid out as arrays. A rule that has found its label needs no memory any more; what it held is
dropped.
"""

from typing import Final

import msgspec

OPEN: Final = -1
"""In `StepMemory.found`: the rule has not found its label."""
PARKED: Final = -2
"""In `StepMemory.found`: the rule raised, and does not judge this attempt any more."""


class Done(msgspec.Struct, array_like=True, tag="done"):
    """Nothing more to remember: the label is found, or the rule is parked."""


class Hits(msgspec.Struct, array_like=True, tag="hits"):
    """Of K in M: the moments of the last hits, at most K."""

    at: list[int] = msgspec.field(default_factory=list)


class Still(msgspec.Struct, array_like=True, tag="still"):
    """Of a frozen signal: its last elements, and for how many steps in a row they have not moved."""

    values: tuple[float, ...] | None = None
    count: int = 0


class Turning(msgspec.Struct, array_like=True, tag="turning"):
    """Of an oscillating signal, for each element.

    Attributes:
        direction: 1 rising, -1 falling, 0 neither yet.
        high, low: the highest (and lowest) value since it last turned; both since the start while ``direction`` is 0.
        turned: the moments of its last reversals.
    """

    direction: list[int] = msgspec.field(default_factory=list)
    high: list[float] = msgspec.field(default_factory=list)
    low: list[float] = msgspec.field(default_factory=list)
    turned: list[list[int]] = msgspec.field(default_factory=list)


class Best(msgspec.Struct, array_like=True, tag="best"):
    """Of a stagnant signal: its best value, and how many moments ago it was reached."""

    value: float | None = None
    count: int = 0


class Same(msgspec.Struct, array_like=True, tag="same"):
    """Of a stale observation: its content (bytes, or their digest), and how often in a row it came."""

    content: bytes | None = None
    count: int = 0


class Sequel(msgspec.Struct, array_like=True, tag="sequel"):
    """Of a sequence.

    Attributes:
        held: whether its first condition held at the last moment: 1 yes, 0 no (or there was no moment yet), -1 unknown.
        since: when (by the rule's clock) the first condition came to hold, while the second is waited for.
    """

    held: int = 0
    since: float | int | None = None


KernelState = Done | Hits | Still | Turning | Best | Same | Sequel


class KeptAction(msgspec.Struct, array_like=True):
    """What the rules read of an action whose steps have not passed.

    Attributes:
        first_step: of the chunk.
        dtype, width, data: its rows; ``width`` (elements of a row) 0 where they cannot be read.
        occurred_at, observed_step, inference_s: as the action says.
        latency_s: worked out when the first step names it; None where it cannot be.
        timed: whether that was done.
    """

    first_step: int
    dtype: str
    width: int
    data: bytes
    occurred_at: int
    observed_step: int | None
    inference_s: float | None
    latency_s: float | None = None
    timed: bool = False


class StepMemory(msgspec.Struct, array_like=True):
    """What all step rules of an attempt remember.

    Attributes:
        found: for each rule, in the order of the set, the step at which it found its label; `OPEN` or `PARKED`.
        states: for each rule what its kernel remembers.
        expected: the step that follows the last one judged; -1 before the first moment.
        rows: the last rows of actions that were applied one after the other, at most three.
        seen_from, seen_at: the first observation whose time is known, and the times (µs) of it and of those after it.
    """

    found: list[int]
    states: list[KernelState]
    expected: int = -1
    rows: list[tuple[float, ...]] = msgspec.field(default_factory=list)
    seen_from: int = 0
    seen_at: list[int] = msgspec.field(default_factory=list)


_encode = msgspec.msgpack.Encoder().encode
_decode_memory = msgspec.msgpack.Decoder(StepMemory).decode


def copy_memory(memory: StepMemory | None) -> StepMemory | None:
    """A copy that shares nothing that can change."""
    return None if memory is None else _decode_memory(_encode(memory))


def copy_kept(kept: dict[int, KeptAction]) -> dict[int, KeptAction]:
    """The same for kept actions."""
    return {seq: msgspec.structs.replace(action) for seq, action in kept.items()}
