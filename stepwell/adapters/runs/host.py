"""Runs the missing episodes of a run on this machine, several side by side, every fact through the log."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog
from structlog.contextvars import bound_contextvars

from stepwell.adapters.history import fold_episodes
from stepwell.adapters.runs.attempt import AttemptResult, WarmPair, run_attempt
from stepwell.adapters.runs.claims import ClaimReader, log_ends
from stepwell.adapters.runs.plan import PlannedEpisode
from stepwell.adapters.runs.recorder import AttemptRecorder, HostIdentity
from stepwell.adapters.runs.speed import AttemptSpeed
from stepwell.adapters.runs.todo import Todo, judge
from stepwell.adapters.runs.writer import LogWriter
from stepwell.adapters.simulators.install import environment_python
from stepwell.adapters.telemetry.measurements import Measurement, Origin
from stepwell.adapters.telemetry.publisher import TelemetryPublisher
from stepwell.engine.ports import MessageLog, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import Attribute
from stepwell.exceptions import LogUnavailableError, StepwellError

_logger = structlog.get_logger(__name__)

CLAIM_PATIENCE_S = 1.0
DRAIN_TIMEOUT_S = 120.0
LAST_WORDS_S = 2.0
"""How long a run that cannot go on waits for the log to take what is queued."""

Progress = Callable[[PlannedEpisode, AttemptResult], None]
"""Called after each attempt, from the slot's thread, one at a time."""


class Host:
    """Runs planned episodes. Make one for each run; `run` once."""

    def __init__(
        self,
        log: MessageLog,
        codec: Codec,
        identity: HostIdentity,
        *,
        parallel: int,
        retry_errors: bool = False,
        telemetry: bool = False,
    ) -> None:
        """``parallel`` slots, each with its own pair of processes; ``retry_errors``: try errored episodes again;
        ``telemetry``: publish the speed of each attempt, and the figures of this machine meanwhile.
        """
        self._log = log
        self._codec = codec
        self._identity = identity
        self._parallel = parallel
        self._retry_errors = retry_errors
        self._telemetry = telemetry
        self._worker_id = f"stepwell-run-{identity.host}"
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._broken = threading.Event()
        self._claims_from: dict[TopicPartition, int] | None = None

    def standing(self, episodes: Sequence[PlannedEpisode]) -> list[Todo]:
        """Where each planned episode stands in the log now."""
        # Claims are followed from here, so that another host's is never missed while the log is being read.
        self._claims_from = log_ends(self._log)
        states = fold_episodes(self._log, self._codec, [episode.episode_id for episode in episodes])
        return [
            judge(episode, states, self._identity.producer_id, retry_errors=self._retry_errors) for episode in episodes
        ]

    def run(self, todos: Sequence[Todo], stop: threading.Event, progress: Progress) -> None:
        """Run what is missing among ``todos`` (from `standing`).

        Returns when all is done and durable, or soon after ``stop``. A slot that breaks ends the run: the others finish
        the attempt that they are at. An interrupt raised here ends at once; what runs then is found as interrupted.

        Raises:
            LogError: the log refused facts for good, or did not come back to take the last ones.
            MissingPartError: a simulator's environment is not installed; nothing was written.
        """
        missing = [todo for todo in todos if todo.standing not in ("done", "elsewhere")]
        if not missing:
            return
        for simulator in dict.fromkeys(todo.episode.simulator.simulator for todo in missing):
            environment_python(simulator)
        ids = [todo.episode.episode_id for todo in missing]
        claims = ClaimReader(self._log, self._codec, ids, self._claims_from or log_ends(self._log))
        writer = LogWriter(self._log, self._codec)
        try:
            with self._publishing(writer):
                self._run_slots(missing, claims, writer, stop, progress)
            writer.drain(DRAIN_TIMEOUT_S)
        finally:
            self._broken.set()
            writer.close(LAST_WORDS_S)
            claims.close()

    @contextlib.contextmanager
    def _publishing(self, writer: LogWriter) -> Iterator[None]:
        """Publish this machine's figures and the depth of the writer's queue meanwhile, where that is wanted."""
        if not self._telemetry:
            yield
            return
        queue = (Attribute(name="queue", value="log-writer"),)
        publisher = TelemetryPublisher(
            self._log,
            self._worker_id,
            partial(outgoing, self._codec),
            more=lambda: [Measurement("stepwell.queue.depth", "{record}", float(writer.depth), queue)],
        )
        publisher.start()
        try:
            yield
        finally:
            publisher.stop(LAST_WORDS_S)

    def _speed(self, writer: LogWriter, episode: PlannedEpisode, attempt: int) -> AttemptSpeed | None:
        if not self._telemetry:
            return None
        return AttemptSpeed(writer.put, Origin(self._worker_id, self._identity.host, episode.episode_id, attempt))

    def _run_slots(
        self, missing: Sequence[Todo], claims: ClaimReader, writer: LogWriter, stop: threading.Event, progress: Progress
    ) -> None:
        items = []
        for todo in missing:
            if stop.is_set():
                break
            items.append((todo.episode, *self._announce(todo, writer)))
        work = _Work(items)
        # Daemons, so that an interrupt need not wait for a component that hangs; their processes end with ours.
        slots = [
            threading.Thread(
                target=self._slot, args=(work, claims, writer, stop, progress), name=f"slot-{i}", daemon=True
            )
            for i in range(min(self._parallel, len(missing)))
        ]
        for slot in slots:
            slot.start()
        for slot in slots:
            slot.join()
        if self._failures:
            raise self._failures[0]

    def _announce(self, todo: Todo, writer: LogWriter) -> tuple[int, int]:
        """Say in the log that the episode is wanted (again): (attempt to run, the host's next sequence in it)."""
        episode = todo.episode
        if todo.standing == "requested":
            return todo.attempt, todo.host_seq
        if todo.standing == "new":
            AttemptRecorder(writer.put, episode, 1, self._identity).requested()
            return 1, 1
        if todo.standing == "interrupted":
            earlier = AttemptRecorder(writer.put, episode, todo.attempt, self._identity, todo.host_seq)
            earlier.lost("the process that ran the attempt died; found when the run was resumed")
        reason = "the attempt before was interrupted" if todo.standing == "interrupted" else "no answer yet"
        AttemptRecorder(writer.put, episode, todo.attempt + 1, self._identity).retry_requested(reason)
        return todo.attempt + 1, 1

    def _slot(
        self, work: "_Work", claims: ClaimReader, writer: LogWriter, stop: threading.Event, progress: Progress
    ) -> None:
        pair = WarmPair()
        last: PlannedEpisode | None = None
        try:
            while not self._ending(stop) and (item := work.take(last)) is not None:
                episode, attempt, host_seq = item
                speed = self._speed(writer, episode, attempt)
                recorder = AttemptRecorder(writer.put, episode, attempt, self._identity, host_seq, speed)
                with bound_contextvars(episode_id=episode.episode_id, attempt=attempt, trace_id=recorder.trace_id):
                    recorder.claimed()
                    if not self._won(claims, writer, episode, attempt, stop):
                        continue
                    result = run_attempt(episode, recorder, pair, stop)
                    if speed is not None:
                        speed.close()
                    last = episode
                    _logger.debug("attempt_ended", ending=result.ending, n_steps=result.n_steps)
                with self._lock:
                    progress(episode, result)
        except BaseException as error:
            # The others finish what they are at: nobody stopped those attempts, and they may end well.
            self._failures.append(error)
            self._broken.set()
            if not isinstance(error, StepwellError):
                _logger.exception("slot_broke")
        finally:
            pair.close()

    def _ending(self, stop: threading.Event) -> bool:
        return stop.is_set() or self._broken.is_set()

    def _won(
        self, claims: ClaimReader, writer: LogWriter, episode: PlannedEpisode, attempt: int, stop: threading.Event
    ) -> bool:
        """Whether our claim is the first in the log. Waits as long as the log is away."""
        told = False
        while not self._ending(stop):
            writer.check()  # it may have stopped for good, with our claim in its queue
            try:
                winner = claims.wait_for(episode.episode_id, attempt, CLAIM_PATIENCE_S)
            except LogUnavailableError:
                if not told:
                    _logger.warning("waiting_for_claim")
                    told = True
                continue
            if winner != self._identity.producer_id:
                _logger.info("claimed_elsewhere", winner=winner)
            return winner == self._identity.producer_id
        return False


