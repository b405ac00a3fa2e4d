"""Harmony: by its documentation's examples, and held against the `openai-harmony` package."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.exchange.parts import Reasoning, Text, ToolCall
from nemo_gym.parsers import Parsed, harmony_vocabulary, output_parser, reasoning_tokens
from tests.parsers.cutting import by, check, everywhere
from tests.parsers.writers import TOOLS

PARSER = output_parser("harmony", "harmony", TOOLS)
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Tokyo"}'
CALLED = ToolCall("get_weather", '{"city": "Tokyo"}')
NEXT = "<|start|>assistant"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<|channel|>analysis<|message|>Think.<|end|>" + NEXT + CALL + "<|call|>", (Reasoning("Think."), CALLED)),
        ("<|channel|>analysis<|message|>A.<|end|>" + NEXT + "<|channel|>final<|message|>B.<|return|>",
         (Reasoning("A."), Text("B."))),
        # a preamble is text, and the recipient may stand before the channel
        ("<|channel|>commentary<|message|>First.<|end|>" + NEXT + CALL + "<|call|>", (Text("First."), CALLED)),
        (' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Tokyo"}<|call|>', (CALLED,)),
        (' to=functions.get_weather<|channel|>analysis<|message|>{"city": "Tokyo"}<|call|>', (CALLED,)),
        # two calls; the end token is left out of the text, or the next message follows without one
        (CALL + "<|call|>" + NEXT + CALL, (CALLED, CALLED)),
        (CALL + NEXT + CALL + "<|end|>", (CALLED, CALLED)),
        (CALL + " \n", (CALLED,)),
        (CALL.replace('{"city": "Tokyo"}', "") + "<|call|>", (ToolCall("get_weather", "{}"),)),
        (CALL.replace("Tokyo", "<|call|><|end|>") + "<|call|>",
         (ToolCall("get_weather", '{"city": "<|call|><|end|>"}'),)),
        # built-in tools take no JSON
        ("<|channel|>analysis to=python code<|message|>print(1)<|call|>", (ToolCall("python", "print(1)"),)),
        # never closed
        ("<|channel|>analysis<|message|>Never closed", (Reasoning("Never closed"),)),
        ("<|channel|>final<|message|>Never closed", (Text("Never closed"),)),
        ("<|channel|>analysis<|message|>a<|end|>" + NEXT + "<|channel|>analysis<|message|>b<|end|>",
         (Reasoning("ab"),)),
        # no header, or one that is none
        ("Plain text.", (Text("Plain text."),)),
        ("<|message|>hi<|end|>", (Text("hi"),)),
        ("<|channel|>analysis", (Text("<|channel|>analysis"),)),
        ("<|channel|>final<|message|>a<|end|>junk" + NEXT + "<|channel|>final<|message|>b", (Text("ajunkb"),)),
        ("<|start|>user<|message|>a<|end|>", (Text("<|start|>usera"),)),
        # calls that are none
        (CALL[:-3] + "<|call|>", (Text(CALL[:-3] + "<|call|>"),)),
        (CALL[:-3], (Text(CALL[:-3]),)),
        (CALL + "}<|call|>", (Text(CALL + "}<|call|>"),)),
        (CALL + "<|ca", (Text(CALL + "<|ca"),)),
        ("<|channel|>analysis to=python code<|message|>print(1", (
            Text("<|channel|>analysis to=python code<|message|>print(1"),)),
    ],
)  # fmt: skip
def test_messages(text, parts):  # P1 P5 P7
    assert PARSER.parse(text).parts == parts
    check(PARSER, text, everywhere(text))


def test_one_format_reads_both():
    with pytest.raises(ValueError, match="tool_calls: 'hermes' does not go with harmony"):
        output_parser("hermes", "harmony")
    text = "<|channel|>analysis<|message|>A.<|end|>" + NEXT + CALL + "<|call|>"
    assert output_parser("harmony").parse(text).parts == (Text("<|channel|>analysis<|message|>A.<|end|>"), CALLED)
    assert output_parser(None, "harmony").parse(text).parts == (Reasoning("A."), Text(NEXT + CALL + "<|call|>"))  # A10


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("openai_harmony")


@pytest.fixture(scope="module")
def encoding(package):
    try:
        return package.load_harmony_encoding(package.HarmonyEncodingName.HARMONY_GPT_OSS)
    except package.HarmonyError as error:
        pytest.skip(f"the vocabulary cannot be had here: {error}")


WORDS = st.lists(st.sampled_from(["a", " <b", "Grüße", "👩", "\n", '"', "<|end", "{", "json"]), max_size=5).map("".join)
MESSAGES = st.lists(
    st.tuples(st.just("analysis"), WORDS)
    | st.tuples(st.just("commentary"), WORDS)
    | st.tuples(
        st.just("call"), st.fixed_dictionaries({}, optional={"city": WORDS, "days": st.integers()}).map(json.dumps)
    )
    | st.tuples(st.just("final"), WORDS),
    min_size=1,
    max_size=4,
)


@given(messages=MESSAGES, sizes=st.lists(st.integers(1, 6), max_size=30))
@settings(max_examples=30, deadline=None)
def test_agrees_with_the_package_on_what_it_renders(package, encoding, messages, sizes):  # P1
    ids = _rendered(package, encoding, messages)
    read = encoding.parse_messages_from_completion_tokens(ids, role=package.Role.ASSISTANT)
    theirs = Parsed.fold(part for message in read if (part := _part(message)) is not None)
    assert PARSER.parse(encoding.decode(ids)) == theirs
    vocabulary = harmony_vocabulary()
    by_id = output_parser("harmony", "harmony", TOOLS, vocabulary=vocabulary)
    whole = by_id.parse(encoding.decode(ids), array("i", ids))
    assert whole == theirs
    stream, parts, at, said = by_id.stream(), [], 0, 0
    for size in [*sizes, len(ids)]:
        piece, at = ids[at : at + size], at + size
        text = encoding.decode(ids[:at]).rstrip("\ufffd")
        parts += stream.feed(text[said:], array("i", piece))
        said = len(text)
    assert Parsed.fold([*parts, *stream.finish()]) == whole


def _rendered(package, encoding, messages):
    """The ids of a completion: what follows the first `<|start|>assistant`."""
    built = []
    for kind, text in messages:
        message = package.Message.from_role_and_content(package.Role.ASSISTANT, text)
        channel = "commentary" if kind == "call" else kind
        message = message.with_channel(channel)
        if kind == "call":
            message = message.with_recipient("functions.get_weather").with_content_type("<|constrain|>json")
        built.append(message)
    ids = [id for message in built for id in encoding.render(message)]
    start = encoding.encode("<|start|>assistant", allowed_special="all")
    assert ids[: len(start)] == start
    return ids[len(start) :]


def _part(message):
    text = message.content[0].text
    if message.recipient is not None:
        return ToolCall(message.recipient.removeprefix("functions."), text)
    if not text:
        return None
    return Reasoning(text) if message.channel == "analysis" else Text(text)


def test_markup_written_out_is_text_by_id(encoding):
    text = "<|channel|>final<|message|>Say <|end|><|start|>assistant" + CALL + "<|call|>"
    real = encoding.encode("<|channel|>final<|message|>", allowed_special="all")
    ids = array("i", [*real, *encoding.encode(text[len("<|channel|>final<|message|>") :], disallowed_special=())])
    by_id = output_parser("harmony", "harmony", TOOLS, vocabulary=harmony_vocabulary())
    assert by_id.parse(text, ids).parts == (Text(text[len("<|channel|>final<|message|>") :]),)


@pytest.mark.parametrize(("gap", "called"), [(0, True), (256, True), (257, False)])
def test_an_output_that_stops_behind_a_call(gap, called):  # P1
    text = CALL + " " * gap
    assert len(PARSER.parse(text).calls) == called
    check(PARSER, text, (by(text, size) for size in (1, 4, 100)))


def test_reasoning_tokens_are_those_of_the_analysis(encoding):  # R29
    text = "<|channel|>analysis<|message|>Let me think about Tokyo.<|end|>" + NEXT + "<|channel|>final<|message|>Hi."
    ids = encoding.encode(text, allowed_special="all")
    thought = encoding.encode("Let me think about Tokyo.")
    assert reasoning_tokens(PARSER.parse(text), harmony_vocabulary(), ids) == len(thought)
