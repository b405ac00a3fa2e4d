"""Pieces of an engine's output, however cut: what is relayed is what the whole parses to, calls whole (P1, P5, V0)."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.backends.relay import Relay
from nemo_gym.engines.engine import EnginePiece
from nemo_gym.exchange.call import Call
from nemo_gym.exchange.increments import fold
from nemo_gym.exchange.parts import ToolCall
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.parsers import Vocabulary, output_parser

pytest.importorskip("tokenizers")

PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {"a": 1}}',
    "Hm.",
    "\n",
    "é",
]


@pytest.fixture(scope="module")
def tokenizer():
    from nemo_gym.rendering.tokenizer import Tokenizer
    from tests.rendering.conftest import MODEL

    return Tokenizer(MODEL)


@settings(max_examples=150, deadline=None)
@given(said=st.lists(st.sampled_from(PIECES), max_size=8), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_the_relay_is_the_whole(tokenizer, said, sizes):
    ids = tokenizer.encode("".join(said))
    parser = output_parser("hermes", "qwen3", vocabulary=Vocabulary(tokenizer.added, tokenizer.decode))
    whole = parser.parse(tokenizer.decode(ids), ids)
    call = Call(ModelRequest(()), relay=lambda _: None)
    relay = Relay(parser, call)
    at = number = said_text = 0
    while at < len(ids):
        size = sizes[number % len(sizes)]
        text = tokenizer.decode(ids[: at + size])
        if text.endswith("�") and at + size < len(ids):  # half a letter: text lags behind ids
            text = text[:said_text]
        piece = ids[at : at + size]
        trace = TokenTrace(
            piece, array("f", [-1.0] * len(piece)), (), tuple("t" for _ in piece), tuple({} for _ in piece)
        )
        relay.piece(EnginePiece(0, text[said_text:], trace))
        at, number, said_text = at + size, number + 1, max(said_text, len(text))
    parsed = relay.parsed(0)
    bare = [(part.name, part.arguments) if isinstance(part, ToolCall) else part for part in parsed.parts]
    assert bare == [(part.name, part.arguments) if isinstance(part, ToolCall) else part for part in whole.parts]
    assert fold(call.increments).get(0, ()) == parsed.parts
    ids_of_calls = [part.call_id for part in parsed.parts if isinstance(part, ToolCall)]
    assert all(ids_of_calls) and len(set(ids_of_calls)) == len(ids_of_calls)
    told = sum(len(one.tokens.texts) for one in call.increments if one.tokens is not None)
    assert told <= len(ids)
