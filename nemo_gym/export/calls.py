"""The captured calls as an export needs them: token columns, by difference, a rollout at a time.

Shards are read side by side, one of each writer, so that the calls of a rollout at several servers come together; a
rollout is let go once as many rows of it were read as a first pass counted. So memory holds the rollouts that were
under way together, not the run. Requests and replies are read only where a format asks for them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..capture.columns import to_rows
from ..capture.reader import ShardReader
from ..capture.store import CaptureStore
from . import sources
from .captured import Captured, CapturedCall
from .ledger import Ledger, Survey
from .unpacked import NEEDED, Unpacked, versions_of

_SEAL = ("rollout_id", "sealed_calls")
_SURVEYED = ("kind", "rollout_id", "policy_version", "trainable", "status", "logprobs_mode", "sampling")
_OF_NONE = ("call_id", "session_id", "incomplete")
"""Beside those, where there is no job that says which rollouts there are."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {"temperature": (1,), "top_p": (1,), "top_k": (0, -1), "min_p": (0,)}


Own = Callable[[str | None], bool]
"""Whether a rollout is asked for; None stands for none."""
_Known = Callable[[str], bool]


def survey(
    store: CaptureStore, ledger: Ledger, *, exact_versions: bool = False, alone: bool = False, shared: bool = False
) -> int | None:
    """Counts each rollout's rows in the captures; returns the newest policy version. Reads plain columns alone.

    Args:
        exact_versions: look at every token's version, not at that of each call's last.
        alone: there is no job; calls of no rollout count too, and what seals say is all that is known.
        shared: rollouts that the job has no result for are none of its own.
    """
    newest: int | None = None
    for shard in store.shards():
        found: dict[str, Survey] = {}
        highest = look(shard, found, exact_versions=exact_versions, alone=alone, own=ledger.has if shared else None)
        newest = _newer(newest, highest)
        ledger.add(found)
    return newest


def calls_of(shard: ShardReader, wanted: Own | None = None, *, alone: bool = False) -> Iterator[CapturedCall]:
    """Those of wanted rollouts.

    Args:
        alone: calls of no rollout are told under what stands for their rollout.
    """
    unpacked = Unpacked(shard)
    for batch, found in _rows(shard, "call", NEEDED, wanted, alone):
        yield from unpacked.calls(batch, found)


def seals_of(shard: ShardReader, wanted: Own | None = None) -> Iterator[tuple[str, list[str]]]:
    """Rollout, and the calls that are stated."""
    for batch, found in _rows(shard, "seal", _SEAL, wanted):
        for row in to_rows(batch, list(found)):
            yield row["rollout_id"], row["sealed_calls"]


def _rows(
    shard: ShardReader, kind: str, columns: tuple[str, ...], wanted: Own | None, alone: bool = False
) -> Iterator[tuple[pa.RecordBatch, dict[int, str | None]]]:
    """Batches, and the rows of them that are asked for, with their rollouts; a batch that has none is left out."""
    names = ("kind", "rollout_id", *(("call_id", "session_id") if alone else ()))
    for batch in shard.batches((*columns, "kind")):
        found: dict[int, str | None] = {}
        told = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        for number, (its_kind, rollout_id, *named) in enumerate(told):
            if its_kind != kind:
                continue
            if rollout_id is None and alone:
                rollout_id = sources.of_none(*named)
            if wanted is None or wanted(rollout_id):
                found[number] = rollout_id
        if found:
            yield batch, found


def look(
    shard: ShardReader, found: dict[str, Survey], *, exact_versions: bool, alone: bool, own: _Known | None = None
) -> int | None:
    """The same of one shard; of rollouts that are not its own no more than how new they are."""
    columns = (*_SURVEYED, *(("choices",) if exact_versions else ()), *(_OF_NONE if alone else ()))
    newest: int | None = None
    foreign = _Foreign(own)
    for batch in shard.batches(columns):
        highest = _survey_batch(batch, found, exact_versions, alone, foreign)
        newest = _newer(newest, highest)
    return newest


def _newer(first: int | None, second: int | None) -> int | None:
    return max((one for one in (first, second) if one is not None), default=None)


class _Foreign(dict[str, bool]):
    """Whether a rollout is none of those asked for; each is asked about once."""

    def __init__(self, own: _Known | None) -> None:
        self._own = own

    def __missing__(self, rollout_id: str) -> bool:
        is_foreign = self[rollout_id] = self._own is not None and not self._own(rollout_id)
        return is_foreign


def _survey_batch(
    batch: pa.RecordBatch, found: dict[str, Survey], exact: bool, alone: bool, foreign: _Foreign
) -> int | None:
    highest: int | None = None
    names = ("rollout_id", "kind", "trainable", "status", "policy_version", "logprobs_mode", "sampling")
    rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    versions = versions_of(batch.column("choices")) if exact else None
    of_none = {name: batch.column(name).to_pylist() for name in _OF_NONE} if alone else None
    for number, (rollout_id, kind, trainable, status, version, mode, sampling) in enumerate(rows):
        if rollout_id is None and kind == "call" and of_none is not None:
            rollout_id = sources.of_none(of_none["call_id"][number], of_none["session_id"][number])
        if rollout_id is None or kind not in ("call", "seal"):
            continue
        if foreign[rollout_id]:
            if version is not None and trainable and status == "answered":
                highest = _newer(highest, version)
            continue
        one = found.get(rollout_id)
        if one is None:
            one = found[rollout_id] = Survey()
        one.rows += 1
        if kind == "seal":
            if of_none is not None:
                one.incomplete = of_none["incomplete"][number] or one.incomplete
            continue
        one.calls += 1
        if not trainable or status != "answered":
            continue
        if version is not None:
            highest = _newer(highest, version)
            lowest = version
            if versions is not None:
                lowest = min((known for runs in versions[number] for _, known in runs), default=version)
            one.oldest = lowest if one.oldest is None else min(one.oldest, lowest)
        one.raw = one.raw or (mode == "raw" and is_reshaped(sampling))
    return highest


