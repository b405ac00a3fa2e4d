"""Where reasoning begins and ends."""

import pytest

from nemo_gym.exchange.parts import Reasoning, Text, ToolCall
from nemo_gym.parsers import output_parser
from tests.parsers.cutting import check, everywhere
from tests.parsers.writers import TOOLS, WRITERS, parser_name

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


@pytest.mark.parametrize(
    ("name", "inside"),
    [("qwen3", False), ("glm45", False), ("deepseek_r1", True), ("glm47", True), ("glm", True), ("kimi_k2", True),
     ("nemotron_v3", True)],
)  # fmt: skip
def test_where_each_format_begins(name, inside):  # P7
    assert output_parser(reasoning=name).parse("why</think>so").reasoning == ("why" if inside else "")
    assert output_parser(reasoning=name).parse("<think>why</think>so").parts == (Reasoning("why"), Text("so"))
    assert output_parser(reasoning=name, in_reasoning=False).parse("so").parts == (Text("so"),)  # thinking disabled
    assert output_parser(reasoning=name, in_reasoning=True).parse("why").parts == (Reasoning("why"),)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        # a call ends the block; the block's own end, when it comes late, is dropped
        ("why" + CALL, (Reasoning("why"), CALLED)),
        ("why" + CALL + "</think>so", (Reasoning("why"), CALLED, Text("so"))),
        ("why" + CALL + "so</think>on", (Reasoning("why"), CALLED, Text("so</think>on"))),
        # what only looks like one does not
        ("use <tool_call> tags</think>so", (Reasoning("use <tool_call> tags"), Text("so"))),
        ("<tool_call>{no}</think>so", (Reasoning("<tool_call>{no}"), Text("so"))),
        # a call that never ends was one that was begun
        ("why<tool_call>", (Reasoning("why"), Text("<tool_call>"))),
        ('why<tool_call>f{"name": "f', (Reasoning("why"), Text('<tool_call>f{"name": "f'))),
        ("why[TOOL_CA", (Reasoning("why[TOOL_CA"),)),
        # closed twice, opened again
        ("why</think></think>so", (Reasoning("why"), Text("so"))),
        ("why</think>\n</think>so", (Reasoning("why"), Text("\nso"))),
        ("why</think><think>so", (Reasoning("why"), Text("<think>so"))),
        ("why</think>so</think>\n\n" + CALL, (Reasoning("why"), Text("so\n\n"), CALLED)),
        ("why</think>so</think>on" + CALL, (Reasoning("why"), Text("so</think>on"), CALLED)),
        (CALL + "<think>so</think>", (CALLED, Text("<think>so</think>"))),
        ("", ()),
        ("</think>", ()),
    ],
)
def test_calls_and_tags_inside_reasoning(text, parts):  # P1 P7
    parser = output_parser("mistral", "glm47")  # it keeps what is said after a call

    def written(text):
        return text.replace(CALL, '[TOOL_CALLS]f{"x": "</think>"}').replace("<tool_call>", "[TOOL_CALLS]")

    parts = tuple(part if isinstance(part, ToolCall) else type(part)(written(part.text)) for part in parts)
    assert parser.parse(written(text)).parts == parts
    check(parser, written(text), everywhere(written(text)))


@pytest.mark.parametrize("name", [None, "hermes", "pythonic", "llama3_json", "glm47"])
def test_a_closing_tag_amid_the_text_is_text(name):  # P7
    assert parse("so </think> on", tool_calls=name) == (Text("so </think> on"),)
    assert parse("so </think>", tool_calls=name) == (Text("so </think>"),)


@pytest.mark.parametrize("writer", [writer for writer in WRITERS if writer != "harmony"])
def test_a_call_inside_of_reasoning_ends_it_and_its_arguments_may_quote_the_tags(writer):  # P7
    call = ("get_weather", {"city": "</think> <think>"})
    parser = output_parser(parser_name(writer), "deepseek_r1", TOOLS)
    text = "why\n" + WRITERS[writer]([call])
    if writer in ("llama3_json", "pythonic"):  # bare calls are none inside a block
        assert parser.parse(text).calls == []
        text = "why</think>\n" + WRITERS[writer]([call])
    parsed = parser.parse(text)
    assert [part for part in parsed.parts if isinstance(part, ToolCall)] == [
        ToolCall("get_weather", '{"city": "</think> <think>"}', parsed.parts[-1].call_id)
    ]
    assert parsed.reasoning.strip() == "why"
    check(parser, text, everywhere(text))
