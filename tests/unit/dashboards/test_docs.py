"""The runbook and the page on dashboards: commands that exist, links that lead somewhere, macros that are known."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepwell.cli import build_app

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = ("runbook.md", "dashboards.md")


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_given_as_they_stand(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("stepwell ")]
    lines += [line for line in re.findall(r"`(stepwell [a-z][^`]*)`", text) if "HOST" not in line]
    assert len(lines) > 3
    app, runner = build_app(), CliRunner()
    for line in lines:
        words = shlex.split(line.split(" > ")[0])[1:]
        # Help is given only where the command and all its options are known.
        assert runner.invoke(app, [*words, "--help"]).exit_code == 0, line
    assert runner.invoke(app, ["dashboard", "--sinse", "3h", "--help"]).exit_code == 2
    assert runner.invoke(app, ["dead-letters", "lists", "--help"]).exit_code == 2


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_a_page_and_a_heading_that_is_there(page: str) -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", (DOCS / page).read_text(encoding="utf-8"))
    assert links
    for target, anchor in links:
        path = (DOCS / target).resolve() if target else DOCS / page
        assert path.is_file(), target
        assert not anchor or anchor in anchors(path), (target, anchor)
