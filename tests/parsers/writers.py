"""How each format's models write text and calls: by the formats' own templates, independent of the parsers.

An output is a list of texts and calls `(name, arguments)`. A writer gives the output as the model writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

Item = str | tuple[str, dict[str, Any]]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "limit": {"type": "number"},
                    "metric": {"type": "boolean"},
                    "options": {"$ref": "#/$defs/options"},
                    "hours": {"type": "array", "items": {"type": "integer"}},
                },
                "$defs": {"options": {"type": "object"}},
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    """A value between tags: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else dump(value)


def each(write: Callable[[str, dict[str, Any]], str]) -> Callable[[list[Item]], str]:
    """Calls stand by themselves in the text."""
    return lambda items: "".join(item if isinstance(item, str) else write(*item) for item in items)


def sections(
    begin: str, end: str, write: Callable[[str, dict[str, Any], int], str], between: str = ""
) -> Callable[[list[Item]], str]:
    """Neighbouring calls share a section."""

    def output(items: list[Item]) -> str:
        return "".join(_sections(items))

    def _sections(items: list[Item]) -> Iterator[str]:
        for text, group in groupby(items, lambda item: isinstance(item, str)):
            if text:
                yield "".join(group)
            else:
                yield begin + between.join(write(*call, n) for n, call in enumerate(group)) + end

    return output


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f'<tool_call>\n{{"name": {dump(name)}, "arguments": {dump(arguments)}}}\n</tool_call>'


def qwen3_coder(name: str, arguments: dict[str, Any]) -> str:
    values = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def glm45(name: str, arguments: dict[str, Any]) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


def glm47(name: str, arguments: dict[str, Any]) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{plain(value)}</arg_value>" for key, value in arguments.items()
    )
    return f"<tool_call>{name}{values}</tool_call>"


def _deepseek(*names: str) -> Iterator[str]:
    return (f"<\uff5c{name}\uff5c>" for name in names)


_BEGIN, _END, _CALL, _SEP, _CALLED = _deepseek(
    "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁sep", "tool▁call▁end"
)


def deepseek_v3(name: str, arguments: dict[str, Any], n: int) -> str:
    return f"{_CALL}function{_SEP}{name}\n```json\n{dump(arguments)}\n```{_CALLED}"


def deepseek_v31(name: str, arguments: dict[str, Any], n: int) -> str:
    return f"{_CALL}{name}{_SEP}{dump(arguments)}{_CALLED}"


def kimi_k2(name: str, arguments: dict[str, Any], n: int) -> str:
    return f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{dump(arguments)}<|tool_call_end|>"


def mistral(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{dump(arguments)}"


def mistral_v3(name: str, arguments: dict[str, Any], n: int) -> str:
    return f'{{"name": {dump(name)}, "arguments": {dump(arguments)}}}'


def minimax_m2(name: str, arguments: dict[str, Any], n: int) -> str:
    values = "".join(f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in arguments.items())
    return f'<invoke name="{name}">\n{values}</invoke>\n'


def llama3_json(name: str, arguments: dict[str, Any], n: int) -> str:
    return f'{{"name": {dump(name)}, "parameters": {dump(arguments)}}}'


def python_tag(name: str, arguments: dict[str, Any], n: int) -> str:
    return llama3_json(name, arguments, n)


def pythonic(name: str, arguments: dict[str, Any], n: int) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def harmony(items: list[Item]) -> str:
    """The prompt ends in `<|start|>assistant`; a channel for each kind of message."""
    messages = []
    for n, item in enumerate(items):
        if isinstance(item, str):
            last = n == len(items) - 1
            messages.append(
                f"<|channel|>{'final' if last else 'commentary'}<|message|>{item}<|{'return' if last else 'end'}|>"
            )
        else:
            name, arguments = item
            messages.append(
                f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dump(arguments)}<|call|>"
            )
    return "<|start|>assistant".join(messages)


def lines(write: Callable[[list[Item]], str]) -> Callable[[list[Item]], str]:
    """Bare calls stand where a line begins."""

    def output(items: list[Item]) -> str:
        return write([item + "\n" if isinstance(item, str) else item for item in items])

    output.lines = True  # type: ignore[attr-defined]
    return output


WRITERS: dict[str, Callable[[list[Item]], str]] = {
    "hermes": each(hermes),
    "qwen3_coder": each(qwen3_coder),
    "glm45": each(glm45),
    "glm47": each(glm47),
    "harmony": harmony,
    "deepseek_v3": sections(_BEGIN, _END, deepseek_v3, "\n"),
    "deepseek_v31": sections(_BEGIN, _END, deepseek_v31),
    "kimi_k2": sections("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", kimi_k2),
    "mistral": each(mistral),
    "mistral (before v11)": sections("[TOOL_CALLS] [", "]", mistral_v3, ", "),
    "minimax_m2": sections("<minimax:tool_call>\n", "</minimax:tool_call>", minimax_m2),
    "llama3_json": lines(sections("", "", llama3_json, "; ")),
    "llama3_json (tagged)": sections("<|python_tag|>", "", python_tag, "; "),
    "pythonic": lines(sections("[", "]", pythonic, ", ")),
}
"""The parser's name, perhaps with a variant in brackets, and how an output is written."""


def parser_name(writer: str) -> str:
    return writer.split(" ")[0]


def said(writer: str, items: list[Item]) -> str:
    """The text that a reader of that format finds: all of it, but after the first call of hermes."""
    texts = []
    for item in items:
        if isinstance(item, str):
            texts.append(item + "\n" * hasattr(WRITERS[writer], "lines"))
        elif writer == "hermes":
            break
    return "".join(texts)
