"""A tool's declared JSON schema decides what a plain text means (P4).

A declared string stays verbatim. Any other declared type is read as JSON, as JSON that was escaped once more, or as a
literal of Python; in a union that allows a string only as JSON of one of its other types. What nothing is declared
for is read as strict JSON. What cannot be read so stays text: the tool, not the parser, reports it.
"""

from __future__ import annotations

import ast
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_DEPTH = 32
"""How deep references and branches are followed; a schema may refer to itself."""
_BRANCHES = ("anyOf", "oneOf", "allOf")
_NAMES: dict[type, str] = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"
}  # fmt: skip
_KNOWN = frozenset({*_NAMES.values()})
_ALIASES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array"}
"""Names of types that tools are declared with though JSON schema has other ones."""


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no JSON number that can be held")
    return value


_STRICT = json.JSONDecoder(parse_constant=_constant, parse_float=_finite)


def strict_json(text: str) -> Any:
    """The value. Raises ValueError for what is no JSON, NaN, and numbers that overflow."""
    try:
        return _STRICT.decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


class Schema:
    """The parameters of one tool; None when it is not known."""

    def __init__(self, parameters: Any) -> None:
        self._root = dict(parameters) if isinstance(parameters, Mapping) else {}
        self._known: dict[str, tuple[Any, set[str]]] = {}

    def read(self, key: str, text: str) -> str:
        """The JSON text of the argument `key` whose plain text is `text`."""
        if key not in self._known:
            declared = self._property(key)
            self._known[key] = declared, self._types(declared)
        declared, types = self._known[key]
        if not types:
            return self._undeclared(text, declared)
        if types == {"string"}:
            return _dump(self._of_enum(text, declared))
        if "string" in types and text in self._enum(declared):
            return _dump(text)
        readings = (_as_json,) if "string" in types else (_as_json, _as_escaped_json, _as_literal)
        for reading in readings:
            try:
                value, written = reading(text)
            except ValueError:
                continue
            if _fits(value, types):
                fitted = self._fit(value, declared)
                return written if fitted is value and written is not None else _dump(fitted)
        return _dump(text) if "string" in types else self._undeclared(text, declared)

    def _undeclared(self, text: str, declared: Any) -> str:
        try:
            value, written = _as_json(text)
        except ValueError:
            return _dump(text)
        fitted = self._fit(value, declared)
        return written if fitted is value else _dump(fitted)

    def _of_enum(self, text: str, declared: Any) -> str:
        """A string as it is, but for one in quotes that only without them is one of those declared."""
        allowed = self._enum(declared)
        if allowed and text not in allowed:
            for candidate in (text.strip(), _unquoted(text)):
                if candidate in allowed:
                    return candidate
        return text

    def _property(self, key: str) -> Any:
        for schema in self._branches(self._root):
            properties = schema.get("properties")
            if isinstance(properties, dict) and key in properties:
                return properties[key]
        for schema in self._branches(self._root):
            if isinstance(schema.get("additionalProperties"), dict):
                return schema["additionalProperties"]
        return None

    def _branches(self, schema: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """The schema with its references followed, and what it is made of."""
        if not isinstance(schema, dict) or depth > _DEPTH:
            return
        yield schema
        if isinstance(schema.get("$ref"), str):
            yield from self._branches(self._resolve(schema["$ref"]), depth + 1)
        for key in _BRANCHES:
            for branch in schema[key] if isinstance(schema.get(key), list) else ():
                yield from self._branches(branch, depth + 1)

    def _resolve(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        found: Any = self._root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def _types(self, declared: Any) -> set[str]:
        """The declared types; empty when nothing says."""
        types: set[str] = set()
        for schema in self._branches(declared):
            named = schema.get("type")
            if named is not None:
                types.update(
                    _ALIASES.get(str(name), str(name)) for name in (named if isinstance(named, list) else [named])
                )
            else:
                types.update(_NAMES[type(value)] for value in _allowed(schema) if type(value) in _NAMES)
                if isinstance(schema.get("properties"), dict):
                    types.add("object")
                if isinstance(schema.get("items"), dict):
                    types.add("array")
            if schema.get("nullable") is True:
                types.add("null")
        return types & _KNOWN

    def _enum(self, declared: Any) -> list[Any]:
        return [value for schema in self._branches(declared) for value in _allowed(schema)]

    def _fit(self, value: Any, declared: Any, depth: int = 0) -> Any:
        """The value, with scalars inside it that another type is declared for read as that; itself when none is."""
        if depth > _DEPTH:
            return value
        if isinstance(value, dict):
            inner = {key: self._fit_scalar(item, self._inside(declared, key), depth) for key, item in value.items()}
            return value if all(inner[key] is item for key, item in value.items()) else inner
        if isinstance(value, list):
            items = self._inside(declared, None)
            fitted = [self._fit_scalar(item, items, depth) for item in value]
            return value if all(a is b for a, b in zip(value, fitted, strict=True)) else fitted
        return value

    def _fit_scalar(self, value: Any, declared: Any, depth: int) -> Any:
        types = self._types(declared) if declared is not None else set()
        if not types or value is None or isinstance(value, dict | list):
            return self._fit(value, declared, depth + 1)
        if isinstance(value, str):
            if "string" in types:
                return value
            try:
                read = strict_json(value)
            except ValueError:
                return value
            return read if _fits(read, types) else value
        return json.dumps(value) if types == {"string"} else value

    def _inside(self, declared: Any, key: str | None) -> Any:
        """What is declared for a member, or with no key for the items."""
        for schema in self._branches(declared):
            if key is None and isinstance(schema.get("items"), dict):
                return schema["items"]
            properties = schema.get("properties")
            if key is not None and isinstance(properties, dict) and key in properties:
                return properties[key]
        return None


def _allowed(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum")
    return [*(values if isinstance(values, list) else ()), *([schema["const"]] if "const" in schema else ())]


def _fits(value: Any, types: set[str]) -> bool:
    name = _NAMES.get(type(value))
    if name in types:
        return True
    return (name == "integer" and "number" in types) or (
        name == "number" and "integer" in types and value == int(value)
    )


_Reading = Callable[[str], tuple[Any, str | None]]


def _as_json(text: str) -> tuple[Any, str]:
    return strict_json(text), text.strip(" \t\n\r")


def _as_escaped_json(text: str) -> tuple[Any, str]:
    """JSON within a JSON string, with its quotes or without."""
    stripped = text.strip()
    inner = strict_json(stripped if stripped.startswith('"') else f'"{stripped}"')
    if not isinstance(inner, str) or inner == stripped:
        raise ValueError("not escaped")
    return _as_json(inner)


def _as_literal(text: str) -> tuple[Any, None]:
    return literal(text), None


def literal(text: str) -> Any:
    """The value of a literal of Python, as JSON has it. Raises ValueError when there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in the model's text is no concern of ours
            value = ast.literal_eval(text.strip())
    except (SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError("no literal") from error
    return strict_json(literal_json(value))


def literal_json(value: Any) -> str:
    """A Python literal as JSON text. Raises ValueError when JSON has no such value."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _unquoted(text: str) -> str:
    try:
        value = strict_json(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
