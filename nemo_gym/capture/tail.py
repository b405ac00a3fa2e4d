"""Records as they come: a capture that is being written, followed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from .columns import to_rows
from .reader import ShardReader
from .record import CallRecord
from .shard import SEALED
from .store import CaptureStore


class Tail:
    """Each record once, whoever writes it, also over the sealing of its shard.

    Args:
        from_start: also what is there already.
    """

    def __init__(self, store: CaptureStore, *, from_start: bool = False) -> None:
        self._store = store
        self._seen: dict[Path, int] = {}
        """Rows of each shard, by its name without the suffix."""
        self._open: dict[Path, ShardReader] = {}
        if not from_start:
            for path in store.paths():
                for _ in self._new(path, join=False):
                    pass

    def new(self) -> Iterator[CallRecord]:
        """What has come since the last time."""
        for path in self._store.paths():
            yield from self._new(path)

    def follow(self, poll_s: float = 0.5, for_s: float | None = None) -> Iterator[CallRecord]:
        """Without end, or for so many seconds."""
        end = None if for_s is None else time.monotonic() + for_s
        while True:
            yield from self.new()
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(poll_s)

    def _new(self, path: Path, *, join: bool = True) -> Iterator[CallRecord]:
        stem = path.with_suffix("")
        shard = self._shard(path, stem)
        if shard is None:
            return
        seen = self._seen.get(stem, 0)
        first = 0
        for number in range(shard.count):
            columns = ("kind",)
            rows = shard.batch(number, columns).num_rows
            if first + rows > seen and join:
                wanted = list(range(max(seen - first, 0), rows))
                for row in to_rows(shard.batch(number), wanted):
                    if row["kind"] == "call":
                        yield shard.decoder.record(row)
            first += rows
            self._seen[stem] = max(seen, first)

    def _shard(self, path: Path, stem: Path) -> ShardReader | None:
        """None when it has nothing new."""
        known = self._open.get(stem)
        if path.suffix == SEALED:
            self._open.pop(stem, None)
            done = stem in self._seen and known is None
            return None if done else self._store.shard(path)
        try:
            if known is None:
                known = self._store.shard(path)
            elif known.size != path.stat().st_size:
                known.refresh()
            else:
                return None
        except FileNotFoundError:
            return None  # sealed in between: the next round finds it
        if known is not None:
            self._open[stem] = known
        return known
