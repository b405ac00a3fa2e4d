"""A Responses body to and from a ModelRequest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ...exchange.errors import InvalidRequest
from ...exchange.parts import Message, Origin, Text
from ...exchange.request import ModelRequest, Sampling
from ...exchange.tools import Tool
from ..validation import STREAM, errors_of, find_errors, first_words, missing_body
from . import hosted, schema
from .items import NAME, read_items, write_items
from .tools import plain, read_choice, read_tools, write_choice, write_tools

_LOGPROBS = "message.output_text.logprobs"


def read_request(body: Any) -> ModelRequest:
    if isinstance(body, dict) and isinstance(body.get("tools"), list):
        tools = body["tools"]
        if not all(isinstance(tool, dict) for tool in tools):
            body = {**body, "tools": [plain(tool) for tool in tools]}
    checked = _checked(body)
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items or []
    tools = _read_declared(body, items)
    return ModelRequest(
        messages=tuple(_read_messages(body.get("instructions"), items)),
        tools=tools,
        tool_choice=read_choice(body.get("tool_choice"), tools),
        parallel_tool_calls=checked.parallel_tool_calls is not False,
        sampling=_read_sampling(checked),
        output_schema=_read_format(body.get("text")),
        effort=(body.get("reasoning") or {}).get("effort"),
        model=checked.model,
        previous=checked.previous_response_id,
        origin=Origin(NAME, body),
    )


def _checked(body: Any) -> schema.ResponsesRequest:
    errors: list[dict[str, Any]] = []
    checked = None
    if body is None:
        errors = [missing_body()]
    else:
        try:
            checked = schema.REQUEST.validate_python(body)
        except ValidationError as error:
            errors = errors_of(error)
    if isinstance(body, dict):
        errors += find_errors(STREAM, body.get("stream"), ("stream",))
        if body.get("input") is None and body.get("previous_response_id") is None and body.get("prompt") is None:
            errors.insert(0, {"type": "missing", "loc": ("input",), "msg": "Field required", "input": None})
    if errors or checked is None:
        for found in errors:
            found["loc"] = tuple(step for step in found["loc"] if not str(step).startswith("<"))
        message, param = first_words(errors)
        raise InvalidRequest(message, errors=errors, param=param, status=400)
    return checked


def _read_declared(body: Mapping[str, Any], items: list[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """The tools of the request, those of `additional_tools` items (R5), and those that the client's search found."""
    tools = list(read_tools(body.get("tools") or ()))
    for item in items:
        if item.get("type") in ("additional_tools", "tool_search_output"):
            tools += [tool for tool in read_tools(item.get("tools") or ()) if tool not in tools]
    return tuple(tools)


def _read_messages(instructions: str | None, items: list[Mapping[str, Any]]) -> Iterator[Message]:
    if instructions:
        yield Message("system", (Text(instructions),), Origin(NAME, {"instructions": instructions}))
    yield from read_items(items)


def _read_sampling(body: schema.ResponsesRequest) -> Sampling:
    wants_logprobs = body.top_logprobs is not None or _LOGPROBS in (body.include or ())
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        max_tokens=body.max_output_tokens,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
    )


def _read_format(text: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    form = (text or {}).get("format") or {}
    if form.get("type") == "json_object":
        return {}
    if form.get("type") == "json_schema":
        return form.get("schema") or {}
    return None


# ---- writing


def write_request(request: ModelRequest) -> dict[str, Any]:
    """The body for a Responses backend. It keeps nothing: what continues is sent whole."""
    origin = request.origin
    read: Mapping[str, Any] = origin.body if origin is not None and origin.dialect == NAME else {}
    kept = ("include", "max_tool_calls", "metadata")
    body = {key: value for key, value in read.items() if key not in schema.FIELDS or key in kept}
    messages = list(request.messages)
    first = messages[0].origin if messages else None
    if first is not None and first.dialect == NAME and "instructions" in first.body:
        body["instructions"] = first.body["instructions"]
        messages = messages[1:]
    tools = hosted.declared(request.tools)
    body["input"] = [item for message in messages for item in write_items(message, tools)]
    if request.model is not None:
        body["model"] = request.model
    body["store"] = False
    declared = _declared_again(request, read)
    if declared:
        body["tools"] = declared
    if request.tool_choice != "auto" or "tool_choice" in read:
        same = read_choice(read.get("tool_choice"), request.tools) == request.tool_choice and "tool_choice" in read
        body["tool_choice"] = read["tool_choice"] if same else write_choice(request.tool_choice)
    if not request.parallel_tool_calls:
        body["parallel_tool_calls"] = False
    body |= _write_sampling(request.sampling, body)
    reasoning = dict(read.get("reasoning") or {})
    if request.effort is not None:
        reasoning["effort"] = request.effort
    if reasoning:
        body["reasoning"] = reasoning
    return body | _write_format(request, read)


def _declared_again(request: ModelRequest, read: Mapping[str, Any]) -> list[Any]:
    """The tools as the client declared them, where nobody changed them; what a search found stays in its item."""
    tools = list(read.get("tools") or ())
    items = read.get("input")
    items = items if isinstance(items, list) else []
    if not read or _read_declared(read, items) != request.tools:
        return write_tools(request.tools)
    for item in items:
        if item.get("type") == "additional_tools":
            tools += [tool for tool in item["tools"] if tool not in tools]
    return tools


def _write_sampling(sampling: Sampling, body: Mapping[str, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for field in ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"):
        value = getattr(sampling, field)
        if value is not None:
            written[field] = value
    if sampling.max_tokens is not None:
        written["max_output_tokens"] = sampling.max_tokens
    if sampling.logprobs is not None:
        written["top_logprobs"] = sampling.logprobs
        include = list(body.get("include") or ())
        written["include"] = include if _LOGPROBS in include else [*include, _LOGPROBS]
    return written


def _write_format(request: ModelRequest, read: Mapping[str, Any]) -> dict[str, Any]:
    text = read.get("text")
    if text is not None and _read_format(text) == request.output_schema:
        return {"text": text}
    told = _told_by_chat(request)
    kept = {key: value for key, value in (text or {}).items() if key != "format"}
    if told.get("verbosity") is not None:
        kept["verbosity"] = told["verbosity"]
    if request.output_schema is None:
        return {"text": kept} if kept else {}
    if not request.output_schema:
        return {"text": {**kept, "format": {"type": "json_object"}}}
    said = (told.get("response_format") or {}).get("json_schema") or {}
    named = {field: said[field] for field in ("name", "description", "strict") if said.get(field) is not None}
    form = {"type": "json_schema", "name": "output", "strict": False, **named, "schema": dict(request.output_schema)}
    return {"text": {**kept, "format": form}}


def _told_by_chat(request: ModelRequest) -> Mapping[str, Any]:
    """The body of a Chat Completions request, that has names of its own for the same fields."""
    origin = request.origin
    return origin.body if origin is not None and origin.dialect == "chat" else {}
