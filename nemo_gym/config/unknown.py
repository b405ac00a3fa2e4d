"""Keys of a server's settings that its config class does not have.

The class decides what becomes of them: one that forbids them, as this project's own do, has them refused by pydantic;
any other passes them over, as NeMo Gym's do. Then a key that is a known one misspelt is a fault, and any other is a
warning. A class names besides, in `PASSED_OVER`, keys that NeMo Gym's server of its name has and that change nothing
here, each with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel

from .compose import Composed, Instance
from .faults import Problem, did_you_mean
from .servers import EntrypointError, NotInstalled, config_class

_OF_EVERY_SERVER = ("type", "name")


def find_warnings(composed: Composed) -> list[Problem]:
    """What is written in a configuration and has no effect; of one without faults."""
    return [problem for instance in composed.instances for problem in _of(composed, instance)]


def misspelt(wanted: type[BaseModel], settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys that a class passes over though they are nearly its own, each with that."""
    known = known_keys(wanted)
    for key in unknown(wanted, settings):
        if (meant := next((name for name in sorted(known) if _is_slip(key, name)), None)) is not None:
            yield key, meant


def unknown(wanted: type[BaseModel], settings: Mapping[str, Any]) -> list[str]:
    """Keys that a class passes over."""
    if wanted.model_config.get("extra") in ("allow", "forbid"):
        return []
    known = known_keys(wanted)
    return [str(key) for key in settings if str(key) not in known and key not in _OF_EVERY_SERVER]


def known_keys(wanted: type[BaseModel]) -> set[str]:
    """Every name that a class reads a field by, and what it is told to pass over."""
    known = set(wanted.model_fields) | passed_over(wanted).keys()
    for field in wanted.model_fields.values():
        for alias in (field.alias, field.validation_alias):
            choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
            known |= {choice for choice in choices if isinstance(choice, str)}
    return known


def passed_over(wanted: type[BaseModel]) -> Mapping[str, str]:
    found: Mapping[str, str] = getattr(wanted, "PASSED_OVER", {})
    return found


def _of(composed: Composed, instance: Instance) -> Iterator[Problem]:
    entrypoint = instance.settings.get("entrypoint", "app.py")
    try:
        wanted = config_class(instance.kind, instance.implementation, entrypoint)
    except (EntrypointError, NotInstalled):
        return
    reasons = passed_over(wanted)
    told = {key: f"has no effect here: {reasons[key]}" for key in reasons if instance.settings.get(key) is not None}
    names = known_keys(wanted) - set(_OF_EVERY_SERVER)
    told |= {
        key: f"is not a known key, and is passed over{_near(key, names)}" for key in unknown(wanted, instance.settings)
    }
    for key, words in told.items():
        place = (*instance.key, str(key))
        yield Problem(".".join(place), composed.origin(place), words)


def _near(key: str, names: Iterable[str]) -> str:
    hint = did_you_mean(key, names)
    return hint if "did you mean" in hint else ""


def _is_slip(word: str, meant: str) -> bool:
    """Whether one letter, or two of a longer word, are left out, put in, changed or swapped with their neighbour."""
    most = 1 if min(len(word), len(meant)) < 6 else 2
    return abs(len(word) - len(meant)) <= most and _slips(word, meant) <= most


def _slips(word: str, meant: str) -> int:
    rows = [list(range(len(meant) + 1))]
    for i, a in enumerate(word, 1):
        row = [i]
        for j, b in enumerate(meant, 1):
            least = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == meant[j - 2] and word[i - 2] == b:
                least = min(least, rows[-2][j - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]
