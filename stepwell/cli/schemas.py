"""``stepwell schemas``: the schemas of the events, and a registry that knows them."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stepwell.adapters.registry.client import SchemaRegistry


def register(app: typer.Typer) -> None:
    """Add ``stepwell schemas list | check | register``."""
    schemas = typer.Typer(help="The schemas of the events, and a registry that knows them.", no_args_is_help=True)
    schemas.command("list")(list_)
    schemas.command("check")(check)
    schemas.command("register")(register_)
    app.add_typer(schemas, name="schemas")


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line: one version of one type.")] = False,
) -> None:
    """Show every version of every schema: subject, packaged id, fingerprint, and its id in the registry in force."""
    from stepwell.adapters.registry.registration import compare
    from stepwell.cli.tables import console, plain_table
    from stepwell.events.schemas import packaged_schemas
    from stepwell.settings import get_settings

    ids: dict[str, int] = {}
    if get_settings().schema_registry:
        with _registry() as registry:
            for subject in compare(registry):
                ids |= {
                    each.fingerprint: subject.ids[each.version]
                    for each in subject.versions
                    if each.version in subject.ids
                }
    rows = [
        {
            "type": version.entry.type,
            "version": version.version,
            "subject": version.entry.avro_name,
            "packaged_id": version.id,
            "fingerprint": version.fingerprint,
            "registry_id": ids.get(version.fingerprint),
        }
        for version in packaged_schemas().versions
    ]
    if as_json:
        import json

        for row in rows:
            print(json.dumps(row))
        return
    cells = ["-" if value is None else value for row in rows for value in row.values()]
    width = len(rows[0])
    table = [cells[at : at + width] for at in range(0, len(cells), width)]
    console().print(
        plain_table(
            "type",
            "version",
            "subject",
            "packaged id",
            "fingerprint",
            "registry id",
            rows=table,
            whole=("type", "subject"),
        )
    )


def check() -> None:
    """Compare the packaged schemas with the registry in force. Exit code 1 when something is to be done."""
    from stepwell.adapters.registry.registration import compare, problems

    with _registry() as registry:
        subjects = list(compare(registry))
        found = [sentence for subject in subjects for sentence in problems(registry, subject)]
        for sentence in found:
            print(sentence)
        if found:
            print(f"{len(found)} thing(s) to put right at {registry.url}. Register with: stepwell schemas register")
            raise typer.Exit(1)
        count = sum(len(subject.versions) for subject in subjects)
        print(
            f"All {count} schemas of {len(subjects)} subjects are registered at {registry.url}, each FULL_TRANSITIVE."
        )


def register_(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
) -> None:
    """Register the schemas that the registry in force lacks, under FULL_TRANSITIVE. Nothing else ever registers.

    Safe to repeat. The user of the credentials must be allowed to write; workers and producers only read.
    """
    from stepwell.adapters.registry.client import COMPATIBILITY
    from stepwell.adapters.registry.registration import compare, problems, register

    done = known = 0
    with _registry() as registry:
        for subject in compare(registry):
            known += len(subject.ids)
            if dry_run:
                done += len(subject.missing)
                for sentence in problems(registry, subject):
                    print(sentence)
                continue
            if not subject.guarded:
                print(f"{subject.name}: compatibility set to {COMPATIBILITY}")
            for version, schema_id in register(registry, subject):
                done += 1
                print(f"{subject.name}: version {version.version} of {version.entry.type} registered, id {schema_id}")
        verb = "would be registered" if dry_run else "registered"
        print(f"{done} schema(s) {verb}, {known} were there, at {registry.url}.")


def _registry() -> "SchemaRegistry":
    from stepwell.adapters.registry.client import SchemaRegistry
    from stepwell.exceptions import ConfigurationError
    from stepwell.settings import get_settings

    settings = get_settings()
    if not settings.schema_registry:
        raise ConfigurationError(
            "no schema registry is set. Name one: STEPWELL_SCHEMA_REGISTRY=http://host:port (Apicurio: with the path "
            "/apis/ccompat/v7)"
        )
    return SchemaRegistry(settings.schema_registry, settings.schema_registry_credentials())
