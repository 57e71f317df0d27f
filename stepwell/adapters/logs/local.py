"""The local log: one SQLite file for one machine, with the semantics of Kafka that Stepwell rests on.

`docs/logs.md` says what it promises, how it lies on the disk and where its limits are.
"""

from collections.abc import Sequence
from pathlib import Path

from stepwell.adapters.logs.local_admin import LocalAdmin
from stepwell.adapters.logs.local_consumer import LocalConsumer
from stepwell.adapters.logs.local_producer import LocalProducer, LocalTransactionalProducer
from stepwell.adapters.logs.local_store import Store, open_store
from stepwell.engine.ports import Touches
from stepwell.events.topics import TOPICS, Topic
from stepwell.exceptions import ConfigurationError

SESSION_TIMEOUT_S = 6.0
POLL_INTERVAL_MAX_S = 300.0


class LocalLog:
    """A message log in a directory. Any number of processes and threads may open it; each client has its connection.

    Args:
        directory: where it lies; made when missing.
        topics: made when missing.
        session_timeout_s: a group member that says nothing for so long loses its partitions.
        poll_interval_max_s: a member that does not `poll` for so long counts as stuck, and loses them too.

    Raises:
        ConfigurationError: the directory cannot be used.
        LogError: it holds something else, or a newer layout.
        LogUnavailableError: busy for too long, or the disk is full.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        topics: Sequence[Topic] = TOPICS,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        poll_interval_max_s: float = POLL_INTERVAL_MAX_S,
    ) -> None:
        if session_timeout_s <= 0 or poll_interval_max_s <= 0:
            raise ConfigurationError("session_timeout_s and poll_interval_max_s must be above 0")
        self._directory = Path(directory).expanduser().absolute()
        self._session_timeout_s = session_timeout_s
        self._poll_interval_max_s = poll_interval_max_s
        admin = self.admin()
        try:
            admin.create(topics)
        finally:
            admin.close()

    def _store(self, *, durable: bool = True) -> Store:
        return open_store(self._directory, durable=durable)

    @property
    def said_away(self) -> bool:
        """Never: whoever calls hears it from the error."""
        return False

    def producer(self, *, quiet: bool = False) -> LocalProducer:
        """A producer outside transactions. It says nothing of itself but what `close` had to give up."""
        del quiet
        return LocalProducer(self._store())

    def transactional_producer(
        self, transactional_id: str, touches: Touches | None = None
    ) -> LocalTransactionalProducer:
        """A producer with a stable id; fences the older one with the same id. Nothing is ever left open here."""
        del touches
        store = self._store()
        try:
            return LocalTransactionalProducer(store, transactional_id)
        except BaseException:
            store.close()
            raise

    def consumer(self, group: str | None = None, instance_id: str | None = None) -> LocalConsumer:
        """A consumer; every record in a local log is a committed one."""
        return LocalConsumer(
            self._store(),
            lambda: self._store(durable=False),
            group,
            instance_id,
            self._session_timeout_s,
            self._poll_interval_max_s,
        )

    def admin(self) -> LocalAdmin:
        """For looking at and making topics, and for upkeep by hand."""
        return LocalAdmin(self._store())

    def close(self) -> None:
        """Nothing is held here: every client closes its own connection."""
