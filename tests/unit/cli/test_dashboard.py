"""What ``stepwell dashboard`` refuses before it asks the database."""

from pathlib import Path

import pytest

from stepwell.cli.dashboard import _write, dashboard
from stepwell.exceptions import ConfigurationError

NOTHING = dict.fromkeys(("names", "since", "resolution", "policy", "task", "run", "host", "episode"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"names": ["fleets"]}, "fleet, policies, failures, episode, pipeline, machines"),
        ({"since": "yesterday"}, "--since"),
        ({"since": "0s"}, "more than nothing"),
        ({"resolution": "week"}, "minute, hour, day"),
        ({"names": ["policies"], "run": ["nightly"]}, "policies cannot be narrowed by run; fleet can"),
        (
            {"names": ["fleet", "policies"], "host": ["lab-1"]},
            "fleet, policies cannot be narrowed by host; machines can",
        ),
        ({"names": ["fleet"], "episode": "ep-1"}, "fleet cannot be narrowed by episode; episode can"),
    ],
)
def test_wrong_options_are_told_with_what_was_expected(home: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        dashboard(output=home / "page.html", **{**NOTHING, **options})  # type: ignore[arg-type]
    assert not (home / "page.html").exists()


def test_a_page_is_replaced_as_a_whole(home: Path) -> None:
    page = home / "page.html"
    page.write_text("old")
    _write(page, "new")
    assert page.read_text() == "new"
    with pytest.raises(ConfigurationError, match="cannot be written"):
        _write(home / "nowhere" / "page.html", "new")
    assert [path.name for path in home.iterdir()] == ["page.html"]
