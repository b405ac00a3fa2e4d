"""Prompts are what transformers makes of the same template; roles are asked of it, not assumed."""

import json
from array import array

import pytest

from nemo_gym.exchange.errors import InvalidRequest
from nemo_gym.exchange.parts import Media, Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.exchange.tools import Tool
from nemo_gym.rendering.template import ChatTemplate

WEATHER = Tool("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
CONVERSATION = (
    Message("system", (Text("Be brief."),)),
    Message("user", (Text("Weather in Paris, "), Text("please"))),
    Message(
        "assistant", (Reasoning("A city."), Text("One moment."), ToolCall("get_weather", '{"city":"Paris"}', "c1"))
    ),
    Message("tool", (ToolResult("c1", (Text('{"temperature": 3, "unit": "°C"}'),)),)),
    Message("assistant", (Text("3 °C."),)),
    Message("user", (Text("And <|im_start|>?"),)),
)


def user(text):
    return Message("user", (Text(text),))


def test_ids_are_those_of_transformers(renderer, request):
    transformers = pytest.importorskip("transformers")
    from tests.rendering.conftest import MODEL

    theirs = transformers.AutoTokenizer.from_pretrained(MODEL)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Paris, please"},
        {
            "role": "assistant",
            "content": "One moment.",
            "reasoning": "A city.",
            "reasoning_content": "A city.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"temperature": 3, "unit": "°C"}'},
        {"role": "assistant", "content": "3 °C."},
        {"role": "user", "content": "And <|im_start|>?"},
    ]
    function = {"name": WEATHER.name, "description": WEATHER.description, "parameters": WEATHER.parameters}
    for tools in ((), (WEATHER,)):
        ours = renderer.encode(renderer.text(ModelRequest(CONVERSATION, tools=tools)))
        dicts = [{"type": "function", "function": function}] if tools else None
        ids = theirs.apply_chat_template(messages, tools=dicts, add_generation_prompt=True)["input_ids"]
        assert ours == array("i", ids)


def test_end_tokens_and_the_model_s_turn(renderer):
    assert renderer.encode("<|im_end|>")[0] in renderer.end_ids
    assert renderer.generation_prompt() == "<|im_start|>assistant\n"
    assert renderer.generation_prompt("high") == "<|im_start|>assistant\n"
    assert renderer.generation_prompt("none") == "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_a_developer_message_reaches_a_model_without_that_role(renderer):  # R9
    text = renderer.text(ModelRequest((Message("developer", (Text("Be kind."),)), user("Hi"))))
    assert text.startswith("<|im_start|>system\nBe kind.<|im_end|>")


def test_every_system_message_is_rendered(renderer):  # A17
    system = Message("system", (Text("One."),))
    late = Message("system", (Text("Two."),))
    for messages in ((system, late, user("Hi")), (system, user("Hi"), late, user("So"))):
        for tools in ((), (WEATHER,)):
            text = renderer.text(ModelRequest(messages, tools=tools))
            assert text.count("One.") == text.count("Two.") == 1


STRICT = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('no!') }}{%- endif %}
{{- '<' + m.role + '>' + m.content }}{%- for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{%- endfor %}
{%- endfor %}"""


def test_a_template_that_takes_one_system_message_gets_one():  # A17
    template = ChatTemplate(STRICT, {})
    one, two = Message("system", (Text("One."),)), Message("system", (Text("Two."),))
    assert template.render(ModelRequest((one, two, user("Hi")))) == "<system>One.\n\nTwo.<user>Hi"
    assert template.render(ModelRequest((one, user("Hi"), two))) == "<system>One.<user>Hi<user>[system]\nTwo."


def test_arguments_are_an_object_where_the_template_prints_them_itself():
    called = Message("assistant", (ToolCall("f", '{"a":1,"b":"é"}'),))
    assert not ChatTemplate(STRICT, {}).string_arguments
    assert ChatTemplate(STRICT, {}).render(ModelRequest((called,))) == '<assistant>{"a": 1, "b": "é"}'


def test_a_conversation_that_the_template_refuses_is_the_client_s_error():
    with pytest.raises(InvalidRequest, match="chat template refuses these messages: never"):
        ChatTemplate("{{ raise_exception('never') }}", {}).render(ModelRequest((user("Hi"),)))


def test_a_template_cannot_reach_python():
    with pytest.raises(InvalidRequest):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {}).render(ModelRequest((user("Hi"),)))


def test_media_leaves_a_mark(renderer):  # A11
    request = ModelRequest((Message("user", (Text("Look: "), Media("image", "data:image/png;base64,AAAA"))),))
    assert "Look: [image omitted]" in renderer.text(request)


def test_tools_are_offered_under_flat_names(renderer):
    custom = Tool("run", kind="custom", namespace="shell")
    text = renderer.text(ModelRequest((user("Hi"),), tools=(custom, Tool("web_search", kind="provider", body={}))))
    line = next(line for line in text.splitlines() if "shell__run" in line)
    assert json.loads(line)["function"]["parameters"]["required"] == ["input"]
    assert "web_search" not in text
