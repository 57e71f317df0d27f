"""Quix Streams with its RocksDB state, exactly once.   quix.py BOOTSTRAP SCHEMAS STATE_DIRECTORY"""

import sys
from typing import Any

from quixstreams import Application
from quixstreams.models import Deserializer
from work import EVENTS, OUTCOMES, Decoder, first, fold, fresh, outcome

bootstrap, schemas, directory = sys.argv[1:]
decode = Decoder(schemas)


class Avro(Deserializer):
    def __call__(self, value: bytes, ctx: Any) -> Any:
        return decode(value)


application = Application(
    broker_address=bootstrap,
    consumer_group="bench-quix",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=1.0,
    state_dir=directory,
    loglevel="WARNING",
)


def step(value: Any, state: Any) -> Any:
    first()
    kind, event = value
    kept = state.get("episode")
    if kept is None:
        kept = fresh()
    ended = fold(kept, kind, event)
    state.set("episode", kept)
    return outcome(kept, event) if ended else None


events = application.dataframe(application.topic(EVENTS, value_deserializer=Avro()))
events = events.apply(step, stateful=True)
events = events.filter(lambda value: value is not None)
events = events.to_topic(application.topic(OUTCOMES, value_serializer="json"))
application.run()
