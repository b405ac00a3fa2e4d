"""The captured calls as an export needs them: token columns, by difference, a rollout at a time.

Shards are read side by side, one of each writer, so that the calls of a rollout at several servers come together; a
rollout is let go once as many rows of it were read as a first pass counted. So memory holds the rollouts that were
under way together, not the run. Requests and replies are read only where a format asks for them.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ..capture.columns import to_rows
from ..capture.reader import ShardReader
from ..capture.record import CallRecord
from ..capture.schema import Row
from ..capture.shard import SEALED
from ..capture.store import CaptureStore
from . import sources
from .ledger import Ledger, Survey

_PLAIN = (
    *("call_id", "run_id", "rollout_id", "session_id", "parent_call_id", "relation", "server", "trainable", "status"),
    *("model_reported", "received_at", "logprobs_mode", "sampling", "prefix_break", "request_prefix_len"),
    *("prompt_tokens", "completion_tokens", "cached_tokens"),
)
_NEEDED = (*_PLAIN, "request_contents", "prompt_prefix_len", "prompt_prefix_choice", "new_prompt_ids", "choices")
_SEAL = ("rollout_id", "sealed_calls", "at")
_SURVEYED = ("kind", "rollout_id", "policy_version", "trainable", "status", "logprobs_mode", "sampling")
_OF_NONE = ("call_id", "session_id", "incomplete")
"""Beside those, where there is no job that says which rollouts there are."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {"temperature": (1,), "top_p": (1,), "top_k": (0, -1), "min_p": (0,)}


Own = Callable[[str | None], bool]
"""Whether a rollout is asked for; None stands for none."""


class Spoken(Struct, frozen=True):
    """One choice of a call. Numbers as the bytes that the engine's arrays were."""

    index: int
    ids: bytes | None
    logprobs: bytes | None
    versions: tuple[tuple[int, int], ...]
    parts: bytes
    """As they are stored, where there are no ids."""


class CapturedCall(Struct, eq=False):
    call_id: str
    run_id: str
    rollout_id: str | None
    parent_call_id: str | None
    relation: str
    server: str
    trainable: bool
    status: str
    model: str
    received_at: float
    usage: tuple[int | None, int | None, int | None]
    """Prompt, completion and cached tokens, as the backend counts them."""
    messages: int
    """Of the request."""
    shared: int
    """How many prompt ids are the parent's."""
    shared_choice: int
    new_prompt: bytes | None
    choices: tuple[Spoken, ...]
    prefix_break: tuple[int, str] | None
    shard: ShardReader
    writer: str
    """The process that wrote it."""
    late: bool = False
    """It came after its rollout was sealed."""

    rows: WholeRows | None = None
    session_id: str | None = None
    """The client's own, where it named one."""

    def record(self) -> CallRecord:
        """The whole record."""
        row = self.shard.row_of(self.call_id) if self.rows is None else self.rows.row(self)
        if row is None:
            raise KeyError(f"call {self.call_id} is no longer in {self.shard.path}")
        return self.shard.decoder.record(row)


class WholeRows:
    """Every column of a rollout's calls, read when one of them is first asked for.

    A packed shard is unpacked in large batches, so its rows are taken together; and a call is told by what it adds to
    its parent, so parents are read before their children.
    """

    def __init__(self, rollout_id: str) -> None:
        self._rollout_id = rollout_id
        self._of_shard: dict[ShardReader, dict[str, Row]] = {}

    def row(self, call: CapturedCall) -> Row | None:
        shard = call.shard
        if shard.path.suffix != SEALED or " " in self._rollout_id:  # of no rollout: its rows are not together
            return shard.row_of(call.call_id)
        rows = self._of_shard.get(shard)
        if rows is None:
            rows = {row["call_id"]: row for row in shard.rows("call", self._rollout_id)}
            self._of_shard[shard] = rows
            for row in rows.values():
                shard.decoder.kept(row)
        return rows.get(call.call_id)


