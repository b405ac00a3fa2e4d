"""Skills that an agent may use: a folder of folders, each with a `SKILL.md` (agentskills.io).

A folder of skills is known by what is in it, so that one that was changed in its place is another.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from ..config.paths import _resolve_under_cwd_or_install

SKILL_MD_FILENAME = "SKILL.md"
_DIGITS = 12
_FENCE = "---"


class SkillMetadata(BaseModel):
    name: str
    description: str | None = None
    version: str | None = None


class SkillsRef(BaseModel):
    """Under which a rollout says what skills it had."""

    path: str
    hash: str
    skills: list[SkillMetadata]


class SkillsConfig(BaseModel):
    path: str


def hash_skill_dir(root: Path) -> str:
    """A short digest of the names and the bytes of all its files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        for part in (path.relative_to(root).as_posix().encode(), path.read_bytes()):
            digest.update(part + b"\0")
    return digest.hexdigest()[:_DIGITS]


def parse_skill_md(skill_md_path: Path) -> SkillMetadata:
    """What its front matter says. Raises ValueError that names the file."""
    lines = skill_md_path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    fences = [number for number, line in enumerate(lines) if line.strip() == _FENCE][:2]
    if fences[:1] != [0] or len(fences) < 2:
        raise ValueError(f"{skill_md_path}: expected YAML between two lines of {_FENCE} at its beginning")
    try:
        said: Any = yaml.safe_load("\n".join(lines[1 : fences[1]])) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{skill_md_path}: its front matter is not YAML: {error}") from None
    if not isinstance(said, dict) or not said.get("name"):
        raise ValueError(f"{skill_md_path}: its front matter needs a name")
    further = said.get("metadata")
    version = further.get("version") if isinstance(further, dict) else None
    return SkillMetadata(
        name=str(said["name"]),
        description=said.get("description"),
        version=None if version is None else str(version),
    )


def load_skill_directory(path: str) -> SkillsRef:
    """Raises ValueError for what is no folder of skills."""
    folder = _folder(path)
    skills = []
    for one in sorted(inner for inner in folder.iterdir() if inner.is_dir()):
        if not (one / SKILL_MD_FILENAME).is_file():
            raise ValueError(f"skills.path: {one} has no {SKILL_MD_FILENAME}")
        skills.append(parse_skill_md(one / SKILL_MD_FILENAME))
    if not skills:
        raise ValueError(f"skills.path: {folder} contains no skills: expected folders with a {SKILL_MD_FILENAME} each")
    return SkillsRef(path=path, hash=hash_skill_dir(folder), skills=skills)


def stage_skills(path: str, dest_skills_dir: Path) -> None:
    """Copies the folder to where an agent looks for skills; there must be nothing yet."""
    shutil.copytree(_folder(path), dest_skills_dir)


def _folder(path: str) -> Path:
    found = _resolve_under_cwd_or_install(path)
    if not found.is_dir():
        raise ValueError(
            f"skills.path: expected a directory, {path!r} {'is a file' if found.exists() else 'does not exist'}"
        )
    return found
