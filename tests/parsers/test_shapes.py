"""One table of shapes over all formats: what comes out is what was meant, whole and cut at every position."""

from __future__ import annotations

import json

import pytest

from nemo_gym.exchange.parts import Reasoning, Text, ToolCall
from nemo_gym.parsers import output_parser
from tests.parsers.cutting import check, everywhere
from tests.parsers.writers import TOOLS, WRITERS, parser_name, said

PARIS = ("get_weather", {"city": "Paris"})
NOW = ("now", {})
SHAPES = {
    "no call": ["Just text, no call."],
    "no arguments": [NOW],
    "an empty string": [("get_weather", {"city": ""})],
    "falsy arguments": [("get_weather", {"days": 0, "metric": False, "hours": [], "options": {}, "note": None})],
    "unicode": [("get_weather", {"city": "Zürich 東京 👩‍👩‍👧"})],
    "escapes": [("get_weather", {"city": 'a"b\\c/d\ne\tf'})],
    "a backslash at the end": [("get_weather", {"city": "C:\\"})],
    "numbers as strings": [("get_weather", {"city": "99797", "days": 3, "limit": 1.5})],
    "words as strings": [("get_weather", {"city": "true", "metric": True})],
    "nested": [("get_weather", {"options": {"a": [1, {"b": "}]"}], "c": {"d": None}}, "hours": [1, 2]})],
    "big numbers": [("get_weather", {"days": 2**70})],
    "two calls": [PARIS, NOW],
    "three calls": [PARIS, NOW, ("get_weather", {"city": "Rome", "days": 2})],
    "text before": ["Let me look.", PARIS],
    "text between": [PARIS, " and then ", NOW],
    "text after": [PARIS, "That was it."],
    "text all around": ["First, ", PARIS, " second, ", NOW, " done."],
    "an unknown tool": [("unheard_of", {"a": 1})],
    "angle brackets": ["1 < 2 <t", ("get_weather", {"city": "<b>x</b> < <t"})],
    "quoted markup": [
        ("get_weather", {"city": "</tool_call> </arg_value> x </parameter> y [TOOL_CALLS] <|tool_call_end|> ``` ]"})
    ],
    "quoted opener": [("get_weather", {"city": "write <tool_call> or <function= or <|python_tag|> here"})],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("writer", WRITERS)
def test_shapes(writer, shape):  # P1 P2 P3 P4 P5
    items = SHAPES[shape]
    text = WRITERS[writer](items)
    parser = output_parser(tool_calls=parser_name(writer), tools=TOOLS)
    parsed = parser.parse(text)
    called = [(name, json.loads(arguments)) for name, arguments in parsed.calls]
    assert called == [item for item in items if isinstance(item, tuple)]
    assert parsed.text == said(writer, items)
    assert parsed.unknown == [name for name, _ in called if name == "unheard_of"]  # P6
    check(parser, text, everywhere(text))


@pytest.mark.parametrize("writer", WRITERS)
def test_order_is_the_models(writer):
    items = ["First, ", PARIS, " second, ", NOW]
    kinds = [type(part) for part in output_parser(parser_name(writer), tools=TOOLS).parse(WRITERS[writer](items)).parts]
    assert kinds == ([Text, ToolCall, ToolCall] if writer == "hermes" else [Text, ToolCall, Text, ToolCall])


@pytest.mark.parametrize("writer", WRITERS)
def test_a_call_is_released_by_the_piece_that_completes_it(writer):  # P2
    text = WRITERS[writer]([PARIS, NOW])
    parser = output_parser(parser_name(writer), tools=TOOLS)
    stream = parser.stream()
    first = [part for part in stream.feed(text[:-1]) if isinstance(part, ToolCall)]
    rest = [part for part in stream.feed(text[-1]) + stream.finish() if isinstance(part, ToolCall)]
    assert [call.name for call in first + rest] == ["get_weather", "now"]
    stream = parser.stream()
    assert len([part for part in stream.feed(text) if isinstance(part, ToolCall)]) == 2  # all, in one piece
    assert stream.finish() == []


_ENDS = {
    "harmony": 8,
    "kimi_k2": 26,
    "deepseek_v3": 19,
    "deepseek_v31": 19,
    "minimax_m2": 21,
    "mistral (before v11)": 1,
}
"""What follows the end of a call itself: its section's end, or a token that engines leave out of the text."""


@pytest.mark.parametrize("writer", WRITERS)
def test_a_call_cut_at_any_position_is_text(writer):  # P5
    text = "Look: \n" + WRITERS[writer]([PARIS]) if writer != "harmony" else WRITERS[writer](["Look.", PARIS])
    parser = output_parser(parser_name(writer), tools=TOOLS)
    for end in range(len(text) - _ENDS.get(writer, 0)):
        parsed = parser.parse(text[:end])
        assert parsed.calls == []
        assert writer == "harmony" or parsed.text == text[:end]
    assert parser.parse(text).calls == [("get_weather", '{"city": "Paris"}')]


_TAGGED = ("qwen3_coder", "glm45", "glm47", "minimax_m2")
_NAMED_IN_JSON = ("hermes", "mistral (before v11)", "llama3_json (tagged)", "harmony")


@pytest.mark.parametrize("old", ["Paris", '"city"', "city", "get_weather"])
@pytest.mark.parametrize("writer", WRITERS)
def test_malformed_calls_are_text(writer, old):  # P5
    good = WRITERS[writer]([PARIS])
    bad = {"Paris": "Paris'\"\\", '"city"': "'city'", "city": 'ci<ty"', "get_weather": "get weather"}[old]
    if (
        old not in good
        or (old in ("Paris", '"city"') and writer in _TAGGED)
        or (old == "get_weather" and writer in _NAMED_IN_JSON)
    ):
        pytest.skip("well-formed in this format")
    text = good.replace(old, bad)
    parser = output_parser(parser_name(writer), tools=TOOLS)
    assert parser.parse(text).parts == (Text(text),)
    check(parser, text, everywhere(text))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_restarted_call_is_read_from_the_restart(writer):  # P5
    if writer in ("llama3_json", "pythonic", "mistral (before v11)", "llama3_json (tagged)"):
        pytest.skip("a bare call restarts where a line begins: see test_formats")
    good = WRITERS[writer]([PARIS])
    parser = output_parser(parser_name(writer), tools=TOOLS)
    name = good.index("get_weather")
    for cut in (name, name + 3, name + len("get_weather"), good.index("Paris"), good.index("Paris") + 2):
        text = good[:cut] + good
        parsed = parser.parse(text)
        assert parsed.calls == [("get_weather", '{"city": "Paris"}')], text
        if writer != "harmony":
            assert parsed.text == good[:cut]
        check(parser, text, everywhere(text))


@pytest.mark.parametrize("name", ["functions.get_weather", "tools:get_weather", "getweather", "functionsget_weather"])
@pytest.mark.parametrize("writer", ["hermes", "glm47", "qwen3_coder", "kimi_k2", "minimax_m2", "harmony", "mistral"])
def test_a_qualified_name_is_the_declared_tool_and_typed_by_it(writer, name):  # P6
    text = WRITERS[writer]([(name, {"city": "99797", "days": 3})])
    assert output_parser(parser_name(writer), tools=TOOLS).parse(text).calls == [
        ("get_weather", '{"city": "99797", "days": 3}')
    ]


PROSE = [
    'I would call get_weather(city="Paris") here.',
    'You could write {"name": "get_weather", "arguments": {"city": "Paris"}} there.',
    "The <tool_call> tag opens a call, </tool_call> closes it; <function=f> names it.",
    "See [get_weather(city='Paris')] above, or functions.get_weather:0.",
    "Say TOOL_CALLS, [TOOL_CALLS], or [TOOL_CALLS] get weather.",
    'Like so:\n```json\n{"name": "get_weather", "parameters": {}}\n```\n',
    "<tool_call>get_weather is a tool</tool_call>",
]


@pytest.mark.parametrize("prose", PROSE)
@pytest.mark.parametrize("writer", WRITERS)
def test_prose_that_looks_like_a_call_is_text(writer, prose):  # P6
    parser = output_parser(parser_name(writer), tools=TOOLS)
    assert parser.parse(prose).parts == (Text(prose),)
    check(parser, prose, everywhere(prose))


@pytest.mark.parametrize("writer", WRITERS)
def test_without_a_format_of_calls_text_stays_verbatim(writer):  # A10
    text = WRITERS[writer](["a", PARIS, "b"])
    reasoning = "harmony" if writer == "harmony" else "glm47"
    assert output_parser().parse(text).parts == (Text(text),)
    if writer == "harmony":
        call = "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        call += '{"city": "Paris"}<|call|>'
        assert output_parser(reasoning=reasoning).parse(text).parts == (Text("a" + call + "b"),)
    else:
        assert output_parser(reasoning=reasoning).parse("why</think>" + text).parts == (Reasoning("why"), Text(text))
