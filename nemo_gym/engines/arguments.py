"""vLLM's engine arguments: the names that it has, and the values that it takes, told in the configuration's own terms.

Names are read from its source, before anything is started. Values are held against the types that its arguments are
declared with, which only who has imported vLLM knows; what no type says (a number out of range) vLLM refuses itself.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import importlib.util
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError


def written_arguments() -> list[str]:
    """The names of vLLM's engine arguments as its source declares them, for whoever cannot wait for its import; none
    where it is not installed, or declares them in another way."""
    with contextlib.suppress(ImportError, OSError, SyntaxError, ValueError):
        spec = importlib.util.find_spec("vllm")
        if spec is not None and spec.origin is not None:
            source = (Path(spec.origin).parent / "engine" / "arg_utils.py").read_text(encoding="utf-8")
            classes = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
            return [
                line.target.id
                for one in classes
                if one.name in ("EngineArgs", "AsyncEngineArgs")
                for line in one.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            ]
    return []


def check_arguments(arguments: Mapping[str, Any], names: Collection[str], where: str = "engine_args") -> None:
    """Raises ValueError that names each argument that vLLM does not have.

    Args:
        names: of those that it has.
        where: in the configuration they are.
    """
    wrong = [name for name in arguments if name not in names]
    if wrong:
        raise ValueError("; ".join(f"{where}.{_no_such(name, names)}" for name in wrong))


def _no_such(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"{name}: vLLM has no such argument" + (f"; {near[0]} is one" if near else "")


def checked_values(declared: type, arguments: Mapping[str, Any], where: str = "engine_args") -> dict[str, Any]:
    """The arguments; a number or a yes that came as a text, as what it says.

    Raises ValueError that names each value that does not fit, and where in it the fault is.

    Args:
        declared: vLLM's class of engine arguments.
        where: in the configuration they are.
    """
    taken = dict(arguments)
    wrong: list[str] = []
    for field in dataclasses.fields(declared):
        value = arguments.get(field.name, field.default)
        if value is field.default:
            continue  # some are null until vLLM has chosen, whatever their type says
        try:
            meant = _type_of(field, declared).validate_python(value)
        except ValidationError as error:
            wrong += _told(f"{where}.{field.name}", value, error)
        except Exception:
            continue  # of a type that cannot be read here; vLLM will say
        else:
            if isinstance(value, str) and isinstance(meant, int | float):
                taken[field.name] = meant
    if wrong:
        raise ValueError("; ".join(wrong))
    return taken


def _type_of(field: dataclasses.Field[Any], declared: type) -> TypeAdapter[Any]:
    kind = field.type
    if isinstance(kind, str):
        kind = eval(kind, vars(sys.modules[declared.__module__]))  # an annotation of vLLM's own source
    return TypeAdapter(kind)


def _told(name: str, value: Any, error: ValidationError) -> list[str]:
    """What is wrong, once a place: of a type that allows several things, as the first of them."""
    told: dict[str, str] = {}
    for found in error.errors(include_url=False):
        place, within = name, value
        for step in found["loc"]:
            if isinstance(within, Mapping) and step in within:
                place, within = f"{place}.{step}", within[step]
            elif isinstance(within, Sequence) and isinstance(step, int) and step < len(within):
                place, within = f"{place}[{step}]", within[step]
        words = found["msg"].removeprefix("Value error, ")
        told.setdefault(place, f"{place}: {words[:1].lower()}{words[1:]}, found {_shown(within)}")
    return list(told.values())


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
