"""P1: every way of cutting an output gives the same parts as the whole, for outputs with known calls and for chaos.

The default run takes a few examples; `ci` 20,000 pairs of an output and a cutting, `nightly` 1,000,000.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from nemo_gym.exchange.parts import Part, Text, ToolCall
from nemo_gym.parsers import output_parser
from nemo_gym.parsers.json_scanner import JsonScanner
from tests.parsers.cutting import at, by, check, everywhere, read
from tests.parsers.writers import TOOLS, WRITERS, Item, parser_name, said

MARKUP = [
    "<", "<tool", "<tool_call> ", "</tool_call> ", "<think", "</arg_value> ", "</arg_key>", "</parameter> ",
    "</function>", "</invoke>", "[", "]", "{", "}", "(", ")", '"', "'", "\\", "\n", " ", "\t", ";", ",", "```",
    "[TOOL_CALLS", "<|", "<\uff5c", "Grüße", "👩\u200d👩\u200d👧", "\u2028", "x", "0", "true", "null",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(MARKUP), min_size=1, max_size=6).map(lambda parts: "".join(parts) + ".")
_ENDS = re.compile(r"</arg_value>\s*(</tool_call>|<arg_key>)|</parameter>\s*(</function>|</invoke>|<parameter)")
"""What ends a value wherever it stands (P4)."""
VALUES = {
    "city": TEXTS.filter(lambda text: not _ENDS.search(text))
    | st.sampled_from(["", "99797", "true", "null", " a ", "1e309"]),
    "days": st.integers(-(2**70), 2**70),
    "limit": st.floats(allow_nan=False, allow_infinity=False),
    "metric": st.booleans(),
    "options": st.dictionaries(
        st.sampled_from("abc"), st.none() | TEXTS | st.lists(st.integers(), max_size=2), max_size=2
    ),
    "hours": st.lists(st.integers(), max_size=3),
}
CALLS = st.fixed_dictionaries({}, optional=VALUES).map(lambda arguments: ("get_weather", arguments)) | st.just(
    ("now", {})
)
NAMED = {"glm45": "glm45", "glm47": "glm47", "kimi_k2": "kimi_k2", "harmony": "harmony"}
"""Formats that have reasoning of their own; the others go with qwen3's."""


def _no_opener(text: str) -> bool:
    return not re.search(r"<tool_call>|\[TOOL_CALLS\]|<\||</?think>", text)


SAID = TEXTS.filter(_no_opener)


@st.composite
def outputs(draw: st.DrawFn, writer: str) -> list[Item]:
    items: list[Item] = []
    for item in draw(st.lists(SAID | CALLS, max_size=4)):
        if items and isinstance(item, str) and isinstance(items[-1], str):
            continue  # neighbouring texts are one
        items.append(item)
    return items


def _pairs(writer: str, examples: int, thorough: bool = True) -> int:
    """Checks that many outputs of a format; gives the number of pairs."""
    count = 0
    parser = output_parser(tool_calls=parser_name(writer), tools=TOOLS)
    name = NAMED.get(parser_name(writer), "qwen3")
    thinking = output_parser(parser_name(writer), name, TOOLS, in_reasoning=True)

    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(items=outputs(writer), thought=SAID, places=st.lists(st.integers(0, 999), max_size=8))
    def each(items: list[Item], thought: str, places: list[int]) -> None:
        nonlocal count
        text = WRITERS[writer](items)
        if writer == "pythonic":
            assume("\u2028" not in text and "\\u2028" not in text)
        parsed = parser.parse(text)
        calls = [item for item in items if isinstance(item, tuple)]
        assert [(name, json.loads(arguments)) for name, arguments in parsed.calls] == calls
        assert parsed.text == said(writer, items)
        cuttings = everywhere(text) if thorough else (at(text, [place]) for place in [*places, 1, -1])
        count += check(parser, text, [*cuttings, at(text, places), by(text, 1), by(text, 4)])
        text = _thought(writer, thought, text)
        parsed = thinking.parse(text)
        assert parsed.reasoning == thought
        assert [(name, json.loads(arguments)) for name, arguments in parsed.calls] == calls
        count += check(thinking, text, [by(text, 1), by(text, 3), at(text, places)])

    each()
    return count


def _thought(writer: str, thought: str, text: str) -> str:
    if writer == "harmony":
        return f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant{text}"
    return f"{thought}</think>{text}"


@pytest.mark.parametrize("writer", WRITERS)
def test_known_calls_in_every_cutting(writer):  # P1 P2 P3 P4 P7
    assert _pairs(writer, 12, thorough=False) > 0


@pytest.mark.ci
@pytest.mark.parametrize("writer", WRITERS)
def test_twenty_thousand_pairs(writer):  # P1
    _reach(writer, 20_000)


def _reach(writer: str, pairs: int) -> None:
    count = 0
    while count < pairs / len(WRITERS):
        count += _pairs(writer, 10 if pairs < 100_000 else 300)
    print(f"{writer}: {count} pairs")


@pytest.mark.nightly
@pytest.mark.parametrize("writer", WRITERS)
def test_a_million_pairs(writer):  # P1
    _reach(writer, 1_000_000)


