"""What a server's `requirements.txt` asks for beyond what is installed here.

Lines that name this package itself are met: NeMo Gym's environments have one (`-e nemo-gym[dev] @ ../../`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

_OURS = re.compile(r"(-e\s+|--editable[ =])?(nemo[-_]gym\b|\.\./\.\./?(\[|$))", re.I)


def lines(path: Path) -> list[str]:
    """What is asked for, without comments and without this package."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in stripped if line and not _OURS.match(line)]


def unmet(path: Path) -> list[str]:
    """The lines that are not met by what is installed here; options of pip and files count as unmet."""
    return [line for line in lines(path) if not _is_met(line)]


def _is_met(line: str) -> bool:
    try:
        return all(_installed(wanted) for wanted in _with_extras(Requirement(line), set()))
    except InvalidRequirement:
        return False


def _with_extras(wanted: Requirement, seen: set[str]) -> Iterator[Requirement]:
    """The requirement, and what its extras ask for."""
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return
    yield wanted
    if not wanted.extras or str(wanted) in seen:
        return
    seen.add(str(wanted))
    try:
        asked = [Requirement(line) for line in metadata.requires(wanted.name) or ()]
    except (metadata.PackageNotFoundError, InvalidRequirement):
        return
    for further in asked:
        if further.marker is not None and any(further.marker.evaluate({"extra": extra}) for extra in wanted.extras):
            further.marker = None
            yield from _with_extras(further, seen)


def _installed(wanted: Requirement) -> bool:
    if wanted.url is not None:
        return False
    try:
        return wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
