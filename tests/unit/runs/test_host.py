"""The host: what it announces, who gets which attempt, and how a run ends when something breaks."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.runs import host as host_module
from stepwell.adapters.runs.attempt import AttemptResult, WarmPair, run_attempt
from stepwell.adapters.runs.host import Host, _Work
from stepwell.adapters.runs.plan import PlannedEpisode
from stepwell.adapters.runs.recorder import AttemptRecorder, HostIdentity
from stepwell.adapters.runs.writer import LogWriter
from stepwell.engine.ports import MessageLog
from stepwell.engine.reading import read_range
from stepwell.events import model
from stepwell.events.topics import TELEMETRY
from stepwell.exceptions import LogError, MissingPartError
from tests.unit.runs.places import CODEC, ME, OTHER, Running, impatient_log, planned, spoil, told, wait_for

Attempt = Callable[[PlannedEpisode, AttemptRecorder, WarmPair, threading.Event], AttemptResult]


@pytest.fixture
def log() -> Iterator[MessageLog]:
    log = MemoryLog()
    yield log
    log.close()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start no simulator."""
    monkeypatch.setattr(host_module, "environment_python", Path)


def use(monkeypatch: pytest.MonkeyPatch, attempt: Attempt) -> None:
    monkeypatch.setattr(host_module, "run_attempt", attempt)


def succeed(episode: PlannedEpisode, recorder: AttemptRecorder, pair: WarmPair, stop: threading.Event) -> AttemptResult:
    """An attempt that ends well at once."""
    recorder.ended("success", True)
    return AttemptResult("success", 0)


def run(
    log: MessageLog,
    episodes: Sequence[PlannedEpisode],
    identity: HostIdentity = ME,
    *,
    parallel: int = 1,
    stop: threading.Event | None = None,
) -> list[str]:
    """Run what is missing; the ids of the attempts that this host ran."""
    host = Host(log, CODEC, identity, parallel=parallel)
    ran: list[str] = []
    host.run(host.standing(episodes), stop or threading.Event(), lambda episode, _: ran.append(episode.episode_id))
    return ran


def types(log: MessageLog, episode: PlannedEpisode) -> list[str]:
    return [event.TYPE.removeprefix("episode::") for event in told(log, episode)]


def test_all_are_asked_for_claimed_and_run_once(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, succeed)
    episodes = planned(3)
    assert sorted(run(log, episodes, parallel=4)) == sorted(each.episode_id for each in episodes)
    assert all(types(log, each) == ["requested", "claimed", "ended"] for each in episodes)
    assert run(log, episodes) == []


