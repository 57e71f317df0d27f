"""YAML that remembers where each value stood, so that an error can name file and line.

Only plain data is read: no tags, no anchors or aliases (306 bytes of nested aliases unfold to gigabytes), no duplicate
keys, bounded size and depth. `Document.validate` turns what pydantic finds into one `SpecError` that lists every
problem with its line.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from stepwell.exceptions import SpecError

MAX_BYTES = 1_000_000
MAX_DEPTH = 30
INTEGER_LIMIT = 2**63
MAX_PROBLEMS_SHOWN = 20

Path_ = tuple[str | int, ...]
Problem = tuple[Path_, str]
"""Where in the document, and what is wrong there."""
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed YAML.

    Attributes:
        source: the file's name, for messages.
        data: plain dicts, lists and scalars.
        lines: path of keys and indices -> line, from 1.
    """

    source: str
    data: Any
    lines: dict[Path_, int]

    def line_of(self, path: Path_) -> int:
        """The line of the value at ``path``, or of its nearest parent that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, path: Path_, message: str) -> SpecError:
        """A `SpecError` about the value at ``path``."""
        return SpecError(f"{self.source}:{self.line_of(path)}: {dotted(path)}: {message}")

    def validate(self, model: type[Model]) -> Model:
        """The document as ``model``.

        Raises:
            SpecError: with one line for each problem: file, line, key, what is wrong and what was expected.
        """
        try:
            return model.model_validate(self.data)
        except ValidationError:
            raise self.errors(self.problems(model)) from None

    def problems(self, model: type[BaseModel]) -> list[Problem]:
        """Where and why the document is no ``model``; empty where it is."""
        try:
            model.model_validate(self.data)
        except ValidationError as error:
            return [self._problem(model, item) for item in error.errors(include_url=False)]
        return []

    def errors(self, problems: Iterable[Problem]) -> SpecError:
        """One `SpecError` for all of them, a line each, in the order of the file."""
        told = sorted({(self.line_of(path), str(self.error(path, message))) for path, message in problems})
        more = len(told) - MAX_PROBLEMS_SHOWN
        tail = f"\n… and {more} more" if more > 0 else ""
        return SpecError("\n".join(text for _, text in told[:MAX_PROBLEMS_SHOWN]) + tail)

    def _problem(self, model: type[BaseModel], item: Any) -> Problem:
        path = self._path_in_document(item["loc"])
        if item["type"] == "extra_forbidden":
            known = sorted(_fields_at(model, path[:-1]))
            meant = difflib.get_close_matches(str(path[-1]), known, n=1)
            hint = f"; did you mean {meant[0]}?" if meant else ""
            return path, "unknown key" + hint + (f"; known here: {', '.join(known)}" if known else "")
        if item["type"] == "missing":
            return path, "missing"
        return path, f"{_lower_first(item['msg'].removeprefix('Value error, '))}; found {_brief(item['input'])}"

    def _path_in_document(self, loc: tuple[str | int, ...]) -> Path_:
        """``loc`` without what is no key of the document: pydantic puts names of union members in, for one."""
        path: Path_ = ()
        data = self.data
        for i, part in enumerate(loc):
            last = i == len(loc) - 1
            if isinstance(data, dict) and (part in data or last):
                data = data.get(part)
            elif isinstance(data, list) and isinstance(part, int) and part < len(data):
                data = data[part]
            else:
                continue
            path = (*path, part)
        return path


def dotted(path: Path_) -> str:
    """``('policies', 0, 'name')`` as ``policies[0].name``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(whole file)"


def load(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        SpecError: the file cannot be read, is no YAML, or holds more than plain data; names file and line.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse(raw, str(path))


def parse(raw: bytes, source: str) -> Document:
    """As `load`, from bytes."""
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{source}: {len(raw)} bytes are too many for a spec; at most {MAX_BYTES} are read")
    try:
        text = raw.decode("utf-8")
        _check_events(text, source)
        node = yaml.compose(text, Loader=_Loader)
    except UnicodeDecodeError as error:
        raise SpecError(f"{source}: not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise SpecError(f"{source}:{line}: not valid YAML: {error.problem or error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"{source}: not valid YAML: {str(error) or 'nested too deeply'}") from None
    if node is None:
        raise SpecError(f"{source}: the file is empty")
    lines: dict[Path_, int] = {}
    return Document(source, _value(node, (), lines, source), lines)


class _Loader(yaml.SafeLoader):
    """Plain data as YAML 1.2's core schema has it: ``1:30`` is text and no number of seconds, ``yes`` is text.

    PyYAML reads YAML 1.1, where such values silently become something else.
    """


_Loader.yaml_implicit_resolvers = {}


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def _check_events(text: str, source: str) -> None:
    """Refuse before anything is built: aliases, and nesting on which the parser's time would grow with the square."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise SpecError(f"{source}:{line}: anchors and aliases are not allowed; write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SpecError(f"{source}:{line}: nested more than {MAX_DEPTH} deep")


def _value(node: yaml.Node, path: Path_, lines: dict[Path_, int], source: str) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines, source)
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, (*path, i), lines, source) for i, child in enumerate(node.value)]
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise SpecError(f"{source}:{line}: {dotted(path)}: {problem}") from None
    if isinstance(value, int) and abs(value) >= INTEGER_LIMIT:
        raise SpecError(f"{source}:{line}: {dotted(path)}: the number does not fit in 64 bits")
    return value


def _mapping(node: yaml.MappingNode, path: Path_, lines: dict[Path_, int], source: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _value(key_node, (*path, "?"), {}, source)
        if not isinstance(key, str):
            raise SpecError(f"{source}:{line}: {dotted(path)}: keys must be text; found {_brief(key)}")
        if key in result:
            raise SpecError(f"{source}:{line}: {dotted((*path, key))}: the key stands twice")
        lines[(*path, key)] = line
        result[key] = _value(value_node, (*path, key), lines, source)
    return result


def _fields_at(model: type[BaseModel], path: Path_) -> list[str]:
    """The keys a model knows at a path; empty where that cannot be told."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if _is_model(current) else None
        current = _model_in(field.annotation) if field else None
    return list(current.model_fields) if _is_model(current) else []


def _model_in(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found:
            return found
    return None


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
