"""What was written once decodes for ever to the same values."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.events.codec import Codec
from stepwell.events.model import Headers
from stepwell.events.schemas import packaged_schemas
from tests.golden.add_events import FOLDER, as_json

NAMES = sorted(path.stem for path in FOLDER.glob("*.bin"))
CODEC = Codec()


def golden(name: str) -> tuple[bytes, Headers, Any]:
    kept = json.loads(Path(FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    headers = tuple((header, text.encode()) for header, text in kept["headers"])
    return (FOLDER / f"{name}.bin").read_bytes(), headers, kept["record"]


def holds(found: Any, expected: Any) -> bool:
    """Equal, but for fields that later versions added."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(key in found and holds(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(holds, found, expected))
    return type(found) is type(expected) and found == expected


def test_every_released_version_is_in_the_corpus() -> None:
    wanted = {
        f"{version.entry.type.replace('::', '.')}.v{version.version}.{label}"
        for version in packaged_schemas().versions
        for label in ("full", "sparse")
    }
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_decodes_to_the_same_values(name: str) -> None:
    value, headers, expected = golden(name)
    assert holds(as_json(CODEC.decode(value, headers)), expected)


@pytest.mark.parametrize("version", [v for v in packaged_schemas().versions if v.latest], ids=lambda v: v.entry.type)
def test_current_version_encodes_to_the_same_bytes(version: Any) -> None:
    for label in ("full", "sparse"):
        value, headers, _ = golden(f"{version.entry.type.replace('::', '.')}.v{version.version}.{label}")
        assert CODEC.encode(CODEC.decode(value, headers)) == (value, headers)
