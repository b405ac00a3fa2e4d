"""`token_rows`: one Parquet row a training sequence, in a folder that pyarrow and HF `datasets` load as it is.

Columns go from the captured arrays into Arrow without becoming Python numbers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from ...capture.columns import array_of
from ..ledger import Entry
from ..sequences import Sequence as Tokens
from .format import Files, Made, Parts, Rollout

SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.int8()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("policy_version", pa.list_(pa.int32()), nullable=False),
        pa.field("reward", pa.float32()),
        pa.field("advantage", pa.float32()),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("rollout_id", pa.string(), nullable=False),
        pa.field("branch", pa.int32(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("complete", pa.bool_(), nullable=False),
    ]
)
_BATCH_TOKENS = 1 << 20
_BATCH_ROWS = 1024
_FILE_TOKENS = 1 << 26
_STRINGS = [field.name for field in SCHEMA if field.type == pa.string()]

CARD = """## token_rows

One row a training sequence.

| column | type | |
|---|---|---|
| `input_ids` | int32[] | what the model saw and said, ids as the engine had them |
| `loss_mask` | int8[] | 1 where the token is generated and trained in this row; each is in one row only |
| `logprobs` | float32[] | of `input_ids[i]` under the distribution it was sampled from; 0.0 where the mask is 0 |
| `policy_version` | int32[] | of the weights that sampled the token; -1 where the mask is 0, or it is not known |
| `reward` | float32 | of the whole rollout; null where captures were exported without a job |
| `advantage` | float32 | null unless it was asked for |
| `task_id`, `group_id` | string | the task, and the group of its repeats in this run |
| `rollout_id`, `branch` | string, int32 | 0 is the first branch; what it trains is masked in the others |
| `run_id`, `agent`, `model` | string | |
| `complete` | bool | every call of the rollout is in the capture, with its ids, and its result holds |
"""


class _Row(Struct):
    """One row, its numbers as bytes."""

    entry: Entry
    input_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    policy_version: bytes
    branch: int
    group_id: str
    run_id: str
    model: str
    complete: bool

    def __len__(self) -> int:
        return len(self.loss_mask)


class _Parquet:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._pending: list[_Row] = []
        self._pending_tokens = 0
        self._writer: pq.ParquetWriter | None = None
        self._file_tokens = 0

    def add(self, row: _Row) -> None:
        self._pending.append(row)
        self._pending_tokens += len(row)
        if self._pending_tokens >= _BATCH_TOKENS or len(self._pending) >= _BATCH_ROWS:
            self._flush()

    def close(self) -> None:
        if self._pending or not (self.parts.written or self._writer):
            self._flush()  # an export without rows is a readable file all the same
        self._end_file()

    def _flush(self) -> None:
        rows, self._pending, self._pending_tokens = self._pending, [], 0
        while True:
            count = self.parts.room(len(rows)) if self._writer is not None and self._file_tokens < _FILE_TOKENS else 0
            if count or not rows:
                self._write(rows[:count])
                rows = rows[count:]
                if not rows:
                    return
            else:
                self._end_file()
                self._begin_file()

    def _write(self, rows: list[_Row]) -> None:
        if self._writer is None:
            self._begin_file()
        assert self._writer is not None
        self._writer.write_batch(_batch(rows))
        self.parts.add(len(rows))
        self._file_tokens += sum(map(len, rows))

    def _begin_file(self) -> None:
        # A dictionary of token ids would be as large as the ids.
        self._writer = pq.ParquetWriter(
            self.parts.begin(), SCHEMA, compression="zstd", compression_level=1, use_dictionary=_STRINGS
        )
        self._file_tokens = 0

    def _end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self.parts.end()


def _batch(rows: list[_Row]) -> pa.RecordBatch:
    lengths = [len(row) for row in rows]
    plain: dict[str, list[Any]] = {
        "reward": [row.entry.reward for row in rows],
        "advantage": [row.entry.advantage for row in rows],
        "task_id": [row.entry.task_id for row in rows],
        "group_id": [row.group_id for row in rows],
        "rollout_id": [row.entry.rollout_id for row in rows],
        "branch": [row.branch for row in rows],
        "run_id": [row.run_id for row in rows],
        "agent": [row.entry.agent for row in rows],
        "model": [row.model for row in rows],
        "complete": [row.complete for row in rows],
    }
    columns = {
        "input_ids": _lists([row.input_ids for row in rows], lengths, pa.int32()),
        "loss_mask": _lists([row.loss_mask for row in rows], lengths, pa.int8()),
        "logprobs": _lists([row.logprobs for row in rows], lengths, pa.float32()),
        "policy_version": _lists([row.policy_version for row in rows], lengths, pa.int32()),
    } | {name: array_of(SCHEMA.field(name).type, values) for name, values in plain.items()}
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _lists(values: Sequence[bytes], lengths: list[int], kind: pa.DataType) -> pa.ListArray:
    offsets = array("i", accumulate(lengths, initial=0))
    flat = pa.Array.from_buffers(kind, offsets[-1], [None, pa.py_buffer(b"".join(values))])
    starts = pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])
    return pa.ListArray.from_arrays(starts, flat)


class TokenRows(Files):
    name: ClassVar[str] = "token_rows"
    card: ClassVar[str] = CARD
    suffix: ClassVar[str] = ".parquet"
    needs_tokens: ClassVar[bool] = True
    file = _Parquet

    def made(self, rollout: Rollout) -> Made:
        return Made([_row(sequence, rollout) for sequence in rollout.sequences], Counter())


def _row(sequence: Tokens, rollout: Rollout) -> _Row:
    return _Row(
        rollout.entry,
        sequence.input_ids,
        sequence.loss_mask,
        sequence.logprobs,
        sequence.policy_version,
        sequence.branch,
        rollout.group_id,
        sequence.run_id,
        sequence.model,
        rollout.complete,
    )
