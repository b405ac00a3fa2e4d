"""The next prompt begins with the earlier ids, whatever the client made of the turn; else the record says why."""

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.exchange.call import Prior
from nemo_gym.exchange.parts import Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.exchange.tools import Tool
from nemo_gym.rendering.continuation import render

TOOL = Tool("get_weather", "", {"type": "object", "properties": {}})
ASK = Message("user", (Text("Weather in Paris?"),))
RESULT = Message("tool", (ToolResult("c1", (Text("sunny"),)),))
CALL = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Paris"}}\n</tool_call>'
CALLED = Message("assistant", (ToolCall("get_weather", '{"city": "Paris"}', "c1"),))


def turn(renderer, written, messages=(ASK,)):
    """The first turn's request and the tokens of prompt and completion."""
    request = ModelRequest(messages, tools=(TOOL,))
    return request, render(renderer, request, None).ids + renderer.encode(written)


def continued(renderer, tokens, request, *messages, exact=True):
    whole = ModelRequest((*request.messages, *messages), tools=request.tools)
    return render(renderer, whole, Prior("p", tokens, len(request.messages) + 1), exact=exact)


@pytest.mark.parametrize(
    ("written", "turn_message"),
    [
        (CALL + "<|im_end|>", CALLED),  # re-serialised
        ("<think>\nHm.\n</think>\n\n" + CALL + "<|im_end|>", CALLED),  # reasoning dropped
        ("Well, " + CALL + "<|im_end|>", CALLED),  # text dropped
        (CALL, CALLED),  # cut before its end token
        ("Sun", Message("assistant", (Text("Sun"),))),
    ],
)
def test_what_a_client_rewrites_does_not_matter(renderer, written, turn_message):
    request, tokens = turn(renderer, written)
    rendered = continued(renderer, tokens, request, turn_message, RESULT)
    assert rendered.history == "exact"
    assert rendered.prefix_break is None
    assert rendered.ids[: len(tokens)] == tokens
    tail = renderer.decode(rendered.ids[len(tokens) :]).removeprefix("<|im_end|>")
    assert tail == "\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_a_turn_that_the_client_left_out_is_kept(renderer, joined, ended):
    request, tokens = turn(renderer, "<think>\nHm.\n</think>\n\n" + "<|im_end|>" * ended)
    go_on = Message("user", (Text("Well?"),))
    later = (Message("user", (*ASK.parts, *go_on.parts)),) if joined else (ASK, go_on)
    seam = (0, 1) if joined else (1, 0)
    prior = Prior("p", tokens, seam[0], True, 0, True, seam[1])
    asked = ModelRequest(later, tools=request.tools)
    rendered = render(renderer, asked, prior)
    assert (rendered.history, rendered.prefix_break) == ("exact", None)
    assert rendered.ids[: len(tokens)] == tokens
    tail = renderer.decode(rendered.ids[len(tokens) :]).removeprefix("<|im_end|>")
    assert tail == "\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    anew = render(renderer, asked, prior, exact=False)
    assert (anew.history, anew.prefix_break[1]) == ("template", "reasoning_dropped")


def test_context_that_moved_is_no_foreign_history(renderer):
    request, tokens = turn(renderer, "Sun<|im_end|>", (ASK, Message("user", (Text("<context>"),))))
    answer = Message("assistant", (Text("Sun"),))
    rendered = render(
        renderer, ModelRequest((ASK, answer, *request.messages[1:]), tools=(TOOL,)), Prior("p", tokens, 0)
    )
    position, cause = rendered.prefix_break
    assert (rendered.history, cause) == ("template", "compaction")
    assert rendered.ids[:position] == tokens[:position]
    assert renderer.decode(tokens[:position]).endswith("Paris?<|im_end|>\n<|im_start|>")


def test_an_odd_tokenisation_is_kept(renderer):
    request, _ = turn(renderer, "")
    prompt = render(renderer, request, None).ids
    letters = array("i", [i for char in "Sunny today" for i in renderer.encode(char)])
    tokens = prompt + letters + renderer.encode("<|im_end|>")
    answer = Message("assistant", (Text("Sunny today"),))
    rendered = continued(renderer, tokens, request, answer, ASK)
    assert rendered.ids[: len(tokens)] == tokens
    broken = continued(renderer, tokens, request, answer, ASK, exact=False)
    assert broken.history == "template"
    assert len(prompt) <= broken.prefix_break[0] < len(tokens)
    assert broken.prefix_break[1] == "neighbouring_tokens"


def test_history_template_tells_where_and_why_it_breaks(renderer):
    request, tokens = turn(renderer, CALL + "<|im_end|>")
    rendered = continued(renderer, tokens, request, CALLED, RESULT, exact=False)
    assert rendered.history == "template"
    position, cause = rendered.prefix_break
    assert cause == "arguments_reserialised"
    assert rendered.ids[:position] == tokens[:position]
    assert rendered.ids[position] != tokens[position]
    thought, tokens = turn(renderer, "<think>\nHm.\n</think>\n\n" + CALL + "<|im_end|>")
    assert continued(renderer, tokens, thought, CALLED, RESULT, exact=False).prefix_break[1] == "reasoning_dropped"


def test_a_turn_with_another_end_is_not_continued(renderer):
    request, tokens = turn(renderer, "Sun<|endoftext|>")
    rendered = continued(renderer, tokens, request, Message("assistant", (Text("Sun"),)), ASK)
    assert (rendered.history, rendered.prefix_break[1]) == ("template", "template_boundary")


def test_a_turn_that_is_not_the_model_s_is_foreign(renderer):
    request, tokens = turn(renderer, "Sun<|im_end|>")
    rendered = continued(renderer, tokens, request, ASK, ASK)
    assert (rendered.history, rendered.prefix_break[1]) == ("template", "foreign_history")


def test_a_first_call_has_no_break(renderer):
    rendered = render(renderer, ModelRequest((ASK,)), None)
    assert (rendered.history, rendered.prefix_break) == ("template", None)


WORDS = st.text(alphabet="ab <>/{}\"':\\\né中", max_size=20)


@given(
    written=WORDS,
    said=WORDS,
    reasoning=WORDS,
    arguments=st.sampled_from(["{}", '{"a":1}', '{"b": "<|im_end|>"}']),
    called=st.booleans(),
    ended=st.booleans(),
    new=st.lists(st.tuples(st.sampled_from(["user", "tool", "system"]), WORDS), min_size=1, max_size=3),
    tools=st.booleans(),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_prefix_is_exact_and_the_new_turn_is_the_template_s(
    renderer, written, said, reasoning, arguments, called, ended, new, tools
):
    request = ModelRequest((ASK,), tools=(TOOL,) if tools else ())
    end = renderer.encode("<|im_end|>") if ended else array("i")
    tokens = renderer.encode(renderer.text(request)) + renderer.encode(written) + end
    parts = [Text(said)] + [Reasoning(reasoning)] * bool(reasoning)
    parts += [ToolCall("f", arguments, "c")] * called
    later = [
        Message(role, (ToolResult("c", (Text(text),)),) if role == "tool" else (Text(text),)) for role, text in new
    ]
    rendered = continued(renderer, tokens, request, Message("assistant", tuple(parts)), *later)
    assert rendered.history == "exact"
    assert rendered.ids[: len(tokens)] == tokens
    full = renderer.text(ModelRequest((ASK, Message("assistant", tuple(parts)), *later), tools=request.tools))
    behind = renderer.decode(rendered.ids[len(tokens) :])
    assert full.endswith(behind)
    assert behind.removeprefix("<|im_end|>").startswith("\n<|im_start|>")
