"""A forced call is what its format's parser reads, a schema leaves room for reasoning; the grammars say so."""

from __future__ import annotations

import json

import pytest

from nemo_gym.backends.guides import WRITTEN, forces, guide
from nemo_gym.exchange.parts import Message, Text
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.exchange.tools import Tool
from nemo_gym.parsers import output_parser
from nemo_gym.parsers.reasoning import BLOCKS
from nemo_gym.rendering.conversation import tool_dicts

pytest.importorskip("xgrammar")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool("get_weather", "", CITY), Tool("get_time", "", CITY))
ASKED = (Message("user", (Text("Hi"),)),)
ARGUMENTS = {
    "json": '{"city": "Oslo"}',
    "qwen_xml": "<parameter=city>Oslo</parameter>",
    "glm_xml": "<arg_key>city</arg_key><arg_value>Oslo</arg_value>",
    "minimax_xml": '<parameter name="city">Oslo</parameter>',
}


def accepts(told: dict, text: str) -> bool:
    from xgrammar import Grammar
    from xgrammar.testing import _is_grammar_accept_string

    return _is_grammar_accept_string(Grammar.from_structural_tag(told["structural_tag"]), text)


def call(name: str, tool: str) -> str:
    written = WRITTEN[name]
    return written.begin % tool + ARGUMENTS[written.style] + written.end


def forced(name: str, choice, block=None, inside=None, **more):
    request = ModelRequest(ASKED, tools=TOOLS, tool_choice=choice, **more)
    return guide(request, name, None if block is None else BLOCKS[block], inside)


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_what_is_forced_is_what_the_parser_reads(name):  # A10
    before, after = WRITTEN[name].around
    one, other = call(name, "get_weather"), call(name, "get_time")
    text = before + one + after
    assert accepts(forced(name, "required"), text)
    parsed = output_parser(tool_calls=name, tools=tool_dicts(TOOLS)).parse(text)
    assert [(tool, json.loads(arguments)) for tool, arguments in parsed.calls] == [("get_weather", {"city": "Oslo"})]
    assert parsed.text == ""
    two = before + one + WRITTEN[name].between + other + after
    assert accepts(forced(name, "required"), two)
    assert not accepts(forced(name, "required", parallel_tool_calls=False), two)
    assert not accepts(forced(name, TOOLS[1]), text)
    assert accepts(forced(name, TOOLS[1]), before + other + after)
    assert not accepts(forced(name, "required"), "Hello.")


@pytest.mark.parametrize(
    ("block", "inside", "text", "good"),
    [
        ("qwen3", None, "<think>Hm.</think>\n\n{call}", True),
        ("qwen3", None, "{call}", True),
        ("qwen3", True, "Hm.</think>\n{call}", True),
        ("qwen3", True, "{call}", False),
        ("qwen3", False, "{call}", True),
        ("qwen3", False, "<think>Hm.</think>{call}", False),
        ("deepseek_r1", None, "Hm.</think>{call}", True),
    ],
)
def test_reasoning_may_come_first(block, inside, text, good):
    told = forced("hermes", "required", block, inside)
    assert accepts(told, text.replace("{call}", call("hermes", "get_weather"))) is good


def test_a_schema_waits_for_the_reasoning_to_end():  # R13
    request = ModelRequest(ASKED, output_schema=CITY)
    assert guide(request, None, None, None) == {"json": CITY}
    assert guide(ModelRequest(ASKED, output_schema={}), None, None, None) == {"json_object": True}
    assert guide(ModelRequest(ASKED), "hermes", BLOCKS["qwen3"], None) is None
    told = guide(request, None, BLOCKS["qwen3"], None)
    assert accepts(told, '<think>Hm.</think>\n\n{"city": "Oslo"}')
    assert accepts(told, '{"city": "Oslo"}')
    assert not accepts(told, '<think>Hm.</think>\n\n{"town": 1}')


def test_what_is_not_forced_is_left_alone():
    for choice in ("auto", "none"):
        assert forced("hermes", choice) is None
    assert forced("pythonic", "required") is None
    assert (forces("hermes"), forces("pythonic"), forces(None)) == (True, False, False)
