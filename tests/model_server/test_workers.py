"""One server in several processes: a rollout on one of them, whoever accepted the connection."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import zlib
from collections import defaultdict
from pathlib import Path

import aiohttp
import httpx
import openai
import pytest

from nemo_gym.capture import CaptureStore
from tests.bench import HELLO
from tests.processes import Process, process
from tests.project import lives
from tests.scripted import Answer, chat_chunks, chat_reply, scripted

COUNT = 3
CHAT = "/v1/chat/completions"


async def gone(pids: list[int]) -> None:
    for _ in range(600):
        if not any(map(lives, pids)):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still there: {[pid for pid in pids if lives(pid)]}")


async def closed(port: int) -> None:
    """A process that was killed may have a thread left that still holds its socket, for a moment."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"port {port} still takes connections")


def metric(text: str, name: str) -> float:
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.partition("{")[0].split()[0] == name
    )


async def test_a_rollout_is_on_one_worker_whatever_the_connection(tmp_path: Path) -> None:
    large = [{"role": "user", "content": "x" * 300_000}]
    async with (
        scripted([Answer(chat_reply())]) as backend,
        process(tmp_path, backend.url, num_workers=COUNT) as at,
        aiohttp.ClientSession(at.url) as client,  # one pool for all rollouts, as an agent server's
    ):
        assert len(at.children()) == COUNT

        async def ask(number: int, turn: int) -> None:
            path, headers = CHAT, {}
            if turn % 3 == 0:
                path = f"/ng-rollout/r{number}{CHAT}"
            elif turn % 3 == 1:
                headers = {"x-ng-rollout-id": f"r{number}"}
            else:
                headers = {"authorization": f"Bearer ng-rollout:r{number}:key"}
            body = {"messages": large if turn == 4 else [*HELLO, {"role": "user", "content": str(turn)}]}
            if turn == 3:
                body["stream"] = True
            async with client.post(path, json=body, headers=headers) as answer:
                text = await answer.text()
                assert answer.status == 200, text
                assert "Hello!" in text

        for turn in range(6):
            await asyncio.gather(*(ask(number, turn) for number in range(12)))
        seals = {}
        for number in range(12):
            async with client.post(f"/ng-rollout/r{number}/seal", json={}) as answer:
                seals[f"r{number}"] = await answer.json()
            async with client.get(f"/ng-rollout/r{number}/calls") as answer:
                lines = (await answer.text()).splitlines()
            assert [json.loads(line)["call_id"] for line in lines] == seals[f"r{number}"]["call_ids"]
            assert len(lines) == 6
        async with client.get("/metrics") as answer:
            figures = await answer.text()
        assert metric(figures, "ng_calls_total") == 72
        assert metric(figures, "ng_own_seconds_count") == 72
        assert figures.count("# TYPE ng_calls_total counter") <= 1
    writers = defaultdict(set)
    for shard in CaptureStore(tmp_path / "captures").shards():
        for record in shard.records():
            writers[record.rollout_id].add(shard.writer)
    assert {len(found) for found in writers.values()} == {1}
    assert len(set.union(*writers.values())) == COUNT
    report = CaptureStore(tmp_path / "captures").verify()
    assert (report.problems, report.unsealed, report.calls) == ([], [], 72)


@pytest.mark.ci
async def test_the_stock_clients_and_streams_cross_workers(tmp_path: Path) -> None:  # V0
    chunks = chat_chunks({"role": "assistant", "content": "one "}, {"content": "two"}, delay=0.05)
    async with (
        scripted(lambda _: Answer(chunks=chunks)) as backend,
        process(tmp_path, backend.url, num_workers=2, stream="relay") as at,
        openai.AsyncOpenAI(base_url=at.url + "/v1", api_key="none", max_retries=0) as client,
    ):

        async def ask(number: int) -> str:
            stream = await client.chat.completions.create(
                model="m", messages=HELLO, stream=True, extra_headers={"x-ng-rollout-id": f"r{number}"}
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        assert set(await asyncio.gather(*(ask(number) for number in range(8)))) == {"one two"}


@pytest.mark.ci
async def test_a_repeat_finds_its_first_attempt_on_any_connection(tmp_path: Path) -> None:  # A16
    async with (
        scripted([Answer(chat_reply("once"), delay=1.5)]) as backend,
        process(tmp_path, backend.url, num_workers=COUNT, repeat_grace_s=30) as at,
    ):
        for number in range(4):
            url = f"{at.url}/ng-rollout/r{number}{CHAT}"
            with pytest.raises(httpx.ReadTimeout):
                async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=0.7)) as client:
                    await client.post(url, json={"messages": HELLO})
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.post(url, json={"messages": HELLO})
            assert answer.json()["choices"][0]["message"]["content"] == "once"
        assert len(backend.calls) == 4
    relations = [record.relation for record in CaptureStore(tmp_path / "captures").calls()]
    assert sorted(relations) == ["first"] * 4 + ["repeat"] * 4


