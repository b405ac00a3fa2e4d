"""A Chat Completions body to and from a ModelReply.

Token ids and log-probs of a backend that gives them (vLLM's `token_ids`, `prompt_token_ids`, `logprobs`) become arrays.
They and other fields of a choice that no stream could carry are not written back to a client; unknown fields of the
message are, in both views.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from ...exchange.errors import ModelError
from ...exchange.parts import Origin, Part, Reasoning, Refusal, Text, ToolCall
from ...exchange.reply import Choice, Finish, ModelReply, TokenTrace, Usage
from ...exchange.request import ModelRequest
from ...exchange.tokens import packed
from ...exchange.tools import Tool
from .. import codec, failures
from ..counts import tokens
from .details import numbered, write_details
from .messages import NAME, read_assistant

_FINISH: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_WRITTEN: dict[str, str] = {"stop_sequence": "stop", "refusal": "stop", "cancelled": "stop"}
_TOKEN_ID = re.compile(r"token_id:(\d+)\Z")
_MESSAGE_FIELDS = frozenset({"role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls"})
_CALL_FIELDS = frozenset({"id", "type", "function", "custom", "index"})
_EVERYWHERE = ("system_fingerprint", "service_tier")
"""What OpenAI says of a reply in every frame."""


def read_reply(body: Mapping[str, Any]) -> ModelReply:
    try:
        return _read_reply(body)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        unread = ModelError(502, "backend", "The backend's reply is not a Chat Completions object.")
        raise failures.instead(NAME, body) or unread from None


class _Sampled(Struct, gc=False):
    logprob: float | None


class _SampledText(Struct, gc=False):
    token: str
    logprob: float | None
    top_logprobs: list[_SampledText] | None = None


_L = TypeVar("_L")


class _Logprobs(Struct, Generic[_L]):
    content: list[_L] | None = None


class _TypedChoice(Struct, Generic[_L]):
    message: Any
    index: Any = UNSET
    finish_reason: Any = None
    stop_reason: Any = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs[_L] | None = None

    def bare(self, place: int) -> dict[str, Any]:
        index = place if self.index is UNSET else self.index
        said = {"message": self.message, "index": index}
        return said | {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}


class _TypedReply(Struct, Generic[_L]):
    """All that is read of a reply, each token's own object excepted."""

    choices: list[_TypedChoice[_L]]
    id: Any = None
    model: Any = None
    created: Any = None
    usage: Any = None
    system_fingerprint: Any = UNSET
    service_tier: Any = UNSET
    prompt_token_ids: list[int] | None = None

    def bare(self) -> dict[str, Any]:
        body = {"id": self.id, "model": self.model, "created": self.created, "usage": self.usage}
        body |= {name: value for name in _EVERYWHERE if (value := getattr(self, name)) is not UNSET}
        return body | {"choices": [choice.bare(place) for place, choice in enumerate(self.choices)]}


_BARE = msgspec.json.Decoder(_TypedReply[_Sampled])
_TEXTS = msgspec.json.Decoder(_TypedReply[_SampledText])


def decode_reply(data: bytes, *, texts: bool) -> ModelReply:
    """What `read_reply` makes of these bytes, faster where they bear token ids; `texts` as well only where asked.

    An object for each token is what costs, so the columns are decoded typed and never become dicts. Whatever is not
    as expected goes the long way.
    """
    if data.rfind(b'"token_ids"') < 0:  # they come last
        return read_reply(codec.decode(data))
    try:
        return _decode_reply(data, texts)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return read_reply(codec.decode(data))


def _decode_reply(data: bytes, texts: bool) -> ModelReply:
    typed: _TypedReply[Any] = (_TEXTS if texts else _BARE).decode(data)
    body = typed.bare()
    reply = read_reply(body)
    traces = {}
    for choice, bare in zip(typed.choices, body["choices"], strict=True):
        entries = None if choice.logprobs is None else choice.logprobs.content
        if texts or choice.token_ids is None:  # the texts say the ids, where nothing else does
            if entries is not None and not texts:
                return read_reply(codec.decode(data))
            traces[bare["index"]] = read_trace(choice.token_ids, msgspec.to_builtins(entries))
        else:
            traces[bare["index"]] = _bare_trace(choice.token_ids, entries)
    choices = tuple(replace(choice, tokens=traces.get(choice.index, choice.tokens)) for choice in reply.choices)
    return replace(reply, choices=choices, prompt_ids=int_array(typed.prompt_token_ids))


