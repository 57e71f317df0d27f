"""OTLP's JSON: protobuf's own mapping, but for ids, which are hexadecimal."""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError

from stepwell.adapters.otlp.taken import MalformedRequestError

_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")


def message_of(message: Any, body: bytes) -> Any:
    """The message filled from a body. Fields that nobody knows are passed over, as OTLP wants it.

    Raises:
        MalformedRequestError: the body is no JSON, or not of that message.
    """
    try:
        content = json.loads(body)
        if not isinstance(content, dict):
            raise MalformedRequestError("the body is no JSON object")
        for part in _parts(content):
            _to_base64(part)
        return ParseDict(content, message, ignore_unknown_fields=True)
    except (ValueError, ParseError, RecursionError) as error:
        if isinstance(error, MalformedRequestError):
            raise
        text = str(error)[:300]
        raise MalformedRequestError(f"the body is no JSON of {message.DESCRIPTOR.full_name}: {text}") from None


def body_of(message: Any) -> bytes:
    """The message as JSON."""
    return str(MessageToJson(message, indent=None)).encode()


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    """Every object within."""
    here = [content]
    while here:
        part = here.pop()
        if isinstance(part, dict):
            yield part
            here += part.values()
        elif isinstance(part, list):
            here += part


def _to_base64(part: dict[str, Any]) -> None:
    for name in _IDS:
        text = part.get(name)
        if isinstance(text, str) and text:
            try:
                part[name] = base64.b64encode(bytes.fromhex(text)).decode()
            except (ValueError, binascii.Error):
                raise MalformedRequestError(f"{name} {text[:60]!r} is not hexadecimal") from None
