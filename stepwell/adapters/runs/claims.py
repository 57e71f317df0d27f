"""Who runs an attempt: the first `episode::claimed` in the log. A host starts only after it has read its own back."""

import threading
from collections.abc import Collection, Mapping

import structlog

from stepwell.engine.ports import Consumer, MessageLog, TopicPartition
from stepwell.events.codec import Codec
from stepwell.events.model import EpisodeClaimed
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import EventError, LogError, LogUnavailableError

_logger = structlog.get_logger(__name__)

POLL_RECORDS_MAX = 5_000
POLL_S = 0.2
CLAIM_TYPE = ("ce_type", EpisodeClaimed.TYPE.encode())


def log_ends(log: MessageLog) -> dict[TopicPartition, int]:
    """Where the episodes' events end now."""
    admin = log.admin()
    try:
        return {source: marks.high for source, marks in admin.watermarks(EPISODE_EVENTS).items()}
    finally:
        admin.close()


class ClaimReader:
    """Follows the log from some positions on, and knows who claimed which attempt first after them."""

    def __init__(
        self, log: MessageLog, codec: Codec, episode_ids: Collection[str], start: Mapping[TopicPartition, int]
    ) -> None:
        """``start``: no later than where the log was read to find that nobody has the attempts yet (`log_ends`)."""
        self._codec = codec
        self._keys = frozenset(episode_id.encode() for episode_id in episode_ids)
        self._winners: dict[tuple[str, int], str] = {}
        self._changed = threading.Condition()
        self._failure: LogError | None = None
        self._closing = threading.Event()
        consumer = log.consumer()
        consumer.assign(start)
        self._thread = threading.Thread(target=self._run, args=(consumer,), name="claims", daemon=True)
        self._thread.start()

    def wait_for(self, episode_id: str, attempt: int, timeout_s: float) -> str:
        """The producer id whose claim of this attempt stands first in the log.

        Raises:
            LogUnavailableError: no claim could be read back in time.
            LogError: the log cannot be followed any more.
        """
        with self._changed:
            found = self._changed.wait_for(
                lambda: self._failure is not None or (episode_id, attempt) in self._winners, timeout_s
            )
            if self._failure is not None:
                raise self._failure
            if not found:
                raise LogUnavailableError(f"the claim of {episode_id} could not be read back within {timeout_s:g} s")
            return self._winners[episode_id, attempt]

    def close(self) -> None:
        """Stop following. Never raises."""
        self._closing.set()
        self._thread.join()

    def _run(self, consumer: Consumer) -> None:
        try:
            while not self._closing.is_set():
                try:
                    batches = consumer.poll(POLL_RECORDS_MAX, POLL_S)
                except LogUnavailableError:
                    self._closing.wait(POLL_S)
                    continue
                for batch in batches:
                    for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
                        if key in self._keys and CLAIM_TYPE in headers:
                            self._note(value, headers)
        except LogError as error:
            self._stop(error)
        except Exception as error:
            _logger.exception("claim_reader_broke")
            self._stop(LogError(f"the reader of claims broke: {error!r}"))
        finally:
            consumer.close()

    def _stop(self, error: LogError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _note(self, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]) -> None:
        try:
            event = self._codec.decode(value, headers)
        except EventError:
            return  # the engine makes a dead letter of it; it claims nothing
        if isinstance(event, EpisodeClaimed):
            with self._changed:
                self._winners.setdefault((event.episode_id, event.attempt), event.producer_id)
                self._changed.notify_all()
