"""A Responses object to and from a ModelReply.

What a choice's parts become as items is decided here, once; the stream writer uses the same functions, so a snapshot
and a stream cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...exchange.errors import ModelError
from ...exchange.parts import Origin, Other, Part, Reasoning, Refusal, Text, ToolCall
from ...exchange.reply import Choice, Finish, ModelReply, Usage
from ...exchange.request import ModelRequest
from .. import cutoff, failures
from ..counts import tokens
from . import hosted
from .ids import item_id
from .items import NAME, read_output, write_call
from .logprobs import read_logprobs, write_logprobs
from .tools import write_choice

_STATUS: dict[str, tuple[str, str | None]] = {
    "length": ("incomplete", "max_output_tokens"),
    "content_filter": ("incomplete", "content_filter"),
    "cancelled": ("cancelled", None),
}


class Shape(Struct, frozen=True):
    """How a reply is told to the client that asked."""

    tools: Mapping[str, hosted.Hosted] = {}
    """Those of hosted.py, by name."""
    content: bool = False
    """Reasoning as `content`, not as a summary (R23)."""

    @classmethod
    def of(cls, request: ModelRequest, reasoning: str) -> Shape:
        return cls(hosted.declared(request.tools), reasoning == "content")


class Group(Struct):
    """The parts that make one item, and the item's id."""

    id: str
    parts: list[Part]
    logprobs: Sequence[Mapping[str, Any]] = ()
    """Of the first text among them."""


def continues(group: Group | None, part: Part) -> bool:
    """Whether a part goes into the open item: text and refusal of one message, else a new item each."""
    if group is None or not isinstance(part, Text | Refusal):
        return False
    last = group.parts[-1]
    # Two of one kind would be read back as one; what lay between them may have said nothing.
    return isinstance(last, Text | Refusal) and last.id == part.id and type(last) is not type(part)


def says(part: Part) -> bool:
    """Whether a part is an item at all."""
    return cutoff.says(part, NAME)


def shown(choice: Choice) -> tuple[Part, ...]:
    """The parts that a client gets, whole: a call that was cut off is withheld (A19)."""
    return cutoff.shown(choice, NAME)


def groups(parts: tuple[Part, ...], reply_id: str, shape: Shape) -> Iterator[Group]:
    group: Group | None = None
    for place, part in enumerate(parts):
        if not says(part):
            continue
        if group is not None and continues(group, part):
            group.parts.append(part)
            continue
        if group is not None:
            yield group
        group = Group(item_id(part, reply_id, place, shape.tools), [part])
    if group is not None:
        yield group


def write_item(group: Group, shape: Shape, status: str = "completed") -> dict[str, Any]:
    first = group.parts[0]
    if isinstance(first, ToolCall):
        return write_call(first, group.id, shape.tools, status)
    if isinstance(first, Other):
        return dict(first.body)
    if isinstance(first, Reasoning):
        said = [write_thought(first.text, shape)] if first.text else []
        item: dict[str, Any] = {"type": "reasoning", "id": group.id, "summary": [] if shape.content else said}
        if shape.content:
            item["content"] = said
        return item if first.payload is None else item | {"encrypted_content": first.payload}
    content = [write_content(part) for part in group.parts]
    if group.logprobs:
        next(part for part in content if part["type"] == "output_text")["logprobs"] = list(group.logprobs)
    return {
        "type": "message",
        "id": group.id,
        "role": "assistant",
        "status": status,
        "content": content,
        **_phase(first),
    }


def _phase(part: Part) -> dict[str, Any]:
    """A label that models expect back; from a backend of this dialect."""
    origin = getattr(part, "origin", None)
    phase = origin.body.get("phase") if origin is not None and origin.dialect == NAME else None
    return {} if phase is None else {"phase": phase}


def write_thought(text: str, shape: Shape) -> dict[str, Any]:
    return {"type": "reasoning_text" if shape.content else "summary_text", "text": text}


def write_content(part: Part) -> dict[str, Any]:
    if isinstance(part, Refusal):
        return {"type": "refusal", "refusal": part.text}
    assert isinstance(part, Text)
    return {"type": "output_text", "text": part.text, "annotations": _annotations(part), "logprobs": []}


def _annotations(part: Text) -> list[Any]:
    """Those that a backend of this dialect gave the text."""
    content = part.origin.body.get("content") if part.origin is not None and part.origin.dialect == NAME else None
    for one in content if isinstance(content, list) else ():
        if one.get("text") == part.text and isinstance(one.get("annotations"), list):
            return list(one["annotations"])
    return []


def write_output(reply: ModelReply, request: ModelRequest, shape: Shape) -> list[dict[str, Any]]:
    if not reply.choices:
        return []
    choice = reply.choices[0]
    written = list(groups(shown(choice), reply.id, shape))
    if (logprobs := write_logprobs(choice, request)) and (first := first_text(written)) is not None:
        first.logprobs = logprobs
    return close_last([write_item(group, shape) for group in written], choice)


def first_text(written: Iterable[Group]) -> Group | None:
    return next((group for group in written if any(isinstance(part, Text) for part in group.parts)), None)


def close_last(items: list[dict[str, Any]], choice: Choice) -> list[dict[str, Any]]:
    """A message that was cut off says so."""
    if choice.finish in _STATUS and items and items[-1]["type"] == "message":
        items[-1]["status"] = "incomplete"
    return items