def _bare_trace(ids: list[int], entries: list[Any] | None) -> TokenTrace:
    if entries is None or len(entries) != len(ids):
        return TokenTrace(ids=packed("i", ids))
    values = [entry.logprob for entry in entries]
    try:
        logprobs = packed("f", values)
    except TypeError:  # as in `read_trace`: vLLM's own floor stands for minus infinity
        logprobs = packed("f", [-9999.0 if value is None else value for value in values])
    return TokenTrace(ids=packed("i", ids), logprobs=logprobs)


def _read_reply(body: Mapping[str, Any]) -> ModelReply:
    reply_id = body.get("id") or ""
    choices = [_read_choice(choice, place, reply_id) for place, choice in enumerate(body["choices"])]
    return ModelReply(
        id=reply_id,
        model=body.get("model") or "",
        created=int(body.get("created") or 0),
        choices=tuple(sorted(choices, key=lambda choice: choice.index)),
        usage=read_usage(body.get("usage")),
        prompt_ids=int_array(body.get("prompt_token_ids")),
        origin=Origin(NAME, body),
    )


def _read_choice(choice: Mapping[str, Any], place: int, reply_id: str) -> Choice:
    message = choice["message"]
    index = choice.get("index", place)
    finish, stop_sequence = read_finish(choice.get("finish_reason"), choice.get("stop_reason"))
    return Choice(
        index=index,
        parts=with_call_ids(read_assistant(message), reply_id, index),
        finish=finish,
        tokens=read_trace(choice.get("token_ids"), (choice.get("logprobs") or {}).get("content")),
        stop_sequence=stop_sequence,
        origin=Origin(NAME, choice),
    )


def read_finish(reason: Any, stop_reason: Any) -> tuple[Finish, str | None]:
    """A backend that ends with `abort`, `error` or nothing has failed (A19)."""
    finish = _FINISH.get(reason) if isinstance(reason, str) else None
    if finish is None:
        said = f"with finish reason {reason!r}" if reason in ("abort", "error") else "without a finish reason"
        raise ModelError(502, "backend", f"The backend ended the reply {said}.")
    if finish == "stop" and isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    return finish, None


def with_call_ids(parts: Iterable[Part], reply_id: str, choice: int) -> tuple[Part, ...]:
    """Calls that came without an id get one, once, so that every view has the same."""
    given = []
    for place, part in enumerate(parts):
        if isinstance(part, ToolCall) and not part.call_id:
            digest = blake2b(f"{reply_id}/{choice}/{place}".encode(), digest_size=12).hexdigest()
            part = replace(part, call_id=f"call_{digest}")
        given.append(part)
    return tuple(given)


