"""Mutated requests: no 5xx of ours, nothing unhandled, one record each. # A3 A4 C1"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, chat_reply, tool_call

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "é"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": [tool_call("get_weather", '{"city": "Rome"}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "temperature": 0.5,
    "n": 1,
    "stop": ["x"],
    "logprobs": True,
    "top_logprobs": 1,
    "logit_bias": {"5": 1},
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "reasoning_effort": "low",
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "Be kind.",
    "input": [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "sunny"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
    ],
    "tools": [
        {"type": "function", "name": "get_weather", "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]},
    ],
    "tool_choice": "auto",
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 10,
    "stream": True,
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 10,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "é"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["x"],
    "top_k": 5,
    "thinking": {"type": "adaptive"},
    "metadata": {"user_id": "u"},
    "stream": True,
}
BODIES = {"chat/completions": CHAT, "responses": RESPONSES, "messages": MESSAGES}
ENDS = {"chat/completions": b"data: [DONE]\n\n", "responses": b"never", "messages": b'{"type":"message_stop"}\n\n'}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 10**30, 1.5, 1e400, float("nan")),
    *("", "x", "\ud800", "\x00", "true", "y" * 5000),
    *([], {}, [[]], [None], [1, "a"], [{"role": "user"}]),
    *({"a": None}, {"type": "x"}, {"type": "function"}, {"": {}}, {"role": "user", "content": "x"}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def mutated(chance: random.Random, body: dict[str, Any]) -> bytes:
    """A real body with one to three places changed, dropped or doubled; some are then cut as bytes."""
    whole: Any = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice(places(whole))
        if not path:
            if chance.random() < 0.05:
                whole = copy.deepcopy(chance.choice(VALUES))
            continue
        holder = whole
        for step in path[:-1]:
            holder = holder[step]
        act = chance.random()
        if act < 0.25:
            del holder[path[-1]]
        elif act < 0.35 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        elif act < 0.45 and isinstance(holder, dict):
            holder[chance.choice(["unknown", "type", "role", "id", ""])] = copy.deepcopy(chance.choice(VALUES))
        else:
            holder[path[-1]] = copy.deepcopy(chance.choice(VALUES))
        if not isinstance(whole, dict | list):
            break
    data = json.dumps(whole, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.03:
        place = chance.randrange(len(data) + 1)
        data = data[:place] + chance.choice([b"", b"\xff", b"\x00", b'"', b"}"]) + data[place + chance.randint(0, 2) :]
    return data


async def fuzz(tmp_path: Path, count: int, seed: int, caplog: pytest.LogCaptureFixture) -> Counter[int]:
    chance = random.Random(seed)
    asked = [(path, mutated(chance, BODIES[path])) for path in chance.choices(list(BODIES), weights=[2, 1, 1], k=count)]
    statuses: Counter[int] = Counter()
    reply = Answer(chat_reply("Hi", message={"tool_calls": [tool_call("get_weather", "{}")]}))
    async with (
        bench(tmp_path, lambda request: reply, capture={"durability": "none"}) as at,
        aiohttp.ClientSession() as client,
    ):
        queue = iter(asked)

        async def ask(number: int) -> None:
            for path, data in queue:
                # Each asks within a rollout of its own: equal bodies side by side are no matter here.
                async with client.post(f"{at.url}/ng-rollout/r{number}/v1/{path}", data=data) as answer:
                    text = await answer.read()
                    statuses[answer.status] += 1
                    assert answer.status < 500, (answer.status, path, data, text)
                    assert len(text) < 64_000 or answer.status == 200  # A4
                    if answer.content_type == "application/json":
                        json.loads(text)
                    else:
                        assert text.endswith(ENDS[path]) or b"event: response.completed" in text, (path, data, text)

        await asyncio.gather(*(ask(number) for number in range(16)))
    records = at.records()
    assert len(records) == count  # C1
    assert Counter(record.status for record in records)["answered"] == statuses[200]
    assert {record.status for record in records} <= {"answered", "rejected"}
    assert [
        entry for entry in caplog.records if entry.levelno >= logging.ERROR and entry.name.startswith("nemo_gym")
    ] == []
    return statuses


async def test_a_few_thousand_mutated_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statuses = await fuzz(tmp_path, 2000, 1, caplog)
    assert statuses[200] > 100
    assert statuses[422] > 100
    assert statuses[400] > 100


@pytest.mark.nightly
async def test_a_hundred_thousand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for part in range(20):
        await fuzz(tmp_path / str(part), 5000, 1000 + part, caplog)


def test_the_bodies_are_good() -> None:
    from nemo_gym.dialects import chat, messages, responses

    chat.read_request(CHAT | {"messages": [*CHAT["messages"], *HELLO]})
    responses.read_request(RESPONSES)
    messages.read_request(MESSAGES)
