"""Compare the packaged schemas with a registry, and register what is missing: what ``stepwell schemas`` does.

Every version of a type is registered, the oldest first, under one subject (the record's full name), which is set to
FULL_TRANSITIVE before its first version: the registry then refuses, from whomever, a schema that old readers or writers
could not bear. Registering twice registers once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepwell.adapters.registry.client import COMPATIBILITY, Registered, SchemaRegistry
from stepwell.adapters.registry.differences import differences
from stepwell.adapters.registry.schemas import subject_of
from stepwell.events.schemas import SchemaVersion, packaged_schemas
from stepwell.exceptions import SchemaCompatibilityError, SchemaRegistryError

__all__ = ["Subject", "compare", "problems", "register"]

_SAID_MAX = 400


@dataclass(frozen=True, slots=True)
class Subject:
    """How one subject stands.

    Attributes:
        name: the record's full name.
        versions: the packaged versions, the oldest first.
        compatibility: what is set for the subject itself; None: nothing, the registry's default applies.
        registered: what the registry has, the oldest first.
        ids: packaged version number -> the registry's id, for what is registered.
    """

    name: str
    versions: tuple[SchemaVersion, ...]
    compatibility: str | None
    registered: tuple[Registered, ...]
    ids: dict[int, int] = field(default_factory=dict)

    @property
    def missing(self) -> list[SchemaVersion]:
        """The packaged versions that are not registered, the oldest first."""
        return [each for each in self.versions if each.version not in self.ids]

    @property
    def guarded(self) -> bool:
        """Whether the registry refuses incompatible versions."""
        return self.compatibility == COMPATIBILITY


def compare(registry: SchemaRegistry) -> Iterator[Subject]:
    """How every subject stands, in the order of the packaged ids.

    Raises:
        SchemaRegistryUnavailableError: the registry is away.
        SchemaRegistryError: it refuses to tell.
    """
    by_subject: dict[str, list[SchemaVersion]] = {}
    for version in packaged_schemas().versions:
        by_subject.setdefault(subject_of(version), []).append(version)
    for name, versions in by_subject.items():
        registered = tuple(registry.versions(name))
        ids = {each.fingerprint: each.id for each in reversed(registered)}
        yield Subject(
            name=name,
            versions=tuple(versions),
            compatibility=registry.compatibility(name),
            registered=registered,
            ids={each.version: ids[each.fingerprint] for each in versions if each.fingerprint in ids},
        )


def register(registry: SchemaRegistry, subject: Subject) -> list[tuple[SchemaVersion, int]]:
    """Set the subject's compatibility where it is not set, and register what is missing; each with its id.

    Raises:
        SchemaCompatibilityError: the registry refuses a version; says which, what differs from what is registered, and
            what can be done.
        SchemaRegistryError: it refuses otherwise.
        SchemaRegistryUnavailableError: the registry is away. What was registered stays; run it again.
    """
    if not subject.guarded:
        registry.set_compatibility(subject.name)
    done = []
    for version in subject.missing:
        try:
            done.append((version, registry.register(subject.name, version.schema)))
        except SchemaRegistryError as error:
            why = registry.refusal(subject.name, version.schema)
            if why is None:
                raise
            raise SchemaCompatibilityError(
                _refused(subject, version, why, registry.versions(subject.name)), reason="incompatible-schema"
            ) from error
    return done


def problems(registry: SchemaRegistry, subject: Subject) -> list[str]:
    """What ``register`` would have to do or would meet, one sentence each; empty where all is well."""
    found = []
    if not subject.guarded:
        level = subject.compatibility or "not set"
        found.append(f"{subject.name}: compatibility is {level}, and must be {COMPATIBILITY}")
    for version in subject.missing:
        why = registry.refusal(subject.name, version.schema) if subject.guarded and subject.registered else None
        found.append(
            f"{subject.name}: version {version.version} of {version.entry.type} is not registered"
            if why is None
            else _refused(subject, version, why, subject.registered)
        )
    return found


def _refused(subject: Subject, version: SchemaVersion, why: str, registered: Sequence[Registered]) -> str:
    """A refusal as a person needs it: which schema, against what, what differs, what to do."""
    what = f"version {version.version} of {version.entry.type}"
    lines = [f"{subject.name}: the registry refuses {what} as incompatible with what is registered there:"]
    known = {each.fingerprint for each in subject.versions}
    for each in registered:
        found = differences(each.schema, version.schema)
        if found:
            whose = "" if each.fingerprint in known else ", which is none of Stepwell's"
            lines.append(f"- against its version {each.version} (id {each.id}{whose}): {'; '.join(found)}")
    lines.append(f"- the registry says: {why[:_SAID_MAX]}")
    lines.append(
        "Nothing of Stepwell's own is incompatible with itself (python -m stepwell.events.compatibility proves it): "
        "somebody registered another schema under this name. Delete that version in the registry if nothing was "
        "written with it, else give Stepwell a registry of its own."
    )
    return "\n".join(lines)
