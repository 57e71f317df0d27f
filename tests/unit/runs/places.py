"""Plans, logs that can be made to fail, and what stands in them, for the tests of runs."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.runs.plan import PlannedEpisode, plan
from stepwell.adapters.runs.recorder import HostIdentity
from stepwell.adapters.runs.spec import check_spec
from stepwell.adapters.yaml_lines import parse
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import Event, LogRecord
from stepwell.events.topics import EPISODE_EVENTS

CODEC = Codec()
PATIENCE_S = 30.0
ME = HostIdentity("host-me", "lab-1", 41, "ada")
OTHER = HostIdentity("host-other", "lab-2", 42, "bob")

SPEC = """\
run: unit
seeds: [{seeds}]
max_steps: 20
scenes:
  - {{name: balance, task: gymnasium/InvertedPendulum-v5, options: {{success_steps: 5}}}}
  - {{name: reach, task: metaworld/reach-v3}}
policies:
  - {{name: balancer, kind: pendulum_balancer, scenes: [balance]}}
  - {{name: random, kind: random}}
"""


def planned(n_seeds: int = 1) -> list[PlannedEpisode]:
    """Episodes of three pairs of processes, ``n_seeds`` each."""
    text = SPEC.format(seeds=", ".join(map(str, range(n_seeds))))
    return plan(check_spec(parse(text.encode(), "spec.yaml")), "run-1")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


def events(log: MessageLog) -> list[LogRecord]:
    """What stands in the episodes' topic."""
    return list(read_all(log, CODEC, EPISODE_EVENTS))


def told(log: MessageLog, episode: PlannedEpisode) -> list[Event]:
    """The facts about one episode, in order."""
    return [e for e in events(log) if isinstance(e, Event) and e.episode_id == episode.episode_id]


def impatient_log(directory: Path) -> MessageLog:
    """A local log; call with a short ``BUSY_TIMEOUT_S``."""
    return open_log(f"local:{directory}")


@contextlib.contextmanager
def away(directory: Path) -> Iterator[None]:
    """Meanwhile nobody can write to the local log: another process holds its write lock."""
    connection = sqlite3.connect(directory / "log.db", isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def spoil(directory: Path) -> None:
    """From now on the local log refuses every record for good."""
    with contextlib.closing(sqlite3.connect(directory / "log.db", isolation_level=None, timeout=30)) as connection:
        connection.execute("CREATE TRIGGER spoilt BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'spoilt'); END")


class Running(threading.Thread):
    """A call in a thread; `result` raises what it raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self._error = error

    def result(self) -> None:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
