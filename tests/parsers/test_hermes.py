"""Hermes: what is a call, what is text, and what neither view may lose."""

import pytest

from nemo_gym.exchange.parts import Text, ToolCall
from nemo_gym.parsers import output_parser

WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


def parse(text: str, tools=None):
    return output_parser(tool_calls="hermes", tools=tools).parse(text)


def test_text_before_a_call_stays_whole():
    parsed = parse("Let me look.\n" + WEATHER)
    assert parsed.parts == (Text("Let me look.\n"), ToolCall("get_weather", '{"city": "Paris"}'))


def test_text_after_the_first_call_is_not_part_of_the_reply():  # P3
    assert parse(WEATHER + "\nThat was it." + WEATHER + "end").parts == (
        ToolCall("get_weather", '{"city": "Paris"}'),
        ToolCall("get_weather", '{"city": "Paris"}'),
    )


def test_arguments_stay_as_the_model_wrote_them():
    odd = '{ "a":1.0,\t"b" : "\\u00e9\\/",  "c":[ ] }'
    assert parse(f'<tool_call>{{"arguments": {odd}, "name": "f"}}</tool_call>').calls == [("f", odd)]  # P3: key order


@pytest.mark.parametrize("value", ["null", "[]", '""', "0", "false", "{}"])
def test_empty_arguments_become_an_empty_object(value):  # P3
    assert parse(f'<tool_call>{{"name": "f", "arguments": {value}}}</tool_call>').calls == [("f", "{}")]


def test_missing_arguments_and_parameters():  # P3
    assert parse('<tool_call>{"name": "f"}</tool_call>').calls == [("f", "{}")]
    assert parse('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>').calls == [("f", '{"a": 1}')]


def test_an_object_written_as_a_string_is_the_object():
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert parse(text).calls == [("f", '{"a": 1}')]


def test_quoted_tags_are_content():  # P7
    arguments = '{"code": "<tool_call>{}</tool_call> </tool_call>"}'
    assert parse(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>').calls == [("f", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}',
        '<tool_call>\n{"name": "f", "arguments": {"a": ',
        "<tool_call>",
        "<tool_call>\nnot json\n</tool_call> and on",
        '<tool_call>{"name": "f", "arguments": {}}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>[{"name": "f"}]</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        "a </tool_call> b <tool",
    ],
)
def test_markup_that_is_no_call_is_text(text):  # P5
    assert parse(text).parts == (Text(text),)


def test_broken_markup_after_a_call_is_shown():  # P5
    broken = '<tool_call>{"name": "get_weather", "arguments": {"city": </tool_call>'
    assert parse(WEATHER + " so " + broken + " gone").parts == (
        ToolCall("get_weather", '{"city": "Paris"}'),
        Text(broken),
    )


@pytest.mark.parametrize(
    "prefix",
    ['<tool_call>\n{"name": ', '<tool_call>\n{"name": "get_wea', "<tool_call>", '<tool_call>{"name": "x"}\n'],
)
def test_a_restarted_call_is_read_from_the_restart(prefix):  # P5
    assert parse(prefix + WEATHER).parts == (Text(prefix), ToolCall("get_weather", '{"city": "Paris"}'))


def test_a_qualified_name_is_the_declared_tool():  # P6
    assert parse(WEATHER.replace("get_weather", "functions.get_weather"), TOOLS).calls[0][0] == "get_weather"
    assert parse(WEATHER.replace("get_weather", "unheard_of"), TOOLS).calls[0][0] == "unheard_of"


def test_a_call_is_released_when_it_is_complete():  # P2
    stream = output_parser(tool_calls="hermes").stream()
    assert stream.feed("Hi <tool") == [Text("Hi ")]
    assert stream.feed(WEATHER[5:-1]) == []
    assert stream.feed(">" + WEATHER) == [ToolCall("get_weather", '{"city": "Paris"}')] * 2
    assert stream.finish() == []


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match=r"tool_calls: unknown format 'hermse'; expected one of deepseek_v3, "):
        output_parser(tool_calls="hermse")
