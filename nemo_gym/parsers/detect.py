"""Which formats a chat template writes: asked of it, by rendering a turn and reading it back.

A format is the template's when its parser finds in the rendered turn exactly what was put in.
"""

from __future__ import annotations

from collections.abc import Callable

from ..exchange.errors import InvalidRequest
from ..exchange.parts import Message, Reasoning, Text, ToolCall
from ..exchange.request import ModelRequest
from ..exchange.tools import Tool
from .catalog import REASONING, TOOL_CALLS
from .output import output_parser

_ASKED = Message("user", (Text("a"),))
_TOOL = Tool("probe_tool", "p", {"type": "object", "properties": {"value": {"type": "string"}}})
_ARGUMENTS = '{"value": "q7Zk"}'

Render = Callable[[ModelRequest], str]
"""A conversation -> the prompt's text; raises InvalidRequest when it cannot be rendered."""


def tool_call_format(render: Render) -> str | None:
    """The format in which the template writes an assistant's tool calls."""
    text = _turn(render, Message("assistant", (ToolCall("probe_tool", _ARGUMENTS, "call_probe"),)))
    wanted = [("probe_tool", _ARGUMENTS)]
    return next((name for name in TOOL_CALLS if output_parser(tool_calls=name).parse(text).calls == wanted), None)


def reasoning_format(render: Render) -> str | None:
    """The format in which the template writes an assistant's reasoning."""
    text = _turn(render, Message("assistant", (Reasoning("q7Zk"), Text("done"))))
    return next((name for name, marks in REASONING.items() if _wraps(text, marks.open, marks.close)), None)


def _wraps(text: str, opening: str, closing: str) -> bool:
    before, found, after = text.rpartition("q7Zk")
    return bool(found) and before.rstrip().endswith(opening) and after.lstrip().startswith(closing)


def _turn(render: Render, turn: Message) -> str:
    """What the template writes of the turn alone, or "" when it cannot."""
    try:
        before = render(ModelRequest((_ASKED,), tools=(_TOOL,)))
        text = render(ModelRequest((_ASKED, turn), tools=(_TOOL,)))
    except InvalidRequest:
        return ""
    shared = next(
        (n for n, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), min(len(before), len(text))
    )
    return text[shared:]