@pytest.mark.ci
async def test_a_stored_response_is_found_on_any_worker(tmp_path: Path) -> None:  # R11
    async with (
        scripted([Answer(chat_reply("I am blue."))]) as backend,
        process(tmp_path, backend.url, num_workers=COUNT) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        made = (await client.post("/ng-rollout/r0/v1/responses", json={"input": "What colour are you?"})).json()["id"]
        for number in range(6):
            body = {"input": "Are you sure?", "previous_response_id": made, "stream": number % 2 == 1}
            answer = await client.post(f"/ng-rollout/r{number}/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            assert (await client.get(f"/ng-rollout/r{number}/v1/responses/{made}")).json()["id"] == made
            sent = backend.calls[-1].json()["messages"]
            assert [message["role"] for message in sent] == ["user", "assistant", "user"]


def other_workers_rollout(index: int) -> str:
    return next(f"r{n}" for n in range(99) if zlib.crc32(f"r{n}".encode()) % 2 == index)


@pytest.mark.ci
async def test_pipelined_and_split_requests(tmp_path: Path) -> None:
    """Requests of both workers' rollouts over one connection: in pieces, one after the other, and in one packet."""

    def said(rollout_id: str, last: bool = False) -> bytes:
        body = json.dumps({"messages": HELLO}).encode()
        end = "connection: close\r\n" if last else ""
        head = f"POST /ng-rollout/{rollout_id}{CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{end}\r\n"
        return head.encode() + body

    async def one_answer(reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return head + await reader.readexactly(int(length.split(b":")[1]))

    ours, theirs = other_workers_rollout(0), other_workers_rollout(1)
    async with scripted([Answer(chat_reply())]) as backend, process(tmp_path, backend.url, num_workers=2) as at:
        port = int(at.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for rollout_id in (ours, theirs, ours, theirs):
            data = said(rollout_id)
            for start in range(0, len(data), 37):
                writer.write(data[start : start + 37])
                await writer.drain()
                await asyncio.sleep(0)
            assert b"200 OK" in await one_answer(reader)
        writer.close()

        for first, second in ((ours, theirs), (theirs, ours)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said(first) + said(second))
            assert b"200 OK" in await one_answer(reader)
            # The second is another worker's: closed, so that the client asks again, never answered by the wrong one.
            assert await reader.read() == b""
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said(first) + said(first, last=True))  # the same rollout's is answered
            assert b"200 OK" in await one_answer(reader)
            assert b"200 OK" in await reader.read()
            writer.close()
    assert CaptureStore(tmp_path / "captures").verify().calls == 10


@pytest.mark.ci
async def test_ready_speaks_for_all_workers(tmp_path: Path) -> None:
    async with (
        scripted([Answer(chat_reply())]) as backend,
        process(tmp_path, backend.url, num_workers=2) as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        os.kill(at.children()[0], signal.SIGSTOP)
        try:
            with pytest.raises(httpx.TimeoutException):
                # One worker is stuck: whichever accepts the connection, nobody says that the server is ready.
                await httpx.AsyncClient(timeout=2).get(at.url + "/ready")
        finally:
            os.kill(at.children()[0], signal.SIGCONT)
        assert (await client.get(at.url + "/ready")).status_code == 200
        forged = await client.get(at.url + "/metrics", headers={"x-ng-worker": "x"})
        assert "ng_calls_in_flight 0" in forged.text


async def stopped(at: Process, how: str) -> None:
    if how == "a worker":
        os.kill(at.children()[0], signal.SIGKILL)
        assert await asyncio.to_thread(at.child.wait, 60) == 128 + signal.SIGKILL
    else:
        number = signal.Signals[how]
        assert at.stop(number) == (0 if how == "SIGTERM" else -number)


@pytest.mark.ci
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "a worker"])
async def test_nothing_is_left(tmp_path: Path, how: str) -> None:  # C6
    async with (
        scripted([Answer(chat_reply())]) as backend,
        process(tmp_path, backend.url, num_workers=2) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        for number in range(6):
            answer = await client.post(f"/ng-rollout/r{number}{CHAT}", json={"messages": HELLO})
            assert answer.status_code == 200
        pids = [at.pid, *at.children()]
        assert len(pids) == 3
        await stopped(at, how)
        await gone(pids)
        await closed(int(at.url.rpartition(":")[2]))
        report = CaptureStore(tmp_path / "captures").verify()
        assert (report.problems, report.calls) == ([], 6)
