"""Schemas under a registry's ids, for a codec. Looks up; never registers.

Which schema a record was written with is told by its fingerprint, as without a registry. The registry gives the ids
that are written on the wire, so that every Confluent client can read the records, and tells what stands behind the id
of a record that such a client wrote without a fingerprint. What it tells must be one of the packaged schemas: a schema
that this version of Stepwell does not know has no meaning to it.
"""

import threading
import time
from dataclasses import replace

from stepwell.adapters.registry.client import SchemaRegistry, require_client
from stepwell.events.schemas import PackagedSchemas, SchemaVersion, fingerprint_of, packaged_schemas
from stepwell.exceptions import SchemaRegistryError, UnknownSchemaError

__all__ = ["RegistrySchemas", "subject_of"]

# Ids that mean nothing are asked for once a minute, not once a record.
_STRANGERS_MAX = 10_000
_STRANGERS_KEPT_S = 60.0


def subject_of(version: SchemaVersion) -> str:
    """RecordNameStrategy: the subject is the record's full name."""
    return version.entry.avro_name


class RegistrySchemas:
    """`stepwell.events.schemas.SchemaSource` with the ids of a registry. Safe to share between threads.

    Ids never change in a registry, so each is looked up once, over a connection that is closed again.

    Args:
        url: where Confluent's API is.
        credentials: ``user:password``; empty for none.
        packaged: the schemas that this version of Stepwell knows.

    Raises:
        MissingPartError: the registry's client is not installed.
    """

    def __init__(self, url: str, credentials: str = "", packaged: PackagedSchemas | None = None) -> None:
        require_client()
        self._url = url
        self._credentials = credentials
        self._packaged = packaged or packaged_schemas()
        self._current: dict[str, SchemaVersion] = {}
        self._by_id: dict[int, SchemaVersion] = {}
        self._strangers: dict[int, tuple[float, str]] = {}  # id -> when to ask again, what the registry said
        self._lock = threading.Lock()

    def require_all(self) -> None:
        """Look up the ids of all current versions now, for whoever is going to write.

        Raises:
            SchemaRegistryError: schemas are not registered; names them, and the command that registers them.
            SchemaRegistryUnavailableError: the registry is away.
        """
        with self._connected() as registry:
            current = [version for version in self._packaged.versions if version.latest]
            missing = [version for version in current if self._found(version, registry) is None]
        if missing:
            raise self._not_registered(missing)

    def by_fingerprint(self, fingerprint: str) -> SchemaVersion:
        """See `SchemaSource.by_fingerprint`."""
        return self._packaged.by_fingerprint(fingerprint)

    def by_registry_id(self, schema_id: int) -> SchemaVersion:
        """See `SchemaSource.by_registry_id`.

        Raises:
            UnknownSchemaError: also where the schema behind the id is none of the packaged ones.
            SchemaRegistryUnavailableError: the registry is away.
        """
        with self._lock:
            found = self._by_id.get(schema_id)
            if found is not None:
                return found
            asked_again_at, said = self._strangers.get(schema_id, (0.0, ""))
            if time.monotonic() >= asked_again_at:
                found, said = self._look_behind(schema_id)
                if found is not None:
                    self._by_id[schema_id] = found
                    return found
                if len(self._strangers) >= _STRANGERS_MAX:
                    self._strangers.clear()
                self._strangers[schema_id] = (time.monotonic() + _STRANGERS_KEPT_S, said)
        raise UnknownSchemaError(
            f"the record has no header stepwell-schema, and its schema id {schema_id} names no schema of Stepwell in "
            f"{self._url}: {said}",
            reason="unknown-schema-id",
        )

    def _look_behind(self, schema_id: int) -> tuple[SchemaVersion | None, str]:
        """The packaged version behind an id; else what is there instead."""
        with self._connected() as registry:
            schema = registry.schema(schema_id)
        if schema is None:
            return None, "the registry does not know it"
        try:
            return self._packaged.by_fingerprint(fingerprint_of(schema)), ""
        except Exception as error:  # noqa: BLE001 (whatever somebody registered)
            return None, f"behind it is {schema.get('namespace', '')}.{schema.get('name', '?')}: {error}"

    def current(self, type_name: str) -> SchemaVersion:
        """See `SchemaSource.current`.

        Raises:
            SchemaRegistryError: it is not registered.
            SchemaRegistryUnavailableError: the registry is away.
        """
        version = self._packaged.current(type_name)
        found = self._current.get(type_name)
        if found is None:
            with self._connected() as registry:
                found = self._found(version, registry)
        if found is None:
            raise self._not_registered([version])
        return found

    def _connected(self) -> SchemaRegistry:
        return SchemaRegistry(self._url, self._credentials)

    def _found(self, version: SchemaVersion, registry: SchemaRegistry) -> SchemaVersion | None:
        """The version under the registry's id; None where it is not registered."""
        subject = subject_of(version)
        registered = registry.latest(subject)
        if registered is not None and registered.fingerprint != version.fingerprint:
            every = reversed(registry.versions(subject))
            registered = next((each for each in every if each.fingerprint == version.fingerprint), None)
        if registered is None:
            return None
        found = replace(version, id=registered.id)
        with self._lock:
            self._by_id[registered.id] = found
            return self._current.setdefault(version.entry.type, found)

    def _not_registered(self, versions: list[SchemaVersion]) -> SchemaRegistryError:
        named = ", ".join(f"{each.entry.type} version {each.version}" for each in versions[:5])
        more = f" and {len(versions) - 5} more" if len(versions) > 5 else ""
        return SchemaRegistryError(
            f"schema registry {self._url}: not registered: {named}{more}. Register with: "
            "stepwell schemas register (--dry-run shows what it would do)"
        )
