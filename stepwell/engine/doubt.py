"""What becomes of a record that a defect of ours chokes on: it costs that record, never the pipeline.

`stepwell.engine.fold.apply` and the detector's rules change their state in place, for speed; one that raises in the
middle leaves a half-changed state behind. So, at the first exception:

1. The name (an episode's key, a policy) becomes suspect and `StateDoubtError` is raised: the loop drops everything that
   is not committed and restores it, as after a rolled back transaction.
2. When the same record comes again, its name is suspect: the state is copied first, put back when the fold raises, and
   the record goes to the dead letters (``unreadable``, reason ``unexpected``). Every other record counts.

A restart forgets who is suspect and learns it again, in step 1, so that it always comes to the same state.
"""

from typing import Generic, TypeVar

from stepwell.exceptions import DecodeError, StepwellError

NameT = TypeVar("NameT")

SUSPECTS_MAX = 16
"""After so many, everything is suspect: a defect that concerns all must not cost a restore for each."""


class StateDoubtError(StepwellError):
    """What is held in memory or in the disk cache may be wrong; it must be restored from the log.

    Args:
        message: what happened.
        wait: whether to pause first, because it may happen again at once.
    """

    def __init__(self, message: str, *, wait: bool = False) -> None:
        super().__init__(message)
        self.wait = wait


class Suspects(Generic[NameT]):
    """Whose state is to be copied before each change. Outlives the processors; one object a worker."""

    def __init__(self) -> None:
        self._names: set[NameT] = set()

    def __bool__(self) -> bool:
        return bool(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names or len(self._names) >= SUSPECTS_MAX

    def add(self, name: NameT) -> None:
        """From the next restore on, treat it with care."""
        self._names.add(name)


def in_doubt(where: str, error: Exception) -> StateDoubtError:
    """What to raise at the first exception; raise it ``from`` that."""
    return StateDoubtError(f"{where}: {_named(error)}; this is a defect of Stepwell, the record will be set aside")


def unexpected(what: str, error: Exception) -> DecodeError:
    """What a record set aside is refused with."""
    return DecodeError(
        f"{what} could not be processed ({_named(error)}); this is a defect of Stepwell", reason="unexpected"
    )


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