class _Work:
    """The queue of attempts.

    A slot keeps to the pair of processes that it has warm as long as there is work for it, then takes a group that no
    other slot works on.
    """

    def __init__(self, items: Sequence[tuple[PlannedEpisode, int, int]]) -> None:
        self._lock = threading.Lock()
        self._groups: list[deque[tuple[PlannedEpisode, int, int]]] = []
        self._takers: list[int] = []
        for item in items:
            if not self._groups or not _same_processes(self._groups[-1][0][0], item[0]):
                self._groups.append(deque())
                self._takers.append(0)
            self._groups[-1].append(item)

    def take(self, last: PlannedEpisode | None) -> tuple[PlannedEpisode, int, int] | None:
        """The next attempt for a slot that ran ``last`` before; None when nothing is left."""
        with self._lock:
            waiting = [i for i, group in enumerate(self._groups) if group]
            if not waiting:
                return None
            best = min(waiting, key=lambda i: self._cost(i, last))
            self._takers[best] += 1
            return self._groups[best].popleft()

    def _cost(self, i: int, last: PlannedEpisode | None) -> tuple[int, int, int]:
        head = self._groups[i][0][0]
        if last is not None and _same_processes(head, last):
            return (0, 0, i)
        other_simulator = last is None or head.simulator != last.simulator
        return (1, self._takers[i] * 2 + other_simulator, i)


def _same_processes(one: PlannedEpisode, other: PlannedEpisode) -> bool:
    return one.simulator == other.simulator and one.policy == other.policy
