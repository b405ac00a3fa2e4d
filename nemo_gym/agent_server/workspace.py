"""The folders of one rollout: fresh, its own, gone afterwards.

Files of the task are put in before the client starts, and chosen files and the difference are taken out after it ended.
What the client left there is a stranger's: links are not followed, what is no plain file is not opened, and sizes are
bounded.
"""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

_FILE_BYTES = 1 << 20
_ALL_BYTES = 16 << 20
_FILES = 2000


class Workspace:
    """Below `root`: `home` with the client's configuration, `work` with the task's files, `tmp`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.work, self.temporary = root / "home", root / "work", root / "tmp"
        self.log, self.prompt = root / "client.log", root / "prompt.txt"
        for folder in (self.home, self.work, self.temporary):
            folder.mkdir(exist_ok=True)
        self._before: dict[str, str] = {}

    @classmethod
    def fresh(cls, below: Path | None = None) -> Workspace:
        if below is not None:
            below.mkdir(parents=True, exist_ok=True)
        return cls(Path(tempfile.mkdtemp(prefix="rollout-", dir=below)).resolve())

    def configure(self, files: Mapping[str, str]) -> None:
        """Files below the home."""
        for name, text in files.items():
            _write(self.home, name, text)

    def put(self, files: Mapping[str, str]) -> None:
        """The task's files. Raises ValueError for a name that leads out of the folder."""
        for name, text in files.items():
            _write(self.work, name, text)
        self._before.update(files)

    def taken(self, patterns: Sequence[str]) -> dict[str, str]:
        """The text files that match one of the patterns, by path."""
        return {
            name: text
            for name, text in self._texts()
            if text is not None and any(fnmatch(name, pattern) for pattern in patterns)
        }

    def diff(self) -> str:
        """What the client changed, as a unified diff; of a file that is no text only that it differs."""
        after = dict(self._texts())
        pieces: list[str] = []
        for name in sorted(self._before.keys() | after.keys()):
            old, new = self._before.get(name), after.get(name)
            if name in after and new is None:
                pieces.append(f"Binary file {name} differs\n")
            elif old != new:
                names = (
                    f"a/{name}" if old is not None else "/dev/null",
                    f"b/{name}" if new is not None else "/dev/null",
                )
                pieces += _unified(old or "", new or "", *names)
        return "".join(pieces)

    def remove(self) -> None:
        """All of it; a folder that the client made unreadable too."""
        shutil.rmtree(self.root, onerror=_made_writable)

    def _texts(self) -> Iterator[tuple[str, str | None]]:
        """Every plain file with its text; None for one that is too large or no UTF-8. Git's own folder is left out."""
        left, count = _ALL_BYTES, 0
        for folder, folders, names in os.walk(self.work):
            folders[:] = sorted(name for name in folders if name != ".git")
            for name in sorted(names):
                path = Path(folder) / name
                data = _read(path, min(_FILE_BYTES, left))
                if data is _NO_FILE:
                    continue
                count += 1
                if count > _FILES:
                    return
                left -= len(data or b"")
                yield path.relative_to(self.work).as_posix(), _text(data)


_NO_FILE = b"\0no file"


def _read(path: Path, limit: int) -> bytes | None:
    """None for one beyond the limit; `_NO_FILE` for what is no plain file, or is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return _NO_FILE
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return _NO_FILE
        data = file.read(limit + 1)
    return data if len(data) <= limit else None


def _text(data: bytes | None) -> str | None:
    if data is None or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _write(base: Path, name: str, text: str) -> None:
    path = (base / name).resolve()
    if not name or path == base or base not in path.parents:
        raise ValueError(f"the file {name!r} is not below the folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def _unified(old: str, new: str, before: str, after: str) -> list[str]:
    lines = list(difflib.unified_diff(old.splitlines(True), new.splitlines(True), before, after))
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def _made_writable(function: object, path: str, _: object) -> None:
    """An entry that could not be removed: its folder is opened up, and it is tried once more."""
    try:
        os.chmod(os.path.dirname(path), 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    except OSError:
        pass
