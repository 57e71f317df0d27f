"""YAML with lines: every refusal names file, line and key."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from stepwell.adapters.yaml_lines import MAX_BYTES, MAX_PROBLEMS_SHOWN, dotted, load, parse
from stepwell.exceptions import SpecError


class Child(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    name: str
    size: int = 1


class Root(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    title: str
    children: list[Child]


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text.encode(), "s.yaml").validate(Root)
    return str(caught.value).splitlines()


def test_reads_plain_data() -> None:
    root = parse(b"title: t\nchildren:\n  - name: a\n    size: 2\n", "s.yaml").validate(Root)
    assert root == Root(title="t", children=[Child(name="a", size=2)])


def test_each_problem_has_its_own_line() -> None:
    assert problems("title: 3\nchildren:\n  - name: a\n    sise: 2\n  - size: '4'\n") == [
        "s.yaml:1: title: input should be a valid string; found 3",
        "s.yaml:4: children[0].sise: unknown key; did you mean size?; known here: name, size",
        "s.yaml:5: children[1].name: missing",
        "s.yaml:5: children[1].size: input should be a valid integer; found '4'",
    ]


def test_a_flood_of_problems_is_cut() -> None:
    lines = problems("title: t\nchildren: [" + "{}, " * 50 + "]\n")
    assert len(lines) == MAX_PROBLEMS_SHOWN + 1
    assert lines[-1] == "… and 30 more"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a: &x [1]\nb: *x\n", "s.yaml:1: anchors and aliases"),
        (b"a: 1\nb: 2\na: 3\n", "s.yaml:3: a: the key stands twice"),
        (b"a: !!python/object:os.system x\n", "s.yaml:1: a: could not determine a constructor"),
        (b"", "s.yaml: the file is empty"),
        (b"a: [\n", "s.yaml:2: not valid YAML"),
        (b"\xff", "s.yaml: not UTF-8 text"),
        (b"a: 0x" + b"f" * 5000, "s.yaml:1: a: the number does not fit in 64 bits"),
        (b"a: " + b"9" * 5000, "s.yaml:1: a: Exceeds the limit"),
        (b"[" * 900_000, "s.yaml:1: nested more than 30 deep"),
        (b"{a: " * 200_000, "s.yaml:1: nested more than 30 deep"),
        (b"- " * 400_000 + b"1", "s.yaml:1: nested more than 30 deep"),
        (b"1: x\n", "s.yaml:1: (whole file): keys must be text; found 1"),
        (b"[" * 200 + b"]" * 200, "s.yaml:1: "),
        (b"a: 1\n" + b"#" * MAX_BYTES, "s.yaml: 1000005 bytes are too many"),
    ],
)
def test_refuses_what_is_no_plain_data(raw: bytes, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(raw, "s.yaml")
    assert message in str(caught.value)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.yaml: cannot be read: No such file"):
        load(tmp_path / "gone.yaml")


def test_error_at_a_path_falls_back_to_its_parent() -> None:
    document = parse(b"a:\n  b: 1\n", "s.yaml")
    assert str(document.error(("a", "c"), "bad")) == "s.yaml:1: a.c: bad"
    assert dotted(()) == "(whole file)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("off", "off"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("2024-11-30", "2024-11-30"),
        ("0x1f", 31),
        ("-7", -7),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("true", True),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1'", "1"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse(f"a: {text}\n".encode(), "s.yaml").data["a"]
    assert found == value
    assert type(found) is type(value)
