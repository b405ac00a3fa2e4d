"""`token_rows`: one Parquet row a training sequence, in a folder that pyarrow and HF `datasets` load as it is.

Columns go from the captured arrays into Arrow without becoming Python numbers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ...capture.columns import array_of
from ..options import Options
from ..sequences import Sequence as Tokens
from .format import Parts, Rollout, Written

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

_Row = tuple[Tokens, Rollout]


class TokenRows:
    name: ClassVar[str] = "token_rows"
    card: ClassVar[str] = CARD
    suffix: ClassVar[str] = ".parquet"
    needs_tokens: ClassVar[bool] = True

    def __init__(self, folder: Path, options: Options) -> None:
        self.skipped: Counter[str] = Counter()
        self._files: dict[str | None, _Files] = {}
        for split in options.split_names:
            self._files[split] = _Files(Parts(folder, split, self.suffix, options))

    def add(self, rollout: Rollout) -> int:
        file = self._files[rollout.entry.split]
        for sequence in rollout.sequences:
            file.add((sequence, rollout))
        return len(rollout.sequences)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    @property
    def written(self) -> list[Written]:
        return [one for file in self._files.values() for one in file.parts.written]


class _Files:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._pending: list[_Row] = []
        self._pending_tokens = 0
        self._writer: pq.ParquetWriter | None = None
        self._file_tokens = 0

    def add(self, row: _Row) -> None:
        self._pending.append(row)
        self._pending_tokens += len(row[0])
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
        self._file_tokens += sum(len(sequence) for sequence, _ in rows)

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
    entries = [rollout.entry for _, rollout in rows]
    sequences = [sequence for sequence, _ in rows]
    lengths = [len(sequence) for sequence in sequences]
    plain: dict[str, list[Any]] = {
        "reward": [entry.reward for entry in entries],
        "advantage": [entry.advantage for entry in entries],
        "task_id": [entry.task_id for entry in entries],
        "group_id": [rollout.group_id for _, rollout in rows],
        "rollout_id": [entry.rollout_id for entry in entries],
        "branch": [sequence.branch for sequence in sequences],
        "run_id": [sequence.run_id for sequence in sequences],
        "agent": [entry.agent for entry in entries],
        "model": [sequence.model for sequence in sequences],
        "complete": [rollout.complete for _, rollout in rows],
    }
    columns = {
        "input_ids": _lists([sequence.input_ids for sequence in sequences], lengths, pa.int32()),
        "loss_mask": _lists([sequence.loss_mask for sequence in sequences], lengths, pa.int8()),
        "logprobs": _lists([sequence.logprobs for sequence in sequences], lengths, pa.float32()),
        "policy_version": _lists([sequence.policy_version for sequence in sequences], lengths, pa.int32()),
    } | {name: array_of(SCHEMA.field(name).type, values) for name, values in plain.items()}
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _lists(values: Sequence[bytes], lengths: list[int], kind: pa.DataType) -> pa.ListArray:
    offsets = array("i", accumulate(lengths, initial=0))
    flat = pa.Array.from_buffers(kind, offsets[-1], [None, pa.py_buffer(b"".join(values))])
    starts = pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])
    return pa.ListArray.from_arrays(starts, flat)
