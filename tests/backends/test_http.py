"""Several endpoints over real HTTP: failover, bounded tries, hang-ups that reach the backend, log-probs as measured."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import openai
import pytest

from nemo_gym.web.peers import ServerClient
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from tests.backends.test_probe import Endpoint
from tests.bench import HELLO, Bench, bench
from tests.scripted import Answer, Request, chat_reply, scripted
from tests.serving import serving

NOBODY = "http://127.0.0.1:9/v1"
BROKEN = Answer({"error": {"message": "broke"}}, 500)


async def said(at: Bench, rollout_id: str | None = "r1") -> str | None:
    async with at.client(rollout_id) as client:
        reply = await client.chat.completions.create(model="m", messages=HELLO)
    return reply.choices[0].message.content


async def test_a_call_goes_on_elsewhere_and_its_record_tells_how(tmp_path: Path) -> None:
    async with scripted([BROKEN]) as broken, scripted([Answer(chat_reply("here"))]) as good:
        urls = [NOBODY, broken.url, good.url]
        async with bench(tmp_path, [BROKEN], base_url=urls, retries=2) as at:
            for number in range(12):
                assert await said(at, f"r{number}") == "here"
            records = at.records()
        assert len(good.calls) == 12
    assert {len(record.attempts) for record in records} <= {1, 2, 3}
    for record in records:
        *before, last = record.attempts
        assert (last.replica, last.error) == (good.url, None)
        assert {(one.replica, one.error) for one in before} <= {(NOBODY, "unreachable"), (broken.url, "backend")}
    # Three failures in a row, and an endpoint is let alone but for a trial now and then.
    tries = [attempt.replica for record in records for attempt in record.attempts]
    assert tries.count(NOBODY) <= 6
    assert tries.count(broken.url) <= 6


async def test_tries_are_counted_under_429(tmp_path: Path) -> None:
    busy = Answer({"error": {"message": "slow down"}}, 429, {"retry-after-ms": "20"})
    async with bench(tmp_path, [busy], retries=2) as at:
        with pytest.raises(openai.RateLimitError):
            await said(at)
        assert len(at.backend.calls) == 3
        (record,) = at.records()
    assert [attempt.error for attempt in record.attempts] == ["rate_limit"] * 3
    assert record.status == "failed"


async def test_a_hang_up_ends_the_work_of_the_backend(tmp_path: Path) -> None:  # A9
    async with bench(tmp_path, [Answer(hang=True)], retries=3) as at:
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=0.5)) as client:
                await client.post(f"{at.url}/v1/chat/completions", json={"messages": HELLO})
        for _ in range(1200):
            if at.backend.hung_up and at.records():
                break
            await asyncio.sleep(0.05)
        (record,) = at.records()
        assert (at.backend.hung_up, len(at.backend.calls)) == (1, 1)
    assert record.status == "disconnected"
    assert [attempt.error for attempt in record.attempts] == ["disconnected"]


async def test_a_slow_try_is_given_up_for_another_endpoint(tmp_path: Path) -> None:
    async with scripted([Answer(hang=True)]) as slow, scripted([Answer(chat_reply("quick"))]) as quick:
        settings = {"base_url": [slow.url, quick.url], "retries": 1, "attempt_timeout_s": 1.0}
        async with bench(tmp_path, [], **settings) as at:
            assert [await said(at, f"r{number}") for number in range(20)] == ["quick"] * 20  # own endpoints of both
            records = at.records()
        for _ in range(1200):
            if slow.hung_up == len(slow.calls):
                break
            await asyncio.sleep(0.05)
    assert slow.hung_up == len(slow.calls) > 0
    assert {attempt.error for record in records for attempt in record.attempts} == {"timeout", None}


@pytest.mark.parametrize("mode", ["processed", "raw"])
async def test_the_mode_of_log_probs_is_the_one_that_was_measured(tmp_path: Path, mode: str) -> None:  # C3
    async with bench(tmp_path, Endpoint(logprobs=mode), return_token_ids=None) as at:
        async with httpx.AsyncClient(timeout=60) as client:
            assert (await client.get(f"{at.url}/ready", timeout=30)).status_code == 200
        await said(at)
        (record,) = at.records()
    assert record.logprobs_mode == mode
    assert list(record.reply.choices[0].tokens.ids) == [7]


async def test_the_endpoints_can_be_watched(tmp_path: Path) -> None:
    async with scripted([BROKEN]) as broken, scripted([Answer(chat_reply("here"))]) as good:
        config = VLLMModelConfig(
            name="policy_model", base_url=[broken.url, good.url], model="m", return_token_ids=False, retries=1
        )
        app = VLLMModel(config=config, server_client=ServerClient({})).setup_webserver()
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
            assert (await client.get("/ready")).status_code == 200
            for number in range(12):
                path = f"/ng-rollout/r{number}/v1/chat/completions"
                assert (await client.post(path, json={"messages": HELLO})).status_code == 200
            text = (await client.get("/metrics")).text
    said = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("ng_replica"))
    assert said["ng_replica_queue"] == "0.0"
    assert float(said[f'ng_replica_tries_total{{replica="{good.url}"}}']) == 12
    assert said[f'ng_replica_in_flight{{replica="{good.url}"}}'] == "0.0"
    assert said[f'ng_replica_shut{{replica="{good.url}"}}'] == "0.0"
    assert float(said[f'ng_replica_tries_total{{replica="{broken.url}"}}']) == len(broken.calls)


async def test_ids_of_a_server_that_gives_them_in_meta_info(tmp_path: Path) -> None:
    def sglang(request: Request) -> Answer:
        if not request.asks:
            return Answer({"object": "list", "data": []} if request.method == "GET" else {}, 200)
        reply = chat_reply("Hi")
        if request.json().get("return_meta_info"):
            meta = {"output_token_logprobs": [[-0.5, 11, None], [-0.25, 12, None]], "weight_version": "4"}
            reply["choices"][0] |= {"meta_info": meta, "prompt_token_ids": [1, 2, 3]}
        return Answer(reply)

    async with bench(tmp_path, sglang, return_token_ids=None) as at:
        async with httpx.AsyncClient(timeout=60) as client:
            told = (await client.get(f"{at.url}/ready", timeout=30)).json()
        await said(at)
        (record,) = at.records()
    assert told["token_ids"] is True
    assert list(record.reply.prompt_ids) == [1, 2, 3]
    tokens = record.reply.choices[0].tokens
    assert (list(tokens.ids), list(tokens.logprobs), tokens.versions) == ([11, 12], [-0.5, -0.25], ((0, 4),))