def test_of_two_hosts_each_attempt_goes_to_one(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = planned(4)
    ran: list[tuple[str, str]] = []
    both = threading.Barrier(2)
    use(monkeypatch, lambda episode, recorder, *_: (ran.append((recorder._identity.producer_id, episode.episode_id)),
                                                    succeed(episode, recorder, *_))[1])  # fmt: skip
    hosts = [Host(log, CODEC, identity, parallel=2) for identity in (ME, OTHER)]

    def go(host: Host) -> None:
        todos = host.standing(episodes)
        both.wait()  # neither knows of the other's claims yet
        host.run(todos, threading.Event(), lambda *_: None)

    racing = [Running(lambda host=host: go(host)) for host in hosts]  # type: ignore[misc]
    for each in racing:
        each.result()
    assert sorted(episode for _, episode in ran) == sorted(each.episode_id for each in episodes)
    assert run(log, episodes, ME) == []


def test_a_claim_made_while_the_log_was_being_read_is_respected(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, succeed)
    (episode, *_) = planned()
    host = Host(log, CODEC, ME, parallel=1)
    todos = host.standing([episode])
    writer = LogWriter(log, CODEC)
    other = AttemptRecorder(writer.put, episode, 1, OTHER)
    other.requested()
    other.claimed()
    writer.drain(30)
    writer.close()
    ran: list[str] = []
    host.run(todos, threading.Event(), lambda each, _: ran.append(each.episode_id))
    assert ran == []


def test_an_interrupted_attempt_is_told_to_be_lost_and_tried_again(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, succeed)
    (episode, *_) = planned()
    writer = LogWriter(log, CODEC)
    earlier = AttemptRecorder(writer.put, episode, 1, ME)
    earlier.requested()
    earlier.claimed()
    writer.drain(30)
    writer.close()
    assert run(log, [episode], OTHER) == []
    assert run(log, [episode], ME) == [episode.episode_id]
    facts = told(log, episode)
    assert [(fact.attempt, fact.producer_seq) for fact in facts] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert isinstance(facts[2], model.EpisodeFailed)
    assert (facts[2].failure_type, facts[2].n_steps) == ("host_lost", None)


def test_a_missing_simulator_stops_the_run_before_anything_is_written(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("STEPWELL_PARTS", str(tmp_path))
    episodes = planned()
    with pytest.raises(MissingPartError, match=r"'gymnasium' is not installed.*simulators\.install gymnasium"):
        run(log, episodes)
    assert all(told(log, each) == [] for each in episodes)


def test_a_slot_that_breaks_ends_the_run_and_leaves_the_others_attempts_alone(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking, going_on, never = planned()
    broken = threading.Event()
    stop = threading.Event()

    def attempt(episode: PlannedEpisode, recorder: AttemptRecorder, pair: WarmPair, stopped: threading.Event) -> AttemptResult:  # noqa: E501 # fmt: skip
        if episode is breaking:
            broken.set()
            raise MissingPartError("the environment went away")
        assert episode is going_on
        assert broken.wait(30)
        wait_for(lambda: len([t for t in threading.enumerate() if t.name.startswith("slot-")]) == 1, "it has ended")
        assert not stopped.is_set()
        return succeed(episode, recorder, pair, stopped)

    use(monkeypatch, attempt)
    with pytest.raises(MissingPartError, match="the environment went away"):
        run(log, [breaking, going_on, never], parallel=2, stop=stop)
    assert not stop.is_set(), "nobody stopped the run"
    assert types(log, going_on) == ["requested", "claimed", "ended"]
    assert types(log, never) == ["requested"]


def test_a_log_that_refuses_the_claim_for_good_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, succeed)
    log = impatient_log(tmp_path)
    host = Host(log, CODEC, ME, parallel=1)
    todos = host.standing(planned())
    spoil(tmp_path)
    with pytest.raises(LogError, match="spoilt"):
        Running(lambda: host.run(todos, threading.Event(), lambda *_: None)).result()


def test_stop_ends_after_the_attempts_that_run(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()

    def attempt(episode: PlannedEpisode, recorder: AttemptRecorder, *_: object) -> AttemptResult:
        stop.set()
        recorder.aborted("the run was interrupted")
        return AttemptResult("aborted", 0)

    use(monkeypatch, attempt)
    episodes = planned(2)
    assert len(run(log, episodes, stop=stop)) == 1
    assert sorted(len(types(log, each)) for each in episodes) == [1] * 5 + [3]


class BreakingPair(WarmPair):
    """A pair whose simulator cannot be had, for a reason that is ours."""

    def simulator(self, episode: PlannedEpisode) -> object:  # type: ignore[override]
        raise OSError("no file descriptors left")


def test_an_error_of_ours_does_not_leave_the_attempt_open() -> None:
    facts: list[model.LogRecord] = []
    recorder = AttemptRecorder(facts.append, planned()[0], 1, ME, 2)
    with pytest.raises(OSError, match="descriptors"):
        run_attempt(planned()[0], recorder, BreakingPair(), threading.Event())
    (failed,) = facts
    assert isinstance(failed, model.EpisodeFailed)
    assert (failed.failure_type, failed.component, failed.producer_seq) == ("host_lost", "host", 2)
    assert "no file descriptors left" in failed.message


# --- the queue ----------------------------------------------------------------------------------------------------


def work(episodes: Sequence[PlannedEpisode]) -> _Work:
    return _Work([(episode, 1, 1) for episode in episodes])


def pair_of(item: tuple[PlannedEpisode, int, int] | None) -> tuple[str, str]:
    assert item is not None
    return item[0].scene, item[0].policy.name


def test_a_slot_keeps_to_its_pair_while_there_is_work_for_it() -> None:
    queue = work(planned(3))
    last = None
    seen = []
    while (item := queue.take(last)) is not None:
        last = item[0]
        seen.append(pair_of(item))
    pairs = [("balance", "balancer"), ("balance", "random"), ("reach", "random")]
    assert seen == [pair for pair in pairs for _ in range(3)]


def test_slots_spread_over_pairs_before_they_share_one() -> None:
    queue = work(planned(2))
    first = [queue.take(None) for _ in range(4)]
    assert len({pair_of(item) for item in first[:3]}) == 3
    assert pair_of(first[3]) in {pair_of(item) for item in first[:3]}


def test_a_free_slot_prefers_its_simulator() -> None:
    queue = work([each for each in planned() if each.policy.name == "random"])
    balance = planned()[0]
    assert pair_of(queue.take(balance)) == ("balance", "random")


def test_the_queue_gives_each_attempt_once_to_many_slots() -> None:
    episodes = planned(50)
    queue = work(episodes)
    taken: list[str] = []

    def slot() -> None:
        last = None
        while (item := queue.take(last)) is not None:
            last = item[0]
            taken.append(last.episode_id)

    slots = [Running(slot) for _ in range(8)]
    for each in slots:
        each.result()
    assert sorted(taken) == sorted(each.episode_id for each in episodes)
    assert queue.take(None) is None


def test_speed_and_queue_are_published_while_episodes_run(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def two_steps(episode: PlannedEpisode, recorder: AttemptRecorder, *_: object) -> AttemptResult:
        assert recorder._speed is not None
        recorder._speed.inferred(0.002)
        for _number in range(2):
            recorder._speed.stepped(0.001)
        return succeed(episode, recorder, *_)  # type: ignore[arg-type]

    use(monkeypatch, two_steps)
    (episode, *_) = planned()
    host = Host(log, CODEC, ME, parallel=1, telemetry=True)
    host.run(host.standing([episode]), threading.Event(), lambda *_: None)
    found = []
    for source, marks in log.admin().watermarks(TELEMETRY).items():
        for batch in read_range(log, source, marks.low, marks.high):
            found += [CODEC.decode(value, headers) for value, headers in zip(batch.values, batch.headers, strict=True)]
    assert all(isinstance(each, model.TelemetrySampled) for each in found)
    metrics = {(each.episode_id, series.metric) for each in found for series in each.series}
    assert {(None, "stepwell.queue.depth"), (None, "system.cpu.utilization")} <= metrics
    assert (episode.episode_id, "stepwell.agent.inference.duration") in metrics
    assert (episode.episode_id, "stepwell.sim.step.duration") in metrics
    assert {each.worker_id for each in found} == {f"stepwell-run-{ME.host}"}
