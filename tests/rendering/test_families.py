"""Families of the renderers package: which one is a folder's is asked; each bridges from the tokens as they were."""

import json
import shutil
from array import array

import pytest

from nemo_gym.exchange.call import Prior
from nemo_gym.exchange.parts import Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.exchange.tools import Tool
from nemo_gym.rendering.continuation import render
from nemo_gym.rendering.renderer import TemplateRenderer, renderer
from tests.rendering.conftest import MODEL

pytest.importorskip("renderers")
pytest.importorskip("tokenizers")

from nemo_gym.rendering.families import Family

TOOL = Tool("get_weather", "Weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
ASK = Message("user", (Text("Weather in Paris?"),))
CALLED = Message("assistant", (ToolCall("get_weather", '{"city": "Paris"}', "c1"),))
RESULT = Message("tool", (ToolResult("c1", (Text("sunny"),)),))
ANSWERED = Message("assistant", (Text("Sunny."),))
QWEN3 = """{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with \
function signatures within <tools></tools> XML tags:\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\
\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- elif loop.index0 > ns.last and loop.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{{- m.content }}
{%- for call in m.tool_calls or [] %}
{%- if not loop.first or m.content %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}
"""


def folder_with(tmp_path, template):
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (MODEL / name).exists():
            shutil.copy(MODEL / name, tmp_path / name)
    (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


def turn(model, written, *messages):
    """A request and the prior that a reply to it makes; `written` is what the model wrote, its end included."""
    request = ModelRequest(messages, tools=(TOOL,))
    prompt = model.ids(request)
    return request, Prior("p", prompt + model.encode(written), len(messages) + 1, prompt=len(prompt))


def test_a_template_in_qwen3_s_words_is_of_its_family(tmp_path):
    model = renderer(folder_with(tmp_path, QWEN3))
    assert isinstance(model, Family)
    assert model.name == "qwen3"
    request, prior = turn(
        model,
        '<think>\nHm.\n</think>\n\n<tool_call>\n{"name":"get_weather","arguments":{}}\n</tool_call><|im_end|>',
        ASK,
    )
    rendered = render(model, ModelRequest((*request.messages, CALLED, RESULT), tools=(TOOL,)), prior)
    assert (rendered.history, rendered.prefix_break) == ("exact", None)
    assert rendered.ids[: len(prior.tokens)] == prior.tokens
    behind = model.decode(rendered.ids[len(prior.tokens) :])
    assert behind == "\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_any_other_template_is_no_family_s(tmp_path):
    text = (MODEL / "chat_template.jinja").read_text().replace("<|im_start|>", "<|im_start|>  ")
    assert isinstance(renderer(folder_with(tmp_path, text)), TemplateRenderer)
    assert isinstance(renderer(folder_with(tmp_path, QWEN3), family="template"), TemplateRenderer)


def test_an_unknown_family_is_refused_by_name():
    with pytest.raises(ValueError, match=r"renderer: no family is named 'qwen9'; expected auto, .*glm-5, .*qwen3, "):
        renderer(MODEL, family="qwen9")
    with pytest.raises(ValueError, match="renderer: no family is named 'default'"):
        renderer(MODEL, family="default")
    with pytest.raises(ValueError, match=r"renderer: the tokenizer in \S+ is not one of glm-5: .*gMASK"):
        renderer(MODEL, family="glm-5")


def test_a_family_that_is_named_renders_all(tmp_path, caplog):
    text = QWEN3.replace("<|im_start|>", "<|im_start|> ")
    model = renderer(folder_with(tmp_path, text), family="qwen3")
    assert "renderer: qwen3 renders otherwise than the chat template" in caplog.text
    assert model.text(ModelRequest((ASK,))).startswith("<|im_start|>user\nWeather in Paris?<|im_end|>\n")
    caplog.clear()
    renderer(folder_with(tmp_path, QWEN3), family="qwen3")
    assert not caplog.text


GLM = """[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <|endoftext|> <think> </think> <tool_call>
</tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> </arg_value> /nothink"""


@pytest.fixture(scope="module")
def glm(tmp_path_factory):
    """A tokenizer of the kind: GLM's special tokens over bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in GLM.split()])
    folder = tmp_path_factory.mktemp("glm")
    made.save(str(folder / "tokenizer.json"))
    ends = [made.token_to_id(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    (folder / "config.json").write_text(json.dumps({"model_type": "glm4_moe", "eos_token_id": ends}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


CALL = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"


@pytest.mark.parametrize("family", ["glm-4.5", "glm-5"])
@pytest.mark.parametrize(
    ("written", "said", "later"),
    [
        ("<think>Hm.</think>\n" + CALL + "<|observation|>", CALLED, RESULT),
        ("<think></think>\nSunny.<|user|>", ANSWERED, ASK),
        ("<think>Hm.</think>\nSunny.<|endoftext|>", Message("assistant", (Reasoning("Hm."), Text("Sunny."))), ASK),
        ("<think>Hm", Message("assistant", (Reasoning("Hm"),)), ASK),  # cut
    ],
)
def test_glm_goes_on_from_whatever_ended_its_turn(glm, family, written, said, later):
    model = renderer(glm, family=family)
    if model.generation_prompt().endswith("<think>"):
        written = written.removeprefix("<think>")
    request, prior = turn(model, written, ASK)
    rendered = render(model, ModelRequest((*request.messages, said, later), tools=(TOOL,)), prior)
    whole = model.decode(rendered.ids)
    assert (rendered.history, rendered.prefix_break) == ("exact", None), whole
    assert rendered.ids[: len(prior.tokens)] == prior.tokens
    behind = model.decode(rendered.ids[len(prior.tokens) :])
    assert ("sunny" if later is RESULT else "Weather in Paris?") in behind
    assert behind.endswith(model.generation_prompt())
    # The end of a turn is the head of the next one: it stands there once.
    assert whole.count("<|observation|>") == (later is RESULT)


class Harmony:
    """gpt-oss's own vocabulary, as vLLM brings it."""

    def __init__(self):
        from openai_harmony import HarmonyEncodingName, load_harmony_encoding

        from nemo_gym.parsers.tokens import harmony_vocabulary

        self._encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        self.added = dict(harmony_vocabulary().special)
        self.end_ids = frozenset(self.added[token] for token in ("<|return|>", "<|call|>"))

    def encode(self, text):
        return array("i", self._encoding.encode(text, allowed_special="all"))

    def decode(self, ids):
        return str(self._encoding.decode(list(ids)))


@pytest.mark.parametrize(
    ("written", "said", "later"),
    [
        (
            "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather"
            ' <|constrain|>json<|message|>{"city":"Paris"}<|call|>',
            CALLED,
            RESULT,
        ),
        ("<|channel|>final<|message|>Sunny.<|return|>", ANSWERED, ASK),
        ("<|channel|>final<|message|>Sun", Message("assistant", (Text("Sun"),)), ASK),  # cut
    ],
)
def test_gpt_oss_goes_on_with_its_real_vocabulary(written, said, later):
    pytest.importorskip("openai_harmony")
    try:
        tokenizer = Harmony()
    except Exception as error:  # the package that downloads it, and nothing to download it from
        pytest.skip(f"no vocabulary of harmony: {error}")
    model = Family("gpt-oss", tokenizer, None)
    assert model.generation_prompt() == "<|start|>assistant"
    request, prior = turn(model, written, ASK)
    assert "get_weather" in model.decode(prior.tokens[: prior.prompt])
    rendered = render(model, ModelRequest((*request.messages, said, later), tools=(TOOL,)), prior)
    assert (rendered.history, rendered.prefix_break) == ("exact", None)
    assert rendered.ids[: len(prior.tokens)] == prior.tokens
    behind = model.decode(rendered.ids[len(prior.tokens) :])
    assert ("sunny" if later is RESULT else "Weather in Paris?") in behind
    assert behind.endswith("<|start|>assistant")
