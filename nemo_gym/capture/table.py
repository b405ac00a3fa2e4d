"""The calls of a store as an Arrow table: the shards' own columns, and those that have to be joined.

A column that stands alone is taken from the shard without making a Python object of a value. Joined columns are
whole: messages and body without references, the prompt with what it shares with its parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from .columns import scalar, to_rows
from .contents import encode, inline
from .decoding import Decoder
from .encoding import Kept
from .reader import ShardReader
from .schema import CHOICE_FIELDS, COLUMNS, Row

if TYPE_CHECKING:
    from .store import CaptureStore

_STRING = pa.string()
_CHOICE = pa.struct([(name, _STRING if name == "parts" else kind) for name, kind in CHOICE_FIELDS.items()])


def _json(name: str) -> Callable[[Decoder, Row, Kept], Any]:
    def joined(decoder: Decoder, row: Row, kept: Kept) -> str | None:
        return None if row.get(name) is None else encode(inline(row[name], decoder.content)).decode()

    return joined


def _messages(decoder: Decoder, row: Row, kept: Kept) -> list[str] | None:
    return _whole(decoder, kept.lists.get("messages"))


def _sent_messages(decoder: Decoder, row: Row, kept: Kept) -> list[str] | None:
    return _whole(decoder, kept.lists.get("sent"))


def _whole(decoder: Decoder, digests: list[bytes] | None) -> list[str] | None:
    return None if digests is None else [encode(decoder.message(one)).decode() for one in digests]


def _body(decoder: Decoder, row: Row, kept: Kept) -> str | None:
    body = None if "request_fields" not in row else decoder.body(row, kept)
    return None if body is None else encode(body).decode()


def _prompt(decoder: Decoder, row: Row, kept: Kept) -> Any:
    return kept.prompt


def _choices(decoder: Decoder, row: Row, kept: Kept) -> list[Row] | None:
    if "choices" not in row:
        return None
    return [{**one, "parts": encode(inline(one["parts"], decoder.content)).decode()} for one in row["choices"]]


JOINED: dict[str, tuple[Any, Callable[[Decoder, Row, Kept], Any]]] = {
    "request_contents": (pa.list_(_STRING), _messages),
    "request_fields": (_STRING, _json("request_fields")),
    "request_body": (_STRING, _body),
    "sent_contents": (pa.list_(_STRING), _sent_messages),
    "sent_fields": (_STRING, _json("sent_fields")),
    "usage_raw": (_STRING, _json("usage_raw")),
    "prompt_ids": (pa.list_(pa.int32()), _prompt),
    "choices": (pa.list_(_CHOICE), _choices),
}
STORED = {
    one.name: one.type
    for one in COLUMNS
    if one.of in ("all", "call") and not one.internal and one.name not in JOINED and one.name != "kind"
}
NAMES = (*STORED, *JOINED, "delivered")


def table(store: CaptureStore, columns: Sequence[str] | None, rollout_id: str | None) -> pa.Table:
    schema, batches = pieces(store, columns, rollout_id)
    return pa.Table.from_batches(batches, schema=schema)


def pieces(
    store: CaptureStore, columns: Sequence[str] | None, rollout_id: str | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    names = tuple(columns) if columns is not None else NAMES
    for name in names:
        if name not in NAMES:
            raise ValueError(f"no column {name!r}; there are {', '.join(NAMES)}")
    schema = pa.schema([(name, _type(name)) for name in names])
    return schema, _all(store, schema, rollout_id)


def _all(store: CaptureStore, schema: pa.Schema, rollout_id: str | None) -> Iterator[pa.RecordBatch]:
    wanted = [name for name in schema.names if name != "delivered"]
    with_ids = "delivered" in schema.names
    delivered = {key: one.delivered for key, one in store.receipts().items()} if with_ids else {}
    for shard in store.shards():
        for piece in _pieces(shard, wanted, rollout_id, with_ids=with_ids):
            yield _with_delivered(piece, schema, delivered) if with_ids else piece


def _type(name: str) -> pa.DataType:
    return pa.bool_() if name == "delivered" else STORED[name] if name in STORED else JOINED[name][0]


def _pieces(
    shard: ShardReader, names: list[str], rollout_id: str | None, *, with_ids: bool
) -> Iterable[pa.RecordBatch]:
    if with_ids and "call_id" not in names:
        names = [*names, "call_id"]
    joined = [name for name in names if name in JOINED]
    needed = None if joined else ("kind", "rollout_id", *names)
    for number, _ in shard.of_rollout(rollout_id):
        batch = shard.batch(number, needed)
        mask = pc.equal(batch.column("kind"), scalar("call"))
        if rollout_id is not None:
            mask = pc.and_(mask, pc.fill_null(pc.equal(batch.column("rollout_id"), scalar(rollout_id)), False))
        if not pc.any(mask).as_py():
            continue
        calls = batch if pc.all(mask).as_py() else batch.filter(mask)
        columns = {name: calls.column(name) for name in names if name not in JOINED}
        if joined:
            rows = to_rows(calls)
            kept = [shard.decoder.kept(row) for row in rows]
            for name in joined:
                kind, join = JOINED[name]
                values = [join(shard.decoder, row, one) for row, one in zip(rows, kept, strict=True)]
                columns[name] = pa.array(values, type=kind)
        yield pa.record_batch([columns[name] for name in names], names=names)


def _with_delivered(piece: pa.RecordBatch, schema: pa.Schema, delivered: dict[str, bool]) -> pa.RecordBatch:
    known = pa.array([delivered.get(call_id) for call_id in piece.column("call_id").to_pylist()], type=pa.bool_())
    return pa.record_batch(
        [known if name == "delivered" else piece.column(name) for name in schema.names], schema=schema
    )
