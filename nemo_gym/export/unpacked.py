"""Calls out of a record batch: a column at a time, and no number becomes a Python object.

A rollout of short turns is many small calls, so what each costs decides how many tokens a second an export reads.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ..capture.columns import array_of
from ..capture.reader import ShardReader
from .captured import CapturedCall, Spoken

_COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens")
_PLAIN = (
    *("call_id", "run_id", "parent_call_id", "relation", "server", "trainable", "status", "model_reported"),
    *("received_at", "request_prefix_len", "prompt_prefix_len", "prompt_prefix_choice", "prefix_break", "session_id"),
)
NEEDED = (*_PLAIN, *_COUNTED, "rollout_id", "request_contents", "new_prompt_ids", "choices")
_WIDTH = 4


class Unpacked:
    """Makes the calls of one shard."""

    def __init__(self, shard: ShardReader) -> None:
        self._shard = shard
        self._writer = shard.writer

    def calls(self, batch: pa.RecordBatch, wanted: Mapping[int, str | None]) -> list[CapturedCall]:
        """The rows with the wanted numbers, each under the rollout that is given for it."""
        if len(wanted) < batch.num_rows:
            batch = batch.take(array_of(pa.int64(), list(wanted)))
        shard, writer = self._shard, self._writer
        return [
            CapturedCall(
                call_id,
                run_id,
                rollout_id,
                parent,
                relation,
                server,
                trainable,
                status,
                model or "",
                received,
                usage,
                (before or 0) + contents,
                shared or 0,
                through or 0,
                new_prompt,
                choices,
                None if broken is None else (broken["position"], broken["cause"]),
                shard,
                writer,
                session_id=session,
            )
            for (
                (call_id, run_id, parent, relation, server, trainable, status, model, received),
                (before, shared, through, broken, session),
                rollout_id,
                usage,
                contents,
                new_prompt,
                choices,
            ) in zip(
                _columns(batch, _PLAIN[:9]),
                _columns(batch, _PLAIN[9:]),
                wanted.values(),
                _columns(batch, _COUNTED),
                _lengths(batch.column("request_contents")),
                _pieces(batch.column("new_prompt_ids")),
                _choices(batch.column("choices")),
                strict=True,
            )
        ]


def _columns(batch: pa.RecordBatch, names: tuple[str, ...]) -> zip[tuple[Any, ...]]:
    return zip(*[_plain(batch.column(name)) for name in names], strict=True)


def _plain(column: pa.Array) -> list[Any]:
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def _lengths(column: pa.Array) -> list[int]:
    offsets = column.offsets.to_pylist()  # what is null has a length of 0 too
    return [end - begin for begin, end in itertools.pairwise(offsets)]


def _pieces(column: pa.Array) -> list[bytes | None]:
    """Each list's numbers as they lie in memory."""
    numbers, offsets = column.values, column.offsets.to_pylist()
    buffer = numbers.buffers()[1]
    begin = numbers.offset * _WIDTH
    data = b"" if buffer is None else memoryview(buffer)[begin : begin + len(numbers) * _WIDTH]
    found: list[bytes | None] = [
        bytes(data[begin * _WIDTH : end * _WIDTH]) for begin, end in itertools.pairwise(offsets)
    ]
    if column.null_count:
        found = [piece if there else None for piece, there in zip(found, column.is_valid().to_pylist(), strict=True)]
    return found


def _choices(column: pa.Array) -> list[tuple[Spoken, ...]]:
    """Of each call; none where a call has no reply."""
    each, offsets = column.values, column.offsets.to_pylist()
    ids = _pieces(each.field("token_ids"))
    parts = each.field("parts").to_pylist() if None in ids else [b""] * len(ids)
    spoken = [
        Spoken(index, of_ids, logprobs, _runs(versions), said if of_ids is None else b"")
        for index, of_ids, logprobs, versions, said in zip(
            each.field("index").to_pylist(),
            ids,
            _pieces(each.field("logprobs")),
            _pieces(each.field("versions")),
            parts,
            strict=True,
        )
    ]
    return [tuple(spoken[begin:end]) for begin, end in itertools.pairwise(offsets)]


def versions_of(choices: pa.Array) -> list[list[tuple[tuple[int, int], ...]]]:
    """Of each call, of each of its choices."""
    each = [_runs(data) for data in _pieces(choices.values.field("versions"))]
    return [each[begin:end] for begin, end in itertools.pairwise(choices.offsets.to_pylist())]


@lru_cache(maxsize=4096)
def _runs(data: bytes | None) -> tuple[tuple[int, int], ...]:
    """Where each version begins, and which it is."""
    runs = array("i", data or b"")
    return tuple(zip(runs[::2], runs[1::2], strict=True))
