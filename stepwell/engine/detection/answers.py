"""Answers of training services, copied from ``stepwell.retrain-results`` into policy-events.

Each is acted on only when it is read from there: so that the order in which the detector saw answers and verdicts is
recorded, and folding policy-events alone always gives the same ledger.
"""

from stepwell.engine.loop import Processor
from stepwell.engine.ports import EventCodec, OutgoingRecord, RecordBatch
from stepwell.engine.publish import check_size, dead_letter, outgoing_letter
from stepwell.events.model import RetrainAnswered
from stepwell.events.routing import topic_of
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import EncodeError, EventError


class AnswersPartition(Processor):
    """Copies one partition of retrain-results into policy-events, byte for byte."""

    def __init__(self, position: int, codec: EventCodec, worker_id: str) -> None:
        self.position = position
        self._codec = codec
        self._worker_id = worker_id

    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        """Copy what is an answer; everything else is a dead letter."""
        del now_us
        out: list[OutgoingRecord] = []
        for index in range(len(batch)):
            value, headers = batch.values[index], batch.headers[index]
            kind = "unreadable"
            try:
                event = self._codec.decode_event(value, headers)
            except EventError as error:
                reason, detail = error.reason, str(error)
            else:
                if isinstance(event, RetrainAnswered):
                    copied = OutgoingRecord(POLICY_EVENTS, event.policy.encode(), value, headers)
                    try:
                        check_size(copied)
                    except EncodeError as error:
                        kind, reason, detail = "refused", error.reason, f"the copy under its policy's key: {error}"
                    else:
                        out.append(copied)
                        continue
                else:
                    reason, detail = "wrong-topic", f"{event.TYPE} belongs on {topic_of(event)}"
            letter = dead_letter(batch, index, kind=kind, reason=reason, detail=detail, reported_by=self._worker_id)
            out.append(outgoing_letter(self._codec, letter))
        self.position = batch.end
        return out
