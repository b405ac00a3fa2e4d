"""One parser for a model's whole output: its reasoning and its tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .arguments import toolbox
from .catalog import REASONING, TOOL_CALLS, lookup
from .parser import BaseParser, Parser, ParserStream
from .reasoning import Block
from .stream import OutputStream
from .format import Format


class OutputParser(BaseParser):
    def __init__(self, format: Format | None, block: Block | None, inside: bool) -> None:
        self._format, self._block, self._inside = format, block, inside

    def stream(self) -> ParserStream:
        return OutputStream(self._format, self._block, self._inside)


def output_parser(
    tool_calls: str | None = None,
    reasoning: str | None = None,
    tools: Iterable[Mapping[str, Any]] | None = None,
    in_reasoning: bool | None = None,
) -> Parser:
    """The parser of a model's output.

    Args:
        tool_calls: the format of tool calls; None leaves their markup in the text.
        reasoning: the format of reasoning; None leaves it in the text.
        tools: OpenAI tool dicts; called names and argument types follow them.
        in_reasoning: whether the prompt has opened the reasoning block already; None = as the format does.
    """
    format = None if tool_calls is None else lookup(TOOL_CALLS, tool_calls, "tool_calls")(toolbox(tools))
    block = None if reasoning is None else lookup(REASONING, reasoning, "reasoning")
    inside = block is not None and (block.opened_by_prompt if in_reasoning is None else in_reasoning)
    return OutputParser(format, block, inside)
