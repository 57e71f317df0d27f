"""The table in docs/configuration.md is made from the settings. To write it anew, run this file as a program."""

from pathlib import Path

from stepwell.settings import Settings, variable_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
HEAD = "| --- | --- | --- | --- |\n"
PLACED_IN_HOME = {"log": "local:HOME/log", "database": "embedded:HOME/database"}


def table() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = PLACED_IN_HOME.get(name, field.default)
        meaning = (field.description or "").split("; default")[0]
        shown = "none" if default is None else f"`{default}`"
        rows.append(f"| `{name}` | `{variable_of(name)}` | {shown} | {meaning} |\n")
    return "".join(rows)


def test_the_page_has_drifted_from_nothing() -> None:
    assert PAGE.read_text(encoding="utf-8").split(HEAD)[1] == table(), f"run: python {Path(__file__).name}"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").split(HEAD)[0] + HEAD + table(), encoding="utf-8")
