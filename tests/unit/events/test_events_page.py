"""docs/events.md says what the schemas say."""

import importlib.util
import re
from pathlib import Path

from stepwell.events import guards
from stepwell.events.schemas import packaged_schemas

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")


def test_catalogue_has_not_drifted() -> None:
    spec = importlib.util.spec_from_file_location("make_events", ROOT / "docs" / "make_events.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.renewed(PAGE) == PAGE, "docs/events.md has drifted: run python docs/make_events.py"
    assert all(f"### {version.entry.type}\n" in PAGE for version in packaged_schemas().versions)


def test_page_names_every_reason_and_limit() -> None:
    sources = [path.read_text() for path in (ROOT / "stepwell" / "events").glob("*.py")]
    pattern = re.compile(r"reason=\"([a-z-]+)\"|(?:RefusalError|MalformedError|malformed)\(\s*['\"]([a-z-]+)['\"]")
    reasons = {one or other for text in sources for one, other in pattern.findall(text)}
    reasons -= {"invalid-event", "incompatible-schema"}
    assert len(reasons) > 20
    assert {reason for reason in reasons if f"`{reason}`" not in PAGE} == set()
    for limit in (guards.MAX_EVENT_BYTES, guards.MAX_RECORD_BYTES):
        assert f"{limit:,}" in PAGE
