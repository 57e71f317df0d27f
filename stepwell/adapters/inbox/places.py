"""Where inboxes lie, and whose they are.

``HOME/inbox/GROUP/`` holds one file for each member that this machine has had of a group: ``member-1.db`` and so on,
or ``INSTANCE.db`` for a member with a name. A member takes the first file that no other process holds, and then what
the files of members that are gone have left unfinished. So nothing is forgotten while one member of the group comes
back on this machine.

Each file says which log its requests are from. One with unfinished requests of another log is left alone.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import structlog

from stepwell.adapters.inbox.store import Inbox, InboxTakenError, State
from stepwell.exceptions import ConfigurationError

_logger = structlog.get_logger(__name__)

UNFINISHED: tuple[State, ...] = ("stored", "waiting", "working")
MEMBERS_MAX = 1000
PATIENCE_S = 2.0


def group_folder(home: Path, group: str) -> Path:
    """The folder of a group's inboxes on this machine."""
    return home / "inbox" / _file_name(group)


def open_member(folder: Path, log_name: str, instance_id: str | None = None) -> Inbox:
    """The inbox of a member: its own by name, else the first that is free and not taken up by another log.

    Raises:
        ConfigurationError: the named one is held by another process, or holds requests of another log; or no file can
            be made.
    """
    if instance_id is not None:
        return open_file(folder / f"{_file_name(instance_id)}.db", log_name)
    for number in range(1, MEMBERS_MAX + 1):
        path = folder / f"member-{number}.db"
        with contextlib.suppress(InboxTakenError):
            return open_file(path, log_name, patience_s=0.0)
    raise ConfigurationError(f"{folder}: all {MEMBERS_MAX} inboxes are taken")


def open_file(path: Path, log_name: str, *, patience_s: float = PATIENCE_S) -> Inbox:
    """The inbox in this very file.

    Args:
        path: the file.
        log_name: the URL of the log that its requests shall be from.
        patience_s: wait so long for its lock: another member may just be looking whether it was left behind.

    Raises:
        InboxTakenError: another process holds it, or it holds unfinished requests of another log.
        ConfigurationError: it cannot be made, or it is none of ours.
    """
    inbox = _held(path, patience_s)
    try:
        before = inbox.log_name
        if before and not same_log(before, log_name):
            left = len(inbox.entries(UNFINISHED))
            if left:
                raise InboxTakenError(
                    f"{path}: holds {left} unfinished requests of {before}; finish them with that log, move the file "
                    "away, or name another one. If it is the same log under new addresses, start once with an old and "
                    "a new one together (kafka://old:9092,new:9092)"
                )
            inbox.forget_all()
        if before != log_name:
            inbox.bind(log_name)
    except BaseException:
        inbox.close()
        raise
    return inbox


def take_over(inbox: Inbox, log_name: str) -> int:
    """Take what the members of this folder that are gone have left unfinished; how many requests that were."""
    taken = 0
    for path in inbox_files(inbox.path.parent):
        if path == inbox.path:
            continue
        try:
            other = Inbox(path)
        except ConfigurationError:
            continue  # in use, or not to be read: its own member will say so
        with contextlib.closing(other):
            if not same_log(other.log_name, log_name):
                continue
            count = inbox.take_from(other)
        if count:
            _logger.info("inbox_taken_over", requests=count, inbox=str(path))
            taken += count
    return taken


def inbox_files(folder: Path) -> list[Path]:
    """The inboxes in a folder."""
    return sorted(folder.glob("*.db"))


def all_folders(home: Path) -> Iterator[Path]:
    """The folders of all groups that this machine has had."""
    folder = home / "inbox"
    yield from sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else ()


def same_log(one: str, other: str) -> bool:
    """Whether two URLs name the same log: equal, or Kafka with a broker in common, so that brokers may come and go."""
    kafka = "kafka://"
    if one.startswith(kafka) and other.startswith(kafka):
        brokers = [set(url.removeprefix(kafka).rstrip("/").split(",")) for url in (one, other)]
        return bool(brokers[0] & brokers[1])
    return one == other


def _held(path: Path, patience_s: float) -> Inbox:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return Inbox(path)
        except InboxTakenError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def _file_name(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")
