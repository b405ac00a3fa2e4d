"""A Chat Completions body to and from a ModelRequest.

Writing starts from the body that was read, if it was one of this dialect: fields that we do not model survive, and so
does the client's own spelling of every value that nobody changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...exchange.errors import InvalidRequest
from ...exchange.parts import Message, Origin, read_once
from ...exchange.request import ModelRequest, Sampling
from ...exchange.tools import Tool, Toolbox, ToolChoice
from ..elements import write_once
from ..validation import STREAM, find_errors, missing_body, validated
from . import schema
from .messages import NAME, is_sayable, read_message, read_tool, write_message, write_tool

_EMPTY: Mapping[str, Any] = {}
_NO_TOOLS = Toolbox(())


def read_request(body: Any) -> ModelRequest:
    checked = _checked(body)
    tools = tuple([read_once(tool, read_tool) for tool in body.get("tools") or ()])
    return ModelRequest(
        messages=tuple([read_once(message, read_message) for message in body["messages"]]),
        tools=tools,
        tool_choice=_read_choice(body.get("tool_choice"), tools),
        parallel_tool_calls=checked.parallel_tool_calls is not False,
        sampling=_read_sampling(checked),
        output_schema=_read_format(body.get("response_format")),
        effort=checked.reasoning_effort,
        model=checked.model,
        origin=Origin(NAME, body),
    )


def _checked(body: Any) -> schema.ChatRequest:
    errors: list[dict[str, Any]] = []
    checked: Any = None
    if body is None:
        errors = [missing_body()]
    else:
        plain = body
        if isinstance(body, dict) and not schema.DELIVERY.isdisjoint(body):
            plain = {key: value for key, value in body.items() if key not in schema.DELIVERY}
        checked, errors = validated(schema.REQUEST, plain, _READ, from_attributes=True)
    if isinstance(body, dict):
        if "stream" in body:
            errors += find_errors(STREAM, body["stream"], ("stream",))
        if "stream_options" in body:
            errors += find_errors(schema.STREAM_OPTIONS, body["stream_options"], ("stream_options",))
    if errors or checked is None:
        raise InvalidRequest("The request is not a valid Chat Completions request.", errors=errors, status=422)
    return checked


def _read_choice(choice: Any, tools: tuple[Tool, ...]) -> ToolChoice:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        return choice  # type: ignore[return-value]
    kind = choice["type"]
    if kind == "allowed_tools":
        return choice["allowed_tools"]["mode"]
    name = choice[kind]["name"]
    custom = "custom" if kind == "custom" else "function"
    return next((tool for tool in tools if tool.name == name and tool.kind == custom), Tool(name, kind=custom))  # type: ignore[arg-type]


_READ = {"messages": read_message, "tools": read_tool}


def _read_sampling(body: schema.ChatRequest) -> Sampling:
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    stop = body.stop
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        max_tokens=limit,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        seed=body.seed,
        n=1 if body.n is None else body.n,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_read_bias(body.logit_bias),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


def _read_bias(bias: Mapping[str, float] | None) -> Mapping[int, float] | None:
    if not bias:
        return None
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        found = {
            "type": "int_parsing",
            "loc": ("logit_bias",),
            "msg": "Keys should be token ids",
            "input": dict(bias),
        }
        raise InvalidRequest("logit_bias: keys should be token ids", errors=[found], status=422) from None


def _read_format(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if form is None:
        return None
    if form["type"] == "json_object":
        return {}
    if form["type"] == "json_schema":
        return form["json_schema"].get("schema") or {}
    return None


# ---- writing


def write_request(request: ModelRequest) -> dict[str, Any]:
    """The body for a backend: what is generated, without how this client wanted it delivered."""
    toolbox = _toolbox(request)
    messages = [write_message(message, toolbox) for message in request.messages if is_sayable(message)]
    tools = [write_tool(tool, toolbox) for tool in request.tools if tool.kind != "provider"]
    return _write(request, toolbox, messages, tools)


def write_encoded(request: ModelRequest) -> dict[str, Any]:
    """The same, to be sent: messages and tools that bodies share are JSON already, written once."""
    toolbox = _toolbox(request)
    declared = [tool for tool in request.tools if tool.kind != "provider"]
    called = _called(tuple([(tool.namespace, tool.name) for tool in declared]))

    def message_of(message: Message) -> dict[str, Any] | None:
        return write_message(message, toolbox) if is_sayable(message) else None

    def tool_of(tool: Tool) -> dict[str, Any]:
        return write_tool(tool, toolbox)

    written = [write_once(message, called, message_of) for message in request.messages]
    messages = [message for message in written if message is not None]
    return _write(request, toolbox, messages, [write_once(tool, called, tool_of) for tool in declared])


@lru_cache(1024)
def _called(names: tuple[tuple[str | None, str], ...]) -> object:
    """One object for all requests whose tools are called the same: how a call is spelled depends on nothing else."""
    return names


def _toolbox(request: ModelRequest) -> Toolbox:
    return Toolbox(request.tools) if request.tools else _NO_TOOLS


def _write(request: ModelRequest, toolbox: Toolbox, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    read = request.origin.body if request.origin is not None and request.origin.dialect == NAME else _EMPTY
    body = {key: value for key, value in read.items() if key not in schema.FIELDS}
    body["messages"] = messages
    if request.model is not None:
        body["model"] = request.model
    body |= _write_sampling(request.sampling, read)
    if request.effort is not None:
        body["reasoning_effort"] = request.effort
    if (verbosity := _told(request).get("verbosity")) is not None:
        body["verbosity"] = verbosity
    if tools:
        body["tools"] = tools
    if tools or "tool_choice" in read:
        body |= _write_choice(request, read, toolbox)
    if not request.parallel_tool_calls:
        body["parallel_tool_calls"] = False
    elif read.get("parallel_tool_calls") is True:
        body["parallel_tool_calls"] = True
    if _is_prefilled(request):
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    body |= _write_format(request, read)
    return body


def _is_prefilled(request: ModelRequest) -> bool:
    """A client of Messages that ends with the assistant's words has begun the reply."""
    origin = request.origin
    own = origin is not None and origin.dialect == "messages"
    return own and bool(request.messages) and request.messages[-1].role == "assistant"


