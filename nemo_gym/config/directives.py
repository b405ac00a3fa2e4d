"""What a configuration says of its own making: `_inherit_from`, `_copy` and `_delete_key`.

`_inherit_from: a.b` takes over what stands at `a.b`, which is then gone from there; `_copy: a.b` takes it and leaves
it. The keys beside it win. `${inherit_from:a.b}` and `${copy:a.b}` do so with a single value. `_delete_key: x, y` drops
keys of its own, else of what was taken over. They see the configuration as it was before any of them was followed, so
their order does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

INHERIT, COPY, DELETE = "_inherit_from", "_copy", "_delete_key"
MISSING = "???"
_VALUE = re.compile(r"\$\{(inherit_from|copy):\s*([^}]+?)\s*\}")

KeyPath = tuple[str, ...]
Fault = Callable[[KeyPath, str], None]


def follow(tree: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """The configuration with all of them followed.

    Args:
        fault: is told what cannot be followed, and where.
    """
    return _Directives(tree, fault).all()


class _Directives:
    def __init__(self, tree: dict[str, Any], fault: Fault) -> None:
        self._tree = tree
        self._fault = fault
        self._moved: set[KeyPath] = set()

    def all(self) -> dict[str, Any]:
        made = self._made(self._tree, (), ())
        assert isinstance(made, dict)
        for source in sorted(self._moved, key=len, reverse=True):
            _remove(made, source)
        return made

    def _made(self, value: Any, path: KeyPath, following: tuple[KeyPath, ...]) -> Any:
        if isinstance(value, str) and (said := _VALUE.fullmatch(value)):
            return self._taken(said[2], path, following, moves=said[1] == "inherit_from")
        if isinstance(value, list):
            return [self._made(item, (*path, str(n)), following) for n, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        own = {key: item for key, item in value.items() if key not in (INHERIT, COPY, DELETE)}
        unwanted = _names(value.get(DELETE))
        kept = {key: item for key, item in own.items() if key not in unwanted}
        made: Any = {key: self._made(item, (*path, str(key)), following) for key, item in kept.items()}
        for directive in (INHERIT, COPY):
            if directive in value:
                base = self._taken(value[directive], (*path, directive), following, moves=directive == INHERIT)
                if base == MISSING:
                    return MISSING
                made = _merged(base, made) if isinstance(base, dict) else made
        for name in unwanted:
            if name not in own and made.pop(name, self) is self and value.keys() & {INHERIT, COPY}:
                self._fault((*path, DELETE), f"there is no key {name!r} to delete")
        return made

    def _taken(self, source: Any, path: KeyPath, following: tuple[KeyPath, ...], *, moves: bool) -> Any:
        """What stands at another place, itself made; MISSING when it has no value yet."""
        place = tuple(source.split(".")) if isinstance(source, str) else ()
        if place in following:
            self._fault(path, f"{source} is made of itself")
            return {}
        found: Any = self._tree
        for step in place:
            if found == MISSING:
                return MISSING
            if not isinstance(found, dict) or step not in found:
                self._fault(path, f"expected the place of another key, such as a.b, there is no {source!r}")
                return {}
            found = found[step]
        if not place:
            self._fault(path, f"expected the place of another key, such as a.b, got {source!r}")
            return {}
        if moves:
            self._moved.add(place)
        return self._made(deepcopy(found), place, (*following, place))


def _names(said: Any) -> list[str]:
    names = said if isinstance(said, list) else str(said).split(",") if said is not None else []
    return [str(name).strip() for name in names]


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in over.items():
        below = both.get(key)
        both[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both


def _remove(tree: Any, place: KeyPath) -> None:
    for step in place[:-1]:
        tree = tree.get(step) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(place[-1], None)
