"""All that is known of one finished call, whole: what a writer takes and what a CaptureStore gives back.

A shard stores a record by difference (contents by digest, prompt ids by the parent's prefix); only this
package knows that. Two things are not kept, because they are provenance that the record holds elsewhere:
an origin that is no element of the request's own body, and the origins within a reply (`raw` has the
backend's bytes). An origin never makes two values differ, so a record read back equals the one written.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..exchange.call import Attempt
from ..exchange.parts import Other, Part, Refusal, ToolResult
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest
from .redact import Redactor

Relation = Literal["first", "turn", "retry", "repeat", "subagent", "compaction", "side"]
Status = Literal["answered", "failed", "rejected", "disconnected"]
INCOMPLETE = ("deadline", "agent_error", "backend_error", "capture_error", "cancelled", "unsealed")
"""Why a rollout's record is not whole; the closed list."""


class Times(Struct, frozen=True, gc=False):
    """Unix seconds. Delivery is no field: a record is durable before its reply leaves (see Receipt)."""

    received: float
    sent: float | None
    first_token: float | None
    replied: float


class Failure(Struct, frozen=True, gc=False):
    """`kind` is one of ModelError's kinds."""

    status: int
    kind: str
    message: str


class CallRecord(Struct, frozen=True, gc=False):
    call_id: str
    run_id: str
    rollout_id: str | None
    attempt: int
    session_id: str | None
    parent_call_id: str | None
    relation: Relation
    server: str
    dialect: str
    backend_dialect: str | None
    streamed: bool
    times: Times
    attempts: tuple[Attempt, ...]
    status: Status
    trainable: bool
    received: ModelRequest | None
    """As the client sent it (origin = its body); None when it could not be read."""
    sent: ModelRequest | None
    """After the server's overrides; `is received` when unchanged."""
    reply: ModelReply | None
    """Partial on a hang-up: finish "cancelled"."""
    error: Failure | None
    history: Literal["exact", "template"] | None = None
    prefix_break: tuple[int, str] | None = None
    """Position in ids, cause."""
    logprobs_mode: Literal["processed", "raw"] | None = None
    prompt_logprobs: array | None = None
    """array('f'); not a number where there is none."""
    raw: bytes | None = None
    """The backend's bytes, or the client's body when it could not be read."""


class Receipt(Struct, frozen=True, gc=False):
    """Whether the reply reached the client; written later, not synced. Missing = not known to have."""

    call_id: str
    delivered: bool
    at: float


class Seal(Struct, frozen=True, gc=False):
    """One server's statement on one rollout: these calls, in this order, and no other."""

    rollout_id: str
    call_ids: tuple[str, ...]
    digest: str
    incomplete: str | None = None


# ---- JSON

_SAME = "received"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(record: CallRecord) -> dict[str, Any]:
    """A JSON-ready dict: arrays as lists, bytes as base64, None kept, no origins but the request's own body.

    `sent` is the word "received" when it is the same. What JSON cannot say of a float is a string
    ("-Infinity"), so nothing is lost.
    """
    same = record.sent is not None and record.sent is record.received
    bare = replace(
        record,
        received=None if record.received is None else bare_request(record.received, origin=True),
        sent=None if same or record.sent is None else bare_request(record.sent),
        reply=None if record.reply is None else bare_reply(record.reply),
    )
    built: dict[str, Any] = msgspec.to_builtins(bare, enc_hook=_array_to_list, str_keys=True)
    if same:
        built["sent"] = _SAME
    for choice in (built["reply"] or {}).get("choices", ()):
        tokens = choice["tokens"]
        if tokens is not None and tokens["top"] is not None:
            tokens["top"] = [{token: _finite(value) for token, value in top.items()} for top in tokens["top"]]
    return built


def from_json(data: Mapping[str, Any]) -> CallRecord:
    """The record that `to_json` made this of. Raises msgspec.ValidationError that names the field."""
    fields = dict(data)
    same = fields.get("sent") == _SAME
    if same:
        fields["sent"] = None
    fields["prompt_logprobs"] = _floats(fields.get("prompt_logprobs"))
    if fields.get("reply") is not None:
        reply = fields["reply"] = dict(fields["reply"])
        reply["choices"] = [_choice_from_json(choice) for choice in reply["choices"]]
    record = msgspec.convert(fields, CallRecord, dec_hook=_list_to_array, str_keys=True)
    return replace(record, sent=record.received) if same else record


def _choice_from_json(choice: Mapping[str, Any]) -> dict[str, Any]:
    tokens = choice.get("tokens")
    if tokens is None:
        return dict(choice)
    top = tokens.get("top")
    if top is not None:
        top = [{token: _NOT_FINITE.get(value, value) for token, value in one.items()} for one in top]
    return {**choice, "tokens": {**tokens, "logprobs": _floats(tokens.get("logprobs")), "top": top}}


def _array_to_list(value: Any) -> list[Any]:
    if isinstance(value, array):
        return [_finite(item) for item in value] if value.typecode == "f" else value.tolist()
    raise NotImplementedError(f"a record holds no {type(value).__name__}")


def _list_to_array(kind: type, value: Any) -> Any:
    if kind is not array:
        raise NotImplementedError(f"a record holds no {kind.__name__}")
    return value if isinstance(value, array) else array("i", value)


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _floats(values: Iterable[Any] | None) -> array | None:
    return None if values is None else array("f", (_NOT_FINITE.get(value, value) for value in values))


# ---- without origins


_WITHOUT_ORIGIN = (Refusal, Other)


def bare_part(part: Part) -> Part:
    if type(part) is ToolResult:
        return replace(part, parts=bare_parts(part.parts), origin=None)
    if type(part) in _WITHOUT_ORIGIN or part.origin is None:  # type: ignore[union-attr]
        return part
    return replace(part, origin=None)


def bare_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple([bare_part(part) for part in parts])


def bare_request(request: ModelRequest, *, origin: bool = False) -> ModelRequest:
    """The request without its values' origins, and with its own only if `origin`."""
    choice = request.tool_choice
    return replace(
        request,
        messages=tuple(replace(one, parts=bare_parts(one.parts), origin=None) for one in request.messages),
        tools=tuple(replace(tool, origin=None) for tool in request.tools),
        tool_choice=choice if isinstance(choice, str) else replace(choice, origin=None),
        origin=request.origin if origin else None,
    )


def bare_reply(reply: ModelReply) -> ModelReply:
    choices = tuple(replace(one, parts=bare_parts(one.parts), origin=None) for one in reply.choices)
    return replace(reply, choices=choices, origin=None)


def cleaned(record: CallRecord, redactor: Redactor) -> CallRecord:
    """As it is on the disk: without secrets."""
    received = record.received
    if received is None or received.origin is None:
        return record
    body = redactor.value(received.origin.body)
    if body is received.origin.body:
        return record
    clean = replace(received, origin=replace(received.origin, body=body))
    return replace(record, received=clean, sent=clean if record.sent is received else record.sent)
