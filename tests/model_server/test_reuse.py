"""Repeats of calls that nobody received. # A9 A16"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.dialects import chat
from nemo_gym.exchange.call import Call
from nemo_gym.model_server.reuse import Asked, Reuse, Sample
from tests.bench import HELLO, Bench, bench
from tests.scripted import Answer, chat_reply

BODY: dict[str, Any] = {"messages": HELLO, "temperature": 0.5}


def numbered(delay: float = 0.0, content: str = "reply") -> Any:
    """A backend that never gives the same twice."""
    count = iter(range(1, 100))
    return lambda request: Answer(
        chat_reply(f"{content} {next(count)}") if request.asks else {"data": []},
        delay=delay if request.asks else 0.0,
    )


@contextlib.asynccontextmanager
async def asked(
    at: Bench, body: dict[str, Any], rollout: str = "r1", patience: float = 60.0
) -> AsyncIterator[httpx.Response]:
    """Its answer, from a client that stays until the end."""
    async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=patience)) as client:
        yield await client.post(f"{at.url}/ng-rollout/{rollout}/v1/chat/completions", json=body)


async def ask(at: Bench, body: dict[str, Any], rollout: str = "r1", patience: float = 60.0) -> httpx.Response:
    async with asked(at, body, rollout, patience) as answer:
        return answer


async def give_up(at: Bench, body: dict[str, Any], rollout: str = "r1") -> None:
    """Asks, and goes as soon as the backend is at it."""
    before = len(at.backend.calls)
    asking = asyncio.create_task(ask(at, body, rollout))
    async with asyncio.timeout(60):
        while len(at.backend.calls) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def give_up_soon(at: Bench, body: dict[str, Any]) -> None:
    """A repeat, of which no backend hears, goes after a moment."""
    with pytest.raises(httpx.ReadTimeout):
        await ask(at, body, patience=0.2)


def content(answer: httpx.Response) -> str:
    return answer.json()["choices"][0]["message"]["content"]


async def records(at: Bench, count: int) -> list[Any]:
    for _ in range(3000):
        if len(found := at.records()) >= count:
            return sorted(found, key=lambda record: record.times.received)
        await asyncio.sleep(0.02)
    return at.records()


async def test_a_repeat_takes_over_the_call_in_flight(tmp_path: Path) -> None:  # A16
    async with bench(tmp_path, numbered(0.7)) as at:
        await give_up(at, BODY)
        answer = await ask(at, BODY)
        assert content(answer) == "reply 1"
        assert len(at.backend.calls) == 1
        first, second = await records(at, 2)
    assert (first.status, second.status) == ("answered", "answered")
    assert second.relation == "repeat"
    assert second.parent_call_id == first.call_id
    assert second.reply == first.reply
    assert (first.relation, first.parent_call_id) == ("first", None)
    assert CaptureStore(tmp_path).verify().ok


async def test_a_repeat_may_be_delivered_otherwise(tmp_path: Path) -> None:  # A16: `stream` aside
    async with bench(tmp_path, numbered(0.7)) as at:
        await give_up(at, BODY | {"stream": True, "stream_options": {"include_usage": True}})
        assert content(await ask(at, BODY)) == "reply 1"
        await give_up(at, BODY)
        streamed = await ask(at, BODY | {"stream": True})
        assert "".join(texts(streamed)) == "reply 2"


def texts(answer: httpx.Response) -> list[str]:
    chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]


async def test_a_repeat_that_gives_up_leaves_the_call_to_the_next(tmp_path: Path) -> None:
    async with bench(tmp_path, numbered(2.0)) as at:
        await give_up(at, BODY)
        await give_up_soon(at, BODY)
        assert content(await ask(at, BODY)) == "reply 1"
        found = await records(at, 3)
    assert [record.status for record in found] == ["answered", "disconnected", "answered"]
    assert [record.relation for record in found] == ["first", "repeat", "repeat"]


async def test_other_bytes_another_rollout_or_none_are_no_repeat(tmp_path: Path) -> None:
    async with bench(tmp_path, numbered(0.5)) as at:
        await give_up(at, BODY)
        answers = await asyncio.gather(ask(at, BODY | {"temperature": 0.6}), ask(at, BODY, "r2"))
        assert {content(answer) for answer in answers} == {"reply 2", "reply 3"}


async def test_equal_calls_side_by_side_are_separate_samples(tmp_path: Path) -> None:
    async with bench(tmp_path, numbered(0.2)) as at:
        answers = await asyncio.gather(*(ask(at, BODY) for _ in range(4)))
        assert len({content(answer) for answer in answers}) == 4


async def test_after_a_delivered_answer_the_same_bytes_are_a_new_sample(tmp_path: Path) -> None:
    async with bench(tmp_path, numbered()) as at:
        assert content(await ask(at, BODY)) == "reply 1"
        assert content(await ask(at, BODY)) == "reply 2"
        await give_up_mid_answer(at)
        first = content(await ask(at, BODY))
        second = content(await ask(at, BODY))
        assert first != second


async def give_up_mid_answer(at: Bench) -> None:
    """Sends the request, reads nothing of the answer, and goes."""
    host, port = at.url.removeprefix("http://").split(":")
    body = json.dumps(BODY).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, int(port)))
        head = f"POST /ng-rollout/r1/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(sock, head.encode() + body)
        await asyncio.sleep(0.5)


async def test_an_answer_that_the_socket_did_not_take_is_given_again(tmp_path: Path) -> None:  # A16
    async with bench(tmp_path, numbered(content="x" * 8_000_000)) as at:
        await give_up_mid_answer(at)
        async with asked(at, BODY) as again:
            assert content(again).endswith(" 1")
            assert len(at.backend.calls) == 1
            first, second = await records(at, 2)
            assert (first.status, second.relation) == ("answered", "repeat")
            assert first.reply.id == again.json()["id"]
            assert content(await ask(at, BODY)).endswith(" 2")  # that one was delivered


@pytest.mark.parametrize("gone", [True, False])
async def test_the_record_of_a_call_whose_client_is_gone_is_waited_for(gone: bool) -> None:  # A16
    reuse, asked = Reuse(), Asked("chat", BODY, lambda: gone)
    reuse.enter("r1", asked)
    repeat = asyncio.create_task(reuse.take("r1", "chat", BODY))
    done, _ = await asyncio.wait({repeat}, timeout=0.05 if gone else 60)
    assert bool(done) is not gone  # beside one that has its client it is a sample of its own
    sample = Sample(Call(chat.read_request(BODY), rollout_id="r1"), "chat", "r1")
    reuse.leave(sample)
    reuse.exit("r1", asked)
    assert await repeat is (sample if gone else None)


async def test_nobody_comes_within_the_grace(tmp_path: Path) -> None:  # A9
    async with bench(tmp_path, [Answer(hang=True)], repeat_grace_s=0.3) as at:
        await give_up(at, BODY)
        assert at.backend.hung_up == 0
        (record,) = await records(at, 1)
        assert (record.status, record.reply, record.error.kind) == ("disconnected", None, "disconnected")
        for _ in range(3000):
            if at.backend.hung_up:
                break
            await asyncio.sleep(0.02)
        assert at.backend.hung_up == 1


async def test_what_was_made_within_the_grace_and_not_wanted_is_recorded_whole(tmp_path: Path) -> None:  # A9
    async with bench(tmp_path, numbered(0.4), repeat_grace_s=1.5) as at:
        await give_up(at, BODY)
        (record,) = await records(at, 1)
        assert record.status == "disconnected"
        assert record.reply.choices[0].parts[0].text == "reply 1"
        assert content(await ask(at, BODY)) == "reply 2"


async def test_outside_a_rollout_the_backends_work_ends_at_once(tmp_path: Path) -> None:  # A9
    async with bench(tmp_path, [Answer(hang=True)]) as at:
        async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=0.2)) as client:
            with contextlib.suppress(httpx.ReadTimeout):
                await client.post(f"{at.url}/v1/chat/completions", json=BODY)
        (record,) = await records(at, 1)
        assert record.status == "disconnected"


async def test_a_failure_is_the_repeats_too_and_the_next_is_a_new_sample(tmp_path: Path) -> None:
    answers = [Answer({"error": {"message": "broken"}}, 500, delay=0.6), Answer(chat_reply())]
    async with bench(tmp_path, answers) as at:
        await give_up(at, BODY)
        assert (await ask(at, BODY)).status_code == 500
        assert (await ask(at, BODY)).status_code == 200
        assert [record.status for record in await records(at, 3)] == ["failed", "failed", "answered"]


async def test_a_call_at_the_servers_end_is_recorded(tmp_path: Path) -> None:  # C1
    async with bench(tmp_path, [Answer(hang=True)], repeat_grace_s=30) as at:
        await give_up(at, BODY)
        asking = asyncio.create_task(ask(at, BODY | {"seed": 1}))
        await asyncio.sleep(0.2)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    found = list(CaptureStore(tmp_path).calls())
    assert sorted(record.status for record in found) == ["disconnected", "failed"]
