"""One parser for a model's whole output: reasoning first, then tool calls."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from ..exchange.parts import Part, Text
from .arguments import toolbox
from .catalog import REASONING, TOOL_CALLS, lookup
from .parser import BaseParser, Parser
from .reasoning import ReasoningParser


class PlainParser(BaseParser):
    """Everything is text."""

    def stream(self) -> PlainStream:
        return PlainStream()


class PlainStream:
    def feed(self, text: str, ids: array | None = None) -> list[Part]:
        return [Text(text)] if text else []

    def finish(self) -> list[Part]:
        return []


def output_parser(
    tool_calls: str | None = None,
    reasoning: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    in_reasoning: bool | None = None,
) -> Parser:
    """The parser of a model's output.

    Args:
        tool_calls: the format of tool calls; None leaves their markup in the text.
        reasoning: the format of reasoning; None leaves it in the text.
        tools: OpenAI tool dicts; called names and argument types follow them.
        in_reasoning: whether the prompt has opened the reasoning block already; None = as the format does.
    """
    inner: Parser = PlainParser()
    if tool_calls is not None:
        inner = lookup(TOOL_CALLS, tool_calls, "tool_calls")(toolbox(tools))
    if reasoning is None:
        return inner
    return ReasoningParser(lookup(REASONING, reasoning, "reasoning"), inner, in_reasoning)
