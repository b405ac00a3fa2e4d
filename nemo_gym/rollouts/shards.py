"""Sharded runs, put together: one folder that reads as one run.

Lines are copied as they are, ordered by task and repeat; nothing is held in memory but where they stand. Two
rollouts with one number are a fault unless it is said which numbers of the shards are their own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from .manifest import FILES
from .results import Fields, Result, ResultsError, files, lines, read

Renumber = Literal["tasks", "repeats"]


class Merged(Struct, frozen=True):
    output: str
    shards: list[str]
    rollouts: int
    failures: int


class _Place(Struct, frozen=True, order=True):
    """Where a line belongs in the whole, and where it comes from."""

    task: int
    repeat: int
    shard: int
    offset: int


def merge(named: Sequence[str | Path], output: Path, renumber: Renumber | None = None, *, overwrite: bool) -> Merged:
    """Reads the shards and writes `rollouts.jsonl`, `failures.jsonl` and `manifest.json` into `output`.

    Args:
        renumber: `tasks` when each shard has tasks of its own under the same numbers; `repeats` when each shard is
            further repeats of the same tasks.

    Raises:
        ResultsError: for shards that cannot be read or put together, and an output that there is already.
    """
    paths = files(named)
    if any(path.parent.resolve() == output.resolve() for path in paths):
        raise ResultsError(f"{output}: is itself one of the shards")
    taken = [name for name in FILES if (output / name).exists()]
    if taken and not overwrite:
        raise ResultsError(f"{output}: has {', '.join(taken)} already; say --overwrite to replace them")
    places = _places(paths, renumber)
    if not places and not any(True for _ in _failures(paths)):
        raise ResultsError(f"{', '.join(map(str, paths))}: no rollout is finished there")
    output.mkdir(parents=True, exist_ok=True)
    for name in taken:
        (output / name).unlink()
    _write(output / "rollouts.jsonl", _lines(paths, places))
    failures = _write(output / "failures.jsonl", _failures(paths))
    manifest = _manifest(paths)
    (output / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return Merged(str(output), [str(path) for path in paths], len(places), failures)


def _places(paths: Sequence[Path], renumber: Renumber | None) -> list[_Place]:
    places: list[_Place] = []
    seen: dict[tuple[int, int], Path] = {}
    tasks_before = 0
    repeats_before: dict[int, int] = {}
    for shard, path in enumerate(paths):
        results = read([path], Fields("", ""))
        for result in results:
            task = result.task + (tasks_before if renumber == "tasks" else 0)
            before = repeats_before.get(task, 0) if renumber == "repeats" else 0
            place = _Place(task, result.repeat + before, shard, result.offset)
            key = (place.task, place.repeat)
            if key in seen:
                raise ResultsError(_twice(result, seen[key], path))
            seen[key] = path
            places.append(place)
        tasks_before += max((result.task for result in results), default=-1) + 1
        for place in places[len(places) - len(results) :]:
            repeats_before[place.task] = max(repeats_before.get(place.task, 0), place.repeat + 1)
    places.sort()
    return places


def _twice(result: Result, first: Path, second: Path) -> str:
    return (
        f"task {result.task}, repeat {result.repeat} is in {first} and in {second}: "
        "say --renumber tasks if the shards are of different data or agents, "
        "--renumber repeats if they are further repeats of the same"
    )


def _lines(paths: Sequence[Path], places: Sequence[_Place]) -> Iterator[bytes]:
    opened = [path.open("rb") for path in paths]
    try:
        for place in places:
            opened[place.shard].seek(place.offset)
            yield _numbered(opened[place.shard].readline(), place)
    finally:
        for file in opened:
            file.close()


def _numbered(line: bytes, place: _Place) -> bytes:
    """The line under its number in the whole; as it is where that is its own."""
    cut = msgspec.json.decode(line, type=dict[str, Raw])
    own: dict[str, Any] = {"_ng_task_index": place.task, "_ng_rollout_index": place.repeat}
    if all(msgspec.json.decode(cut[name]) == value for name, value in own.items() if name in cut):
        return line
    return msgspec.json.encode(cut | own) + b"\n"


def _failures(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        beside = path.with_name("failures.jsonl")
        theirs = path.with_name(f"{path.stem}_failures.jsonl")  # NeMo Gym's name for the same
        for found in (beside, theirs):
            if found.is_file():
                yield from (line for _, line in lines(found))


def _write(path: Path, content: Iterator[bytes]) -> int:
    scratch = path.with_name(path.name + ".tmp")
    count = 0
    with scratch.open("wb") as file:
        for line in content:
            file.write(line)
            count += 1
        file.flush()
        os.fsync(file.fileno())
    shutil.move(scratch, path)
    return count


def _manifest(paths: Sequence[Path]) -> dict[str, Any]:
    """What the shards' own manifests agree on, and where they are."""
    known = []
    for path in paths:
        try:
            known.append(msgspec.json.decode(path.with_name("manifest.json").read_bytes(), type=dict[str, Any]))
        except (OSError, msgspec.MsgspecError):
            known.append({})
    same = {key: value for key, value in known[0].items() if all(other.get(key) == value for other in known)}
    fields = {"run_id": "", "input": "", "identity": {}, "versions": {}, "created": time.time()} | same
    return fields | {"starts": 1, "shards": [str(path.parent.resolve()) for path in paths]}