def read_usage(usage: Mapping[str, Any] | None) -> Usage:
    usage = usage or {}
    return Usage(
        prompt=tokens(usage.get("prompt_tokens")),
        completion=tokens(usage.get("completion_tokens")),
        reasoning=tokens((usage.get("completion_tokens_details") or {}).get("reasoning_tokens")),
        cached=tokens((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
    )


def read_trace(ids: Sequence[int] | None, logprobs: Sequence[Mapping[str, Any]] | None) -> TokenTrace | None:
    """One choice's tokens. Log-probs that do not line up with the ids are left out: a wrong one is worse than none."""
    column = int_array(ids)
    if logprobs is None:
        return None if column is None else TokenTrace(ids=column)
    if column is None:
        found = [_TOKEN_ID.match(entry["token"]) for entry in logprobs]
        if found and all(found):
            column = array("i", [int(match[1]) for match in found if match])
    elif len(column) != len(logprobs):
        return TokenTrace(ids=column)
    # float32 has no room for -inf to travel as JSON; vLLM's own floor is -9999.
    values = array("f", [-9999.0 if entry["logprob"] is None else entry["logprob"] for entry in logprobs])
    top: tuple[Mapping[str, float], ...] | None = None
    if any(entry.get("top_logprobs") for entry in logprobs):
        top = tuple({t["token"]: t["logprob"] for t in entry.get("top_logprobs") or ()} for entry in logprobs)
    return TokenTrace(ids=column, logprobs=values, texts=tuple(entry["token"] for entry in logprobs), top=top)


def int_array(values: Sequence[int] | None) -> array | None:
    return None if values is None else packed("i", values)


# ---- writing


def write_reply(reply: ModelReply, request: ModelRequest) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [_write_choice(choice, request) for choice in reply.choices],
        "usage": write_usage(reply),
        **everywhere(reply.origin),
    }


def everywhere(origin: Origin | None) -> dict[str, Any]:
    if origin is None or origin.dialect != NAME:
        return {}
    return {field: origin.body[field] for field in _EVERYWHERE if field in origin.body}


def _write_choice(choice: Choice, request: ModelRequest) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    texts = [part.text for part in choice.parts if isinstance(part, Text)]
    if texts or content_is_empty(choice.parts):
        message["content"] = "".join(texts)
    refusals = [part.text for part in choice.parts if isinstance(part, Refusal)]
    if refusals:
        message["refusal"] = "".join(refusals)
    reasoning = [part.text for part in choice.parts if isinstance(part, Reasoning)]
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    calls = [write_call(part) for part in choice.parts if isinstance(part, ToolCall)]
    if calls:
        message["tool_calls"] = calls
    message |= message_extras(choice)
    logprobs = None
    if wants_logprobs(request) and choice.tokens is not None:
        logprobs = write_logprobs(choice.tokens)
    return {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": write_finish(choice, request),
    }


def content_is_empty(parts: Iterable[Part]) -> bool:
    """Whether a message says nothing at all, so that its content is "" and not null, which some clients cannot read."""
    return not any(isinstance(part, Text | Refusal | ToolCall) for part in parts)


def write_finish(choice: Choice, request: ModelRequest) -> str:
    """With calls it is `tool_calls`, but for a named tool, where it is as the provider has it (B5)."""
    if choice.finish in ("stop", "stop_sequence") and not isinstance(request.tool_choice, Tool):
        called = any(isinstance(part, ToolCall) for part in choice.parts)
        return "tool_calls" if called else "stop"
    return _WRITTEN.get(choice.finish, choice.finish)


def write_call(call: ToolCall) -> dict[str, Any]:
    if call.custom:
        written = {"id": call.call_id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    else:
        function = {"name": call.name, "arguments": call.arguments}
        written = {"id": call.call_id, "type": "function", "function": function}
    return written | call_extras(call)


def call_extras(call: ToolCall) -> dict[str, Any]:
    """What else a provider says of a call (a thought signature, say); it must come back with the next request."""
    if call.origin is None or call.origin.dialect != NAME:
        return {}
    return {key: value for key, value in call.origin.body.items() if key not in _CALL_FIELDS and value is not None}


def message_extras(choice: Choice) -> dict[str, Any]:
    """What else a message says: what a chat backend said in it, another's thoughts with what it signed or sealed."""
    if choice.origin is None or choice.origin.dialect != NAME:
        return write_details(choice.parts)
    message = choice.origin.body.get("message") or {}
    extras = {key: value for key, value in message.items() if key not in _MESSAGE_FIELDS and value is not None}
    if "reasoning_details" in extras:
        extras["reasoning_details"] = numbered(extras["reasoning_details"])
    return extras


def write_usage(reply: ModelReply) -> dict[str, Any] | None:
    """None when nothing is known; else a number for every required field."""
    usage = reply.usage
    if usage == Usage():
        return None
    written: dict[str, Any] = {}
    if reply.origin is not None and reply.origin.dialect == NAME:
        read = reply.origin.body.get("usage")
        written = dict(read) if read and read_usage(read) == usage else {}
    prompt, completion = usage.prompt or 0, usage.completion or 0
    written |= {"prompt_tokens": prompt, "completion_tokens": completion}
    written.setdefault("total_tokens", prompt + completion)
    if usage.cached is not None:
        written.setdefault("prompt_tokens_details", {"cached_tokens": usage.cached})
    if usage.reasoning is not None:
        written.setdefault("completion_tokens_details", {"reasoning_tokens": usage.reasoning})
    return written


def wants_logprobs(request: ModelRequest) -> bool:
    return request.sampling.logprobs is not None


def write_logprobs(trace: TokenTrace) -> dict[str, Any] | None:
    if not trace.texts or trace.logprobs is None:
        return None
    tops = trace.top or ({},) * len(trace.texts)
    entries = [
        {
            **_entry(token, logprob),
            "top_logprobs": [_entry(other, value) for other, value in top.items()],
        }
        for token, logprob, top in zip(trace.texts, trace.logprobs, tops, strict=True)
    ]
    return {"content": entries, "refusal": None}


def _entry(token: str, logprob: float) -> dict[str, Any]:
    # A token that is part of a character has no text of its own, so its bytes are not known here.
    known = None if "\ufffd" in token else list(token.encode())
    return {"token": token, "logprob": shortest(max(logprob, -9999.0)), "bytes": known}


def shortest(value: float) -> float:
    """The shortest number that is the same float32: what was written, not its image in float64."""
    kept = array("f", [value])
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if array("f", [short]) == kept:
            return short
    return float(f"{value:.9g}")
