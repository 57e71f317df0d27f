"""Writes the catalogue in docs/events.md from the schemas.

python docs/make_events.py

Only what stands between the two markers is replaced; a test fails when it has drifted.
"""

from pathlib import Path
from typing import Any

from stepwell.events.catalogue import CATALOGUE, Entry
from stepwell.events.schemas import packaged_schemas

PAGE = Path(__file__).parent / "events.md"
BEGIN, END = "<!-- catalogue: begin (made by docs/make_events.py) -->\n", "<!-- catalogue: end -->\n"
HEAD_FIELDS = 12


def main() -> None:
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def renewed(page: str) -> str:
    """The page with the catalogue as the schemas say it now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + catalogue() + END + after


def catalogue() -> str:
    """Overview, head, one section a type, and the nested records."""
    schemas = packaged_schemas()
    overview = ["| type | id | version | producer | topic |", "|---|---|---|---|---|"]
    sections: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    for entry in CATALOGUE:
        version = schemas.current(entry.type)
        producer = entry.producer or "–"
        overview.append(
            f"| [`{entry.type}`](#{anchor(entry)}) | {version.id} | {version.version} | {producer} | `{entry.topic}` |"
        )
        fields = version.schema["fields"]
        collect(fields, nested)
        own = fields[HEAD_FIELDS:] if entry.is_event else fields
        sections += [f"### {entry.type}", "", f"`{entry.avro_name}`. {version.schema['doc']}", ""]
        sections += [*table(own), ""] if own else ["The head only.", ""]
    head = schemas.current(CATALOGUE[0].type).schema["fields"][:HEAD_FIELDS]
    parts = ["### Overview", "", *overview, "", "### The head of every event", "", *table(head), "", *sections]
    for name, schema in sorted(nested.items()):
        parts += [f"### {name}", "", schema["doc"], "", *table(schema["fields"]), ""]
    return "\n".join(["", *parts])


def anchor(entry: Entry) -> str:
    """How GitHub names the section of a type."""
    return entry.type.replace(":", "")


def table(fields: list[dict[str, Any]]) -> list[str]:
    rows = [f"| `{field['name']}` | {shown(field['type'])} | {field['doc']} |" for field in fields]
    return ["| field | type | meaning |", "|---|---|---|", *rows]


def shown(schema: Any) -> str:
    """A type in words."""
    if isinstance(schema, list):
        return f"{shown(schema[1])} or null"
    if isinstance(schema, str):
        return schema.removeprefix("stepwell.")
    kind = schema["type"]
    if kind == "array":
        return f"array of {shown(schema['items'])}"
    if kind == "enum":
        return "enum: " + ", ".join(schema["symbols"])
    if kind == "fixed":
        return f"fixed, {schema['size']} bytes"
    return str(schema["name"] if kind == "record" else schema.get("logicalType", kind))


def collect(fields: list[dict[str, Any]], nested: dict[str, dict[str, Any]]) -> None:
    """Find the records within records."""
    for field in fields:
        schema = field["type"]
        schema = schema[1] if isinstance(schema, list) else schema
        schema = schema["items"] if isinstance(schema, dict) and schema["type"] == "array" else schema
        if isinstance(schema, dict) and schema["type"] == "record":
            nested[schema["name"]] = schema
            collect(schema["fields"], nested)


if __name__ == "__main__":
    main()
