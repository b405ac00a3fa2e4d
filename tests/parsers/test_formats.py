"""What is peculiar to a format, by its documentation and by what its models write."""

from __future__ import annotations

import pytest

from nemo_gym.exchange.parts import Text, ToolCall
from nemo_gym.parsers import output_parser
from tests.parsers.cutting import check, everywhere
from tests.parsers.writers import TOOLS, deepseek_v3, deepseek_v31, glm47, kimi_k2, qwen3_coder

NOW = ToolCall("now", "{}")
SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
BEGIN, END = "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"
QUOTE = glm47("now", {"a": 1})


def weather(**arguments):
    return ("get_weather", arguments)


CASES = {
    "hermes": [
        ('<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', (ToolCall("now", '{"a": 1}'),)),  # P3
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', (ToolCall("now", '{"a": 1}'),)),
        ('<tool_call>{"name": "now", "arguments": [1]}</tool_call>', (ToolCall("now", "[1]"),)),
        ('<tool_call>{"name": "now", "arguments": "now"}</tool_call>', (ToolCall("now", '"now"'),)),
        ('{"name": "now", "arguments": {}}', (Text('{"name": "now", "arguments": {}}'),)),  # its models write tags
    ],
    "qwen3_coder": [
        ("<function=now>\n</function>", (NOW,)),
        ("a <function=now>\n</function>\n</tool_call> b", (Text("a "), NOW, Text(" b"))),
        ("<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>", (NOW, NOW)),
        ("<tool_call><function=now></function></tool_call>", (NOW,)),
        (qwen3_coder(*weather(city="\n two \n lines\n")),
         (ToolCall("get_weather", '{"city": "\\n two \\n lines\\n"}'),)),
        (qwen3_coder(*weather(city="x\n</parameter>\n</function> and on")),
         (ToolCall("get_weather", '{"city": "x\\n</parameter>\\n</function> and on"}'),)),  # P4
        ("<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n", None),
        ("<tool_call>\n<function=get_weather>\nRome\n</function>\n</tool_call>", None),
        ("the <function=x> tag, </function>", None),
    ],
    "glm47": [
        ("<tool_call>\n now \n</tool_call>", (NOW,)),
        ("<tool_call>now</tool_call>\n<tool_call>now</tool_call>", (NOW, Text("\n"), NOW)),
        (glm47(*weather(city=f"quote {QUOTE} it")), (ToolCall("get_weather", f'{{"city": "quote {QUOTE} it"}}'),)),
        (glm47(*weather(city=f"{QUOTE}{QUOTE}")), (ToolCall("get_weather", f'{{"city": "{QUOTE}{QUOTE}"}}'),)),
        # abandoned inside a value: what is whole in it is what was meant (P5)
        ("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro" + QUOTE + " and " + QUOTE + ".",
         (Text("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro"), ToolCall("now", '{"a": 1}'),
          Text(" and "), ToolCall("now", '{"a": 1}'), Text("."))),
        ("<tool_call>now<arg_key>a</arg_key></tool_call>", None),
        ("<tool_call>now<arg_value>a</arg_value></tool_call>", None),
        ("<tool_call></tool_call>", None),
    ],
    "glm45": [
        ("<tool_call>now\n</tool_call>", (NOW,)),
        ("<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
         (ToolCall("now", '{"a": 1}'),)),
    ],
    "deepseek_v3": [
        (BEGIN + deepseek_v3("now", {}, 0) + END, (NOW,)),
        (BEGIN + deepseek_v3("now", {"a": "```"}, 0) + deepseek_v3("now", {}, 1),
         (ToolCall("now", '{"a": "```"}'), NOW)),
        (BEGIN + deepseek_v3("now", {}, 0).replace("{}", "null") + END, (NOW,)),  # P3
        (BEGIN + "nothing" + END, None),
    ],
    "deepseek_v31": [
        (BEGIN + deepseek_v31("now", {}, 0) + "\n" + deepseek_v31("now", {}, 1) + END + " on", (NOW, NOW, Text(" on"))),
        (BEGIN + deepseek_v31("now", {}, 0).replace("{}", "") + END, (NOW,)),  # P3
    ],
    "kimi_k2": [
        (SECTION[0] + kimi_k2("now", {}, 3) + SECTION[1], (ToolCall("now", "{}", "functions.now:3"),)),
        (kimi_k2("now", {}, 0), (ToolCall("now", "{}", "functions.now:0"),)),  # no section
        (kimi_k2("now", {}, 0).replace("functions.now:0", "now"), (NOW,)),
        (SECTION[0] + kimi_k2("now", {}, 0).replace("{}", "[]") + SECTION[1],
         (ToolCall("now", "{}", "functions.now:0"),)),
        (SECTION[0] + "<|tool_call_begin|>oops<|tool_call_end|>" + kimi_k2("now", {}, 1) + SECTION[1] + "b",
         (Text(SECTION[0] + "<|tool_call_begin|>oops<|tool_call_end|>"), ToolCall("now", "{}", "functions.now:1"),
          Text("b"))),
        (SECTION[0] + SECTION[1], None),
    ],
    "mistral": [
        ('[TOOL_CALLS]now{"a": 1}', (ToolCall("now", '{"a": 1}'),)),
        ('[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{"a": 1}', (ToolCall("now", '{"a": 1}', "abc123def"),)),
        ('[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abc"}]', (ToolCall("now", "{}", "abc"),)),
        ('[TOOL_CALLS]{"name": "now", "arguments": null}', (NOW,)),
        ('[TOOL_CALLS][{"name": "now"}, {"name": }]', (NOW, Text(', {"name": }]'))),
        ("[TOOL_CALLS]now", None),
    ],
    "minimax_m2": [
        ('<invoke name="now"></invoke>', (NOW,)),
        ("<minimax:tool_call><invoke name='now'></invoke></minimax:tool_call>", (NOW,)),
        ('<minimax:tool_call>\n<invoke name="now">\n</invoke>\n</minimax:tool_call> b', (NOW, Text(" b"))),
        ("<minimax:tool_call></minimax:tool_call>", None),
    ],
    "llama3_json": [
        ('{"name": "now", "parameters": {}}', (NOW,)),
        ('{"type": "function", "name": "now", "arguments": {"a": 1}}', (ToolCall("now", '{"a": 1}'),)),
        ('Sure:\n  {"name": "now", "parameters": {}}', (Text("Sure:\n  "), NOW)),
        ('{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}', (NOW, NOW)),
        ('<|python_tag|>{"name": "now", "parameters": {}}', (NOW,)),
        ('<|python_tag|>print(1)', None),
        ('{"name": "Bob", "age": 3}', None),
        ('{"name": "Bob"}', None),
        ('{"name": "Bob Smith", "parameters": {}}', None),
        ('{"items": [\n{"name": "Bob", "age": 3}]}', None),
        ('{"name": "Bob", "parameters": {}, "items": [\n{"name": "now", "parameters": {}}]}', None),
        ('{"name": "now", "parameters": [\n{"name": "now", "parameters": {}}, !', (
            Text('{"name": "now", "parameters": [\n'), NOW, Text(", !"))),  # P5
        ('{"name": "now", "parame\n{"name": "now", "parameters": {}}', (Text('{"name": "now", "parame\n'), NOW)),  # P5
    ],
    "pythonic": [
        ("[now()]", (NOW,)),
        ("[now(), now(a=1)]", (NOW, ToolCall("now", '{"a": 1}'))),
        ("[now(a={'b': [1, None, True]}, c='it\\'s', d=\"\\u00e9\")]",
         (ToolCall("now", '{"a": {"b": [1, null, true]}, "c": "it\'s", "d": "é"}'),)),
        ("[now(a=true, b=null)]", (ToolCall("now", '{"a": true, "b": null}'),)),
        ("[now(a='two\nlines')]", (ToolCall("now", '{"a": "two\\nlines"}'),)),
        ("[now(class='x', a=-1)]", (ToolCall("now", '{"class": "x", "a": -1}'),)),
        ("[now(a=1, a=2)]", (ToolCall("now", '{"a": 1}'),)),
        ("[a.b.now(a=(1, 2))]", (ToolCall("now", '{"a": [1, 2]}'),)),
        ("[now(a={1})]", None),
        ("[now(**{'a': 1})]", None),
        ("[now(a=1), 2]", None),
        ("[now(a=[1, 2)]", None),
        ("[now(a=b)]", None),
        ("[now(1)]", None),
        ("[1, 2]", None),
        ("[text](link)", None),
        ("[now(a=1)\n[now()]", (Text("[now(a=1)\n"), NOW)),  # P5
        ("[now(a=\n[now" + " " * 20 + "()]", (Text("[now(a=\n"), NOW)),  # P5
        ("[now(a=\\'b')]", None),
        (
            "[now(a='''b\\'''c\n''', d=null, e='e\nf')]",
            (ToolCall("now", r"""{"a": "b'''c\n", "d": null, "e": "e\nf"}"""),),
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "parts"), [(name, *case) for name, cases in CASES.items() for case in cases])
def test_formats(name, text, parts):  # P1
    parser = output_parser(name, tools=TOOLS)
    assert parser.parse(text).parts == (parts if parts is not None else (Text(text),))
    check(parser, text, everywhere(text))


def test_names_that_mean_one_format():
    text = glm47("now", {})
    assert {output_parser(name).parse(text).parts for name in ("glm", "glm45", "glm47", "glm_moe_dsa")} == {(NOW,)}


@pytest.mark.parametrize("tools", [TOOLS, [tool["function"] for tool in TOOLS]])
def test_an_unknown_tool_is_kept_and_marked(tools):  # P6
    parsed = output_parser("glm47", tools=tools).parse(glm47("now", {}) + glm47("other", {"a": "b"}))
    assert parsed.calls == [("now", "{}"), ("other", '{"a": "b"}')]
    assert parsed.unknown == ["other"]
    assert output_parser("glm47").parse(glm47("other", {})).unknown == []  # nothing is declared, so nothing unknown


def test_an_unknown_reasoning_format_is_refused():
    with pytest.raises(ValueError, match="reasoning: unknown format 'qwen'; expected one of deepseek_r1"):
        output_parser(reasoning="qwen")
