"""Whether a run id has been used for something else: the log's episodes of a run that its spec does not ask for."""

from collections.abc import Collection

from stepwell.adapters.logs.reading import read_batches
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import EpisodeRequested
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import EventError

REQUEST_TYPE = ("ce_type", EpisodeRequested.TYPE.encode())


def not_planned(log: MessageLog, codec: Codec, run_id: str, planned: Collection[str]) -> set[str]:
    """The ids of the episodes that the log has of this run beside those ``planned``.

    An episode's id follows from its definition. So these are of another definition of a policy, scene or perturbation,
    or of cells that the spec no longer has.

    Raises:
        LogError: the log cannot be read.
    """
    known = frozenset(episode_id.encode() for episode_id in planned)
    found: set[str] = set()
    for batch in read_batches(log, EPISODE_EVENTS):
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            if key in known or REQUEST_TYPE not in headers:
                continue
            try:
                event = codec.decode_event(value, headers)
            except EventError:
                continue
            if event.run_id == run_id and event.episode_id.encode() == key:
                found.add(event.episode_id)
    return found
