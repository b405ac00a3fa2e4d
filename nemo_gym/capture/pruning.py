"""What is old is removed: whole runs, or single rollouts out of sealed shards. Nothing that a living writer holds.

A shard without a rollout still stands alone: its other rows are as they were, digests and all, and what they share with
the removed ones (a content is stored once, with the call that brought it) is handed on to them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
from msgspec import Struct

from . import index
from .columns import to_batch, to_rows
from .contents import references
from .index import INDEX, INDEXED
from .reader import ShardReader
from .schema import Row
from .sealing import is_written, write_sealed
from .shard import SEALED, sync_directory
from .store import CaptureStore, named

_ROWS = 1024
_KINDS = ("call", "seal")


class Pruned(Struct, frozen=True):
    path: str
    """A run's folder, or a shard."""
    shards: int
    bytes: int
    """That the disk has more of."""
    rollouts: int | None = None
    """None for a whole run."""


# ---- whole runs


def prune(store: CaptureStore, older_than_s: float, *, dry_run: bool = False) -> Iterator[Pruned]:
    """Whole runs whose last record is older. Only shards and their indexes are removed, and folders left empty."""
    runs: dict[Path, list[Path]] = {}
    for path in store.paths():
        runs.setdefault(path.parent, []).append(path)
    for folder, paths in sorted(runs.items()):
        if not all(_prunable(path, older_than_s) for path in paths):
            continue
        size = sum(map(_size, paths))
        if not dry_run:
            for path in paths:
                _remove(path)
            with contextlib.suppress(OSError):
                folder.rmdir()
        yield Pruned(str(folder), len(paths), size)


def _prunable(path: Path, older_than_s: float) -> bool:
    """Old, nobody's, and a shard: a foreign file keeps its folder."""
    try:
        return (
            named(path)
            and ShardReader(path) is not None
            and time.time() - path.stat().st_mtime >= older_than_s
            and not is_written(path)
        )
    except (ValueError, OSError):
        return False


def _size(path: Path) -> int:
    return sum(one.stat().st_size for one in (path, path.with_suffix(INDEX)) if one.exists())


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(INDEX).unlink(missing_ok=True)


# ---- single rollouts


def old_rollouts(store: CaptureStore, older_than_s: float) -> set[str]:
    """Those whose last record is older, and of which no shard is still open."""
    last: dict[str, float] = {}
    open_still: set[str] = set()
    for shard in store.shards():
        for batch in shard.batches(("rollout_id", "received_at", "replied_at", "at")):
            columns = [batch.column(name).to_pylist() for name in ("rollout_id", "received_at", "replied_at", "at")]
            for rollout_id, *times in zip(*columns, strict=True):
                if rollout_id is None:
                    continue
                last[rollout_id] = max(last.get(rollout_id, 0.0), *(one for one in times if one is not None), 0.0)
                if shard.path.suffix != SEALED:
                    open_still.add(rollout_id)
    now = time.time()
    return {one for one, at in last.items() if now - at >= older_than_s} - open_still


def prune_rollouts(store: CaptureStore, rollouts: Collection[str], *, dry_run: bool = False) -> Iterator[Pruned]:
    """Takes these rollouts out of the sealed shards that hold any of them.

    Raises:
        ValueError: names a rollout that cannot be taken out, and why; nothing was removed.
    """
    wanted = set(rollouts)
    shards = list(store.shards())
    gone = {row["call_id"] for shard in shards for one in wanted for row in shard.rows("call", one, ("call_id",))}
    for shard in shards:
        here = {one for one in wanted if any(True for kind in _KINDS for _ in shard.rows(kind, one, ("kind",)))}
        if here and shard.path.suffix != SEALED:
            raise ValueError(
                f"rollout {min(here)} has calls in {shard.path}, which is not sealed:"
                " its server is running, or `ng_captures repair` has to seal it first"
            )
    for shard in shards:
        if shard.path.suffix == SEALED:
            _check_parents(shard, wanted, gone)
    for shard in shards:
        path, before = shard.path, _size(shard.path)
        if path.suffix != SEALED or not _concerns(shard, wanted, gone):
            continue
        rows, count = _without(shard, wanted, gone)
        if not dry_run and rows:
            _replace(path, rows)
        elif not dry_run:
            _remove(path)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        left = 0 if dry_run or not rows else _size(path)
        yield Pruned(str(path), 0 if rows else 1, before - left if not dry_run or not rows else 0, count)


def _check_parents(shard: ShardReader, rollouts: set[str], gone: set[str]) -> None:
    """What remains must not lean on what goes; no server links calls of two rollouts."""
    columns = ("rollout_id", "call_id", "parent_call_id", "request_prefix_len", "prompt_prefix_len")
    for row in shard.rows("call", columns=columns):
        leans = row.get("request_prefix_len") or row.get("prompt_prefix_len")
        if leans and row.get("parent_call_id") in gone and row.get("rollout_id") not in rollouts:
            raise ValueError(
                f"call {row['call_id']} of rollout {row.get('rollout_id')} continues call {row['parent_call_id']}"
                " of a rollout that was to be removed"
            )


def _concerns(shard: ShardReader, rollouts: set[str], gone: set[str]) -> bool:
    for batch in shard.batches(("rollout_id", "call_id")):
        if not rollouts.isdisjoint(batch.column("rollout_id").to_pylist()):
            return True
        if not gone.isdisjoint(batch.column("call_id").to_pylist()):
            return True
    return False


def _without(shard: ShardReader, rollouts: set[str], gone: set[str]) -> tuple[list[Row], int]:
    """The rows that remain, none when they say nothing; how many rollouts left."""
    kept: list[Row] = []
    left: set[str] = set()
    orphaned: dict[bytes, Row] = {}
    for batch in shard.batches():
        for row in to_rows(batch):
            row.pop("chain", None)
            if row.get("rollout_id") in rollouts:
                left.add(row["rollout_id"])
                orphaned |= {one["digest"]: one for one in row.get("new_contents", ())}
            elif row["kind"] != "receipt" or row.get("call_id") not in gone:
                kept.append(row)
    if all(row["kind"] == "end" for row in kept):
        return [], len(left)
    for row in kept:
        if orphaned and row["kind"] == "call":
            _hand_on(shard, row, orphaned)
    return kept, len(left)


def _hand_on(shard: ShardReader, row: Row, orphaned: dict[bytes, Row]) -> None:
    """Gives a row what it refers to and what left with a removed one."""
    waiting = shard.referred(row)
    adopted: list[Row] = []
    while waiting:
        content = orphaned.pop(waiting.pop(), None)
        if content is not None:
            adopted.append(content)
            if content["kind"] != "text":
                waiting += references(content["body"])
    if adopted:
        row["new_contents"] = [*row.get("new_contents", ()), *adopted]


def _replace(path: Path, rows: list[Row]) -> None:
    """The sealed shard with these rows, whole or as it was."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        write_sealed(_batches(rows), file)
        file.flush()
        os.fsync(file.fileno())
    written = ShardReader(temporary)
    if [one for batch in written.batches(("digest",)) for one in batch.column("digest").to_pylist()] != [
        row.get("digest") for row in rows
    ]:
        raise OSError(f"{temporary.name} does not read back as it was written")
    index.write(written.batches(INDEXED), written.size, path.with_suffix(INDEX))
    os.replace(temporary, path)
    sync_directory(path.parent)


def _batches(rows: list[Row]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), _ROWS):
        yield to_batch(rows[start : start + _ROWS])
