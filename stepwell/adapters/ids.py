"""New ids for facts from outside: UUIDs of version 7 (RFC 9562), ordered by time.

Ids of one process rise strictly, also within a millisecond, also between threads, and also when the clock is set
back: the 12 bits after the time and the bits after the variant form one counter, started at random in each new
millisecond.
"""

import os
import threading
import time

_COUNTER_BITS = 74
_LOW_BITS = 62


class EventIds:
    """Makes event ids. One instance a process is enough; it may be shared between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = 0
        self._counter = 0
        os.register_at_fork(after_in_child=self._forget)

    def new(self) -> bytes:
        """16 bytes, greater than all that this instance gave before."""
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._millisecond:
                self._millisecond = now
                # The top bit stays clear, so that 2**73 ids fit into the millisecond before the counter runs over.
                self._counter = int.from_bytes(os.urandom(10), "big") >> (80 - _COUNTER_BITS + 1)
            else:
                # A step of random size keeps ids hard to guess and apart from those of other processes.
                self._counter += 1 + int.from_bytes(os.urandom(4), "big")
            if self._counter >> _COUNTER_BITS:
                self._millisecond += 1
                self._counter &= (1 << _COUNTER_BITS) - 1
            number = self._millisecond << 80 | 0x7 << 76 | (self._counter >> _LOW_BITS) << 64
            number |= 0b10 << _LOW_BITS | self._counter & ((1 << _LOW_BITS) - 1)
        return number.to_bytes(16, "big")

    def _forget(self) -> None:
        """A forked child must not go on with its parent's counter, nor with a lock that a thread held."""
        self._lock = threading.Lock()
        self._millisecond = 0


_IDS = EventIds()


def new_event_id() -> bytes:
    """A new event id (16 bytes): strictly greater than all that this process made before."""
    return _IDS.new()