_DEEPSEEK = [f"<\uff5ctool▁{name}\uff5c>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")]
CHAOS = {
    "hermes": ["<tool_call>", "</tool_call>", "\n", '{"name": "now", "arguments": {"t": "<tool_call>"}}', '{"name": "'],
    "qwen3_coder": [
        "<tool_call>\n", "</tool_call>", "<function=now>", "</function>", "<parameter=a>", "</parameter>", "\n",
        "<function=", "</parameter>\n</function>\n</tool_call>",
    ],
    "glm47": ["<tool_call>", "</tool_call>", "now", "<arg_key>a</arg_key>", "<arg_value>", "</arg_value>", "<arg_key>"],
    "glm45": ["<tool_call>now\n", "</tool_call>", "<arg_key>a</arg_key>\n", "<arg_value>", "</arg_value>\n", "\n"],
    "harmony": [
        "<|start|>", "assistant", "<|channel|>analysis", "<|channel|>final", "<|channel|>commentary to=functions.now",
        "<|constrain|>json", "<|message|>", "<|end|>", "<|call|>", "<|return|>", '{"a": "<|end|>"}', " to=f",
    ],
    "deepseek_v3": [*_DEEPSEEK, "".join(_DEEPSEEK[:2]), "function", "now\n```json\n", "```", "{}", "js", "\n"],
    "deepseek_v31": [*_DEEPSEEK, "".join(_DEEPSEEK[:2]), "now", "{}", "null"],
    "kimi_k2": [
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "functions.now:0",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>", "{}", "[]",
    ],
    "mistral": ["[TOOL_CALLS]", "now", "[ARGS]", "[CALL_ID]", "{}", "[", '{"name": "now"}', ",", "]", " "],
    "minimax_m2": [
        "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="now">', "</invoke>", '<parameter name="a">',
        "</parameter>", "\n", "<invoke name=",
    ],
    "llama3_json": [
        "<|python_tag|>", '{"name": "now", "parameters": {}}', '{"name"', "; ", "\n", "```json\n", "{", "}",
    ],
    "pythonic": ["[", "]", "now(", ")", "a=", "'", '"', '"""', "\\", "\n", ", ", "1", "[now()]", "[now(a='"],
}  # fmt: skip
COMMON = ["<think>", "</think>", "\n", " ", "a", "<", "é", "👩‍👩‍👧", '{"a": [1, ', "}", "\\", '"']


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("format", CHAOS)
def test_chaos_in_every_cutting(format, inside):  # P1 P5 P7
    _chaos(format, inside, 15)


@pytest.mark.ci
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("format", CHAOS)
def test_more_chaos(format, inside):  # P1 P5 P7
    _chaos(format, inside, 400)


def _chaos(format: str, inside: bool, examples: int) -> None:
    reasoning = format if format == "harmony" else "qwen3"
    parser = output_parser(format, reasoning, TOOLS, in_reasoning=inside)
    pieces = st.lists(st.sampled_from(CHAOS[format] * 2 + COMMON), max_size=14).map("".join)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(text=pieces, places=st.lists(st.integers(0, 500), max_size=12))
    def each(text: str, places: list[int]) -> None:
        check(parser, text, [at(text, places), by(text, 1), by(text, 2), by(text, 5)])
        _nothing_is_lost(output_parser(format, tools=TOOLS).parse(text).parts, text)

    each()


def _nothing_is_lost(parts: tuple[Part, ...], text: str) -> None:
    """Up to the first call the text parts are the output's beginning; harmony's headers are no text."""
    first = next((n for n, part in enumerate(parts) if isinstance(part, ToolCall)), len(parts))
    before = "".join(part.text for part in parts[:first] if isinstance(part, Text))
    assert "<|message|>" in text or (text.startswith(before) if first < len(parts) else before == text)


def test_feeding_nothing_is_nothing():
    for writer in WRITERS:
        stream = output_parser(parser_name(writer), tools=TOOLS).stream()
        assert stream.feed("") == [] and stream.finish() == []
        assert read(output_parser(parser_name(writer)), []).parts == ()


@given(value=st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                          lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)),
       places=st.lists(st.integers(0, 500), max_size=4), indent=st.none() | st.integers(0, 2))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_the_scanner_ends_where_json_ends(value, places, indent):
    text = json.dumps([value], indent=indent)
    scanner = JsonScanner()
    assert [scanner.feed(piece, 0) for piece in at(text, places)][-1] and scanner.state == "done"
    scanner = JsonScanner()
    assert scanner.feed(text + "}]", 0) == len(text)


@given(text=st.text(alphabet='{}[]":,\\ ue0-1.atrl\n', max_size=12), places=st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=300, deadline=None)
def test_the_scanner_takes_what_json_takes(text, places):
    scanner, pieces = JsonScanner(), JsonScanner()
    end = scanner.feed("[" + text, 0)
    for piece in at("[" + text, places):
        pieces.feed(piece, 0)
    assert pieces.state == scanner.state
    if scanner.state == "done":
        json.loads(("[" + text)[:end])
    else:
        with pytest.raises(ValueError, match=r"."):
            json.loads("[" + text)
