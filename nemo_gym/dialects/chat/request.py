"""A Chat Completions body to and from a ModelRequest.

Writing starts from the body that was read, if it was one of this dialect: fields that we do not model survive, and so
does the client's own spelling of every value that nobody changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...exchange.errors import InvalidRequest
from ...exchange.ids import fitted
from ...exchange.parts import (
    Media,
    Message,
    Origin,
    Other,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    read_once,
)
from ...exchange.request import ModelRequest, Sampling
from ...exchange.tools import Tool, Toolbox, ToolChoice
from .. import codec
from ..validation import STREAM, find_errors, missing_body, validated
from . import schema
from .details import read_details, write_details

NAME = "chat"
_EMPTY: Mapping[str, Any] = {}
_NO_TOOLS = Toolbox(())
_NO_RESULT = ToolResult("", ())


def read_request(body: Any) -> ModelRequest:
    checked = _checked(body)
    tools = tuple([read_once(tool, _read_tool) for tool in body.get("tools") or ()])
    return ModelRequest(
        messages=tuple([read_once(message, _read_message) for message in body["messages"]]),
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


def _read_message(message: Mapping[str, Any]) -> Message:
    role, content = message["role"], message.get("content")
    origin = Origin(NAME, message)
    if role == "tool":
        result = ToolResult(message["tool_call_id"], tuple(_read_content(content)))
        return Message("tool", (result,), origin)
    if role != "assistant":
        return Message(role, tuple(_read_content(content)), origin)
    thoughts = read_details(message.get("reasoning_details")) if "reasoning_details" in message else []
    return Message("assistant", tuple(read_assistant(message, thoughts)), origin)


def read_assistant(message: Mapping[str, Any], thoughts: list[Reasoning] | None = None) -> Iterable[Part]:
    """The parts of an assistant message, in a request or a reply: reasoning, content, refusal, calls (B1).

    `thoughts` are those that it tells with what was signed; where they have a text, it is the same once more."""
    thoughts = thoughts or []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning and not any(thought.text for thought in thoughts):
        yield Reasoning(reasoning)
    yield from thoughts
    if message.get("content"):
        yield from _read_content(message["content"])
    if message.get("refusal"):
        yield Refusal(message["refusal"])
    for call in message.get("tool_calls") or ():
        yield read_call(call)


def read_call(call: Mapping[str, Any]) -> ToolCall:
    origin = Origin(NAME, call)
    if call.get("type") == "custom":
        custom = call["custom"]
        return ToolCall(custom["name"], custom.get("input") or "", call.get("id") or "", custom=True, origin=origin)
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        # Some servers send an object; there is no string of the model's to keep then.
        arguments = "" if arguments is None else codec.encode(arguments).decode()
    return ToolCall(function["name"], arguments, call.get("id") or "", origin=origin)


def _read_content(content: Any) -> Iterable[Part]:
    if isinstance(content, str):
        yield Text(content)
        return
    for part in content or ():
        yield read_part(part)


def read_part(part: Mapping[str, Any]) -> Part:
    kind, origin = part["type"], Origin(NAME, part)
    if kind == "text":
        return Text(part["text"], origin=origin)
    if kind == "refusal":
        return Refusal(part["refusal"])
    if kind == "thinking":
        return Reasoning(_thought(part["thinking"]), origin=origin)  # as Mistral's models reply
    if kind == "image_url":
        return Media("image", part["image_url"]["url"], origin)
    if kind == "input_audio":
        audio = part["input_audio"]
        return Media("audio", f"data:audio/{audio['format']};base64,{audio['data']}", origin)
    if kind == "file" and isinstance(part["file"].get("file_data"), str):
        return Media("document", part["file"]["file_data"], origin)
    return Other(NAME, part)


def _thought(said: Any) -> str:
    return said if isinstance(said, str) else "".join([part["text"] for part in said if part["type"] == "text"])


def _read_tool(tool: Mapping[str, Any]) -> Tool:
    origin = Origin(NAME, tool)
    if tool["type"] == "custom":
        custom = tool["custom"]
        return Tool(custom["name"], custom.get("description") or "", kind="custom", origin=origin)
    function = tool["function"]
    return Tool(function["name"], function.get("description") or "", function.get("parameters"), origin=origin)


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


_READ = {"messages": _read_message, "tools": _read_tool}


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
    read = request.origin.body if request.origin is not None and request.origin.dialect == NAME else _EMPTY
    body = {key: value for key, value in read.items() if key not in schema.FIELDS}
    toolbox = Toolbox(request.tools) if request.tools else _NO_TOOLS
    body["messages"] = [_write_message(message, toolbox) for message in request.messages if _sayable(message)]
    if request.model is not None:
        body["model"] = request.model
    body |= _write_sampling(request.sampling, read)
    if request.effort is not None:
        body["reasoning_effort"] = request.effort
    if (verbosity := _told(request).get("verbosity")) is not None:
        body["verbosity"] = verbosity
    tools = [_write_tool(tool, toolbox) for tool in request.tools if tool.kind != "provider"]
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


def _sayable(message: Message) -> bool:
    """Whether there is anything in it for this dialect; an item that only another one knows is left out."""
    if message.origin is not None and message.origin.dialect == NAME:
        return True
    for part in message.parts:
        if type(part) is Other:
            if part.dialect == NAME:
                return True
        elif type(part) is not Reasoning or part.text:
            return True
    return not message.parts


def _write_message(message: Message, toolbox: Toolbox) -> dict[str, Any]:
    if message.origin is not None and message.origin.dialect == NAME:
        return dict(message.origin.body)
    if message.role == "tool":
        result: Part = message.parts[0] if message.parts else _NO_RESULT
        if type(result) is not ToolResult:
            result = next((part for part in message.parts if isinstance(part, ToolResult)), _NO_RESULT)
        return {"role": "tool", "tool_call_id": fitted(result.call_id), "content": _write_content(result.parts)}
    if message.role != "assistant":
        return {"role": message.role, "content": _write_content(message.parts)}
    written: dict[str, Any] = {"role": "assistant", "content": None}
    texts: list[str] = []
    reasoning: list[str] = []
    refusals: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in message.parts:
        if type(part) is ToolCall:
            calls.append(_write_call(part, toolbox))
        elif type(part) is Text:
            texts.append(part.text)
        elif type(part) is Reasoning and part.text:
            reasoning.append(part.text)
        elif type(part) is Refusal:
            refusals.append(part.text)
    if texts:
        written["content"] = "".join(texts)
    if reasoning:
        written["reasoning_content"] = "\n".join(reasoning)
    if refusals:
        written["refusal"] = "".join(refusals)
    if calls:
        written["tool_calls"] = calls
    elif written["content"] is None and not refusals:
        written["content"] = ""
    return written | write_details(message.parts) if _brought(message.parts) else written


def _brought(parts: tuple[Part, ...]) -> bool:
    """Whether the client's own words said what a provider signed; a backend that never does is not told of it."""
    return any(
        type(part) is Reasoning and part.payload and part.origin is not None and part.origin.dialect == NAME
        for part in parts
    )


