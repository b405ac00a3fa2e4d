"""What is done to captures after their writers: repair and upload. Nothing that a living writer holds is touched.

Repair keeps every whole batch, ends a shard whose writer was killed, and packs what is closed; run twice, the second
run finds nothing to do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct

from . import index
from .index import INDEX, INDEXED
from .reader import ShardReader
from .schema import VERSION, Row, row_digest
from .sealing import is_written, seal
from .shard import END_OF_STREAM, SEALED, SUFFIX, serialised, sync_directory
from .store import CaptureStore, named
from .upload import Uploader

_FRESH_S = 60.0
"""A shard without a batch may belong to a writer that is just starting."""


class Mended(Struct, frozen=True):
    path: str
    did: str


# ---- repair


def repair(store: CaptureStore, *, dry_run: bool = False) -> Iterator[Mended]:
    """What was done, or would be, as it is done. What is no shard is left alone."""
    for path in sorted(store.directory.rglob("*.tmp")):
        if path.name.removesuffix(".tmp").endswith((SEALED, INDEX)) and not _fresh(path):
            yield from _removed(path, "removed what a killed process left half written", dry_run)
    for path in sorted(store.directory.rglob(f"*{SUFFIX}")):
        if path.with_suffix(SEALED).exists():
            yield from _removed(path, "removed: its sealed shard is there", dry_run)
        elif not is_written(path):
            with contextlib.suppress(ValueError, FileNotFoundError):
                yield from _mended(path, dry_run)
    for path in sorted(store.directory.rglob(f"*{SEALED}")):
        with contextlib.suppress(ValueError, FileNotFoundError):
            shard = ShardReader(path)
            if shard.packed and not _indexed(shard):
                if not dry_run:
                    index.write(shard.batches(INDEXED), shard.size, path.with_suffix(INDEX))
                yield Mended(str(path), "its index was made anew")


def _indexed(shard: ShardReader) -> bool:
    try:
        there = index.mapped(shard.path, shard.size) is not None
        return there and index.holds(shard.batches(INDEXED), shard.path, shard.size)
    except (OSError, ValueError, KeyError, IndexError):  # it cannot be unpacked, as `verify` tells
        return True


def _mended(path: Path, dry_run: bool) -> Iterator[Mended]:
    shard = ShardReader(path)
    if shard.count == 0:
        if named(path) and not _fresh(path):
            yield from _removed(path, "removed: it holds no whole record", dry_run)
        return
    if not shard.sealed or shard.torn:
        if shard.torn:
            yield Mended(str(path), f"cut {shard.torn} bytes of a torn tail")
        if not dry_run:
            _end(shard)
        yield Mended(str(path), "ended, its writer is gone")
    if dry_run:
        yield Mended(str(path), "packed")
        return
    sealed = seal(path)
    if sealed is not None:
        yield Mended(str(sealed), "packed")


def _end(shard: ShardReader) -> None:
    with shard.path.open("r+b") as file:
        file.truncate(shard.ends[-1])
        file.seek(0, 2)
        if not shard.sealed:
            end: Row = {"kind": "end", "schema_version": VERSION}
            end["digest"] = row_digest(end)
            file.write(serialised([end], _chain_after(shard)))
        file.write(END_OF_STREAM)
        file.flush()
        with contextlib.suppress(OSError):
            sync_directory(shard.path.parent)


def _chain_after(shard: ShardReader) -> bytes:
    chain = blake2b(digest_size=16)
    with shard.path.open("rb") as file:
        left = shard.ends[-1]
        while left:
            data = file.read(min(left, 1 << 20))
            chain.update(data)
            left -= len(data)
    return chain.digest()


def _fresh(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < _FRESH_S


def _removed(path: Path, did: str, dry_run: bool) -> Iterator[Mended]:
    if not dry_run:
        path.unlink(missing_ok=True)
    yield Mended(str(path), did)


# ---- upload


def upload(store: CaptureStore, uri: str) -> Iterator[Path]:
    """All sealed shards that are not there yet; yields each that was sent."""
    uploader = Uploader(uri)
    for path in store.paths():
        if path.suffix == SEALED and uploader.put(path):
            yield path
