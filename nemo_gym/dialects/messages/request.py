"""A Messages body to and from a ModelRequest (M1).

Effort says how much thinking is wanted, in every dialect: `disabled` thinking is the effort `none`; `adaptive` and
`enabled` leave it to `output_config.effort`, else to the backend. A budget of tokens is passed on only in this dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from ...exchange.errors import InvalidRequest
from ...exchange.parts import Message, Origin
from ...exchange.request import ModelRequest, Sampling
from ...exchange.tools import Toolbox
from ..validation import STREAM, find_errors, first_words, missing_body, validated
from . import schema
from .blocks import NAME, is_attribution, read_message, read_messages, write_blocks, write_messages, write_text
from .tools import read_choice, read_tool, read_tools, write_choice, write_tools

MAX_TOKENS = 8192
"""What a request that sets no limit gets: this API demands one."""
_KEPT = ("metadata", "thinking", "cache_control")
_EFFORTS = {"minimal": "low"}


def read_request(body: Any) -> ModelRequest:
    checked = _checked(body, schema.REQUEST)
    return _read(
        body,
        checked,
        Sampling(
            temperature=checked.temperature,
            top_p=checked.top_p,
            top_k=checked.top_k,
            max_tokens=checked.max_tokens,
            stop=tuple(checked.stop_sequences or ()),
        ),
    )


def read_count(body: Any) -> ModelRequest:
    """A body of `count_tokens`: a request without what only a generation needs."""
    return _read(body, _checked(body, schema.COUNT), Sampling())


def _read(body: Mapping[str, Any], checked: schema.CountRequest, sampling: Sampling) -> ModelRequest:
    tools = read_tools(body.get("tools") or (), body["messages"])
    choice = body.get("tool_choice")
    return ModelRequest(
        messages=tuple(read_messages(body.get("system"), body["messages"])),
        tools=tools,
        tool_choice=read_choice(choice, tools),
        parallel_tool_calls=not (choice or {}).get("disable_parallel_tool_use"),
        sampling=sampling,
        output_schema=_read_format(body),
        effort=_read_effort(body),
        model=checked.model,
        origin=Origin(NAME, body),
    )


def _checked(body: Any, adapter: TypeAdapter[Any]) -> Any:
    errors: list[dict[str, Any]] = []
    checked = None
    if body is None:
        errors = [missing_body()]
    else:
        checked, errors = validated(adapter, body, {"messages": read_message, "tools": read_tool})
    if isinstance(body, dict):
        errors += find_errors(STREAM, body.get("stream"), ("stream",))
    if errors or checked is None:
        for found in errors:
            found["loc"] = tuple(step for step in found["loc"] if not str(step).startswith("<"))
        message, param = first_words(errors)
        raise InvalidRequest(message, errors=errors, param=param, status=400)
    return checked


def _read_format(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = (body.get("output_config") or {}).get("format") or body.get("output_format")
    return form["schema"] if form else None


def _read_effort(body: Mapping[str, Any]) -> str | None:
    if (body.get("thinking") or {}).get("type") == "disabled":
        return "none"
    return (body.get("output_config") or {}).get("effort")


# ---- writing


def write_request(request: ModelRequest) -> dict[str, Any]:
    """The body for a Messages backend."""
    origin = request.origin
    own = origin is not None and origin.dialect == NAME
    read: Mapping[str, Any] = origin.body if own and origin is not None else {}
    body = {key: value for key, value in read.items() if key not in schema.FIELDS or key in _KEPT}
    toolbox = Toolbox(request.tools)
    lead = next((n for n, one in enumerate(request.messages) if one.role not in ("system", "developer")), None)
    system = _write_system(request.messages[:lead], read.get("system"))
    if system:
        body["system"] = system
    body["messages"] = [] if lead is None else write_messages(request.messages[lead:], toolbox)
    if request.model is not None:
        body["model"] = request.model
    body |= _write_sampling(request.sampling)
    tools = write_tools(request.tools, toolbox, read.get("tools") or () if own else None)
    if tools:
        body["tools"] = tools
        choice = write_choice(request.tool_choice, request.parallel_tool_calls, toolbox)
        given = read.get("tool_choice")
        if given is not None and read_choice(given, request.tools) == request.tool_choice:
            body["tool_choice"] = given
        elif choice is not None:
            body["tool_choice"] = choice
    return body | _write_output(request, read)


def _write_system(messages: tuple[Message, ...], read: Any) -> str | list[dict[str, Any]]:
    """One plain text as it is; else blocks. What an agent writes there for its provider goes to a provider."""
    parts = tuple(part for message in messages for part in message.parts)
    kept = [block for block in read if is_attribution(block["text"])] if isinstance(read, list) else []
    plain = write_text(parts)
    return plain if plain and not kept else [*kept, *write_blocks(parts)]


def _write_sampling(sampling: Sampling) -> dict[str, Any]:
    written: dict[str, Any] = {"max_tokens": MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens}
    for field in ("temperature", "top_p", "top_k"):
        value = getattr(sampling, field)
        if value is not None:
            written[field] = value
    if sampling.stop:
        written["stop_sequences"] = list(sampling.stop)
    return written


def _write_output(request: ModelRequest, read: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(read.get("output_config") or {})
    if _read_format(read) != request.output_schema:
        config.pop("format", None)
    if request.output_schema is not None and "format" not in config:
        config["format"] = {"type": "json_schema", "schema": dict(request.output_schema) or {"type": "object"}}
    written: dict[str, Any] = {}
    if request.effort != _read_effort(read):
        config.pop("effort", None)
        if request.effort == "none":
            written["thinking"] = {"type": "disabled"}
        elif request.effort is not None:
            config["effort"] = _EFFORTS.get(request.effort, request.effort)
    if config:
        written["output_config"] = config
    return written
