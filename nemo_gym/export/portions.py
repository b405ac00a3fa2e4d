"""A run in portions that can be made apart, anywhere, and joined again to what one pass would have given.

One pass reads the shards of all writers side by side and tells of a rollout when its last row comes. Here each shard is
looked at by itself: which rollouts have rows in it, and how far the pass would be at the last of them. That gives the
order of the export; a portion is a stretch of it, with the shards in which its rollouts lie. What is known of them lies
on the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from ..capture.store import CaptureStore
from . import sources
from .account import Account
from .calls import calls_of, look, seals_of, writer_of
from .captured import Captured
from .ledger import Entry, Ledger, Survey
from .parcels import Packer, Parcel, loose

_ROWS = 4096
"""Of a portion, about."""
_SEALS = 1 << 40
"""Seals are told after a shard's calls."""
_LAST = ("kind", "rollout_id", "received_at", "call_id", "session_id")


class Looked(Struct):
    """What one shard says."""

    path: str
    found: dict[str, Survey]
    last: dict[str, tuple[float, int]]
    """Of each rollout's last row: the latest time that was told until then, and its place."""
    latest: float
    version: int | None
    """The newest policy version."""


class Portion(Struct):
    entries: list[Entry]
    shards: list[str]
    """In which their rows lie, in the order in which they are read."""
    own: list[str]
    """Shards whose calls of no rollout are accounted for here."""


class Packed(Struct):
    parcels: list[Parcel]
    loose: Account


def looked(store: CaptureStore, path: Path, *, exact_versions: bool, alone: bool) -> Looked | None:
    shard = store.shard(path)
    if shard is None:
        return None
    found: dict[str, Survey] = {}
    version = look(shard, found, exact_versions=exact_versions, alone=alone)
    last: dict[str, tuple[float, int]] = {}
    latest, calls = 0.0, 0
    sealed: list[str] = []
    for batch in shard.batches(_LAST):
        for kind, rollout_id, at, call_id, session_id in zip(
            *(batch.column(name).to_pylist() for name in _LAST), strict=True
        ):
            if kind == "call":
                latest = max(latest, at)
                named = rollout_id or (sources.of_none(call_id, session_id) if alone else None)
                if named is not None:
                    last[named] = latest, calls
                calls += 1
            elif kind == "seal":
                sealed.append(rollout_id)
    for number, rollout_id in enumerate(sealed):
        last[rollout_id] = latest, _SEALS + number
    return Looked(str(path), found, last, latest, version)


class Plan:
    """Which rollout comes when, and where its rows lie."""

    def __init__(self, path: Path, ledger: Ledger, store: CaptureStore, *, shared: bool) -> None:
        self._ledger = ledger
        self._shared = shared
        self._paths = store.paths()
        self._number = {str(path): number for number, path in enumerate(self._paths)}
        names = list(dict.fromkeys(map(writer_of, self._paths)))
        self._writer = {str(path): names.index(writer_of(path)) for path in self._paths}
        self._latest: dict[int, float] = {}
        self.version: int | None = None
        self._data = sqlite3.connect(path, isolation_level=None)
        self._data.execute("PRAGMA journal_mode=OFF")
        self._data.execute("PRAGMA synchronous=OFF")
        self._data.execute("CREATE TABLE last (id TEXT PRIMARY KEY, at REAL, writer INT, shard INT, place INT)")
        self._data.execute("CREATE TABLE lies (id TEXT, shard INT, PRIMARY KEY (id, shard)) WITHOUT ROWID")

    @property
    def paths(self) -> list[Path]:
        return self._paths

    def add(self, one: Looked) -> None:
        """In the order of the paths: how far the pass is depends on the writer's earlier shards."""
        if self._shared:
            one.found = {key: found for key, found in one.found.items() if self._ledger.has(key)}
            one.last = {key: last for key, last in one.last.items() if key in one.found}
        self._ledger.add(one.found)
        writer, shard = self._writer[one.path], self._number[one.path]
        before = self._latest.get(writer, 0.0)
        self._latest[writer] = max(before, one.latest)
        if one.version is not None:
            self.version = one.version if self.version is None else max(self.version, one.version)
        self._data.execute("BEGIN")
        self._data.executemany(
            "INSERT INTO last VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at, "
            "writer = excluded.writer, shard = excluded.shard, place = excluded.place WHERE "
            "(excluded.at, excluded.writer, excluded.shard, excluded.place) > (at, writer, shard, place)",
            ((key, max(before, at), writer, shard, place) for key, (at, place) in one.last.items()),
        )
        self._data.executemany("INSERT INTO lies VALUES (?, ?)", ((key, shard) for key in one.last))
        self._data.execute("COMMIT")

    def portions(self) -> Iterator[Portion]:
        """When all is judged."""
        unowned = dict.fromkeys(() if self._shared else range(len(self._paths)))
        entries: list[Entry] = []
        rows, shards = 0, set[int]()
        last: int | None = None
        order = self._data.execute("SELECT id, shard FROM last ORDER BY at, writer, shard, place")
        for rollout_id, shard in order:
            if rows >= _ROWS or (rows >= _ROWS // 16 and shard != last):
                yield self._portion(entries, shards, unowned)
                entries, rows, shards = [], 0, set()
            entry = self._ledger.get(rollout_id)
            entries.append(entry)
            rows += entry.rows
            shards.update(one for (one,) in self._data.execute("SELECT shard FROM lies WHERE id = ?", (rollout_id,)))
            last = shard
        if entries or unowned:
            yield self._portion(entries, shards | set(unowned), unowned)

    def _portion(self, entries: list[Entry], shards: set[int], unowned: dict[int, None]) -> Portion:
        own = [one for one in sorted(shards) if one in unowned]
        for one in own:
            del unowned[one]
        return Portion(
            entries, [str(self._paths[one]) for one in sorted(shards)], [str(self._paths[one]) for one in own]
        )

    def close(self) -> None:
        self._data.close()


def packed(store: CaptureStore, portion: Portion, packer: Packer, *, alone: bool) -> Packed:
    """The portion's rollouts in its order, from its shards alone."""
    made = {entry.rollout_id: Captured(entry.rollout_id) for entry in portion.entries}
    wanted = {entry.rollout_id: entry.rows for entry in portion.entries}
    own, rest = set(portion.own), Account()
    for path in portion.shards:
        shard = store.shard(Path(path))
        if shard is None:
            continue  # pruned meanwhile
        wanted_here = partial(_is_wanted, made, path in own)
        for call in calls_of(shard, wanted_here, alone=alone):
            captured = made.get(call.rollout_id or "")
            if captured is None or captured.rows >= wanted[captured.rollout_id]:
                call.late = captured is not None  # written since it was looked at
                rest.add(loose(call))
                continue
            captured.calls.append(call)
            captured.rows += 1
        writer = shard.writer
        for rollout_id, call_ids in seals_of(shard, made.__contains__):
            made[rollout_id].add_seal(writer, call_ids)
    parcels = []
    for entry in portion.entries:
        captured = made.pop(entry.rollout_id)
        captured.finish()
        parcels.append(packer.pack(captured, entry))
    return Packed(parcels, rest)


def _is_wanted(made: Mapping[str, Captured], loose_too: bool, rollout_id: str | None) -> bool:
    return loose_too if rollout_id is None else rollout_id in made
