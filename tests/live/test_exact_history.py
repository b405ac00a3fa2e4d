"""200 conversations of up to 12 calls with tools, in three dialects and with what clients rewrite: under exact history
each prompt begins with the tokens of the turn before, in every case. In half of them the model reasons first. Beside
them, and told apart, a client that moves a message of context to the end of each request."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import httpx
import pytest

from nemo_gym.capture.record import CallRecord
from nemo_gym.exchange.parts import Reasoning, ToolCall
from tests.live.rewriting import DIALECTS, Moving, held
from tests.live.token_servers import TokenServer, token_server
from tests.live.vllm import MODEL

pytestmark = [pytest.mark.live, pytest.mark.ci]

CONVERSATIONS = 200
MOVING = 16
CALLS = 12
AT_ONCE = 48
BEGINS = "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking"
"""Where the template begins the model's turn."""


def thinking(folder: Path) -> Path:
    """The model's folder with a template that has it reason first: a turn that is cut is reasoning alone."""
    folder.mkdir()
    for path in MODEL.glob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, folder)
    template = folder / "chat_template.jinja"
    source = template.read_text()
    assert source.count(BEGINS) == 1
    template.write_text(source.replace(BEGINS, BEGINS.replace("assistant\\n", "assistant\\n<think>\\n")))
    return folder


def begins(record: CallRecord, parent: CallRecord) -> bool:
    before = parent.reply.prompt_ids + parent.reply.choices[0].tokens.ids
    return record.reply.prompt_ids[: len(before)] == before


async def play(servers: list[TokenServer], kinds: tuple, count: int, name: str) -> list[list[CallRecord]]:
    """So many conversations, by turns at each server."""
    places = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(timeout=300) as client:

        async def one(number: int) -> None:
            async with places:
                base = f"{servers[number % len(servers)].url}/ng-rollout/{name}{number}"
                await held(client, base, kinds[number % len(kinds)], random.Random(number), CALLS)

        await asyncio.gather(*(one(number) for number in range(count)))
    recorded = [server.rollouts() for server in servers]
    return [recorded[number % len(servers)][f"{name}{number}"] for number in range(count)]


async def test_every_prompt_begins_with_the_turn_before(plain_vllm, tmp_path):
    settings = {"tokenizer": str(thinking(tmp_path / "thinking")), "reasoning_parser": "qwen3"}
    async with (
        token_server(plain_vllm, tmp_path / "plain", history="exact") as plain,
        token_server(plain_vllm, tmp_path / "reasoned", history="exact", **settings) as reasoned,
    ):
        rollouts = await play([plain, reasoned], DIALECTS, CONVERSATIONS, "c")
        moving = await play([plain], (Moving,), MOVING, "m")
    found: Counter[str] = Counter()
    for number, (first, *later) in enumerate(rollouts):
        by_id = {first.call_id: first}
        assert first.relation == "first"
        for record in later:
            parent = by_id[record.parent_call_id]
            assert record.relation == "turn"
            assert (record.history, record.prefix_break) == ("exact", None), (number, record.prefix_break)
            assert begins(record, parent), number
            assert parent.call_id == list(by_id)[-1], number
            by_id[record.call_id] = record
            (choice,) = parent.reply.choices
            kinds = {type(part) for part in choice.parts}
            found["turns"] += 1
            found["after a tool call"] += ToolCall in kinds
            found["after a cut"] += choice.finish == "length"
            found["after reasoning"] += Reasoning in kinds
            found["after reasoning alone"] += kinds == {Reasoning}
    print(f"\n{CONVERSATIONS} conversations, every turn exact: {dict(found)}")
    assert found["turns"] > 3 * CONVERSATIONS
    assert min(found.values()) > CONVERSATIONS // 4
    told(moving)


def told(moving: list[list[CallRecord]]) -> None:
    """What became of the turns of a client whose context moves: each break where its context stood, and why."""
    causes: Counter[str] = Counter()
    shares = []
    for first, *later in moving:
        by_id = {first.call_id: first}
        for record in later:
            parent = by_id[record.parent_call_id]
            by_id[record.call_id] = record
            assert record.relation == "turn"
            position, cause = record.prefix_break or (0, "exact")
            causes[cause] += 1
            if record.prefix_break is not None:
                prompt = parent.reply.prompt_ids
                assert record.reply.prompt_ids[:position] == prompt[:position]
                assert position < len(prompt)
                shares.append(position / len(prompt))
    print(
        f"moving context: {dict(causes)}; shared before a break: {sum(shares) / len(shares):.0%} of the earlier prompt"
    )
    assert causes.keys() <= {"exact", "compaction"}
    assert causes["compaction"] > MOVING
