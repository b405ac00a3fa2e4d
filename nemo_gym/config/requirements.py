"""What a server's folder asks for beyond what is installed here: its `requirements.txt`, or its `pyproject.toml`.

Lines that name this package itself are met: NeMo Gym's environments have one (`-e nemo-gym[dev] @ ../../`). Of a
pyproject.toml the `dependencies` count, with the git addresses and paths that `tool.uv.sources` gives them; the folder
itself need not be installed, since it is on the path.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

_OURS = re.compile(r"(-e\s+|--editable[ =])?(nemo[-_]gym\b|\.\./\.\./?(\[|$))", re.I)


def declared(folder: Path) -> Path:
    """The file in which a server's folder says what it needs, whether it is there or not."""
    listed, project = folder / "requirements.txt", folder / "pyproject.toml"
    return project if project.exists() and not listed.exists() else listed


def lines(path: Path) -> list[str]:
    """What is asked for, without comments and without this package. Raises ValueError for what is no TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    asked = _dependencies(text) if path.suffix == ".toml" else text.splitlines()
    stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in asked)
    return [line for line in stripped if line and not _OURS.match(line)]


def _dependencies(text: str) -> list[str]:
    said = tomllib.loads(text)
    sources = said.get("tool", {}).get("uv", {}).get("sources", {})
    return [_sourced(str(line), sources) for line in said.get("project", {}).get("dependencies", [])]


def _sourced(line: str, sources: Mapping[str, Any]) -> str:
    """The dependency with the address that it is to come from, where one is given."""
    name = re.match(r"[\w.-]+", line)
    source = sources.get(name[0]) if name is not None else None
    if not isinstance(source, dict) or name is None or _OURS.match(line):
        return line
    if "git" in source:
        at = next((f"@{source[key]}" for key in ("rev", "tag", "branch") if key in source), "")
        folder = f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
        return f"{line} @ git+{source['git']}{at}{folder}"
    if "path" in source:
        return f"{'-e ' if source.get('editable') else ''}{source['path']}"
    return f"{line} @ {source['url']}" if "url" in source else line


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
