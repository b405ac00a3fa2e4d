"""Whole conversations over a scripted engine, with what clients make of reasoning: every prompt begins with the tokens
of the turn before; where the context moves, each break says where and why."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.backends.tokens import TokensBackend
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.capture import CaptureStore
from nemo_gym.capture.record import CallRecord
from nemo_gym.engines.engine import EngineOutput, EngineReply
from nemo_gym.exchange.parts import ToolCall, plain_text
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.rendering.renderer import TemplateRenderer
from nemo_gym.web.peers import ServerClient
from tests.live.rewriting import DIALECTS, Moving, held
from tests.serving import recording, serving

pytest.importorskip("tokenizers")
MODEL = Path(__file__).parents[2] / "models" / "tiny_policy"
THOUGHT = "<think>\nHm, let me see.\n</think>\n\n"
CALL = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Oslo"}}\n</tool_call>'
SAYS = (
    THOUGHT,
    THOUGHT + "\n",
    "<think>\n\n</think>\n\n",
    "",
    THOUGHT + "It rains.",
    THOUGHT + CALL,
    CALL,
    "It rains.",
)
CONVERSATIONS = 24


class Engine:
    """Says one thing or another, some of it cut, in tokens that are not always the tokenizer's own."""

    takes_ids, context = True, 4096

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self._draw = random.Random(1)

    async def generate(self, request: Any, on_piece: Any = None, on_attempt: Any = None) -> EngineReply:
        text = self._draw.choice(SAYS)
        cut = request.sampling.max_tokens < 10
        text = text[: self._draw.randint(0, len(text))] if cut else text
        whole = self._draw.random() < 0.5
        pieces = [text] if whole else text.replace("Hm", "H\0m").replace("rains", "ra\0ins").split("\0")
        ids = array("i", [token for piece in pieces for token in self._renderer.encode(piece)])
        ids += array("i") if cut else self._renderer.encode("<|im_end|>")
        tokens = TokenTrace(ids, array("f", [-0.5] * len(ids)), ((0, 0),))
        return EngineReply((EngineOutput(0, tokens, text, "length" if cut else "stop"),))

    async def check(self) -> int:
        return 0

    async def close(self) -> None:
        pass


class Server(SimpleResponsesAPIModel):
    async def start(self) -> None:
        renderer = TemplateRenderer(MODEL)
        self._backend = TokensBackend(Engine(renderer), renderer, "hermes", "qwen3", "m")


async def conversations(captures: Path, kinds: tuple[Any, ...]) -> list[list[CallRecord]]:
    """The calls of each, in their order."""
    config = BaseResponsesAPIModelConfig(name="policy_model")
    app = recording(Server(config=config, server_client=ServerClient({})), captures)
    async with serving(app) as url, httpx.AsyncClient(timeout=60) as client:
        for number in range(CONVERSATIONS):
            kind = kinds[number % len(kinds)]
            await held(client, f"{url}/ng-rollout/c{number}", kind, random.Random(number), 8)
    store = CaptureStore(captures)
    rollouts = [list(store.calls(f"c{number}")) for number in range(CONVERSATIONS)]
    return [sorted(calls, key=lambda call: call.times.received) for calls in rollouts]


async def test_every_prompt_begins_with_the_turn_before(tmp_path: Path) -> None:
    turns = silent = 0
    for first, *later in await conversations(tmp_path, DIALECTS):
        before = {first.call_id: first}
        for record in later:
            parent = before[record.parent_call_id]
            assert record.relation == "turn"
            assert (record.history, record.prefix_break) == ("exact", None)
            tokens = parent.reply.prompt_ids + parent.reply.choices[0].tokens.ids
            assert record.reply.prompt_ids[: len(tokens)] == tokens
            assert parent.call_id == list(before)[-1]
            before[record.call_id] = record
            turns += 1
            parts = parent.reply.choices[0].parts
            silent += not any(isinstance(part, ToolCall) for part in parts) and not plain_text(parts).strip()
    assert turns > 3 * CONVERSATIONS
    assert silent > CONVERSATIONS


async def test_moved_context_is_told_as_what_it_is(tmp_path: Path) -> None:
    causes: Counter[str] = Counter()
    for first, *later in await conversations(tmp_path, (Moving,)):
        before = {first.call_id: first}
        for record in later:
            parent = before[record.parent_call_id]
            assert (record.relation, record.history) == ("turn", "template")
            position, cause = record.prefix_break
            tokens = parent.reply.prompt_ids + parent.reply.choices[0].tokens.ids
            assert record.reply.prompt_ids[:position] == tokens[:position]
            assert position < len(parent.reply.prompt_ids)
            causes[cause] += 1
            before[record.call_id] = record
    assert set(causes) == {"compaction"}
