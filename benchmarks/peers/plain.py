"""A plain loop on confluent-kafka, exactly once: one transaction per batch with changed states, outcomes and positions.

plain.py BOOTSTRAP SCHEMAS
"""

import json
import sys
from typing import Any

from confluent_kafka import Consumer, Producer
from work import EVENTS, OUTCOMES, SNAPSHOTS, Decoder, first, fold, fresh, outcome

BATCH = 10_000


def dumps(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def main() -> None:
    bootstrap, schemas = sys.argv[1:]
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "bench-plain", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "isolation.level": "read_committed", "queued.min.messages": 1_000_000,
        "fetch.queue.backoff.ms": 1,
    })  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "transactional.id": "bench-plain"})
    producer.init_transactions(30)
    consumer.subscribe([EVENTS])
    decode = Decoder(schemas)
    states: dict[str, dict[str, Any]] = {}
    while True:
        messages = consumer.consume(BATCH, 0.1)
        if not messages:
            continue
        first()
        changed: dict[str, dict[str, Any]] = {}
        outcomes = []
        for message in messages:
            kind, event = decode(message.value())
            episode = event["episode_id"]
            state = states.get(episode)
            if state is None:
                state = states[episode] = fresh()
            changed[episode] = state
            if fold(state, kind, event):
                outcomes.append(outcome(state, event))
        producer.begin_transaction()
        for episode, state in changed.items():
            producer.produce(SNAPSHOTS, dumps(state), episode)
        for made in outcomes:
            producer.produce(OUTCOMES, dumps(made), made["episode_id"])
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()


if __name__ == "__main__":
    main()
