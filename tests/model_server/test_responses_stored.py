"""Responses by their id, from the captures: `previous_response_id`, `store` and `GET /v1/responses/{id}`. # R11"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from nemo_gym.model_server import stored
from tests.bench import bench
from tests.scripted import Answer, Request, chat_reply, tool_call

TOOL: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
CALLS = [tool_call("get_weather", '{"city": "Rome"}', "c1"), tool_call("get_weather", '{"city": "Oslo"}', "c2")]
CALLED = chat_reply(None, message={"reasoning_content": "Two cities.", "tool_calls": CALLS})


def conversation(request: Request) -> list[tuple[str, Any]]:
    return [(one["role"], one["content"]) for one in request.json()["messages"]]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_goes_on_from_its_last_response(tmp_path: Path, streamed: bool) -> None:  # R11 R14
    async with bench(tmp_path, [Answer(chat_reply("One.")), Answer(chat_reply("Two."))]) as at:
        client = at.client()
        first = await respond(client, streamed, input="1?", instructions="Count.")
        second = await respond(client, streamed, input="2?", previous_response_id=first.id, store=False)
        third = await respond(client, streamed, input="3?", previous_response_id=first.id, instructions="Be kind.")
        assert second.previous_response_id == third.previous_response_id == first.id
        with pytest.raises(openai.NotFoundError) as caught:  # it was not stored
            await respond(client, streamed, input="3?", previous_response_id=second.id)
        assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
        assert second.id in caught.value.message
        _, after, kind = at.backend.calls
        records = at.records()
    # The instructions of an earlier response are not handed on.
    assert conversation(after) == [("user", "1?"), ("assistant", "One."), ("user", "2?")]
    assert conversation(kind)[0] == ("system", "Be kind.")
    assert conversation(kind)[1:] == [("user", "1?"), ("assistant", "One."), ("user", "3?")]
    assert [record.status for record in records] == ["answered"] * 3 + ["rejected"]
    assert records[1].received.origin.body["input"] == "2?"  # as the client sent it


async def respond(client: openai.AsyncOpenAI, streamed: bool, **asked: Any) -> Any:
    if not streamed:
        return await client.responses.create(model="m", **asked)
    events = [event async for event in await client.responses.create(model="m", stream=True, **asked)]
    return events[-1].response


@pytest.mark.parametrize("from_disk", [False, True])
async def test_a_turn_of_calls_is_found_whole(tmp_path: Path, from_disk: bool) -> None:  # R11 R10
    async with bench(tmp_path, [Answer(CALLED), Answer(chat_reply())]) as at:
        client = at.client()
        first = await client.responses.create(model="m", input="Weather?", tools=[TOOL])
        (app,) = at.apps
        if from_disk:
            app.stored = stored.StoredResponses(str(tmp_path))
        results: Any = [{"type": "function_call_output", "call_id": call, "output": call} for call in ("c2", "c1")]
        await client.responses.create(model="m", input=results, previous_response_id=first.id, tools=[TOOL])
        messages = at.backend.calls[1].json()["messages"]
        one, two = at.records()
    assert (two.relation, two.parent_call_id) == ("turn", one.call_id)
    assert messages[1] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Two cities.",
        "tool_calls": CALLS,
    }
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in messages[2:]] == [
        ("tool", "c2", "c2"),
        ("tool", "c1", "c1"),
    ]


async def test_any_worker_finds_it_and_so_does_a_server_that_was_started_anew(tmp_path: Path) -> None:  # R11
    answers = [Answer(CALLED), Answer(chat_reply("Sunny."))]
    async with bench(tmp_path, answers) as one, bench(tmp_path, [Answer(chat_reply("Else."))]) as other:
        first = await one.client().responses.create(model="m", input="Weather?", tools=[TOOL])
        second = await other.client(None).responses.create(model="m", input="And?", previous_response_id=first.id)
        third = await one.client("r2").responses.create(model="m", input="So?", previous_response_id=second.id)
        assert [role for role, _ in conversation(one.backend.calls[1])] == ["user", "assistant"] * 2 + ["user"]
        assert (await one.client().responses.retrieve(second.id)).output_text == "Else."
    async with bench(tmp_path, [Answer(chat_reply("Again."))]) as anew:  # the shards are sealed by now
        client = anew.client()
        assert (await client.responses.retrieve(third.id)).to_dict() == third.to_dict()
        assert (await client.responses.retrieve(first.id)).to_dict() == first.to_dict()
        last = await client.responses.create(model="m", input="Last?", previous_response_id=third.id)
        assert last.output_text == "Again."
        said = conversation(anew.backend.calls[0])
    assert [content for _, content in said] == ["Weather?", None, "And?", "Else.", "So?", "Sunny.", "Last?"]


async def test_a_response_is_got_by_its_id(tmp_path: Path) -> None:  # A1 R11 V0
    asked: Any = {"model": "m", "input": "Hi", "tools": [TOOL], "metadata": {"a": "b"}, "temperature": 0.5}
    settings: Any = {"api_keys": ["right"]}
    async with (
        bench(tmp_path, [Answer(CALLED)], **settings) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        client.headers["authorization"] = "Bearer right"
        whole = (await client.post("/ng-rollout/r1/v1/responses", json=asked)).json()
        hidden = (await client.post("/v1/responses", json=asked | {"store": False})).json()
        chat = (await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})).json()
        for place in ("/v1/responses/", "/ng-rollout/r2/v1/responses/"):
            found = await client.get(place + whole["id"], params={"include[]": "x"})
            assert (found.status_code, found.json()) == (200, whole)
        for missing in (hidden["id"], chat["id"], "resp_none", "%00", "a/b"):
            answer = await client.get(f"/v1/responses/{missing}")
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
        assert (await client.delete(f"/v1/responses/{whole['id']}")).status_code == 404
        client.headers["authorization"] = "Bearer wrong"
        assert (await client.get(f"/v1/responses/{whole['id']}")).status_code == 401


async def test_without_capture_nothing_is_stored(tmp_path: Path) -> None:  # R11
    capture = {"enabled": False}
    async with bench(tmp_path, [Answer(chat_reply())], capture=capture) as at:
        client = at.client()
        first = await client.responses.create(model="m", input="1?")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="m", input="2?", previous_response_id=first.id)
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)


async def test_what_is_held_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R11
    looked: list[str] = []
    look_up = stored._look_up

    def watched(directory: str, response_id: str) -> Any:
        looked.append(response_id)
        return look_up(directory, response_id)

    monkeypatch.setattr(stored, "_look_up", watched)
    async with bench(tmp_path, [Answer(chat_reply("x" * 1000))]) as at:
        (app,) = at.apps
        app.stored = stored.StoredResponses(str(tmp_path), max_bytes=25_000)
        client = at.client()
        ids = [(await client.responses.create(model="m", input="Hi")).id for _ in range(10)]
        assert app.stored._bytes <= 25_000
        for response_id in reversed(ids):
            assert (await client.responses.retrieve(response_id)).id == response_id
    assert looked == list(reversed(ids[: len(looked)]))
    assert 0 < len(looked) < 10


async def test_an_item_can_be_referred_to_by_its_id(tmp_path: Path) -> None:  # R11 R26
    async with bench(tmp_path, [Answer(CALLED), Answer(chat_reply())]) as at:
        client = at.client()
        first = await client.responses.create(model="m", input="Weather?", tools=[TOOL])
        reference = [{"type": "item_reference", "id": item.id} for item in first.output]
        result = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
        asked: Any = [{"role": "user", "content": "Weather?"}, *reference[:2], result]
        await client.responses.create(model="m", input=asked, tools=[TOOL])
        assert at.backend.calls[1].json()["messages"] == [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "reasoning_content": "Two cities.", "tool_calls": CALLS[:1]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ]
        for missing in ("msg_resp_none_0", f"msg_{first.id}_9", "x"):
            unknown: Any = [{"role": "user", "content": "x"}, {"type": "item_reference", "id": missing}]
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.create(model="m", input=unknown)
            assert (caught.value.param, missing in caught.value.message) == ("input", True)
