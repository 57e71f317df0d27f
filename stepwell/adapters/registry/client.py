"""The connection to a registry: the few calls that Stepwell makes, with errors that say what to do.

Confluent's own client does the talking. Nothing here registers by itself; `stepwell.adapters.registry.registration`
does.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from stepwell.events.schemas import AvroSchema, fingerprint_of
from stepwell.exceptions import (
    ConfigurationError,
    MissingPartError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
    StepwellError,
)

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

COMPATIBILITY = "FULL_TRANSITIVE"
TIMEOUT_S = 10.0
_RETRIES = 2
_RETRY_WAIT_MS = 200
# Confluent's codes for "no such subject, version, schema" and for "no level of its own".
_NOT_FOUND = frozenset({40401, 40402, 40403, 40408})
_UNREACHABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of one subject.

    Attributes:
        version: the registry's count within the subject, from 1.
        id: the number for the wire.
        schema: as registered.
    """

    version: int
    id: int
    schema: AvroSchema

    @property
    def fingerprint(self) -> str:
        """See `stepwell.events.schemas`; empty where it is no Avro schema that can be parsed."""
        try:
            return fingerprint_of(self.schema)
        except Exception:  # noqa: BLE001 (whatever somebody registered; then it is none of ours)
            return ""


class SchemaRegistry:
    """A registry by URL. A context manager; safe to share between threads.

    Args:
        url: where Confluent's API is, e.g. ``http://registry:8081``; Apicurio's is at ``/apis/ccompat/v7``.
        credentials: ``user:password``; empty for none.

    Raises:
        MissingPartError: the client is not installed.
    """

    def __init__(self, url: str, credentials: str = "") -> None:
        self.url = url
        options = {
            "url": url, "timeout": TIMEOUT_S, "max.retries": _RETRIES, "retries.wait.ms": _RETRY_WAIT_MS,
            "retries.max.wait.ms": _RETRY_WAIT_MS * 4,
        }  # fmt: skip
        if credentials:
            options["basic.auth.user.info"] = credentials
        self._client = require_client()(options)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self, subject: str) -> Registered | None:
        """The newest version of a subject; None where there is no such subject."""
        return self._registered(subject, "latest")

    def versions(self, subject: str) -> list[Registered]:
        """Every version of a subject, the oldest first; none where there is no such subject."""
        numbers = self._ask(f"versions of {subject}", lambda: self._client.get_versions(subject)) or []
        found = (self._registered(subject, number) for number in sorted(numbers))
        return [each for each in found if each is not None]

    def schema(self, schema_id: int) -> AvroSchema | None:
        """The schema behind an id; None where the registry does not know it, or where it is no Avro record."""
        found = self._ask(f"schema {schema_id}", lambda: self._client.get_schema(schema_id))
        return None if found is None else _parsed(found.schema_str)

    def compatibility(self, subject: str) -> str | None:
        """The compatibility that is set for a subject itself; None where the registry's default applies."""
        level = self._ask(f"compatibility of {subject}", lambda: self._client.get_compatibility(subject))
        return None if level is None else str(level)

    def set_compatibility(self, subject: str) -> None:
        """Set a subject to FULL_TRANSITIVE."""
        self._ask(f"set compatibility of {subject}", lambda: self._client.set_compatibility(subject, COMPATIBILITY))

    def refusal(self, subject: str, schema: AvroSchema) -> str | None:
        """Why the registry would refuse a schema as the next version of a subject; None where it would not.

        The compatibility that is set for the subject applies.
        """
        path = f"compatibility/subjects/{quote(subject, safe='')}/versions?verbose=true"
        answer = self._ask(
            f"compatibility of a new version of {subject}",
            lambda: self._client._rest_client.post(path, body={"schema": json.dumps(schema)}),
        )
        if answer is None or answer.get("is_compatible", False):
            return None
        said = answer.get("messages") or answer.get("reason") or "no reason given"
        return said if isinstance(said, str) else "; ".join(str(each) for each in said)

    def register(self, subject: str, schema: AvroSchema) -> int:
        """Register a schema as the next version of a subject; its id. The same schema again has the same id.

        Raises:
            SchemaRegistryError: the registry refuses it as incompatible (409) or invalid (422), with its words.
        """
        from confluent_kafka.schema_registry import Schema

        made = Schema(json.dumps(schema), "AVRO")
        schema_id = self._ask(f"register {subject}", lambda: self._client.register_schema(subject, made))
        if not isinstance(schema_id, int) or schema_id < 0:
            raise SchemaRegistryError(f"schema registry {self.url}: register {subject}: it gave no id ({schema_id!r})")
        return schema_id

    def _registered(self, subject: str, number: "int | Literal['latest']") -> Registered | None:
        found = self._ask(f"version {number} of {subject}", lambda: self._client.get_version(subject, number))
        if found is None or found.version is None or found.schema_id is None:
            return None
        return Registered(found.version, found.schema_id, _parsed(found.schema and found.schema.schema_str) or {})

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        """What the registry answers; None where it says that there is no such thing."""
        import httpx2 as httpx
        from confluent_kafka.schema_registry.error import SchemaRegistryError as Refusal

        where = f"schema registry {self.url}: {what}"
        try:
            return call()
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise SchemaRegistryUnavailableError(f"{where}: it cannot be reached: {why}") from None
        except (httpx.HTTPError, httpx.InvalidURL, json.JSONDecodeError) as error:
            raise SchemaRegistryError(f"{where}: {type(error).__name__}: {error}") from None
        except Refusal as error:
            if error.error_code in _NOT_FOUND:
                return None
            raise _refusal(where, error.http_status_code, error.error_message) from None


def _refusal(where: str, status: int, said: str) -> StepwellError:
    """What a status means, and what to do about it."""
    if status in _UNREACHABLE_STATUS:
        return SchemaRegistryUnavailableError(f"{where}: status {status}: {said}")
    if status in {401, 403}:
        return SchemaRegistryError(
            f"{where}: it refuses the credentials (status {status}). They are read from the file that the setting "
            "schema_registry_credentials_file names, as user:password"
        )
    if status in {404, 405}:
        return ConfigurationError(
            f"{where}: there is no Confluent-compatible API at this URL (status {status}). Apicurio's is at "
            "/apis/ccompat/v7"
        )
    return SchemaRegistryError(f"{where}: status {status}: {said}")


def _parsed(text: str | None) -> AvroSchema | None:
    try:
        schema = json.loads(text or "")
    except json.JSONDecodeError:
        return None
    return schema if isinstance(schema, dict) else None


def require_client() -> "type[SchemaRegistryClient]":
    """Confluent's client; raises `MissingPartError` where it is not installed."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise MissingPartError(
            f"A schema registry is set, but its client is not installed ({error}): pip install 'stepwell[registry]'"
        ) from error
    return SchemaRegistryClient
