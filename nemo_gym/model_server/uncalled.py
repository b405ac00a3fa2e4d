"""`tool_choice: none` is honoured whatever the backend does: no call comes out of it (A10).

A backend that parses calls all the same has taken their markup out of the text. It goes back in where it was, in the
form that most models write, so that neither the client nor the record loses what was generated.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..dialects import codec
from ..exchange.parts import Part, Text, ToolCall, merged
from ..exchange.reply import Choice, ModelReply
from .said import say_once


def without_calls(reply: ModelReply) -> ModelReply:
    """Of a reply that has some."""
    say_once("tool_choice none: this backend calls tools all the same; its calls are given to clients as text")
    return replace(reply, choices=tuple(map(_uncalled, reply.choices)))


def _uncalled(choice: Choice) -> Choice:
    parts = tuple(merged(_as_text(part) if isinstance(part, ToolCall) else part for part in choice.parts))
    finish = "stop" if choice.finish == "tool_calls" else choice.finish
    return replace(choice, parts=parts, finish=finish, origin=None)


def _as_text(call: ToolCall) -> Part:
    arguments = call.arguments if codec.is_strict(call.arguments) else codec.encode(call.arguments).decode()
    name = codec.encode(call.name).decode()
    return Text(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
