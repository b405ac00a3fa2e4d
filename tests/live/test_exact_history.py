"""200 conversations of up to 12 calls with tools, in three dialects and with what clients rewrite: under exact history
each prompt begins with the tokens of the turn before, in every case; where one cannot, place and cause are recorded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from nemo_gym.capture.record import CallRecord
from tests.live.rewriting import Chat, Messages, Moving, Responses, asked
from tests.live.token_servers import token_server
from tests.live.vllm import running

pytestmark = [pytest.mark.live, pytest.mark.ci]

CONVERSATIONS = 200
CALLS = 12
AT_ONCE = 48
CAUSES = {"arguments_reserialised", "reasoning_dropped", "template_boundary", "neighbouring_tokens", "foreign_history"}
DIALECTS = (Chat, Responses, Messages)


async def held(client: httpx.AsyncClient, base: str, kind: Any, draw: random.Random) -> None:
    """One conversation, to its end or its twelfth call."""
    conversation = kind(draw)
    conversation.ask(asked(draw))
    for _ in range(draw.randint(2, CALLS)):
        most = draw.choice([5, 40, 40, 40])  # some turns are cut
        body = conversation.body(most) | {"temperature": 1.0, "stream": False}
        answer = await client.post(base + kind.path, json=body)
        assert answer.status_code == 200, answer.text
        called = conversation.answered(answer.json())
        if called is None:
            return
        if not called:
            conversation.ask(asked(draw))


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    pytest.importorskip("vllm")
    with running(tmp_path_factory.mktemp("vllm"), "--max-model-len", "4096", "--block-size", "32") as url:
        yield url


def begins(record: CallRecord, parent: CallRecord) -> bool:
    before = parent.reply.prompt_ids + parent.reply.choices[0].tokens.ids
    return record.reply.prompt_ids[: len(before)] == before


async def thinking(vllm: str) -> dict[str, Any]:
    """What makes a model think that was not taught to: what it says before the end mark, likely now, is reasoning."""
    async with httpx.AsyncClient(timeout=60) as client:
        asked = {"model": "tiny-policy", "prompt": "</think>"}
        tokens = (await client.post(f"{vllm}/tokenize", json=asked)).json()["tokens"]
    bias = {"logit_bias": dict.fromkeys(tokens, 11.0)}
    return {"reasoning_parser": "deepseek_r1", "sampling_overrides": bias}


async def test_every_prompt_begins_with_the_turn_before(vllm, tmp_path):
    kinds = [DIALECTS[number % 3] for number in range(CONVERSATIONS)] + [Moving] * 20
    thoughts = await thinking(vllm)
    async with (
        token_server(vllm, tmp_path / "plain", history="exact") as plain,
        token_server(vllm, tmp_path / "thinking", history="exact", **thoughts) as thinker,
        httpx.AsyncClient(timeout=300) as client,
    ):
        places = asyncio.Semaphore(AT_ONCE)
        servers = [thinker if number % 5 < 2 else plain for number in range(len(kinds))]

        async def one(number: int, kind: Any) -> None:
            async with places:
                await held(client, f"{servers[number].url}/ng-rollout/c{number}", kind, random.Random(number))

        await asyncio.gather(*(one(number, kind) for number, kind in enumerate(kinds)))
        records = [server.records(f"c{number}") for number, server in enumerate(servers)]
    calls = turns = tools = cut = thought = 0
    for number in range(CONVERSATIONS):
        by_id = {record.call_id: record for record in records[number]}
        first, *later = records[number]
        calls += 1 + len(later)
        assert first.relation == "first"
        for record in later:
            parent = by_id[record.parent_call_id]
            assert record.relation == "turn"
            assert (record.history, record.prefix_break) == ("exact", None), (number, record.prefix_break)
            assert begins(record, parent), number
            turns += 1
            parts = [type(part).__name__ for part in parent.reply.choices[0].parts]
            tools += "ToolCall" in parts
            thought += "Reasoning" in parts
            cut += parent.reply.choices[0].finish == "length"
    print(f"\n{CONVERSATIONS} conversations, {calls} calls: {turns} of {turns} turns exact; of the turns before, ")
    print(f"{tools} called a tool, {cut} were cut, {thought} had reasoning")
    assert turns > 800
    assert min(tools, cut) > 100
    assert thought > 20
    # A message of context that moves stands in the way: told apart, with the place and the cause.
    moved = [record for one in records[CONVERSATIONS:] for record in one[1:]]
    broken = [record for record in moved if record.prefix_break is not None]
    by_id = {record.call_id: record for one in records[CONVERSATIONS:] for record in one}
    for record in moved:
        parent = by_id[record.parent_call_id]
        assert begins(record, parent) == (record.prefix_break is None)
        assert (record.history == "exact") == (record.prefix_break is None)
    for record in broken:
        position, cause = record.prefix_break
        assert 0 < position < len(record.reply.prompt_ids)
        assert cause in CAUSES
    causes = Counter(record.prefix_break[1] for record in broken)
    print(f"with a moving context message: {len(moved) - len(broken)} of {len(moved)} exact; breaks: {dict(causes)}")
