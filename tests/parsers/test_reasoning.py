"""Where reasoning begins and ends."""

import pytest

from nemo_gym.exchange.parts import Reasoning, Text, ToolCall
from nemo_gym.parsers import output_parser

CALL = '<tool_call>{"name": "f", "arguments": {"x": "</think>"}}</tool_call>'
CALLED = ToolCall("f", '{"x": "</think>"}')


def parse(text, in_reasoning=None, tool_calls="hermes"):
    return output_parser(tool_calls=tool_calls, reasoning="qwen3", in_reasoning=in_reasoning).parse(text).parts


@pytest.mark.parametrize(
    ("text", "in_reasoning", "parts"),
    [
        ("<think>\nwhy\n</think>\n\nso", None, (Reasoning("\nwhy\n"), Text("\n\nso"))),
        ("why</think>so", True, (Reasoning("why"), Text("so"))),
        ("<think>why</think>so", True, (Reasoning("why"), Text("so"))),
        ("never ends", True, (Reasoning("never ends"),)),
        ("plain", None, (Text("plain"),)),
        ("plain", False, (Text("plain"),)),
        ("<think>why" + CALL, None, (Reasoning("why"), CALLED)),
        ("<think>why</think>" + CALL, None, (Reasoning("why"), CALLED)),
        ("</think>so", None, (Text("so"),)),
        ("\n</think>\n\nso", False, (Text("\n\n\nso"),)),
        ("so </think>\n" + CALL, None, (Text("so \n"), CALLED)),
        ("so </think> on", None, (Text("so </think> on"),)),
        ("so </think>", None, (Text("so </think>"),)),
        ("so <think> on", None, (Text("so <think> on"),)),
        ("<think>a</think>b<think>c</think>", None, (Reasoning("a"), Text("b<think>c</think>"))),
        ("<think>a<think>b</think>c", None, (Reasoning("a<think>b"), Text("c"))),
        ("<think></think>a", None, (Text("a"),)),
    ],
)
def test_blocks(text, in_reasoning, parts):  # P7
    assert parse(text, in_reasoning) == parts


def test_without_a_format_of_calls_their_markup_is_text():  # A10
    assert parse("<think>a</think>" + CALL, tool_calls=None) == (Reasoning("a"), Text(CALL))
    assert parse("<think>a" + CALL[:11], tool_calls=None) == (Reasoning("a<tool_call>"),)


def test_no_reasoning_is_lost_when_one_piece_holds_its_end_and_the_answer():  # R30
    stream = output_parser(tool_calls="hermes", reasoning="qwen3", in_reasoning=True).stream()
    assert stream.feed("a b</thi") == [Reasoning("a b")]
    assert stream.feed("nk>c" + CALL) == [Text("c"), CALLED]
