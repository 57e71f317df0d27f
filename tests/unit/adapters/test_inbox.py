"""The durable inbox: what it keeps, in which order it gives it back, whose it is."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.adapters.inbox import store
from stepwell.adapters.inbox.places import group_folder, open_file, open_member, same_log, take_over
from stepwell.adapters.inbox.store import Arrival, Inbox, InboxTakenError
from stepwell.engine.ports import TopicPartition
from stepwell.exceptions import ConfigurationError, InboxError

SOURCE = TopicPartition("stepwell.retrain-requests", 0)


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    with contextlib.closing(Inbox(tmp_path / "a.db")) as inbox:
        yield inbox


def arrival(trigger: str, policy: str = "p", offset: int = 0) -> Arrival:
    return Arrival("requested", trigger, policy, SOURCE, offset, b"value", (("h", b"x"), ("n", None)))


def arrived(inbox: Inbox, *arrivals: Arrival) -> None:
    inbox.store(arrivals)
    inbox.confirm({SOURCE: 10**6})


def due(inbox: Inbox) -> list[str]:
    return [entry.trigger_id for entry in inbox.due()]


def number_of(inbox: Inbox, trigger: str) -> int:
    every = inbox.entries(["stored", "waiting", "working", "parked", "finished"])
    return next(entry.number for entry in every if entry.trigger_id == trigger)


def test_what_is_stored_is_shown_once_the_position_is_committed(inbox: Inbox) -> None:
    inbox.store([arrival("t-0", "a", 0), arrival("t-1", "b", 1)])
    assert due(inbox) == []
    inbox.confirm({SOURCE: 1})
    assert due(inbox) == ["t-0"]
    assert inbox.unconfirmed() == {SOURCE}
    inbox.let_go(SOURCE)  # refused: the next owner reads it
    inbox.confirm({SOURCE: 5})
    assert due(inbox) == ["t-0"]
    (entry,) = inbox.due()
    assert (entry.value, entry.headers, entry.source, entry.offset) == (
        b"value", (("h", b"x"), ("n", None)), SOURCE, 0,
    )  # fmt: skip


def test_a_request_is_kept_once_however_often_it_comes(inbox: Inbox) -> None:
    arrived(inbox, arrival("t-0"), arrival("t-0", offset=7))
    assert inbox.store([arrival("t-0", offset=9)]) == 0
    inbox.finish(number_of(inbox, "t-0"), "handled")
    assert inbox.store([arrival("t-0", offset=11)]) == 0, "nor after it was worked on"
    assert due(inbox) == []


def test_one_at_a_time_for_each_policy_in_order(inbox: Inbox) -> None:
    arrived(inbox, arrival("a-0", "a", 0), arrival("a-1", "a", 1), arrival("b-0", "b", 2))
    assert due(inbox) == ["a-0", "b-0"]
    first, second = number_of(inbox, "a-0"), number_of(inbox, "a-1")
    assert inbox.begin(first)
    assert not inbox.begin(first), "another thread has it"
    assert not inbox.begin(second), "one of the policy is being worked on"
    assert due(inbox) == ["b-0"]
    inbox.finish(first, "handled")
    assert due(inbox) == ["a-1", "b-0"]


def test_a_failure_pauses_its_policy_and_the_last_one_parks(inbox: Inbox) -> None:
    arrived(inbox, arrival("a-0", "a", 0), arrival("a-1", "a", 1), arrival("b-0", "b", 2))
    number = number_of(inbox, "a-0")
    for failures in (1, 2):
        assert inbox.begin(number)
        assert not inbox.fail(number, f"why {failures}", failures_max=3, first_pause_s=0.0)
        assert due(inbox) == ["a-0", "b-0"]
    assert inbox.begin(number)
    assert inbox.fail(number, "no disk", failures_max=3, first_pause_s=0.0)
    assert due(inbox) == ["a-1", "b-0"], "it holds up nobody any more"
    (parked,) = inbox.entries(["parked"])
    assert (parked.trigger_id, parked.failures, parked.reason) == ("a-0", 3, "no disk")
    assert inbox.retry(number)
    assert not inbox.retry(number), "it waits by now"
    assert due(inbox) == ["a-0", "b-0"]
    assert inbox.drop(number)
    assert due(inbox) == ["a-1", "b-0"]


def test_the_pause_after_a_failure_doubles(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000_000]
    monkeypatch.setattr(store, "_now_us", lambda: now[0])
    arrived(inbox, arrival("t-0"))
    number = number_of(inbox, "t-0")
    for pause_s in (5, 10, 20, 40, 80, 160, 320, 600, 600):
        assert inbox.begin(number)
        inbox.fail(number, "", failures_max=99, first_pause_s=5.0)
        now[0] += pause_s * 1_000_000 - 1
        assert due(inbox) == []
        now[0] += 1
        assert due(inbox) == ["t-0"]


def test_what_a_dead_process_had_in_its_hands_comes_again_and_is_parked_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with contextlib.closing(Inbox(path)) as inbox:
        arrived(inbox, arrival("t-0"), arrival("t-1", "q"))
    for life in range(3):
        with contextlib.closing(Inbox(path)) as inbox:
            inbox.recover(failures_max=3)
            assert due(inbox) == ["t-0", "t-1"]
            assert inbox.entries(["waiting"])[0].failures == life
            inbox.begin(number_of(inbox, "t-0"))
    with contextlib.closing(Inbox(path)) as inbox:
        inbox.recover(failures_max=3)
        assert due(inbox) == ["t-1"]
        assert [entry.reason for entry in inbox.entries(["parked"])] == ["the process ended while working on it"]


def test_finished_ones_are_forgotten_beyond_a_number(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FINISHED_MAX", 3)
    arrived(inbox, *(arrival(f"t-{n}", offset=n) for n in range(6)))
    for entry in inbox.entries(["waiting"]):
        inbox.finish(entry.number, "handled")
    kept = inbox.entries(["finished"])
    assert [entry.trigger_id for entry in kept] == ["t-3", "t-4", "t-5"]
    assert {entry.value for entry in kept} == {None}


# --- whose it is --------------------------------------------------------------------------------------------------


def test_a_file_is_one_members_and_the_command_line_looks_on(inbox: Inbox) -> None:
    arrived(inbox, arrival("t-0"))
    with pytest.raises(InboxTakenError, match="another process works with this inbox"):
        Inbox(inbox.path)
    with contextlib.closing(Inbox(inbox.path, held=False)) as looking:
        assert [entry.trigger_id for entry in looking.entries(["waiting"])] == ["t-0"]
        assert looking.drop(number_of(looking, "t-0"))
    assert due(inbox) == []


def test_members_without_a_name_take_the_first_free_file(tmp_path: Path) -> None:
    folder = group_folder(tmp_path, "../trainer a")
    assert folder.parent == tmp_path / "inbox"
    members = [open_member(folder, "local:/l", name) for name in (None, None, "gpu/1")]
    assert [each.path.name for each in members] == ["member-1.db", "member-2.db", "gpu%2F1.db"]
    for each in members:
        each.close()
    with contextlib.closing(open_member(folder, "local:/l")) as again:
        assert again.path.name == "member-1.db"


def test_what_members_that_are_gone_have_left_is_taken_over(tmp_path: Path) -> None:
    with contextlib.closing(open_member(tmp_path, "local:/l", "gone")) as gone:
        arrived(gone, *(arrival(f"t-{n}", f"p{n}", n) for n in range(4)))
        gone.begin(number_of(gone, "t-0"))
        gone.finish(number_of(gone, "t-1"), "handled")
        gone.park(number_of(gone, "t-2"), "bad")
    with contextlib.closing(open_member(tmp_path, "local:/other", "stranger")) as stranger:
        arrived(stranger, arrival("foreign", "f"))
    with contextlib.closing(open_member(tmp_path, "local:/l", "alive")) as alive:
        arrived(alive, arrival("own", "o"))
        with contextlib.closing(open_member(tmp_path, "local:/l")) as one:
            assert take_over(one, "local:/l") == 2
            assert due(one) == ["t-0", "t-3"]
            assert [entry.failures for entry in one.due()] == [1, 0]
            assert take_over(one, "local:/l") == 0
        assert due(alive) == ["own"], "whose member lives"


def test_an_inbox_keeps_to_its_log_while_something_is_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with contextlib.closing(open_file(path, "kafka://a:1,b:2")) as inbox:
        arrived(inbox, arrival("t-0"))
    with pytest.raises(ConfigurationError, match=r"1 unfinished requests of kafka://a:1,b:2"):
        open_file(path, "kafka://c:3")
    with contextlib.closing(open_file(path, "kafka://b:2,c:3")) as inbox:  # a broker in common: it has moved
        assert due(inbox) == ["t-0"]
    with contextlib.closing(open_file(path, "kafka://c:3")) as inbox:
        inbox.finish(number_of(inbox, "t-0"), "handled")
    with contextlib.closing(open_file(path, "local:/l")) as inbox:
        assert inbox.store([arrival("t-0")]) == 1, "what it remembered was another log's"
    assert not same_log("kafka://a:1", "local:/l")


# --- what can go wrong --------------------------------------------------------------------------------------------


def test_files_that_are_no_inbox_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("this is no database, and never was one" * 100)
    with pytest.raises(ConfigurationError, match=r"text\.db: the inbox cannot be opened"):
        Inbox(text)
    newer = tmp_path / "newer.db"
    with contextlib.closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(ConfigurationError, match="format 99"):
        Inbox(newer)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Inbox(tmp_path / "file" / "a.db")


def test_a_write_that_fails_is_an_error_and_leaves_what_was_there(inbox: Inbox) -> None:
    arrived(inbox, arrival("t-0"))
    with contextlib.closing(sqlite3.connect(inbox.path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON requests BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(InboxError, match=r"a\.db: the inbox failed \(disk full\)"):
        inbox.store([arrival("t-1")])
    assert due(inbox) == ["t-0"]
