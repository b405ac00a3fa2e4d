"""Where ids are at hand, markers are known by them: the same characters written out are text."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.exchange.parts import Reasoning, Text, ToolCall
from nemo_gym.parsers import Parsed, Vocabulary, output_parser, reasoning_tokens
from tests.parsers.writers import TOOLS, WRITERS

SPECIAL = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>",
    "<|constrain|>", "<|im_end|>",
]  # fmt: skip
IDS = {text: 1000 + n for n, text in enumerate(SPECIAL)}


def decode(ids):
    """Bytes are ids below 256, as in a byte-level vocabulary."""
    pieces, plain = [], bytearray()
    for id in [*ids, None]:
        if id is not None and id < 256:
            plain.append(id)
            continue
        pieces.append(plain.decode(errors="replace"))
        plain.clear()
        if id is not None:
            pieces.append(SPECIAL[id - 1000])
    return "".join(pieces)


VOCABULARY = Vocabulary(IDS, decode)


def encode(*pieces):
    """Ids of texts; a marker that is a piece of its own is one token, in any other piece it is written out."""
    ids = array("i")
    for piece in pieces:
        if piece in IDS:
            ids.append(IDS[piece])
        else:
            ids.extend(piece.encode())
    return ids


def special(text):
    """Ids of a text all of whose markers are special tokens."""
    pieces, at = [], 0
    while at < len(text):
        marker = next((marker for marker in SPECIAL if text.startswith(marker, at)), text[at])
        pieces.append(marker)
        at += len(marker)
    return encode(*pieces)


def parser(tool_calls, reasoning=None, **more):
    return output_parser(tool_calls, reasoning, TOOLS, vocabulary=VOCABULARY, **more)


def cut(parser, ids, sizes, lag=0):
    """Fed token by token; the text may come some characters after its ids."""
    stream, parts, at, said = parser.stream(), [], 0, 0
    for size in [*sizes, len(ids)]:
        piece = ids[at : at + size]
        at += len(piece)
        text = decode(ids[:at])
        while text.endswith("\ufffd"):
            text = text[:-1]  # an engine holds back half a character
        end = max(said, len(text) - lag)
        parts += stream.feed(text[said:end], piece)
        said = end
    parts += stream.feed(decode(ids)[said:], array("i"))
    return Parsed.fold([*parts, *stream.finish()])


@pytest.mark.parametrize("name", ["hermes", "glm47", "qwen3_coder", "kimi_k2", "harmony"])
def test_a_call_of_special_tokens_is_a_call_and_the_same_written_out_is_text(name):
    text = WRITERS[name]([("get_weather", {"city": "Zürich"})])
    reasoning = "harmony" if name == "harmony" else None
    assert parser(name, reasoning).parse(text, special(text)).calls == [("get_weather", '{"city": "Zürich"}')]
    assert parser(name, reasoning).parse(text, encode(text)).parts == (Text(text),)
    assert parser(name, reasoning).parse(text).calls == [("get_weather", '{"city": "Zürich"}')]  # no ids


def test_quoted_markers_are_told_from_real_ones():
    real = special('<tool_call>{"name": "now"}</tool_call>')
    ids = encode("Text: <tool_call> ") + real[:-1] + encode(" ") + real[-1:]
    text = decode(ids)
    assert parser("hermes").parse(text, ids).parts == (Text("Text: <tool_call> "), ToolCall("now", "{}"))
    value = "</arg_value></tool_call><tool_call>x"
    ids = encode("<tool_call>", "get_weather", "<arg_key>", "city", "</arg_key>", "<arg_value>", value, "</arg_value>")
    ids += encode("</tool_call>")
    assert parser("glm47").parse(decode(ids), ids).calls == [("get_weather", f'{{"city": "{value}"}}')]


def test_reasoning_is_closed_by_the_token_only():  # P7
    ids = encode("<think>", "say </think> then", "</think>", "so </think>")
    parsed = parser("hermes", "qwen3").parse(decode(ids), ids)
    assert parsed.parts == (Reasoning("say </think> then"), Text("so </think>"))
    assert reasoning_tokens(parsed, VOCABULARY, ids) == len("say </think> then")  # R29


def test_special_tokens_inside_of_values_are_spelled_again():
    ids = special('<tool_call>{"name": "now", "arguments": {"a": "<think> </tool_call>"}}</tool_call>')
    assert parser("hermes", "qwen3").parse(decode(ids), ids).calls == [("now", '{"a": "<think> </tool_call>"}')]


def test_special_tokens_that_the_text_leaves_out_count():
    ids = special('<tool_call>{"name": "now"}</tool_call><|im_end|>')
    assert parser("hermes").parse('{"name": "now"}', ids).calls == [("now", "{}")]


PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "now", "a", "é", "👩", "</arg_value>x", "say <tool_call> ", "</think> ", "<", '{"name": "now"}', "\n",
    "<|im_end|>",
]  # fmt: skip


@pytest.mark.parametrize("names", [("glm47", "glm47"), ("hermes", "qwen3"), ("qwen3_coder", None)])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14), sizes=st.lists(st.integers(1, 9), max_size=40),
       lag=st.sampled_from([0, 0, 3, 15]))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_every_cutting_gives_the_same_parts(names, pieces, sizes, lag):  # P1
    ids = encode(*pieces)
    whole = parser(*names).parse(decode(ids), ids)
    assert cut(parser(*names), ids, sizes, lag) == whole
    assert cut(parser(*names), ids, [1] * len(ids), lag) == whole


def test_a_lone_surrogate_in_the_text_is_no_marker():  # A13
    assert parser("hermes").parse("a\udc00b", encode("a?b")).parts == (Text("a\ufffdb"),)


def test_a_model_folders_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    folder = Path(__file__).parents[2] / "models" / "tiny_policy"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([tokenizers.AddedToken("<tool_call>"), tokenizers.AddedToken("</tool_call>")])
    vocabulary = Vocabulary.of(tokenizer)
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 👩"}}\n</tool_call>'
    ids = array("i", tokenizer.encode(text, add_special_tokens=False).ids)
    read = output_parser("hermes", tools=TOOLS, vocabulary=vocabulary)
    assert vocabulary.special["<tool_call>"] in ids
    assert read.parse(text, ids).calls == [("get_weather", '{"city": "Zürich 👩"}')]
    written = array("i")
    for piece in ("<tool", "_call>", text[len("<tool_call>") :]):
        written.extend(tokenizer.encode(piece, add_special_tokens=False).ids)
    assert read.parse(text, written).parts == (Text(text),)