def _write_choice(request: ModelRequest, read: Mapping[str, Any], toolbox: Toolbox) -> dict[str, Any]:
    choice = request.tool_choice
    if _read_choice(read.get("tool_choice"), request.tools) == choice:
        return {"tool_choice": read["tool_choice"]} if "tool_choice" in read else {}
    if isinstance(choice, str):
        return {"tool_choice": choice}
    if choice.kind == "custom" and choice.origin is not None and choice.origin.dialect == NAME:
        return {"tool_choice": {"type": "custom", "custom": {"name": choice.name}}}
    return {"tool_choice": {"type": "function", "function": {"name": toolbox.flat(choice)}}}


_PLAIN = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty")


def _write_sampling(sampling: Sampling, read: Mapping[str, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for field in _PLAIN:
        value = getattr(sampling, field)
        if value is not None:
            written[field] = value
    if sampling.max_tokens is not None:
        # `max_tokens` is what every server behind this API knows; a client's own spelling is kept.
        spelling = "max_completion_tokens" if read.get("max_completion_tokens") is not None else "max_tokens"
        written[spelling] = sampling.max_tokens
    if sampling.stop:
        stop = read.get("stop")
        written["stop"] = stop if sampling.stop == (stop,) else list(sampling.stop)
    if sampling.n != 1 or read.get("n") is not None:
        written["n"] = sampling.n
    if sampling.logit_bias:
        written["logit_bias"] = {str(token): value for token, value in sampling.logit_bias.items()}
    if sampling.logprobs is not None:
        written["logprobs"] = True
        if sampling.logprobs or "top_logprobs" in read:
            written["top_logprobs"] = sampling.logprobs
    return written


def _write_format(request: ModelRequest, read: Mapping[str, Any]) -> dict[str, Any]:
    form = read.get("response_format")
    if _read_format(form) == request.output_schema:
        return {} if form is None else {"response_format": form}
    if request.output_schema is None:
        return {}
    if not request.output_schema:
        return {"response_format": {"type": "json_object"}}
    named = {"name": "output", **_told_of_format(request), "schema": dict(request.output_schema)}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _told(request: ModelRequest) -> Mapping[str, Any]:
    """The `text` of a Responses request."""
    if request.origin is None or request.origin.dialect != "responses":
        return _EMPTY
    return request.origin.body.get("text") or _EMPTY


def _told_of_format(request: ModelRequest) -> dict[str, Any]:
    """What a Responses client says of its schema beside it; Chat Completions has the same fields."""
    form = _told(request).get("format") or {}
    return {field: form[field] for field in ("name", "description", "strict") if form.get(field) is not None}
