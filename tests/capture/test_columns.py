"""Batches as they are laid out here are Arrow's own."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pyarrow as pa
import pytest

from nemo_gym.capture.columns import _ROWS, array_of, to_batch, to_message, to_rows
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


def judged(rows: list[Row]) -> pa.RecordBatch:
    """What Arrow makes of these rows, which is what we made of them."""
    arrays = [pa.array([plain(row.get(column.name)) for row in rows], column.type) for column in COLUMNS]
    expected = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    made = to_batch(rows)
    made.validate(full=True)
    assert made.equals(expected)
    assert to_rows(made) == rows
    return expected


@pytest.mark.parametrize(
    "rows",
    [[CALL], [RECEIPT], [SEAL], [CALL, RECEIPT, SEAL], [RECEIPT, CALL], [CALL] * 9 + [RECEIPT] * 70 + [SEAL, CALL]],
    ids=["call", "receipt", "seal", "three", "two", "many"],
)
def test_a_batch_is_what_arrow_makes_of_the_same_rows(rows: list[Row]) -> None:
    expected = judged(rows)
    # As a stream, behind other batches, it is read back too.
    stream = SCHEMA.serialize().to_pybytes() + 2 * to_message(rows)
    assert pa.ipc.open_stream(stream).read_all().to_batches() == [expected, expected]


def test_rows_that_have_anything_in_common_or_nothing() -> None:
    seed = random.Random(5)

    def choice(tokens: bool) -> Row:
        row = {**CHOICE, "index": seed.choice([0, 0, 7]), "finish": seed.choice(["stop", "length", None])}
        return row if tokens else {**row, "token_ids": None, "logprobs": None, "texts": None, "top_logprobs": None}

    others: dict[str, list[Any]] = {
        "server": ["policy", "judge"],
        "schema_version": [1, 2],
        "streamed": [True, False],
        "model_asked": ["m", "", "\N{SNOWMAN}\N{SNOWMAN}", "x" * 5000],
        "received_at": [0.0, -0.0, 1.5],
        "new_prompt_ids": [array("i"), array("i", range(100))],
        "attempts": [[], CALL["attempts"], 2 * CALL["attempts"], [{**CALL["attempts"][0], "replica": None}]],
        "digest": [bytes(16), b"5" * 16],
        "sent_fields": [b"{}", b"", b'{"model":"n"}'],
    }
    for _ in range(80):
        tokens, alike, few = seed.random() < 0.5, seed.random(), seed.random() < 0.5
        rows = []
        for _ in range(seed.choice([1, 1, 2, 3, 17])):
            row = {**(rows[-1] if rows and seed.random() < alike else CALL)}
            row["choices"] = [choice(tokens) for _ in range(1 if few else seed.randrange(3))]
            for name in seed.sample(list(others), 3):
                if seed.random() < alike:
                    row[name] = seed.choice(others[name])
                elif seed.random() < 0.5:
                    row.pop(name, None)
            rows.append(row)
        judged(rows)


def test_many_kinds_of_batches_take_bounded_memory() -> None:
    for number in range(600):
        to_message([{**CALL, "model_asked": f"m{number}" * (number % 7) * 100}])
    assert len(_ROWS._templates) <= 256


@pytest.mark.parametrize("others", [[], [CALL]], ids=["alone", "among others"])
@pytest.mark.parametrize(
    ("column", "value"),
    [("prompt_tokens", 2**31), ("error_status", 40_000), ("received_at", "now"), ("call_id", 5), ("choices", [{}])],
)
def test_what_does_not_fit_its_column_is_refused(column: str, value: Any, others: list[Row]) -> None:
    with pytest.raises((OverflowError, TypeError, KeyError)):
        to_message([{**CALL, column: value}, *others])


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.int64(), []), (pa.int64(), [1, None, -5]), (pa.bool_(), [True, None, False] * 5), (pa.string(), ["a", "a"])],
)
def test_single_arrays(kind: pa.DataType, values: list[Any]) -> None:
    assert array_of(kind, values).equals(pa.array(values, kind))
