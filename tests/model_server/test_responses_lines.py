"""Lines of the wire contract for Responses that no other test of this room pins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.bench import bench
from tests.scripted import Answer, chat_chunks, chat_reply, output_text, responses_events, responses_reply, tool_call

IMAGE = "data:image/png;base64,AAAA"
F: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}


async def sent(tmp_path: Path, items: Any, api: str = "chat", **asked: Any) -> Any:
    """What a backend gets of these input items."""
    settings = asked.pop("settings", {})
    reply = chat_reply() if api == "chat" else responses_reply()
    async with bench(tmp_path, [Answer(reply)], api=api, **settings) as at, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{at.url}/v1/responses", json={"input": items, **asked})
        assert answer.status_code == 200, answer.text
        body = at.backend.calls[0].json()
    return body["messages"] if api == "chat" else body["input"]


CALLS = [{"type": "function_call", "call_id": one, "name": "f", "arguments": "{}"} for one in ("c1", "c2")]


def result(call_id: str, output: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": output}


async def test_parts_are_translated_wherever_they_occur(tmp_path: Path) -> None:  # R1 R2 R4 R10 R14
    parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": IMAGE, "detail": "high"}]
    written = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": IMAGE, "detail": "high"}}]
    document = {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [*parts, {"type": "text", "text": "t"}, document]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}],
        },
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "A" * 400},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "three"}]},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I call."}, {"type": "refusal", "refusal": "No."}],
        },
        *CALLS,
        result("c1", parts),
        result("c2", parts, "custom_tool_call_output"),
    ]
    messages = await sent(tmp_path, items, instructions="i", settings={"developer_role": "developer"})
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": document["file_data"]}}
    assert messages == [
        {"role": "system", "content": "i"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [*written, {"type": "text", "text": "t"}, file]},
        {
            "role": "assistant",
            "content": "I call.",
            "reasoning_content": "one\ntwo\nthree",
            "refusal": "No.",
            "tool_calls": [tool_call("f", "{}", "c1"), tool_call("f", "{}", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": written},
        {"role": "tool", "tool_call_id": "c2", "content": written},
    ]


async def test_results_bind_to_their_calls(tmp_path: Path) -> None:  # R10
    one, two = [result("c1", "1"), result("c2", "2")], [result("c1", "2"), result("c2", "1")]
    messages = [await sent(tmp_path / str(n), [*CALLS, *results]) for n, results in enumerate((one, two))]
    assert messages[0] != messages[1]
    assert [len(found[0]["tool_calls"]) for found in messages] == [2, 2]


SECRET = {"type": "encrypted_content", "encrypted_content": "Q" * 300}


async def test_readable_text_under_any_name_is_text(tmp_path: Path) -> None:  # R3
    task = {"type": "encrypted_content", "encrypted_content": "Count the files, then report."}
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, SECRET]},
        {"type": "agent_message", "content": [task], "author": "a", "recipient": "b"},
        {"type": "compaction", "encrypted_content": "What happened so far: nothing."},
        {"type": "compaction", "encrypted_content": "Q" * 300},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "of_next_year"},
    ]
    assert await sent(tmp_path / "chat", items) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "user", "content": "Count the files, then report."},
        {"role": "user", "content": "What happened so far: nothing."},
    ]
    assert await sent(tmp_path / "responses", items, "responses") == items


async def test_a_provider_gets_no_content_of_reasoning(tmp_path: Path) -> None:  # R4
    content = [{"type": "reasoning_text", "text": "hm"}]
    items = [
        {"role": "user", "content": "Hi"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": content,
            "status": None,
            "encrypted_content": "x",
        },
    ]
    (_, thought) = await sent(tmp_path, items, "responses")
    summary = [{"type": "summary_text", "text": "hm"}]
    assert thought == {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "x"}


async def test_what_this_server_emitted_is_accepted_back(tmp_path: Path) -> None:  # R12
    reply = chat_reply("Text.", message={"reasoning_content": "hm", "tool_calls": [tool_call("f", '{"a":  1}')]})
    async with bench(tmp_path, [Answer(reply)]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        output = (await client.post("/v1/responses", json={"input": "Hi", "tools": [F]})).json()["output"]
        output[1]["content"][0]["logprobs"] = None  # as some clients replay it
        asked = [{"role": "user", "content": "Hi"}, *output, result("call_1", "1")]
        assert (await client.post("/v1/responses", json={"input": asked, "tools": [F]})).status_code == 200
        messages = at.backend.calls[1].json()["messages"]
    assert [item["status"] for item in output if "status" in item] == ["completed"] * 2
    assert messages[1] == {"role": "assistant", **reply["choices"][0]["message"]}


async def test_formats_and_fields_travel_under_their_own_names(tmp_path: Path) -> None:  # A14 R13 R32
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True, "description": "An answer."}
    text: Any = {"format": form, "verbosity": "low"}
    async with bench(tmp_path, [Answer(chat_reply("{}"))]) as at:
        response = await at.client().responses.create(model="m", input="Hi", text=text, reasoning={"effort": "low"})
        body = at.backend.calls[0].json()
        assert response.to_dict()["text"] == text
        await at.client().responses.create(model="m", input="Hi", text={"format": {"type": "json_object"}})
        plain = at.backend.calls[1].json()
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {k: v for k, v in form.items() if k != "type"},
    }
    assert (body["verbosity"], body["reasoning_effort"]) == ("low", "low")
    assert plain["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "input_image", "file_id": "file_1"}, "input_image"),
        ({"type": "input_file", "file_id": "file_1"}, "input_file"),
        ({"type": "input_file", "file_url": "http://x/a.pdf"}, "document"),
        ({"type": "input_video", "video_url": "http://x"}, "input_video"),
    ],
)
async def test_a_part_that_a_chat_backend_cannot_be_given_is_refused(tmp_path: Path, part: Any, named: str) -> None:
    message = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, part]}
    for items in ([message], [*CALLS, result("c1", [part])]):
        async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{at.url}/v1/responses", json={"input": items})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
            assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("finish", "status", "details"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
async def test_how_a_response_ended(tmp_path: Path, finish: str, status: str, details: Any) -> None:  # R27 R29
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    async with bench(tmp_path, [Answer(chat_reply("x", finish_reason=finish, usage=usage))]) as at:
        whole = (await at.client().responses.create(model="m", input="Hi")).to_dict()
        stream = await at.client().responses.create(model="m", input="Hi", stream=True)
        events = [event.to_dict() async for event in stream]
    assert events[-1]["type"] == f"response.{status}"
    for response in (whole, events[-1]["response"]):
        assert (response["status"], response["incomplete_details"]) == (status, details)
        assert response["usage"] == {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 7,
        }


async def test_a_backend_that_failed(tmp_path: Path) -> None:  # R27 R28 A5
    error = {"code": "server_error", "message": "It broke."}
    for reply in (responses_reply(status="failed", error=error, output=[]), responses_reply(status="in_progress")):
        async with bench(tmp_path, [Answer(reply)], api="responses") as at:
            for streamed in (False, True):
                with pytest.raises(openai.InternalServerError) as caught:
                    await at.client().responses.create(model="m", input="Hi", stream=streamed)
                assert caught.value.status_code == 502
            assert {record.status for record in at.records()} == {"failed"}


async def test_a_cancelled_response_stays_cancelled(tmp_path: Path) -> None:  # R27
    reply = responses_reply(output_text("So far"), status="cancelled")
    async with bench(tmp_path, [Answer(reply)], api="responses") as at:
        whole = await at.client().responses.create(model="m", input="Hi")
        stream = await at.client().responses.create(model="m", input="Hi", stream=True)
        events = [event async for event in stream]
    assert (whole.status, events[-1].response.status) == ("cancelled", "cancelled")
    assert whole.output_text == "So far"


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_stream_never_just_stops(tmp_path: Path, api: str) -> None:  # R28
    chunks = responses_events(responses_reply(output_text("Hello there")))[:-2]
    if api == "chat":
        chunks = chat_chunks({"content": "Hel"}, {"content": "lo there"}, finish=None)
    async with (
        bench(tmp_path, [Answer(chunks=chunks)], api=api, stream="relay") as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        answer = await client.post(f"{at.url}/ng-rollout/r1/v1/responses", json={"input": "Hi", "stream": True})
        (record,) = at.records()
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[-5:] == ["output_text.done", "content_part.done", "output_item.done", "error", "failed"]
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello there"
    assert events[-2]["message"] == record.error.message
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert record.status == "failed"


async def test_a_keep_alive_is_an_event_with_a_number(tmp_path: Path) -> None:  # A7 R22
    slow = Answer(chat_reply(), delay=0.5)
    async with (
        bench(tmp_path, [slow], stream_commit_s=0.05, keepalive_s=0.05) as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        answer = await client.post(f"{at.url}/v1/responses", json={"input": "Hi", "stream": True})
        (record,) = at.records()
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert sum(event["type"] == "response.in_progress" for event in events) > 2
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    # A15: said before the backend answered, so the id is ours and the model the configured one.
    assert {event["response"]["id"] for event in events if "response" in event} == {record.reply.id}
    assert {event["response"]["model"] for event in events if "response" in event} == {"scripted-model"}


async def test_the_models_tokens_of_reasoning_are_passed_on(tmp_path: Path) -> None:  # R29
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "completion_tokens_details": {"reasoning_tokens": 2},
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    async with bench(tmp_path, [Answer(chat_reply(usage=usage)), Answer(chat_reply(usage=None))]) as at:
        known = (await at.client().responses.create(model="m", input="Hi")).usage
        unknown = (await at.client().responses.create(model="m", input="Hi")).usage
        first, second = at.records()
    assert (known.output_tokens_details.reasoning_tokens, known.input_tokens_details.cached_tokens) == (2, 1)
    assert unknown is None
    assert (first.reply.usage.reasoning, second.reply.usage.prompt) == (2, None)


@pytest.mark.parametrize("shape", ["summary", "content"])
async def test_reasoning_travels_in_the_shape_that_is_set(tmp_path: Path, shape: str) -> None:  # R23 R30
    reply = chat_reply("Four.", message={"reasoning_content": "Two and two."})
    async with bench(tmp_path, [Answer(reply)], reasoning_shape=shape) as at:
        stream = await at.client().responses.create(model="m", input="Hi", stream=True)
        events = [event async for event in stream]
        thought = (await at.client().responses.create(model="m", input="Hi")).output[0].to_dict()
    kinds = [event.type.removeprefix("response.") for event in events if getattr(event, "output_index", None) == 0]
    around, name = ("content_part", "reasoning_text")
    if shape == "summary":
        around, name = ("reasoning_summary_part", "reasoning_summary_text")
    assert kinds == [
        "output_item.added",
        f"{around}.added",
        f"{name}.delta",
        f"{name}.done",
        f"{around}.done",
        "output_item.done",
    ]
    added = next(event.item for event in events if event.type == "response.output_item.added")
    assert (added.type, added.summary) == ("reasoning", [])
    said = {"summary": [{"type": "summary_text", "text": "Two and two."}]}
    if shape == "content":
        said = {"summary": [], "content": [{"type": "reasoning_text", "text": "Two and two."}]}
    assert {field: thought[field] for field in said} == said


def sampled(*tokens: str) -> dict[str, Any]:
    top = [{"token": "x", "logprob": -0.25, "bytes": None}, {"token": "y", "logprob": -3.0, "bytes": None}]
    return {"content": [{"token": one, "logprob": -0.5, "bytes": None, "top_logprobs": top} for one in tokens]}


@pytest.mark.parametrize("stream", ["replay", "relay"])
async def test_log_probs_that_were_asked_for_are_delivered(tmp_path: Path, stream: str) -> None:  # R13
    told = sampled("<think>", "Fo", "ur", "</think>", "Fo", "ur.")
    message = {"reasoning_content": "Four"}
    whole = Answer(chat_reply("Four.", message=message, choice={"logprobs": told}))
    asked: Any = {"model": "m", "input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    async with bench(tmp_path, [whole], stream=stream) as at:
        client = at.client()
        response = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        plain = await client.responses.create(model="m", input="Hi")
        body = at.backend.calls[0].json()
        again = await client.responses.retrieve(response.id)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)
    one, two = response.output[1].content[0].logprobs
    assert [(one.token, one.logprob), (two.token, bytes(two.bytes))] == [("Fo", -0.5), ("ur.", b"ur.")]
    assert [(top.token, top.logprob) for top in one.top_logprobs] == [("x", -0.25)]
    last = events[-1].response.output[1].content[0]
    assert last.logprobs == response.output[1].content[0].logprobs
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [entry.token for entry in done.logprobs] == ["Fo", "ur."]
    assert plain.output[1].content[0].logprobs == []
    assert again == response
