"""Each column of a shard, declared once: its type and what it says. Arrow, reader and documentation follow.

A row is a dict of column -> plain value; a column that is not named is null. Values have one canonical form
each (`array('i')` and `array('f')` for lists of numbers), so that a row read back equals the row written, and
so does its digest.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal

import msgspec
import pyarrow as pa
from msgspec import Struct

VERSION = 2
"""Since 2 a body's element and the message read from it may be one content. What is older is read by the same rules."""
READ = frozenset(range(1, VERSION + 1))
Row = dict[str, Any]

DIGEST = pa.binary(16)
INTS = pa.list_(pa.int32())
FLOATS = pa.list_(pa.float32())


class Column(Struct, frozen=True):
    name: str
    type: Any
    says: str
    of: Literal["all", "call", "receipt", "seal"] = "call"
    """The kind of row that has it."""
    internal: bool = False
    """How the shard stores a record; no business of a user of the records."""
    few: bool = False
    """Whether it says the same in most calls of a server."""


ATTEMPT = pa.struct(
    [("replica", pa.string()), ("started", pa.float64()), ("ended", pa.float64()), ("error", pa.string())]
)
CHOICE_FIELDS: dict[str, Any] = {
    "index": pa.int32(),
    "finish": pa.string(),
    "stop_sequence": pa.string(),
    "parts": pa.binary(),
    "token_ids": INTS,
    "logprobs": FLOATS,
    "versions": INTS,
    "texts": pa.list_(pa.string()),
    "top_logprobs": pa.list_(pa.list_(pa.struct([("token", pa.string()), ("logprob", pa.float64())]))),
}
CHOICE = pa.struct(list(CHOICE_FIELDS.items()))
CONTENT = pa.struct([("digest", DIGEST), ("kind", pa.string()), ("body", pa.binary())])
BREAK = pa.struct([("position", pa.int32()), ("cause", pa.string())])

COLUMNS: tuple[Column, ...] = (
    Column(
        "kind",
        pa.string(),
        "call, receipt (a reply was delivered), seal (of a rollout) or end (of the shard)",
        "all",
        few=True,
    ),
    Column("schema_version", pa.int16(), "of this row", "all", few=True),
    Column("call_id", pa.string(), "UUIDv7", "all"),
    Column("run_id", pa.string(), "of the run that the server belonged to", "all", few=True),
    Column("rollout_id", pa.string(), "null for a call outside any rollout", "all"),
    Column("attempt", pa.int32(), "which try at its row the rollout was", few=True),
    Column("session_id", pa.string(), "the client's own session, where it named one"),
    Column("parent_call_id", pa.string(), "the call that this one continues"),
    Column("relation", pa.string(), "first, turn, retry, repeat, subagent, compaction or side", few=True),
    Column("server", pa.string(), "the model server's name", "all", few=True),
    Column("replica", pa.string(), "that answered, or failed last", few=True),
    Column("dialect", pa.string(), "that the client spoke", few=True),
    Column("backend_dialect", pa.string(), "that the answering backend spoke; null for an engine of ours", few=True),
    Column("streamed", pa.bool_(), "whether the client asked for a stream", few=True),
    Column("trainable", pa.bool_(), "false for a judge's server", few=True),
    Column("model_asked", pa.string(), "by the client", few=True),
    Column("model_sent", pa.string(), "to the backend", few=True),
    Column("model_reported", pa.string(), "by the backend", few=True),
    Column("policy_version", pa.int32(), "of the last token of the first choice", few=True),
    Column("received_at", pa.float64(), "Unix seconds"),
    Column("sent_at", pa.float64(), "to the backend; null when it was not"),
    Column("first_token_at", pa.float64(), "null when the backend did not say"),
    Column("replied_at", pa.float64(), "by the backend"),
    Column("attempts", pa.list_(ATTEMPT), "each try at a replica"),
    Column("status", pa.string(), "answered, failed, rejected or disconnected", few=True),
    Column("error_status", pa.int16(), "HTTP status", few=True),
    Column("error_kind", pa.string(), "of the closed list of error kinds", few=True),
    Column("error_message", pa.string(), "as the client was told"),
    Column("sampling", pa.string(), "in force, as JSON; what is not there was left to the backend", few=True),
    Column("logprobs_mode", pa.string(), "processed (of the distribution sampled from) or raw", few=True),
    Column("history", pa.string(), "exact or template: where the earlier turns' ids came from", few=True),
    Column("prefix_break", BREAK, "where the prompt stops to continue the parent's tokens, and why"),
    Column("request_contents", pa.list_(DIGEST), "the messages, by digest, after those shared with the parent"),
    Column("request_prefix_len", pa.int32(), "how many messages are shared with the parent", internal=True),
    Column("request_fields", pa.binary(), "all else of the request, and the body as received, as JSON"),
    Column("sent_fields", pa.binary(), "what differed when sent, as JSON; null when nothing was sent", few=True),
    Column("reply_id", pa.string(), "null when there is no reply"),
    Column("reply_created", pa.int64(), "Unix seconds"),
    Column("prompt_tokens", pa.int32(), "null when unknown"),
    Column("completion_tokens", pa.int32(), "null when unknown"),
    Column("reasoning_tokens", pa.int32(), "null when unknown"),
    Column("cached_tokens", pa.int32(), "null when unknown"),
    Column("usage_raw", pa.binary(), "the backend's own usage object, as JSON"),
    Column("prompt_prefix_len", pa.int32(), "prompt ids shared with the parent's prompt and completion"),
    Column(
        "prompt_prefix_choice", pa.int16(), "which of the parent's choices that completion is", internal=True, few=True
    ),
    Column("new_prompt_ids", INTS, "the prompt ids after those shared with the parent"),
    Column("prompt_logprobs", FLOATS, "not a number where there is none"),
    Column(
        "choices",
        pa.list_(CHOICE),
        "index, finish, parts (JSON), token ids, log-probs, version runs (start, version, …)",
    ),
    Column("new_contents", pa.list_(CONTENT), "contents that this shard had not held before", internal=True),
    Column("raw", pa.binary(), "the backend's bytes, or the client's body when it could not be read"),
    Column("delivered", pa.bool_(), "whether the reply reached the client", "receipt", few=True),
    Column("at", pa.float64(), "when that was known, or when the rollout was sealed; Unix seconds", "receipt"),
    Column("sealed_calls", pa.list_(pa.string()), "the rollout's calls at this server, in order", "seal"),
    Column("incomplete", pa.string(), "why the rollout's record is not whole; null when it is", "seal", few=True),
    Column("digest", DIGEST, "of the row; of a seal, over the digests of its calls", "all", internal=True),
    Column("chain", DIGEST, "over all that the file holds before this batch; on its first row", "all", internal=True),
)

SCHEMA = pa.schema([(column.name, column.type) for column in COLUMNS], metadata={"nemo_gym.capture": str(VERSION)})
_DIGESTED = tuple(column.name for column in COLUMNS if column.name not in ("digest", "chain", "new_contents"))

_packed = msgspec.msgpack.Encoder(enc_hook=memoryview).encode


def row_digest(row: Row) -> bytes:
    """Of all that a row says itself. Its contents have digests of their own."""
    return blake2b(_packed(list(map(row.get, _DIGESTED))), digest_size=16).digest()


def encodable(value: Any) -> Any:
    """The value without lone surrogates, which UTF-8 cannot say."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [encodable(one) for one in value]
    return {name: encodable(one) for name, one in value.items()} if isinstance(value, dict) else value
