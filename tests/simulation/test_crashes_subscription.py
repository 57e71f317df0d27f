"""A training service that is killed at any point loses no request, and works on none that is closed."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.reading import read_all
from stepwell.events.model import RetrainAnswered
from stepwell.events.topics import RETRAIN_RESULTS
from tests.integration.subscriptions import CODEC, append, request

DEATHS = 2

# Dies at the given call of the given function, before or after it.
SERVICE = """
import os, signal, sys, time
from pathlib import Path
from stepwell.adapters import retrain_answers
from stepwell.adapters.inbox.store import Inbox
from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.local_consumer import LocalConsumer
from stepwell.adapters.subscriber import Subscription
from stepwell.events.codec import Codec

directory, where, point = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
places = {"store": Inbox, "confirm": Inbox, "begin": Inbox, "finish": Inbox, "commit": LocalConsumer,
          "write": retrain_answers.AnswerWriter}
if where:
    whole = getattr(places[point], point)
    def dying(*arguments, **options):
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        value = whole(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(places[point], point, dying)
log = LocalLog(directory / "log", session_timeout_s=0.5)
idle = 0
with Subscription(log, Codec(), "g", inbox=directory / "inbox", log_name="l") as subscription:
    while idle < 8:
        delivery = subscription.receive(0.1)
        idle = idle + 1 if delivery is None else 0
        if delivery is not None:
            with (directory / "worked").open("a") as worked:
                worked.write(delivery.event.trigger_id + "\\n")
            subscription.answer(delivery.event, "done", new_checkpoint="c")
            subscription.handled(delivery)
"""


def run_service(directory: Path, where: str = "", point: str = "") -> int:
    return subprocess.run(
        [sys.executable, "-c", SERVICE, str(directory), where, point], timeout=60, check=False
    ).returncode


@pytest.mark.parametrize(
    ("where", "point"),
    [
        ("after", "store"),  # and before the commit
        ("after", "commit"),  # the inbox has not heard of it
        ("after", "confirm"),
        ("after", "begin"),  # in the middle of the work
        ("before", "write"),  # of the answer
        ("after", "write"),  # the inbox has not heard of it
        ("after", "finish"),
    ],
)
def test_killed_anywhere_nothing_is_lost(where: str, point: str, tmp_path: Path) -> None:
    log = LocalLog(tmp_path / "log")
    for life in range(DEATHS):
        append(log, *(request(f"t-{life}-{n}", f"p{n % 3}") for n in range(3)))
        assert run_service(tmp_path, where, point) == -signal.SIGKILL
        time.sleep(0.6)  # its membership ends
    assert run_service(tmp_path) == 0
    worked = Counter((tmp_path / "worked").read_text().split())
    assert set(worked) == {f"t-{life}-{n}" for life in range(DEATHS) for n in range(3)}
    closed = [event.trigger_id for event in read_all(log, CODEC, RETRAIN_RESULTS) if isinstance(event, RetrainAnswered)]
    assert set(closed) == set(worked)
    # At least once: again only what was in its hands, and nothing that was closed by then.
    assert sum(worked.values()) <= len(worked) + DEATHS
    if (where, point) in {("after", "write"), ("after", "finish")}:
        assert max(worked.values()) == 1, "its answer was in the log"
    log.close()


PAUSED = """
import os, signal, sys, time
from pathlib import Path
from stepwell.adapters.inbox import intake, window
from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.subscriber import Subscription
from stepwell.events.codec import Codec

window.WINDOW_MAX, intake.POLL_RECORDS_MAX = 3, 2
directory = Path(sys.argv[1])
log = LocalLog(directory / "log", session_timeout_s=0.5)
with Subscription(log, Codec(), "g", inbox=directory / "inbox", log_name="l") as subscription:
    delivery = subscription.receive(30)
    with (directory / "worked").open("a") as worked:
        worked.write(delivery.event.trigger_id + "\\n")
    while not subscription._intake._paused:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_while_its_partition_is_paused_nothing_is_lost(tmp_path: Path) -> None:
    log = LocalLog(tmp_path / "log")
    triggers = [f"p{n % 3}-{n:02d}" for n in range(50)]
    append(log, *(request(trigger, trigger[:2]) for trigger in triggers))
    for _ in range(DEATHS):
        dead = subprocess.run([sys.executable, "-c", PAUSED, str(tmp_path)], timeout=60, check=False)
        assert dead.returncode == -signal.SIGKILL
        time.sleep(0.6)  # its membership ends
    assert run_service(tmp_path) == 0
    worked = Counter((tmp_path / "worked").read_text().split())
    assert set(worked) == set(triggers)
    assert worked.total() == len(triggers) + DEATHS, "again only what was in its hands"
    log.close()
