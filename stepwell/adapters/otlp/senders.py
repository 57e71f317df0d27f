"""Who sends: OpenTelemetry's attributes as text, and what Stepwell reads from those of a resource."""

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from stepwell.adapters.otlp.taken import TEXT_BYTES, memory_bytes, text_bytes
from stepwell.engine.remembered import Remembered
from stepwell.events.guards import MAX_ID_CHARACTERS
from stepwell.events.model import Attribute

EPISODE_ID = "stepwell.episode_id"
ATTEMPT = "stepwell.attempt"
INSTANCE = "service.instance.id"
WORKER_NAMES = ("worker.id", INSTANCE, "service.name")
"""Attributes that name the sender; the first that is there counts, but an instance that is a UUID comes last."""
HOST_NAME = "host.name"
_SAID = frozenset({WORKER_NAMES[0], HOST_NAME, EPISODE_ID, ATTEMPT})

_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_REMEMBERED_BYTES = 16 * 1024 * 1024
_ATTEMPT_MAX = 2**31 - 1
_NESTED_MAX = 32
_SCOPE_CHARACTERS = 4_000


class RefusedError(ValueError):
    """Something in a request cannot be taken; the message says what and what would be right.

    ``code``: a short stable word, which refusals are counted by.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Episode:
    """What points or spans belong to. ``episode_id`` None: to no one episode."""

    episode_id: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """One resource, read.

    Attributes:
        worker_id, host, episode: as in `stepwell.events.model.TelemetrySampled`.
        resource: the attributes that the others do not say already, sorted by name.
    """

    worker_id: str
    host: str
    episode: Episode
    resource: tuple[Attribute, ...]


class Senders:
    """Reads resources, and remembers those it has read: a sender says the same with each request."""

    def __init__(self) -> None:
        self._known: Remembered[bytes, Sender] = Remembered(_REMEMBERED_BYTES)

    def of(self, resource: Resource) -> Sender:
        """The sender behind a resource.

        Raises:
            RefusedError: it does not say who sends, or says nonsense.
        """
        key = resource.SerializeToString()
        known = self._known.get(key)
        if known is None:
            known = _read(resource)
            self._known.add(key, known, memory_bytes(known.resource) + len(key))
        return known


def attributes_of(pairs: Iterable[KeyValue]) -> tuple[Attribute, ...]:
    """Attributes as text, sorted by name; of one name that comes twice the last."""
    texts = {pair.key: text_of(pair.value) for pair in pairs}
    return tuple(Attribute(name=name, value=texts[name]) for name in sorted(texts))


def text_of(value: AnyValue) -> str:
    """Text as it is; everything else as JSON (bytes: as base64)."""
    plain = _plain(value, 0)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def scope_text(scope: InstrumentationScope) -> str:
    """Name, version and attributes of an instrumentation scope, as far as there are any.

    Raises:
        RefusedError: it is too large.
    """
    parts = [scope.name, scope.version]
    parts += [f"{pair.key}={text_of(pair.value)}" for pair in scope.attributes]
    text = " ".join(filter(None, parts))
    if len(text) > _SCOPE_CHARACTERS:
        raise RefusedError("too_large", f"a scope has {len(text)} characters; at most {_SCOPE_CHARACTERS} are taken")
    return text


def episode_of(texts: Mapping[str, str], otherwise: Episode) -> Episode:
    """The episode that attributes name, or the other one.

    Raises:
        RefusedError: the attempt is no number from 1, or stands without an episode.
    """
    episode_id, attempt = texts.get(EPISODE_ID), texts.get(ATTEMPT)
    if episode_id is None:
        if attempt is not None and otherwise.episode_id is None:
            raise RefusedError("episode", f"{ATTEMPT} is given without {EPISODE_ID}")
        return otherwise if attempt is None else Episode(otherwise.episode_id, _attempt(attempt))
    return Episode(_named(EPISODE_ID, episode_id), None if attempt is None else _attempt(attempt))


def _read(resource: Resource) -> Sender:
    texts = {pair.key: text_of(pair.value) for pair in resource.attributes}
    # SDKs make a UUID up with each start: of a sender that has a name, too, each start would look like another sender.
    names = sorted(WORKER_NAMES, key=lambda name: name == INSTANCE and bool(_UUID.fullmatch(texts.get(name, ""))))
    name = next((name for name in names if texts.get(name)), None)
    if name is None:
        raise RefusedError(
            "resource",
            f"the resource does not say who sends: set one of {', '.join(WORKER_NAMES)} (the first one counts)",
        )
    rest = tuple(Attribute(name=key, value=texts[key]) for key in sorted(texts) if key not in _SAID)
    if text_bytes(rest) > TEXT_BYTES:
        raise RefusedError("too_large", f"the resource has more than {TEXT_BYTES} bytes of attributes")
    return Sender(
        worker_id=_named(name, texts[name]),
        host=_named(HOST_NAME, texts.get(HOST_NAME) or "unknown"),
        episode=episode_of(texts, Episode()),
        resource=rest,
    )


def _named(name: str, text: str) -> str:
    """The text, where it can be an id."""
    if text and len(text) <= MAX_ID_CHARACTERS and text.isprintable():
        return text
    raise RefusedError("resource", f"{name} is {text[:60]!r}; 1 to {MAX_ID_CHARACTERS} printable characters are needed")


def _attempt(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(_ATTEMPT_MAX)) and 1 <= int(text) <= _ATTEMPT_MAX:
        return int(text)
    raise RefusedError("episode", f"{ATTEMPT} is {text[:60]!r}; a number from 1 is needed")


def _plain(value: AnyValue, depth: int) -> Any:
    if depth > _NESTED_MAX:
        raise RefusedError("attribute", f"an attribute is nested more than {_NESTED_MAX} levels deep")
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            number = value.double_value
            return number if math.isfinite(number) else str(number)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "array_value":
            return [_plain(item, depth + 1) for item in value.array_value.values]
        case "kvlist_value":
            return {item.key: _plain(item.value, depth + 1) for item in value.kvlist_value.values}
        case _:
            return ""
