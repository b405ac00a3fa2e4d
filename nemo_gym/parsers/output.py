"""One parser for a model's whole output: its reasoning and its tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from ..exchange.tools import Toolbox
from .arguments import toolbox
from .catalog import REASONING, TOOL_CALLS, lookup
from .format import Format
from .harmony import HarmonyParser
from .parser import Parser
from .reasoning import Block
from .source_stream import SourceParser
from .stream import OutputStream
from .tokens import TokenParser, Vocabulary

HARMONY = "harmony"


class OutputParser(SourceParser):
    """A format of calls and a format of reasoning, each or none."""

    def __init__(self, format: type[Format] | None, tools: Toolbox, block: Block | None, inside: bool) -> None:
        self._format, self._tools, self._block, self._inside = format, tools, block, inside
        self.specials = (*(format.specials if format else ()), *((block.open, block.close) if block else ()))
        self._plain = None if format is None else format(tools)

    def stream(self) -> OutputStream:
        return OutputStream(self._plain, self._block, self._inside)

    def spelled(self, spelling: Mapping[str, str]) -> OutputStream:
        """A stream that looks for markers under another spelling."""
        block = self._block
        if block is not None:
            open, close = (spelling.get(marker, marker) for marker in (block.open, block.close))
            block = replace(block, open=open, close=close)
        format = None if self._format is None else self._format(self._tools, spelling)
        return OutputStream(format, block, self._inside)


def output_parser(
    tool_calls: str | None = None,
    reasoning: str | None = None,
    tools: Iterable[Mapping[str, Any]] | None = None,
    in_reasoning: bool | None = None,
    vocabulary: Vocabulary | None = None,
) -> Parser:
    """The parser of a model's output.

    Args:
        tool_calls: the format of tool calls; None leaves their markup in the text.
        reasoning: the format of reasoning; None leaves it in the text.
        tools: OpenAI tool dicts; called names and argument types follow them.
        in_reasoning: whether the prompt has opened the reasoning block already; None = as the format does.
        vocabulary: with it the ids that come with a text tell special tokens from the same characters.
    """
    box = toolbox(tools)
    parser: OutputParser | HarmonyParser
    if HARMONY in (tool_calls, reasoning):
        for key, name in (("tool_calls", tool_calls), ("reasoning", reasoning)):
            if name not in (None, HARMONY):
                raise ValueError(
                    f"{key}: {name!r} does not go with harmony, which writes both; expected harmony or none"
                )
        parser = HarmonyParser(None if tool_calls is None else box, reasoning is not None)
    else:
        format = None if tool_calls is None else lookup(TOOL_CALLS, tool_calls, "tool_calls")
        block = None if reasoning is None else lookup(REASONING, reasoning, "reasoning")
        inside = block is not None and (block.opened_by_prompt if in_reasoning is None else in_reasoning)
        parser = OutputParser(format, box, block, inside)
    return parser if vocabulary is None else TokenParser(parser, vocabulary)
