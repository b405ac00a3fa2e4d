"""What a request demands of the output's form, as a guide for the engine: a schema, or a call of one of its tools.

A guide that would forbid the model its reasoning allows it first. Formats of calls that no grammar here writes cannot
be forced; then the client is told so, and nothing is cut (A10).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..exchange.request import ModelRequest
from ..exchange.tools import Toolbox
from ..parsers.reasoning import Block
from ..rendering.conversation import tool_dicts


class Written(Struct, frozen=True):
    """How a format writes calls. `%s` is the tool's name."""

    begin: str
    end: str
    style: str = "json"
    """Of the arguments, as structural tags know it."""
    between: str = "\n"
    around: tuple[str, str] = ("", "")


_HERMES = Written('<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>")
_GLM45 = Written("<tool_call>%s\n", "\n</tool_call>", "glm_xml")
_GLM47 = Written("<tool_call>%s", "</tool_call>", "glm_xml", between="")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
_DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>%s<｜tool▁sep｜>", "<｜tool▁call▁end｜>")  # noqa: RUF001
WRITTEN: dict[str, Written] = {
    "hermes": _HERMES,
    "qwen3": _HERMES,
    "qwen3_coder": Written("<tool_call>\n<function=%s>\n", "\n</function>\n</tool_call>", "qwen_xml"),
    "glm45": _GLM45,
    "glm47": _GLM47,
    "glm": _GLM47,
    "glm_moe_dsa": _GLM47,
    "deepseek_v31": Written(*_DEEPSEEK_CALL, between="", around=_DEEPSEEK),
    "minimax_m2": Written(
        '<invoke name="%s">\n',
        "\n</invoke>",
        "minimax_xml",
        around=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    ),
}


def forces(tool_format: str | None) -> bool:
    """Whether a call can be made certain in this format."""
    return tool_format in WRITTEN


def guide(
    request: ModelRequest, tool_format: str | None, block: Block | None, inside: bool | None
) -> dict[str, Any] | None:
    """Args:
    block: how the model writes its reasoning; None where that is text like any other.
    inside: whether the prompt opened the block already; None: the format says so.
    """
    form = _calls(request, tool_format)
    if form is None:
        if request.output_schema is None:
            return None
        if block is None or inside is False:
            return {"json": dict(request.output_schema)} if request.output_schema else {"json_object": True}
        form = {"type": "json_schema", "json_schema": dict(request.output_schema) or {"type": "object"}}
    if block is not None and inside is not False:
        form = {"type": "sequence", "elements": [*_thought(block, inside), form]}
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)}


def _calls(request: ModelRequest, tool_format: str | None) -> dict[str, Any] | None:
    written = None if tool_format is None else WRITTEN.get(tool_format)
    choice = request.tool_choice
    if written is None or choice in ("auto", "none") or not request.tools:
        return None
    tools = tool_dicts(request.tools)
    if not isinstance(choice, str):
        name = Toolbox(request.tools).flat(choice)
        tools = [tool for tool in tools if tool["function"]["name"] == name]
    if not tools:
        return None
    once = not request.parallel_tool_calls or not isinstance(choice, str)
    calls: dict[str, Any] = {
        "type": "tags_with_separator",
        "tags": [_call(written, tool["function"]) for tool in tools],
        "separator": written.between,
        "at_least_one": True,
        "stop_after_first": once,
    }
    before, after = written.around
    return {"type": "tag", "begin": before, "content": calls, "end": after} if before else calls


def _call(written: Written, function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object"}
    return {
        "type": "tag",
        "begin": written.begin % function["name"],
        "content": {"type": "json_schema", "json_schema": schema, "style": written.style},
        "end": written.end,
    }


def _thought(block: Block, inside: bool | None) -> Sequence[dict[str, Any]]:
    """The reasoning that may come first, or that the prompt began."""
    begun = block.opened_by_prompt if inside is None else inside
    words = {"type": "any_text", "excludes": [block.open, block.close]}
    thought = {"type": "tag", "begin": "" if begun else block.open, "content": words, "end": block.close}
    gap = {"type": "regex", "pattern": r"\n{0,2}"}
    if begun:
        return [thought, gap]
    return [{"type": "optional", "content": {"type": "sequence", "elements": [thought, gap]}}]