@lru_cache(maxsize=4096)
def is_reshaped(sampling: str | None) -> bool:
    """Whether the distribution sampled from was another than the raw one."""
    if sampling is None:
        return True
    asked = msgspec.json.decode(sampling)
    return any(name in asked and asked[name] not in neutral for name, neutral in _NEUTRAL.items())


def rollouts(
    store: CaptureStore, ledger: Ledger, *, alone: bool = False, shared: bool = False
) -> Iterator[Captured | CapturedCall]:
    """Whole rollouts, as they become so; calls outside any rollout by themselves.

    Args:
        alone: such calls are told as rollouts too, each session's together.
        shared: what is not in the ledger is not read.
    """
    held: dict[str, Captured] = {}
    wanted: dict[str, int] = {}

    def grown(rollout_id: str) -> Captured | None:
        captured = held[rollout_id]
        if captured.rows < wanted[rollout_id]:
            return None
        del held[rollout_id], wanted[rollout_id]
        captured.finish()
        return captured

    own = (lambda one: one is not None and ledger.has(one)) if shared else None
    for item in _side_by_side(store, own, alone):
        rollout_id = item.rollout_id if isinstance(item, CapturedCall) else item[1]
        if rollout_id is None:
            assert isinstance(item, CapturedCall)
            yield item
            continue
        if rollout_id not in held:
            entry = ledger.get(rollout_id)
            if entry.done:  # written since the first pass
                if isinstance(item, CapturedCall):
                    item.late = True
                    yield item
                continue
            held[rollout_id] = Captured(rollout_id)
            held[rollout_id].entry = entry
            wanted[rollout_id] = entry.rows
        if isinstance(item, CapturedCall):
            held[rollout_id].calls.append(item)
            held[rollout_id].rows += 1
        else:
            held[rollout_id].add_seal(item[0], item[2])
        whole = grown(rollout_id)
        if whole is not None:
            ledger.done(rollout_id)
            yield whole
    for captured in held.values():  # a writer's shard was pruned meanwhile
        captured.finish()
        yield captured


_Sealed = tuple[str, str, list[str]]
"""Writer, rollout, calls."""


def _side_by_side(store: CaptureStore, own: Own | None, alone: bool) -> Iterator[CapturedCall | _Sealed]:
    writers: dict[str, list[Path]] = {}
    for path in store.paths():
        writers.setdefault(writer_of(path), []).append(path)
    streams = [_of_writer(store, paths, own, alone) for paths in writers.values()]
    if len(streams) == 1:
        return (item for _, item in streams[0])
    return map(itemgetter(1), heapq.merge(*streams, key=itemgetter(0)))


def writer_of(path: Path) -> str:
    """The process that wrote a shard: its shards are read one after the other."""
    return str(path.parent / path.stem.rsplit("-", 1)[0])


def _of_writer(
    store: CaptureStore, paths: Iterable[Path], own: Own | None, alone: bool
) -> Iterator[tuple[float, CapturedCall | _Sealed]]:
    at = 0.0
    for path in paths:
        shard = store.shard(path)
        if shard is None:
            continue
        for call in calls_of(shard, own, alone=alone):
            at = max(at, call.received_at)  # they are written as they end; the merge wants an order
            yield at, call
        writer = shard.writer
        for sealed in seals_of(shard, own):
            yield at, (writer, *sealed)


def one_rollout(store: CaptureStore, rollout_id: str) -> Captured:
    captured = Captured(rollout_id)
    if " " in rollout_id:
        own = rollout_id.__eq__
        captured.calls = [call for shard in store.shards() for call in calls_of(shard, own, alone=True)]
    for shard in () if captured.calls else store.shards():
        captured.calls += _calls_of_rollout(shard, rollout_id)
        for row in shard.rows("seal", rollout_id, _SEAL):
            captured.add_seal(shard.writer, row["sealed_calls"])
    captured.rows = len(captured.calls)
    captured.finish()
    return captured


def _calls_of_rollout(shard: ShardReader, rollout_id: str) -> Iterator[CapturedCall]:
    """Found by the shard's index."""
    unpacked = Unpacked(shard)
    for number, rows in shard.of_rollout(rollout_id):
        batch = shard.batch(number, (*NEEDED, "kind"))
        kinds, named = batch.column("kind").to_pylist(), batch.column("rollout_id").to_pylist()
        among = range(batch.num_rows) if rows is None else rows
        yield from unpacked.calls(
            batch, {row: rollout_id for row in among if kinds[row] == "call" and named[row] == rollout_id}
        )