def write_reply(reply: ModelReply, request: ModelRequest, reasoning: str = "summary") -> dict[str, Any]:
    """`reasoning` says where its text goes: `summary` or `content`."""
    body = frame_of(reply.id, reply.model, reply.created, request)
    return end_of(body, reply, write_output(reply, request, Shape.of(request, reasoning)))


def end_of(frame: dict[str, Any], reply: ModelReply, output: list[dict[str, Any]]) -> dict[str, Any]:
    """The frame of a response, filled with what it came to."""
    finish = reply.choices[0].finish if reply.choices else "stop"
    status, reason = _STATUS.get(finish, ("completed", None))
    frame |= {"status": status, "output": output, "usage": write_usage(reply.usage)}
    if reply.origin is not None and isinstance(tier := reply.origin.body.get("service_tier"), str):
        frame["service_tier"] = tier  # that of the backend, which may be another than was asked for
    if reason is not None:
        frame["incomplete_details"] = {"reason": reason}
    if status == "completed":
        frame["completed_at"] = reply.created
    return frame


def frame_of(reply_id: str, model: str, created: int, request: ModelRequest) -> dict[str, Any]:
    """Every field of a response in progress (R32), before there is any output."""
    asked: Mapping[str, Any] = {}
    if request.origin is not None and request.origin.dialect == NAME:
        asked = request.origin.body
    sampling = request.sampling
    return {
        "id": reply_id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "max_tool_calls": asked.get("max_tool_calls"),
        "metadata": asked.get("metadata") or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "presence_penalty": _number(sampling.presence_penalty, 0.0),
        "frequency_penalty": _number(sampling.frequency_penalty, 0.0),
        "previous_response_id": request.previous,
        "prompt_cache_key": asked.get("prompt_cache_key"),
        "reasoning": {"effort": request.effort, "summary": (asked.get("reasoning") or {}).get("summary")},
        "safety_identifier": asked.get("safety_identifier"),
        "service_tier": asked.get("service_tier") or "default",
        "store": asked.get("store") is not False,
        "temperature": _number(sampling.temperature, 1.0),
        "text": {"format": {"type": "text"}, **_known(asked.get("text"))},
        "tool_choice": asked.get("tool_choice") or write_choice(request.tool_choice),
        "tools": [_echo(tool) for tool in asked.get("tools") or ()],
        "top_logprobs": sampling.logprobs or 0,
        "top_p": _number(sampling.top_p, 1.0),
        "truncation": asked.get("truncation") or "disabled",
        "usage": None,
        "user": asked.get("user"),
    }


def _number(value: float | None, default: float) -> float:
    return default if value is None else value


def _known(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (fields or {}).items() if value is not None}


def _echo(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool whole; what the response's schema requires of a function is filled."""
    if tool.get("type") != "function":
        return dict(tool)
    return {"description": None, "parameters": None, "strict": None, **tool}


def write_usage(usage: Usage) -> dict[str, Any] | None:
    """R29: null when input or output is not known, since agents drive compaction by it."""
    if usage.prompt is None or usage.completion is None:
        return None
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.prompt + usage.completion,
    }


# ---- reading a backend's


def read_reply(body: Mapping[str, Any]) -> ModelReply:
    try:
        return _read_reply(body)
    except (KeyError, TypeError, ValueError, AttributeError):
        unread = ModelError(502, "backend", "The backend's reply is not a Responses object.")
        raise failures.instead(NAME, body) or unread from None


def _read_reply(body: Mapping[str, Any]) -> ModelReply:
    if body.get("status") == "failed":
        raise failed(body)
    # Of a text that says nothing no increment tells: without it a relayed stream and its reply have the same parts.
    parts = tuple(part for part in read_output(body["output"]) if says(part))
    tokens = read_logprobs(body["output"])
    choice = Choice(0, parts, _read_finish(body, parts), tokens, origin=Origin(NAME, body))
    return ModelReply(
        id=body["id"],
        model=body.get("model") or "",
        created=int(body.get("created_at") or 0),
        choices=(choice,),
        usage=read_usage(body.get("usage")),
        origin=Origin(NAME, body),
    )


def failed(body: Mapping[str, Any]) -> ModelError:
    error = body.get("error") or {}
    message = error.get("message") or "The backend's response failed."
    rate = error.get("code") == "rate_limit_exceeded"
    return ModelError(
        429 if rate else 502,
        "rate_limit" if rate else "backend",
        message,
        code=error.get("code"),
        origin=Origin(NAME, {"error": error}),
    )


def _read_finish(body: Mapping[str, Any], parts: tuple[Part, ...]) -> Finish:
    status = body.get("status")
    if status == "incomplete":
        reason = (body.get("incomplete_details") or {}).get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    if status == "cancelled":
        return "cancelled"
    if status not in (None, "completed"):
        raise ModelError(502, "backend", f"The backend ended the response in status {status!r}.")
    return "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"


def read_usage(usage: Mapping[str, Any] | None) -> Usage:
    usage = usage or {}
    return Usage(
        prompt=tokens(usage.get("input_tokens")),
        completion=tokens(usage.get("output_tokens")),
        reasoning=tokens((usage.get("output_tokens_details") or {}).get("reasoning_tokens")),
        cached=tokens((usage.get("input_tokens_details") or {}).get("cached_tokens")),
    )
