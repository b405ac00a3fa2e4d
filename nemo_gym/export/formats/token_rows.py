"""`token_rows`: one Parquet row a training sequence, in a folder that pyarrow and HF `datasets` load as it is.

Columns go from the captured arrays into Arrow without becoming Python numbers.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .format import Row

SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.int8()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("policy_version", pa.list_(pa.int32()), nullable=False),
        pa.field("reward", pa.float32(), nullable=False),
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

CARD = """## token_rows

One row a training sequence.

| column | type | |
|---|---|---|
| `input_ids` | int32[] | what the model saw and said, ids as the engine had them |
| `loss_mask` | int8[] | 1 where the token is generated and trained in this row; each is in one row only |
| `logprobs` | float32[] | of `input_ids[i]` under the distribution it was sampled from; 0.0 where the mask is 0 |
| `policy_version` | int32[] | of the weights that sampled the token; -1 where the mask is 0, or it is not known |
| `reward` | float32 | of the whole rollout |
| `advantage` | float32 | null unless it was asked for |
| `task_id`, `group_id` | string | the task, and the group of its repeats in this run |
| `rollout_id`, `branch` | string, int32 | 0 is the first branch; what it trains is masked in the others |
| `run_id`, `agent`, `model` | string | |
| `complete` | bool | every call of the rollout is in the capture |
"""


class TokenRows:
    card = CARD

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self._folder = folder
        self._pending: list[Row] = []
        self._pending_tokens = 0
        self._writer: pq.ParquetWriter | None = None
        self._files = 0
        self._file_tokens = 0

    def add(self, row: Row) -> None:
        self._pending.append(row)
        self._pending_tokens += len(row.sequence.input_ids)
        if self._pending_tokens >= _BATCH_TOKENS or len(self._pending) >= _BATCH_ROWS:
            self._flush()

    def close(self) -> None:
        if self._pending or not self._files:
            self._flush()  # an export without rows is a readable file all the same
        self._end_file()

    def _flush(self) -> None:
        if self._writer is None:
            path = self._folder / f"part-{self._files:05d}.parquet"
            self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
            self._files += 1
            self._file_tokens = 0
        batch = _batch(self._pending)
        self._writer.write_batch(batch)
        self.rows += len(self._pending)
        self._file_tokens += self._pending_tokens
        self._pending, self._pending_tokens = [], 0
        if self._file_tokens >= _FILE_TOKENS:
            self._end_file()

    def _end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _batch(rows: list[Row]) -> pa.RecordBatch:
    results = [row.result for row in rows]
    sequences = [row.sequence for row in rows]
    plain: dict[str, list[Any]] = {
        "reward": [result.reward for result in results],
        "advantage": [None] * len(rows),
        "task_id": [result.task_id for result in results],
        "group_id": [f"{row.run_id}-{row.result.task}" for row in rows],
        "rollout_id": [result.rollout_id for result in results],
        "branch": [sequence.branch for sequence in sequences],
        "run_id": [row.run_id for row in rows],
        "agent": [result.agent for result in results],
        "model": [sequence.model for sequence in sequences],
        "complete": [row.complete for row in rows],
    }
    columns = {
        "input_ids": _lists([sequence.input_ids for sequence in sequences], pa.int32()),
        "loss_mask": _lists([sequence.loss_mask for sequence in sequences], pa.int8()),
        "logprobs": _lists([sequence.logprobs for sequence in sequences], pa.float32()),
        "policy_version": _lists([sequence.policy_version for sequence in sequences], pa.int32()),
    } | {name: pa.array(values, SCHEMA.field(name).type) for name, values in plain.items()}
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _lists(values: list[array], kind: pa.DataType) -> pa.ListArray:
    offsets = array("i", [0])
    for value in values:
        offsets.append(offsets[-1] + len(value))
    joined = b"".join(value.tobytes() for value in values)
    flat = pa.Array.from_buffers(kind, offsets[-1], [None, pa.py_buffer(joined)])
    starts = pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])
    return pa.ListArray.from_arrays(starts, flat)
