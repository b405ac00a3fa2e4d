"""Where the project is, and what a path in a configuration means.

A relative path means the same wherever a command is run: it starts at the project's folder. Only what is read is
looked for first in the folders that `NEMO_GYM_EXTRA_ROOTS` names, and in the working folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nemo_gym

ROOT_DIR = Path(nemo_gym.__file__).resolve().parent
PARENT_DIR = ROOT_DIR.parent


_began_in: Path | None = None


def project_root() -> Path:
    """The checkout's folder; the working folder, before `move_to`, when the package is installed without one."""
    return (_began_in or Path.cwd()) if PARENT_DIR.name in ("site-packages", "dist-packages") else PARENT_DIR


WORKING_DIR = project_root()
CACHE_DIR = WORKING_DIR / "cache"
RESULTS_DIR = WORKING_DIR / "results"


def absolute(path: str | Path) -> Path:
    """A path that is to be written."""
    return project_root() / Path(path).expanduser()


_KINDS = ("responses_api_models", "responses_api_agents", "resources_servers")
EXTRA_ROOTS = "NEMO_GYM_EXTRA_ROOTS"


def roots() -> list[Path]:
    """Where what is read is looked for, in that order."""
    extra = [Path(folder).expanduser() for folder in os.environ.get(EXTRA_ROOTS, "").split(os.pathsep) if folder]
    return list(dict.fromkeys([*(Path.cwd() / folder for folder in extra), Path.cwd(), project_root()]))


def locate(path: str | Path) -> Path:
    """A path that is to be read; the project's when it is in no other place."""
    candidates = (root / Path(path).expanduser() for root in roots())
    return next((found for found in candidates if found.exists()), absolute(path))


def move_to(folder: Path) -> None:
    """Makes this the working folder of the process. What paths of a configuration mean, and where modules are looked
    for, stays."""
    global _began_in
    os.environ[EXTRA_ROOTS] = os.pathsep.join(map(str, roots()))
    if searched := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(map(_from_here, searched.split(os.pathsep)))
    sys.path[:] = map(_from_here, sys.path)
    _began_in = Path.cwd()
    os.chdir(folder)


def _from_here(place: str) -> str:
    """A place of modules; one that is not there may be the name of a hook."""
    return os.path.abspath(place) if os.path.exists(place) else place


def _resolve_under_cwd_or_install(rel_path: str | Path, *, validator: Callable[[Path], bool] | None = None) -> Path:
    """Under the name by which environments call it: where a path that is to be read lies.

    Args:
        validator: says whether a place will do; that there is something, unless it is given.
    """
    fits = validator or Path.exists
    candidates = [root / Path(rel_path).expanduser() for root in roots()]
    return next((found for found in candidates if fits(found)), candidates[0])


def entrypoint(kind: str, implementation: str, file: str) -> Path:
    """The file that a server's process runs."""
    return locate(Path(kind) / implementation) / file


def root_of(entrypoint: Path) -> Path:
    """The folder that has the folder of its kind; a server may lie deeper (`responses_api_agents/name/variant`)."""
    return next((one.parent for one in entrypoint.parents if one.name in _KINDS), entrypoint.parents[2])


def beside(path: str | Path, pattern: str = "*") -> list[Path]:
    """What is there, where `path` was looked for."""
    folders = {(base / Path(path).expanduser()).parent for base in roots()}
    return [found for folder in folders if folder.is_dir() for found in folder.glob(pattern) if found.name[:1] != "."]


def in_its_place(path: Path) -> str:
    """What there is where a file was expected, after its name: `'x' is a folder`."""
    if path.is_dir():
        return "is a folder"
    return "is a pipe or a device" if path.exists() else "does not exist"


def no_folder(path: Path) -> str:
    """Why files cannot be written into this folder, which need not be there yet; empty when they can."""
    there = next(folder for folder in (path, *path.absolute().parents) if _is_there(folder))
    if not there.is_dir():
        return f"expected a folder, {there} is a file"
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".ng-", dir=there))
    except OSError as error:
        return f"expected a folder that can be written, {there} cannot: {error.strerror}"
    return ""


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, or a folder that may not be looked into
        return False


def shown(path: str | Path) -> str:
    """The path as a person wants to read it."""
    for base in (Path.cwd(), project_root(), *roots()):
        try:
            return str(Path(path).relative_to(base)) or "."
        except ValueError:
            continue
    return str(path)
