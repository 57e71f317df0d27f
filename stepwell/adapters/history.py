"""Episodes as the log tells them: every event about some episodes, read once and folded.

This is how the command line answers from the log alone, without a worker or a database.
"""

from collections.abc import Callable, Collection, Iterator

from stepwell.adapters.logs.reading import read_batches
from stepwell.engine.fold import apply, content_digest
from stepwell.engine.ports import MessageLog, RecordBatch
from stepwell.engine.state import AttemptState, EpisodeState, Position
from stepwell.engine.steps.in_force import activation_key, is_activation, step_rules_of
from stepwell.events.codec import Codec
from stepwell.events.guards import check_time
from stepwell.events.model import Event
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import EventError


def fold_episodes(log: MessageLog, codec: Codec, wanted: Collection[str] | None = None) -> dict[str, EpisodeState]:
    """The episodes in the log (only ``wanted`` ones where given), folded as of now, by their first event."""
    episodes: dict[str, EpisodeState] = {}
    for event, position in read_episode_events(log, codec, wanted):
        state = episodes.get(event.episode_id)
        if state is None:
            state = episodes[event.episode_id] = EpisodeState(event.episode_id)
        apply(state, event, position)
    return episodes


def read_episode_events(
    log: MessageLog, codec: Codec, wanted: Collection[str] | None = None
) -> Iterator[tuple[Event, Position]]:
    """Every readable event about episodes (only ``wanted`` ones where given), with where its record stands.

    The position tells the step rules that are in force there, so that folding the events gives the engine's verdicts.
    """
    keys = None if wanted is None else frozenset(episode_id.encode() for episode_id in wanted)
    keep: Callable[[bytes | None], bool] = (lambda _: True) if keys is None else keys.__contains__
    in_force: dict[int, str] = {}
    for batch in read_batches(log, EPISODE_EVENTS):
        yield from events_in(batch, codec, in_force, keep)


def events_in(
    batch: RecordBatch, codec: Codec, in_force: dict[int, str], keep: Callable[[bytes | None], bool] = lambda _: True
) -> Iterator[tuple[Event, Position]]:
    """The events of one batch that the engine folds; the others are its dead letters.

    Args:
        batch: records of one partition; hand in all of a partition's batches from the log's start on.
        codec: reads them.
        in_force: the step rules in force in each partition; brought up to date as activations pass.
        keep: whether to look at a key's records.
    """
    partition = batch.source.partition
    activations = activation_key(partition)
    for offset, timestamp, key, value, headers in zip(
        batch.offsets, batch.timestamps, batch.keys, batch.values, batch.headers, strict=True
    ):
        if value is None or not (key == activations or keep(key)):
            continue
        try:
            event = codec.decode_event(value, headers)
            check_time(event, timestamp)
            if is_activation(key, event, partition):
                in_force[partition] = step_rules_of(event)
                continue
        except EventError:
            continue
        if event.episode_id.encode() == key:
            rules = in_force.get(partition, "")
            schema = codec.fingerprint_of(value, headers)
            yield event, Position(partition, offset, timestamp, schema, content_digest(value), rules)


def latest_attempt(state: EpisodeState) -> AttemptState | None:
    """The attempt with the highest number of which the log holds events."""
    attempts = [attempt for attempt in state.attempts.values() if isinstance(attempt, AttemptState)]
    return max(attempts, key=lambda attempt: attempt.attempt, default=None)
