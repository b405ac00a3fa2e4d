"""`PUT /policy_version`: what a trainer says of its engines is on every token that was sampled afterwards."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace
from nemo_gym.model_server.records import is_admin
from nemo_gym.model_server.versions import PolicyVersion, stamped
from tests.bench import HELLO, bench
from tests.scripted import Answer, chat_reply

WITH_IDS = chat_reply("Hi", choice={"token_ids": [5, 6]}) | {"prompt_token_ids": [1, 2]}


async def test_tokens_bear_the_version_that_held_when_they_were_asked_for(tmp_path: Path) -> None:
    async with (
        bench(tmp_path, [Answer(WITH_IDS, delay=0.3)]) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        path = "/ng-rollout/r1/v1/chat/completions"
        assert (await client.get("/policy_version")).json() == {"policy_version": None}
        assert (await client.post(path, json={"messages": HELLO})).status_code == 200
        assert (await client.put("/policy_version", json={"policy_version": 7})).json() == {"policy_version": 7}
        assert (await client.get("/policy_version")).json() == {"policy_version": 7}
        under_way = asyncio.create_task(client.post(path, json={"messages": HELLO}))
        while len(at.backend.calls) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await client.put("/policy_version", json={"policy_version": 8})
        await under_way
        await client.post(path, json={"messages": HELLO})
        records = at.records()
    assert [record.reply.choices[0].tokens.versions for record in records] == [(), ((0, 7),), ((0, 8),)]


NO_NUMBERS = ['"7"', "true", "-1", "7.5", "2147483648", "null", "[7]"]


@pytest.mark.parametrize(
    "body", ["", "{", "7", "[]", "{}", "\xff", *(f'{{"policy_version": {no}}}' for no in NO_NUMBERS)]
)
async def test_what_is_no_version(tmp_path: Path, body: str) -> None:
    async with bench(tmp_path, [Answer(WITH_IDS)]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        answer = await client.put("/policy_version", content=body.encode("latin-1"))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("policy_version: expected a whole number from 0")
        assert (await client.get("/policy_version")).json() == {"policy_version": None}


def test_who_may_say_it() -> None:
    far = {"client": ("10.1.2.3", 5), "headers": []}
    assert not is_admin(far, "the-key")
    assert not is_admin(far, "")
    assert is_admin(far | {"headers": [(b"authorization", b"Bearer the-key")]}, "the-key")
    assert is_admin(far | {"client": ("127.0.0.1", 5)}, "the-key")


def test_what_a_backend_says_itself_stands() -> None:
    own = TokenTrace(versions=((0, 3), (4, 5)))
    reply = ModelReply(
        "r", "m", 1, tuple(Choice(n, (), "stop", tokens) for n, tokens in enumerate([own, TokenTrace(), None]))
    )
    found = stamped(reply, 9)
    assert found.choices[0].tokens is own
    assert found.choices[1].tokens.versions == ((0, 9),)
    assert found.choices[2].tokens is None
    assert stamped(reply, None) is reply


def test_it_is_one_for_all_workers() -> None:
    held = PolicyVersion()
    pid = os.fork()
    if pid == 0:
        held.value = 12
        os._exit(0)
    os.waitpid(pid, 0)
    assert held.value == 12
