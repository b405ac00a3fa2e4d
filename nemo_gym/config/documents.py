"""A YAML file as plain values, and the line on which each key was written.

Numbers such as `1e-4` are numbers, dates stay text, and a key that is written twice is a fault and not a riddle.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any

import yaml

Path_ = tuple[str, ...]


class Unreadable(Exception):
    """`line` is 0 when the whole file is meant."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d[\d_]*)(?:\.\d*)?[eE][-+]?\d+$|[-+]?\.\d+(?:[eE][-+]?\d+)?$"),
    list("-+0123456789."),
)


def read(path: Path) -> tuple[dict[str, Any], dict[Path_, int]]:
    """The file's mapping, and key path -> line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Unreadable(0, "no such file") from None
    except OSError as error:
        raise Unreadable(0, f"cannot be read: {error.strerror or error}") from None
    if (fault := no_text(data)) is not None:
        raise Unreadable(*fault)
    loader = _loader(data.decode("utf-8-sig"))
    try:
        node = loader.get_single_node()
        lines: dict[Path_, int] = {}
        _walk(node, (), lines)
        value = {} if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        begun = f" that begins on line {error.context_mark.line + 1}" if error.context_mark else ""
        context = f" ({error.context}{begun})" if error.context else ""
        line = mark.line + 1 if mark else 0
        column = f", column {mark.column + 1}" if mark else ""
        raise Unreadable(line, f"not YAML: {error.problem}{context}{column}") from None
    except yaml.YAMLError as error:
        raise Unreadable(0, f"not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise Unreadable(0, "is nested too deeply") from None
    finally:
        loader.dispose()
    if value is None:
        return {}, {}
    if not isinstance(value, dict):
        raise Unreadable(1, f"expected a mapping of keys at the top, got {type(value).__name__}")
    return value, lines


def no_text(data: bytes) -> tuple[int, str] | None:
    """Why this is no text in UTF-8, and the line that shows it."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return 0, "expected text in UTF-8, this is UTF-16"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return line, f"expected text in UTF-8, found the byte 0x{data[error.start]:02x}"
    return None


def why_no_row(error: Exception, line: bytes = b"") -> str:
    """What is wrong with a line of a JSONL file that could not be read; of one that is no text, that alone."""
    if isinstance(error, KeyError):
        return f"no field {error}"
    fault = no_text(line)
    return str(error) if fault is None else fault[1]


def _loader(text: str) -> _Loader:
    try:
        return _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(line, f"expected text, found the control character 0x{error.character:02x}") from None


def _walk(node: yaml.Node | None, path: Path_, lines: dict[Path_, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen and name != "<<":
                raise Unreadable(line, f"key {name!r} is written twice, first on line {seen[name]}")
            seen[name] = line
            lines[(*path, name)] = line
            _walk(value, (*path, name), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, str(index))] = value.start_mark.line + 1
            _walk(value, (*path, str(index)), lines)
