"""A Messages object to and from a ModelReply (M3, M5).

What a part becomes as a block is decided here, once; the stream writer uses the same functions, so a snapshot and a
stream cannot differ. Input tokens of this API leave out what was read from a cache, a ModelReply's count all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ...exchange.errors import ModelError
from ...exchange.parts import Origin, Other, Part, Reasoning, Refusal, Text, ToolCall
from ...exchange.reply import Choice, Finish, ModelReply, Usage
from ...exchange.request import ModelRequest
from ...exchange.tools import Toolbox
from .. import cutoff
from ..counts import tokens
from ..signature import is_redacted, sign
from .blocks import NAME, read_block, write_call
from .errors import instead

_FINISH: dict[str, Finish] = {
    "end_turn": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "refusal": "refusal",
}
_WRITTEN: dict[Finish, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "stop_sequence": "stop_sequence",
    "content_filter": "refusal",
    "refusal": "refusal",
    "cancelled": "end_turn",
}
_OWN = frozenset({"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "stop_details", "usage"})
_ENVELOPE = {"container": None}
_ACCOUNT = {"cache_creation": None, "inference_geo": None, "service_tier": None}
"""What the published API has in every message and in its usage, known or not."""
_DIRECT = {"type": "direct"}
_NO_TOOLS = Toolbox(())


def read_reply(body: Mapping[str, Any]) -> ModelReply:
    return read_folded(body, {})


def read_folded(body: Mapping[str, Any], arguments: Mapping[int, str]) -> ModelReply:
    """`arguments`: the model's own strings, by the place of their block, where a stream told them."""
    try:
        return _read_reply(body, arguments)
    except (KeyError, TypeError, ValueError, AttributeError):
        unread = ModelError(502, "backend", "The backend's reply is not a Messages object.")
        raise instead(body) or unread from None


def _read_reply(body: Mapping[str, Any], arguments: Mapping[int, str]) -> ModelReply:
    if body.get("type") == "error":
        raise ValueError
    parts = tuple(_read_parts(body["content"], body["id"], arguments))
    finish, stop_sequence = _read_finish(body)
    return ModelReply(
        id=body["id"],
        model=body.get("model") or "",
        created=0,  # this API gives no date
        choices=(Choice(0, parts, finish, stop_sequence=stop_sequence, origin=Origin(NAME, body)),),
        usage=read_usage(body.get("usage")),
        origin=Origin(NAME, body),
    )


def _read_parts(content: Any, reply_id: str, arguments: Mapping[int, str]) -> Iterator[Part]:
    before: Mapping[str, Any] | None = None
    for place, block in enumerate(content):
        parts: list[Part] = []
        read_block(block, parts)
        for part in parts:
            if isinstance(part, ToolCall) and place in arguments:
                part = replace(part, arguments=arguments[place])
            yield apart(part, reply_id, place) if before is not None and alike(before, block) else part
        before = block


def alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two blocks are parts of one kind; thinking and hidden thinking are."""
    return first["type"].removeprefix("redacted_") == second["type"].removeprefix("redacted_")


def apart(part: Part, reply_id: str, place: int) -> Part:
    """Two blocks of one kind side by side are two parts: the second gets an id of its own."""
    return replace(part, id=f"{reply_id}_{place}") if isinstance(part, Text | Reasoning) else part


def _read_finish(body: Mapping[str, Any]) -> tuple[Finish, str | None]:
    """A backend that ends with anything else has failed (A19)."""
    reason = body.get("stop_reason")
    finish = _FINISH.get(reason) if isinstance(reason, str) else None
    if finish is None:
        said = f"with stop reason {reason!r}" if isinstance(reason, str) else "without a stop reason"
        raise ModelError(502, "backend", f"The backend ended the reply {said}.")
    stop = body.get("stop_sequence")
    return finish, stop if finish == "stop_sequence" and isinstance(stop, str) else None


def read_usage(usage: Mapping[str, Any] | None) -> Usage:
    usage = usage or {}
    fresh = tokens(usage.get("input_tokens"))
    cached, written = tokens(usage.get("cache_read_input_tokens")), tokens(usage.get("cache_creation_input_tokens"))
    return Usage(
        prompt=None if fresh is None else fresh + (cached or 0) + (written or 0),
        completion=tokens(usage.get("output_tokens")),
        reasoning=tokens((usage.get("output_tokens_details") or {}).get("thinking_tokens")),
        cached=cached,
    )


# ---- writing


def says(part: Part) -> bool:
    """Whether a part is a block at all."""
    return cutoff.says(part, NAME)


def shown(choice: Choice) -> tuple[Part, ...]:
    """The parts that a client gets, whole: a call that was cut off is withheld (A19)."""
    return cutoff.shown(choice, NAME)


def write_reply(reply: ModelReply, request: ModelRequest) -> dict[str, Any]:
    choice = reply.choices[0] if reply.choices else Choice(0, (), "stop")
    thinking = shows_thinking(request)
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [write_block(part, thinking) for part in shown(choice) if says(part)],
        **write_stop(choice),
        "usage": write_account(reply.usage, reply.origin),
        **envelope(reply.origin),
    }


def shows_thinking(request: ModelRequest) -> bool:
    """Whether the client wants its text, or with `display: omitted` only that there was some."""
    origin = request.origin
    said = origin.body.get("thinking") if origin is not None and origin.dialect == NAME else None
    return not isinstance(said, Mapping) or said.get("display") != "omitted"


def write_block(part: Part, thinking: bool = True) -> dict[str, Any]:
    """A whole part that says something; without `thinking` its text is left out where it is that."""
    own = _own(part)
    if isinstance(part, Text | Refusal):
        return {"type": "text", "text": part.text, "citations": own.get("citations") or None}
    if isinstance(part, Reasoning):
        if is_redacted(part):
            return {"type": "redacted_thinking", "data": part.payload}
        text = part.text if thinking else ""
        signed = sign(text) if part.payload is None else part.payload  # ours is of what the client has
        return {"type": "thinking", "thinking": text, "signature": signed}
    if isinstance(part, ToolCall):
        kept = {"toolset_name": own["toolset_name"]} if own.get("toolset_name") is not None else {}
        return {**write_call(part, _NO_TOOLS), "caller": own.get("caller") or _DIRECT, **kept}
    assert isinstance(part, Other)
    return dict(part.body)


def _own(part: Part) -> Mapping[str, Any]:
    origin = getattr(part, "origin", None)
    return origin.body if origin is not None and origin.dialect == NAME else {}


def write_stop(choice: Choice) -> dict[str, Any]:
    own = choice.origin.body if choice.origin is not None and choice.origin.dialect == NAME else {}
    reason = _reason(choice, own.get("stop_reason"))
    return {
        "stop_reason": reason,
        "stop_sequence": choice.stop_sequence if reason == "stop_sequence" else None,
        "stop_details": own.get("stop_details"),
    }


def _reason(choice: Choice, own: Any) -> str:
    """Agents run tools when it is `tool_use`, so it is that whenever there is a call to run."""
    if isinstance(own, str) and _FINISH.get(own) == choice.finish:
        return own
    kinds = {type(part) for part in choice.parts}
    if choice.finish in ("stop", "stop_sequence") and ToolCall in kinds:
        return "tool_use"
    return "refusal" if choice.finish == "stop" and Refusal in kinds else _WRITTEN[choice.finish]


def write_usage(usage: Usage, origin: Origin | None) -> dict[str, Any]:
    """As a stream's end has it: a number for each count, also where it is not known."""
    own = _own_usage(origin)
    cached = usage.cached or 0
    same = bool(own) and read_usage(own) == usage
    created = (own.get("cache_creation_input_tokens") or 0) if same else 0
    return {
        "input_tokens": max(0, (usage.prompt or 0) - cached - created),
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion or 0,
        "output_tokens_details": None if usage.reasoning is None else {"thinking_tokens": usage.reasoning},
        "server_tool_use": own.get("server_tool_use"),
    }


def write_account(usage: Usage, origin: Origin | None) -> dict[str, Any]:
    """The counts, and what else a provider says with them from the first event on."""
    return {**_ACCOUNT, **_own_usage(origin), **write_usage(usage, origin)}


def _own_usage(origin: Origin | None) -> Mapping[str, Any]:
    usage = origin.body.get("usage") if origin is not None and origin.dialect == NAME else None
    return usage if isinstance(usage, Mapping) else {}


def envelope(origin: Origin | None) -> dict[str, Any]:
    """What else a message of this API says, and a provider of this dialect said of this one."""
    if origin is None or origin.dialect != NAME:
        return dict(_ENVELOPE)
    return _ENVELOPE | {key: value for key, value in origin.body.items() if key not in _OWN and value is not None}
