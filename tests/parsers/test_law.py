"""P1: every way of cutting an output gives the same parts as the whole."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.exchange.parts import Text, ToolCall
from nemo_gym.parsers import Parsed, output_parser
from nemo_gym.parsers.json_scanner import JsonScanner

FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_call>\n",
        "\n</tool_call>",
        "\n",
        " ",
        "Grüße 👩\u200d👩\u200d👧",
        "<",
        "tool",
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": {"t": "<tool_call>"}}',
        '{"name": "',
        '"}',
        "}",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "a",
        '{"a": [1, ',
        "\\",
    ]
)
OUTPUTS = st.lists(FRAGMENTS, max_size=12).map("".join)
PARSERS = [
    output_parser(tool_calls=calls, reasoning=reasoning, in_reasoning=inside)
    for calls in (None, "hermes")
    for reasoning in (None, "qwen3")
    for inside in (None, True)
]


def cut(text, places):
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda p: type(p).__name__)
@given(text=OUTPUTS, places=st.lists(st.integers(0, 500), max_size=12))
@settings(max_examples=150, deadline=None)
def test_every_cutting_gives_the_same_parts(parser, text, places):
    whole = parser.parse(text)
    for pieces in (cut(text, places), list(text)):
        stream = parser.stream()
        parts = [part for piece in pieces for part in stream.feed(piece)]
        assert Parsed.fold([*parts, *stream.finish()]) == whole


@given(text=OUTPUTS)
@settings(max_examples=150, deadline=None)
def test_before_the_first_call_nothing_is_lost(text):
    """Up to the first call, the text parts are the output."""
    parts = output_parser(tool_calls="hermes").parse(text).parts
    first = next((n for n, part in enumerate(parts) if isinstance(part, ToolCall)), len(parts))
    said = "".join(part.text for part in parts[:first] if isinstance(part, Text))
    assert text.startswith(said)
    assert first < len(parts) or said == text


@given(value=st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                          lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)),
       places=st.lists(st.integers(0, 500), max_size=4), indent=st.none() | st.integers(0, 2))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_the_scanner_ends_where_json_ends(value, places, indent):
    text = json.dumps([value], indent=indent)
    scanner = JsonScanner()
    assert [scanner.feed(piece, 0) for piece in cut(text, places)][-1] and scanner.state == "done"
    scanner = JsonScanner()
    assert scanner.feed(text + "}]", 0) == len(text)


@given(text=st.text(alphabet='{}[]":,\\ ue0-1.atrl\n', max_size=12))
@settings(max_examples=500, deadline=None)
def test_the_scanner_takes_what_json_takes(text):
    scanner = JsonScanner()
    end = scanner.feed("[" + text, 0)
    if scanner.state == "done":
        json.loads(("[" + text)[:end])
    else:
        with pytest.raises(ValueError, match=r"."):
            json.loads("[" + text)
