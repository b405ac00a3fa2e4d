"""200 conversations of up to 12 calls with tools, in three dialects and with what clients rewrite: under exact history
each prompt begins with the tokens of the turn before, in every case."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from nemo_gym.capture.record import CallRecord
from nemo_gym.exchange.parts import ToolCall
from tests.live.rewriting import Chat, Messages, Responses, asked
from tests.live.token_servers import token_server
from tests.live.vllm import running

pytestmark = [pytest.mark.live, pytest.mark.ci]

CONVERSATIONS = 200
CALLS = 12
AT_ONCE = 48
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


async def test_every_prompt_begins_with_the_turn_before(vllm, tmp_path):
    async with token_server(vllm, tmp_path, history="exact") as server, httpx.AsyncClient(timeout=300) as client:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with places:
                base = f"{server.url}/ng-rollout/c{number}"
                await held(client, base, DIALECTS[number % 3], random.Random(number))

        await asyncio.gather(*(one(number) for number in range(CONVERSATIONS)))
        records = [server.records(f"c{number}") for number in range(CONVERSATIONS)]
    turns = tools = cut = 0
    for number, (first, *later) in enumerate(records):
        by_id = {record.call_id: record for record in records[number]}
        assert first.relation == "first"
        for record in later:
            parent = by_id[record.parent_call_id]
            assert record.relation == "turn"
            assert (record.history, record.prefix_break) == ("exact", None), (number, record.prefix_break)
            assert begins(record, parent), number
            turns += 1
            tools += any(isinstance(part, ToolCall) for part in parent.reply.choices[0].parts)
            cut += parent.reply.choices[0].finish == "length"
    print(
        f"\n{CONVERSATIONS} conversations: {turns} of {turns} turns exact; {tools} after a tool call, {cut} after a cut"
    )
    assert turns > 3 * CONVERSATIONS
    assert min(tools, cut) > CONVERSATIONS // 4
