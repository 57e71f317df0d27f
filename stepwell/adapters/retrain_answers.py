"""Writing answers to retrain requests into the log."""

import contextlib
import threading
import time
from collections.abc import Callable

import structlog

from stepwell.adapters.ids import new_event_id
from stepwell.engine.detection.ledger import ANSWERS
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered, RetrainRequested
from stepwell.exceptions import LogUnavailableError

_logger = structlog.get_logger(__name__)

ANSWER_TIMEOUT_S = 60.0


def new_answer(
    request: RetrainRequested, trainer: str, status: str, *, detail: str, new_checkpoint: str | None
) -> RetrainAnswered:
    """An answer to a request in the name of ``trainer``, its group.

    Raises:
        ValueError: no such status.
    """
    if status not in ANSWERS:
        raise ValueError(f"status must be one of {', '.join(ANSWERS)}; got {status!r}")
    if status == "done" and not new_checkpoint:
        # Allowed, since not every training makes a checkpoint; mostly it is forgotten.
        _logger.warning("done_without_checkpoint", trigger_id=request.trigger_id, policy=request.policy)
    return RetrainAnswered(
        event_id=new_event_id(),
        run_id=request.run_id,
        episode_id=request.episode_id,
        attempt=request.attempt,
        producer_id=trainer,
        producer_seq=0,
        occurred_at=time.time_ns() // 1000,
        trace_id=request.trace_id,
        trigger_id=request.trigger_id,
        policy=request.policy,
        status=status,
        new_checkpoint=new_checkpoint,
        detail=detail,
    )


class AnswerWriter:
    """Writes the answers of one training service. Safe to share between threads."""

    def __init__(self, log: MessageLog, codec: Codec, trainer: str) -> None:
        """Write to ``log`` in the name of ``trainer``, its group."""
        self._codec = codec
        self._trainer = trainer
        self._mutex = threading.Lock()
        self._producer = log.producer()

    def write(
        self,
        request: RetrainRequested,
        status: str,
        *,
        detail: str,
        new_checkpoint: str | None,
        before: Callable[[bytes], None] | None = None,
    ) -> None:
        """Write one answer; returns once it is durable. ``before`` gets its event id before it is sent.

        Raises:
            ValueError: no such status.
            LogError: the answer was refused.
            LogUnavailableError: it may or may not be in the log.
        """
        answer = new_answer(request, self._trainer, status, detail=detail, new_checkpoint=new_checkpoint)
        record = outgoing(self._codec, answer)
        if before is not None:
            before(answer.event_id)
        with self._mutex:
            try:
                self._producer.send([record])
            except LogUnavailableError:
                # An answer from before was refused meanwhile; the producer tells why, and is then ready again.
                with contextlib.suppress(LogUnavailableError):
                    self._producer.flush(ANSWER_TIMEOUT_S)
                self._producer.send([record])
            self._producer.flush(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()
