"""Where the project is, and what a path in a configuration means.

A relative path means the same wherever a command is run: it starts at the project's folder. Only what is read is
looked for in the working folder first.
"""

from __future__ import annotations

from pathlib import Path

import nemo_gym


def project_root() -> Path:
    """The checkout's folder; the working folder when the package is installed without one."""
    root = Path(nemo_gym.__file__).resolve().parents[1]
    return Path.cwd() if root.name in ("site-packages", "dist-packages") else root


def absolute(path: str | Path) -> Path:
    """A path that is to be written."""
    return project_root() / Path(path).expanduser()


def locate(path: str | Path) -> Path:
    """A path that is to be read; the project's when it is in neither place."""
    here = Path.cwd() / Path(path).expanduser()
    return here if here.exists() else absolute(path)


def entrypoint(kind: str, implementation: str, file: str) -> Path:
    """The file that a server's process runs."""
    return locate(Path(kind) / implementation) / file


def beside(path: str | Path, pattern: str = "*") -> list[Path]:
    """What is there, where `path` was looked for."""
    folders = {(base / Path(path).expanduser()).parent for base in (Path.cwd(), project_root())}
    return [found for folder in folders if folder.is_dir() for found in folder.glob(pattern)]


def shown(path: str | Path) -> str:
    """The path as a person wants to read it."""
    for base in (Path.cwd(), project_root()):
        try:
            return str(Path(path).relative_to(base)) or "."
        except ValueError:
            continue
    return str(path)