class Captured:
    """A rollout's rows; `calls` in the order in which they were asked once it is whole."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.rows = 0
        self.calls: list[CapturedCall] = []
        self._seals: dict[str, tuple[float, list[str]]] = {}

    def add_seal(self, writer: str, at: float, call_ids: list[str]) -> None:
        self.rows += 1
        if writer not in self._seals or at >= self._seals[writer][0]:
            self._seals[writer] = at, call_ids

    def finish(self) -> None:
        self.calls.sort(key=lambda call: (call.received_at, call.call_id))
        stated = {writer: set(ids) for writer, (_, ids) in self._seals.items()}
        whole = WholeRows(self.rollout_id)
        for call in self.calls:
            call.rows = whole
            of_writer = stated.get(call.writer)
            call.late = of_writer is not None and call.call_id not in of_writer

    @property
    def sealed(self) -> bool:
        """Whether a server has said which calls there are."""
        return bool(self._seals)

    @property
    def missing(self) -> bool:
        """Whether a call that a server sealed is not there."""
        there = {call.call_id for call in self.calls}
        return any(call_id not in there for _, ids in self._seals.values() for call_id in ids)


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
        highest = look(shard, found, exact_versions=exact_versions, alone=alone)
        newest = highest if newest is None else max(newest, highest if highest is not None else newest)
        ledger.add({key: one for key, one in found.items() if ledger.has(key)} if shared else found)
    return newest


def calls_of(shard: ShardReader, wanted: Own | None = None, *, alone: bool = False) -> Iterator[CapturedCall]:
    """Those of wanted rollouts.

    Args:
        alone: calls of no rollout are told under what stands for their rollout.
    """
    writer = shard.writer
    for named, row in _rows(shard, "call", _NEEDED, wanted, alone):
        call = _read(row, shard, writer)
        call.rollout_id = named
        yield call


def seals_of(shard: ShardReader, wanted: Own | None = None) -> Iterator[tuple[str, float, list[str]]]:
    """Rollout, time, and the calls that are stated."""
    for _, row in _rows(shard, "seal", _SEAL, wanted):
        yield row["rollout_id"], row["at"], row["sealed_calls"]


def _rows(
    shard: ShardReader, kind: str, columns: tuple[str, ...], wanted: Own | None, alone: bool = False
) -> Iterator[tuple[str | None, Row]]:
    """Rows with their rollouts; of a batch that has none, little is unpacked."""
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
            yield from zip(found.values(), to_rows(batch, list(found)), strict=True)


def look(shard: ShardReader, found: dict[str, Survey], *, exact_versions: bool, alone: bool) -> int | None:
    """The same of one shard."""
    columns = (*_SURVEYED, *(("choices",) if exact_versions else ()), *(_OF_NONE if alone else ()))
    newest: int | None = None
    for batch in shard.batches(columns):
        highest = _survey_batch(batch, found, exact_versions, alone)
        newest = highest if newest is None else max(newest, highest if highest is not None else newest)
    return newest


def _survey_batch(batch: pa.RecordBatch, found: dict[str, Survey], exact: bool, alone: bool) -> int | None:
    highest: int | None = None
    names = ("rollout_id", "kind", "trainable", "status", "policy_version", "logprobs_mode", "sampling")
    rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    choices = batch.column("choices") if exact else None
    of_none = {name: batch.column(name).to_pylist() for name in _OF_NONE} if alone else None
    for number, (rollout_id, kind, trainable, status, version, mode, sampling) in enumerate(rows):
        if rollout_id is None and kind == "call" and of_none is not None:
            rollout_id = sources.of_none(of_none["call_id"][number], of_none["session_id"][number])
        if rollout_id is None or kind not in ("call", "seal"):
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
            highest = version if highest is None else max(highest, version)
            lowest = version
            if choices is not None:
                runs = pc.list_flatten(choices.slice(number, 1)).field("versions")
                lowest = min((v for one in runs.to_pylist() for v in (one or ())[1::2]), default=version)
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
            wanted[rollout_id] = entry.rows
        if isinstance(item, CapturedCall):
            held[rollout_id].calls.append(item)
            held[rollout_id].rows += 1
        else:
            held[rollout_id].add_seal(item[0], item[2], item[3])
        whole = grown(rollout_id)
        if whole is not None:
            ledger.done(rollout_id)
            yield whole
    for captured in held.values():  # a writer's shard was pruned meanwhile
        captured.finish()
        yield captured


_Sealed = tuple[str, str, float, list[str]]


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
        captured.calls += [_read(row, shard, shard.writer) for row in shard.rows("call", rollout_id, _NEEDED)]
        for row in shard.rows("seal", rollout_id, _SEAL):
            captured.add_seal(shard.writer, row["at"], row["sealed_calls"])
    captured.rows = len(captured.calls)
    captured.finish()
    return captured


def _read(row: dict[str, Any], shard: ShardReader, writer: str) -> CapturedCall:
    new_prompt = row.get("new_prompt_ids")
    broken = row.get("prefix_break")
    return CapturedCall(
        row["call_id"],
        row["run_id"],
        row.get("rollout_id"),
        row.get("parent_call_id"),
        row["relation"],
        row["server"],
        row["trainable"],
        row["status"],
        row.get("model_reported") or "",
        row["received_at"],
        (row.get("prompt_tokens"), row.get("completion_tokens"), row.get("cached_tokens")),
        (row.get("request_prefix_len") or 0) + len(row.get("request_contents") or ()),
        row.get("prompt_prefix_len") or 0,
        row.get("prompt_prefix_choice") or 0,
        None if new_prompt is None else new_prompt.tobytes(),
        tuple([_spoken(choice) for choice in row.get("choices") or ()]),
        None if broken is None else (broken["position"], broken["cause"]),
        shard,
        writer,
        session_id=row.get("session_id"),
    )


def _spoken(choice: dict[str, Any]) -> Spoken:
    runs = choice["versions"] or ()
    return Spoken(
        choice["index"],
        _bytes(choice["token_ids"]),
        _bytes(choice["logprobs"]),
        tuple(zip(runs[::2], runs[1::2], strict=True)),
        choice["parts"] if choice["token_ids"] is None else b"",
    )


def _bytes(values: array | None) -> bytes | None:
    return None if values is None else values.tobytes()