def _write_content(parts: Iterable[Part]) -> str | list[dict[str, Any]]:
    parts = tuple(parts)
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [part for part in map(_write_part, parts) if part is not None] or ""


def _write_part(part: Part) -> dict[str, Any] | None:
    origin = getattr(part, "origin", None)
    if origin is not None and origin.dialect == NAME:
        return dict(origin.body)
    if isinstance(part, Text | Refusal):
        return {"type": "text", "text": part.text}
    if isinstance(part, Media):
        return _write_media(part)
    if isinstance(part, Other) and part.dialect == NAME:
        return dict(part.body)
    return None


def _write_media(part: Media) -> dict[str, Any]:
    told = part.origin.body if part.origin is not None and part.origin.dialect == "responses" else _EMPTY
    if part.kind == "image":
        detail = {"detail": told["detail"]} if told.get("detail") in ("low", "high") else {}
        return {"type": "image_url", "image_url": {"url": part.source, **detail}}
    head, _, data = part.source.partition(";base64,")
    if part.kind == "audio" and head.startswith("data:audio/"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": head.removeprefix("data:audio/")}}
    named = {"filename": told["filename"]} if isinstance(told.get("filename"), str) else {}
    return {"type": "file", "file": {**named, "file_data": part.source}}


def _write_call(call: ToolCall, toolbox: Toolbox) -> dict[str, Any]:
    if call.origin is not None and call.origin.dialect == NAME:
        return dict(call.origin.body)
    # R7: a custom tool is a function with one string to a chat backend.
    arguments = codec.encode({"input": call.arguments}).decode() if call.custom else call.arguments
    function = {"name": toolbox.spell(call), "arguments": arguments}
    return {"id": fitted(call.call_id), "type": "function", "function": function}


def _write_tool(tool: Tool, toolbox: Toolbox) -> dict[str, Any]:
    if tool.origin is not None and tool.origin.dialect == NAME:
        return dict(tool.origin.body)
    function: dict[str, Any] = {"name": toolbox.flat(tool)}
    if tool.description:
        function["description"] = tool.description
    if tool.kind == "custom":
        function["parameters"] = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    elif tool.parameters is not None:
        function["parameters"] = dict(tool.parameters)
    if tool.origin is not None and tool.origin.body.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


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
