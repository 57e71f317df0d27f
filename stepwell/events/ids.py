"""Ids that follow from content, and the text forms of ids. Pure: no clock, no randomness.

What is asked for twice must get the same id twice: episodes from their place in the run's matrix, the engine's own
events from what they are about, triggers from rule and evidence. All are cut from SHA-256 over parts whose types and
lengths are part of what is hashed, so that ("ab", "c") and ("a", "bc") differ.

New ids for facts from outside need a clock and randomness: `stepwell.adapters.ids.new_event_id`.
"""

import base64
import hashlib
import uuid
from collections.abc import Iterable

from stepwell.events.model import EvidenceEpisode

Part = str | int | bytes
"""What ids are derived from."""


def episode_id_for(run_id: str, task: str, cell: str, repetition: int) -> str:
    """The id of the episode at this place of the run's matrix: ``ep-`` and 20 base32 characters (100 bits)."""
    return "ep-" + _text(_digest("episode", run_id, task, cell, repetition), 20)


def derived_event_id(*parts: Part) -> bytes:
    """16 bytes that follow from ``parts``, laid out as a UUID of version 8 (RFC 9562, custom content).

    For what the engine makes: give everything that makes it this event, e.g. ``("verdict", episode_id, attempt,
    revision)``.
    """
    raw = bytearray(_digest("event", *parts)[:16])
    raw[6] = 0x80 | (raw[6] & 0x0F)
    raw[8] = 0x80 | (raw[8] & 0x3F)
    return bytes(raw)


def trigger_id_for(rule: str, version: int, key: str, evidence: Iterable[EvidenceEpisode]) -> str:
    """The id of a trigger: ``tr-`` and 26 base32 characters (130 bits).

    ``evidence`` is what the rule saw when the trigger opened, in its order: episode, attempt and revision of each
    verdict.
    """
    seen = [part for episode in evidence for part in (episode.episode_id, episode.attempt, episode.revision)]
    return "tr-" + _text(_digest("trigger", rule, version, key, *seen), 26)


def event_id_text(event_id: bytes) -> str:
    """The usual text form of 16 bytes, e.g. ``0197f3c2-…``.

    Raises:
        ValueError: not 16 bytes.
    """
    digits = event_id.hex()
    if len(digits) != 32:
        raise ValueError(f"an event id has 16 bytes, this has {len(event_id)}")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def event_id_from_text(text: str) -> bytes:
    """The 16 bytes of a UUID's text form.

    Raises:
        ValueError: not a UUID.
    """
    return uuid.UUID(text).bytes


def is_uuid7(event_id: bytes) -> bool:
    """Whether these bytes are a UUID of version 7: made outside, ordered by time."""
    return len(event_id) == 16 and event_id[6] >> 4 == 7 and event_id[8] >> 6 == 2


def _digest(*parts: Part) -> bytes:
    """SHA-256 over tagged, length-prefixed parts."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes):
            tag, content = b"b", part
        elif isinstance(part, str):
            tag, content = b"s", part.encode()
        else:
            tag, content = b"i", str(part).encode()
        sha.update(tag + len(content).to_bytes(8, "big") + content)
    return sha.digest()


def _text(digest: bytes, length: int) -> str:
    """The first characters of the digest in lower-case base32."""
    return base64.b32encode(digest).decode().lower()[:length]
