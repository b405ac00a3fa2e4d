"""Batches as they are laid out here are Arrow's own."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest

from nemo_gym.capture.columns import array_of, to_batch, to_message, to_rows
from nemo_gym.capture.schema import COLUMNS, SCHEMA, Row

CHOICE: Row = {
    "index": 1,
    "finish": "stop",
    "stop_sequence": None,
    "parts": b"[]",
    "token_ids": array("i", [1, 2, 3]),
    "logprobs": array("f", [-0.5, -1.5, 0.0]),
    "versions": array("i"),
    "texts": ["a", "", "\N{SNOWMAN}"],
    "top_logprobs": [[{"token": "a", "logprob": -0.25}], [], []],
}
CALL: Row = {
    "kind": "call",
    "schema_version": 1,
    "call_id": "c",
    "streamed": True,
    "received_at": 1.5,
    "attempts": [{"replica": "r", "started": 1.0, "ended": 2.0, "error": None}],
    "prefix_break": {"position": 3, "cause": "retry"},
    "request_contents": [b"0" * 16, b"1" * 16],
    "prompt_tokens": 2**31 - 1,
    "reply_created": -1,
    "new_prompt_ids": array("i", range(1000)),
    "prompt_logprobs": array("f", [float("inf")]),
    "choices": [CHOICE, {**CHOICE, "token_ids": None, "logprobs": None, "texts": None, "top_logprobs": None}],
    "new_contents": [{"digest": b"2" * 16, "kind": "body", "body": b"\x00\xff"}],
    "raw": b"",
    "digest": b"3" * 16,
    "chain": b"4" * 16,
}
RECEIPT: Row = {"kind": "receipt", "schema_version": 1, "call_id": "d", "delivered": False, "at": 2.5}
SEAL: Row = {"kind": "seal", "sealed_calls": ["c", "d"], "rollout_id": "r", "choices": [], "new_prompt_ids": array("i")}


def plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "rows",
    [[CALL], [RECEIPT], [SEAL], [CALL, RECEIPT, SEAL], [RECEIPT, CALL], [CALL] * 9 + [RECEIPT] * 70 + [SEAL, CALL]],
    ids=["call", "receipt", "seal", "three", "two", "many"],
)
def test_a_batch_is_what_arrow_makes_of_the_same_rows(rows: list[Row]) -> None:
    arrays = [pa.array([plain(row.get(column.name)) for row in rows], column.type) for column in COLUMNS]
    expected = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    made = to_batch(rows)
    made.validate(full=True)
    assert made.equals(expected)
    assert to_rows(made) == rows
    # As a stream, behind other batches, it is read back too.
    stream = SCHEMA.serialize().to_pybytes() + 2 * to_message(rows)
    assert pa.ipc.open_stream(stream).read_all().to_batches() == [expected, expected]


@pytest.mark.parametrize(
    ("column", "value"),
    [("prompt_tokens", 2**31), ("error_status", 40_000), ("received_at", "now"), ("call_id", 5), ("choices", [{}])],
)
def test_what_does_not_fit_its_column_is_refused(column: str, value: Any) -> None:
    with pytest.raises((OverflowError, TypeError, KeyError)):
        to_message([{**CALL, column: value}])


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.int64(), []), (pa.int64(), [1, None, -5]), (pa.bool_(), [True, None, False] * 5), (pa.string(), ["a", "a"])],
)
def test_single_arrays(kind: pa.DataType, values: list[Any]) -> None:
    assert array_of(kind, values).equals(pa.array(values, kind))
