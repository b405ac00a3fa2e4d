"""A model server over real HTTP: stock client, scripted backend, real capture."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from nemo_gym.capture import CaptureStore
from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, chat_reply, tool_call


async def test_stream_and_whole_reply_are_the_same_message(tmp_path: Path) -> None:  # V0 B1 B7
    reply = chat_reply(
        None, message={"tool_calls": [tool_call("get_weather", '{"city":  "Rome"}')], "content": "Let me see é."}
    )
    async with bench(tmp_path, [Answer(reply)]) as at:
        client = at.client()
        whole = await client.chat.completions.create(model="m", messages=HELLO, tools=[TOOL])
        async with client.chat.completions.stream(model="m", messages=HELLO, tools=[TOOL]) as stream:
            streamed = await stream.get_final_completion()
        assert streamed.choices[0].message.content == whole.choices[0].message.content == "Let me see é."
        (call,) = streamed.choices[0].message.tool_calls
        assert call.function.arguments == '{"city":  "Rome"}'
        assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
        assert at.backend.calls[0].json()["model"] == "scripted-model"  # A15
        records = at.records()
    assert [record.streamed for record in records] == [False, True]
    assert {record.status for record in records} == {"answered"}
    assert records[0].reply.choices[0].parts[1].arguments == '{"city":  "Rome"}'


async def test_responses_over_a_chat_backend(tmp_path: Path) -> None:  # R20 R21
    async with bench(tmp_path, [Answer(chat_reply("Rome is sunny."))]) as at:
        client = at.client()
        whole = await client.responses.create(model="m", input="Weather in Rome?")
        events = [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
        assert whole.output_text == "Rome is sunny."
        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "Rome is sunny."
        records = at.records()
    assert records[0].reply.id == whole.id
    assert {record.dialect for record in records} == {"responses"}


async def test_bad_input_is_recorded_and_never_reaches_the_backend(tmp_path: Path) -> None:  # A3 C1
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(timeout=60) as client:
        url = f"{at.url}/ng-rollout/r1/v1/chat/completions"
        wrong = await client.post(url, json={"messages": 5})
        broken = await client.post(url, content=b"{")
        assert (wrong.status_code, broken.status_code) == (422, 422)
        assert wrong.json()["detail"][0]["loc"][:2] == ["body", "messages"]
        assert broken.json()["detail"][0]["type"] == "json_invalid"
        response = await client.post(f"{at.url}/ng-rollout/r1/v1/responses", json={"input": 5})
        assert response.status_code == 400
        assert at.backend.calls == []
        assert [record.status for record in at.records()] == ["rejected"] * 3


@pytest.mark.parametrize("streamed", [False, True])
async def test_backend_errors_keep_their_status_before_the_commit(tmp_path: Path, streamed: bool) -> None:  # A5 A7
    failure = Answer(
        {"error": {"message": "slow down", "type": "rate_limit", "code": "busy"}}, 429, {"retry-after": "7"}
    )
    async with bench(tmp_path, [failure]) as at, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(
            f"{at.url}/ng-rollout/r1/v1/chat/completions", json={"messages": HELLO, "stream": streamed}
        )
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "7"
        assert answer.json()["error"]["message"] == "slow down"
        (record,) = at.records()
    assert (record.status, record.error.kind) == ("failed", "rate_limit")


async def test_transient_failures_are_absorbed_and_counted(tmp_path: Path) -> None:
    answers = [Answer({"error": {"message": "x"}}, 503, {"retry-after": "0"}), Answer(chat_reply())]
    async with bench(tmp_path, answers, retries=2) as at:
        await at.client().chat.completions.create(model="m", messages=HELLO)
        (record,) = at.records()
    assert [attempt.error for attempt in record.attempts] == ["overloaded", None]


@pytest.mark.parametrize("body", [b"garbage", b"{}", b'{"choices": 5}', b"null", b""])
async def test_an_unreadable_reply_is_a_backend_failure(tmp_path: Path, body: bytes) -> None:
    async with bench(tmp_path, [Answer(body)]) as at:
        with pytest.raises(openai.InternalServerError) as caught:
            await at.client().chat.completions.create(model="m", messages=HELLO)
        assert caught.value.status_code == 502
        assert at.records()[0].status == "failed"


async def test_a_reply_cut_in_the_middle_is_a_failure(tmp_path: Path) -> None:
    async with bench(tmp_path, [Answer(chat_reply(), cut=40)]) as at:
        with pytest.raises(openai.InternalServerError):
            await at.client().chat.completions.create(model="m", messages=HELLO)


async def test_late_commit_keeps_alive_with_data_and_fails_in_the_stream(tmp_path: Path) -> None:  # A7 R28
    slow = Answer({"error": {"message": "gone"}}, 500, delay=0.6)
    async with (
        bench(tmp_path, [slow], stream_commit_s=0.1, keepalive_s=0.1) as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        body = {"messages": HELLO, "stream": True}
        answer = await client.post(f"{at.url}/ng-rollout/r1/v1/chat/completions", json=body)
        assert answer.status_code == 200
        frames = [line for line in answer.text.split("\n\n") if line]
        assert all(frame.startswith("data: {") for frame in frames[:3])
        assert len(frames) >= 4
        assert "gone" in answer.text
        response = await client.post(f"{at.url}/v1/responses", json={"input": "x", "stream": True})
        assert response.text.index("response.in_progress") < response.text.index("response.failed")


async def test_late_commit_gives_the_reply_the_ids_of_the_opening(tmp_path: Path) -> None:  # A15
    async with bench(tmp_path, [Answer(chat_reply(), delay=0.4)], stream_commit_s=0.1, keepalive_s=0.1) as at:
        stream = await at.client().chat.completions.create(model="m", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
        (record,) = at.records()
    assert {chunk.id for chunk in chunks} == {record.reply.id}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello!"


async def test_a_hang_up_cancels_the_backend_and_is_recorded(tmp_path: Path) -> None:  # A9
    async with bench(tmp_path, [Answer(hang=True)], repeat_grace_s=0.1) as at:
        with pytest.raises(httpx.ReadTimeout):
            async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=0.3)) as client:
                await client.post(f"{at.url}/ng-rollout/r1/v1/chat/completions", json={"messages": HELLO})
        for _ in range(3000):
            if at.backend.hung_up and at.records():
                break
            await asyncio.sleep(0.02)
        assert at.backend.hung_up == 1
        assert [record.status for record in at.records()] == ["disconnected"]


async def test_seal_and_calls(tmp_path: Path) -> None:  # C9
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(timeout=60) as client:
        await at.client().chat.completions.create(model="m", messages=HELLO)
        lines = (await client.get(f"{at.url}/ng-rollout/r1/calls")).text.splitlines()
        assert len(lines) == 1
        wrong = await client.post(f"{at.url}/ng-rollout/r1/seal", json={"incomplete": "tired"})
        assert wrong.status_code == 400
        seal = (await client.post(f"{at.url}/ng-rollout/r1/seal", json={"incomplete": None})).json()
        assert seal["call_ids"] == [at.records()[0].call_id]
        assert CaptureStore(tmp_path).verify().ok


async def test_routes_and_status(tmp_path: Path) -> None:  # A1 R31
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        assert (await client.get("/health?x=1")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["scripted-model"]
        await client.post("/v1/chat/completions?beta=true", json={"messages": HELLO})
        assert b'ng_calls_total{dialect="chat"' in (await client.get("/metrics")).content
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.get("/v1/chat/completions")).status_code == 405
        assert (await client.post("/ng-rollout/a%20b/v1/chat/completions", json={})).status_code == 400  # C4


async def test_models_is_unavailable_without_a_backend(tmp_path: Path) -> None:  # R31
    async with (
        bench(tmp_path, lambda request: Answer({}, 500)) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        assert (await client.get("/v1/models")).status_code == 503
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200


async def test_a_body_beyond_the_limit_is_refused_and_recorded(tmp_path: Path) -> None:
    async with (
        bench(tmp_path, [Answer(chat_reply())], max_body_bytes=2000) as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        body = {"messages": [{"role": "user", "content": "x" * 3000}]}
        answer = await client.post(f"{at.url}/ng-rollout/r1/v1/chat/completions", json=body)
        assert answer.status_code == 413
        assert "max_body_bytes" in answer.json()["error"]["message"]
        assert [record.status for record in at.records()] == ["rejected"]


async def test_a_key_is_needed_where_one_is_set(tmp_path: Path) -> None:
    async with (
        bench(tmp_path, [Answer(chat_reply())], api_keys=["s3cret"]) as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        url = f"{at.url}/v1/chat/completions"
        assert (await client.post(url, json={"messages": HELLO})).status_code == 401
        for key in ("s3cret", "ng-rollout:r7:s3cret"):  # C4
            headers = {"authorization": f"Bearer {key}"}
            assert (await client.post(url, json={"messages": HELLO}, headers=headers)).status_code == 200
        assert [record.rollout_id for record in at.records() if record.status == "answered"] == [None, "r7"]


async def test_sampling_overrides_win_and_both_are_recorded(tmp_path: Path) -> None:
    async with bench(tmp_path, [Answer(chat_reply())], sampling_overrides={"temperature": 1.0}) as at:
        await at.client().chat.completions.create(model="m", messages=HELLO, temperature=0.2)
        assert at.backend.calls[0].json()["temperature"] == 1.0
        (record,) = at.records()
    assert record.received.sampling.temperature == 0.2
    assert record.sent.sampling.temperature == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        chat_reply(None, message={"tool_calls": [tool_call("f", "{}") | {"id": 5}]}),
        chat_reply(None, message={"tool_calls": [tool_call(7, "{}")]}),  # type: ignore[arg-type]
        chat_reply(None, message={"refusal": 5}),
        chat_reply([{"type": "text", "text": 5}]),  # type: ignore[arg-type]
        chat_reply(id=5),
        chat_reply(created=10**30),
        chat_reply(choice={"index": "0"}),
        chat_reply(prompt_token_ids=[1, -2], choice={"token_ids": [3]}),
    ],
)
async def test_a_malformed_reply_is_a_502_and_its_record_can_be_read(tmp_path: Path, reply: Any) -> None:
    async with bench(tmp_path, [Answer(reply)]) as at, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{at.url}/ng-rollout/r1/v1/chat/completions", json={"messages": HELLO})
        assert answer.status_code == 502, answer.text
        assert answer.json()["error"]["message"]
        (record,) = at.records()
    assert (record.status, record.error.kind) == ("failed", "backend")


@pytest.mark.parametrize(("said", "known"), [("3", None), (3.0, 3), (3.5, None), (2**40, None), (-1, None)])
async def test_an_odd_count_in_the_usage_is_unknown(tmp_path: Path, said: Any, known: int | None) -> None:
    async with bench(tmp_path, [Answer(chat_reply(usage={"prompt_tokens": said}))]) as at:
        await at.client().chat.completions.create(model="m", messages=HELLO)
        (record,) = at.records()
    assert record.reply.usage.prompt == known


@pytest.mark.parametrize("status", [204, 302, 304])
async def test_an_answer_that_is_no_reply_is_a_502(tmp_path: Path, status: int) -> None:
    async with bench(tmp_path, [Answer(b"", status)]) as at, httpx.AsyncClient(timeout=60) as client:
        for _ in range(2):  # the connection stays good
            answer = await client.post(f"{at.url}/v1/chat/completions", json={"messages": HELLO})
            assert answer.status_code == 502


async def test_a_key_that_the_backend_quotes_is_not_passed_on(tmp_path: Path) -> None:  # A5
    def refuse(request: Any) -> Answer:
        return Answer({"error": {"message": "bad key sk-backend-secret"}}, 403 if request.method == "POST" else 500)

    async with bench(tmp_path, refuse, api_key="sk-backend-secret") as at, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{at.url}/v1/chat/completions", json={"messages": HELLO})
        assert answer.status_code == 403
        assert "sk-backend" not in answer.text


async def test_a_seal_waits_for_what_the_rollout_left_in_flight(tmp_path: Path) -> None:  # C9 A9
    async with bench(tmp_path, [Answer(hang=True)], repeat_grace_s=60) as at:
        with pytest.raises(httpx.ReadTimeout):
            async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=0.3)) as client:
                await client.post(f"{at.url}/ng-rollout/r1/v1/chat/completions", json={"messages": HELLO})
        async with httpx.AsyncClient(timeout=60) as client:
            seal = (await client.post(f"{at.url}/ng-rollout/r1/seal", json={"incomplete": "cancelled"})).json()
        (record,) = at.records()
        assert (record.status, seal["call_ids"]) == ("disconnected", [record.call_id])
    assert CaptureStore(tmp_path).verify().ok


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("conversation", "conv_1"),
        ("prompt", {"id": "pmpt_1"}),
        ("input", []),
        ("input", [{"type": "zz"}]),
        ("tools", [{"type": "web_search"}]),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, field: str, value: Any) -> None:  # R8
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{at.url}/ng-rollout/r1/v1/responses", json={"input": "Hi"} | {field: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
        assert at.backend.calls == []
        assert [record.status for record in at.records()] == ["rejected"]


async def test_a_search_can_be_ignored(tmp_path: Path) -> None:  # R8
    async with bench(tmp_path, [Answer(chat_reply())], web_search="ignore") as at:
        reply = await at.client().responses.create(model="m", input="Hi", tools=[{"type": "web_search"}])
        assert reply.output_text == "Hello!"
        assert "tools" not in at.backend.calls[0].json()


async def test_a_start_with_a_wrong_key_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: told.append(number))
    refused = Answer({"error": {"message": "Incorrect API key provided: sk-wrong-key"}}, 401)
    async with (
        bench(tmp_path, lambda request: refused, api_key="sk-wrong-key") as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        ready = await client.get(f"{at.url}/ready")
        assert ready.status_code == 503
        assert "sk-wrong" not in ready.text
        for _ in range(3000):
            if told:
                break
            await asyncio.sleep(0.02)
    assert told == [15]


async def test_what_memory_tells_of_a_call_has_no_secret(tmp_path: Path) -> None:  # C8
    key, caller = "sk-backend-0123456789", "sk-caller-0123456789"
    answers = [Answer(chat_reply(f"It is {key}.", message={"reasoning_content": caller}))]
    headers = {"authorization": f"Bearer {caller}"}
    settings = {"api_key": key, "api_keys": [caller], "capture": {"raw": "all"}}
    async with (
        bench(tmp_path, answers, **settings) as at,
        httpx.AsyncClient(base_url=f"{at.url}/ng-rollout/r1", headers=headers) as client,
    ):
        body = {"messages": [{"role": "user", "content": f"Is it {key} or {caller}?"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        refused = await client.post("/v1/chat/completions", content=f'{{"messages": "{caller}'.encode())
        told = (await client.get("/calls")).text.splitlines()
        kept = at.records()
    assert refused.status_code == 422
    calls = [json.loads(line) for line in told]
    assert [one["status"] for one in calls] == ["answered", "rejected"]
    raws = [base64.b64decode(one["raw"]).decode() for one in calls]
    for said in (*told, *raws, *map(repr, kept)):
        assert key not in said
        assert caller not in said
    assert calls[0]["received"]["messages"][0]["parts"][0]["text"] == "Is it [redacted] or [redacted]?"
    assert kept[0].received.messages[0].parts[0].text == "Is it [redacted] or [redacted]?"
