"""Messages over a real server: the stock client in both manners, and the record; refusals, repeats."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.backends.backend import Capabilities
from nemo_gym.exchange.parts import Reasoning, Refusal, Text, ToolCall
from nemo_gym.model_server import said
from tests.bench import Bench, bench
from tests.scripted import Answer, Request, chat_chunks, chat_reply, messages_events, messages_reply, tool_call
from tests.texts import long_texts

TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ASK: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": HELLO, "tools": [TOOL]}
PATH = "/ng-rollout/r1/v1/messages"

words = (
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
    | long_texts
    | st.sampled_from([" ", "\n\n", "e\u0301\u0301", "👩‍👩‍👧", "\x00", " \t lead and trail \t "])
)
arguments = st.sampled_from(['{"city": "Oslo"}', "{}", "", "null", "[1]", '{"a": 1.50, "b": [null]}', "not json"])


@st.composite
def chat_replies(draw: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | words)}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(words)
    if draw(st.integers(0, 5)) == 0:
        message["refusal"] = draw(words)
    if draw(st.booleans()):
        count = draw(st.integers(1, 3))
        message["tool_calls"] = [tool_call("get_weather", draw(arguments), f"functions.x:{n}") for n in range(count)]
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    usage = {"prompt_tokens": 9, "completion_tokens": draw(st.integers(0, 9)), "total_tokens": 12}
    return chat_reply(message=message, finish_reason=finish, usage=usage)


@st.composite
def messages_replies(draw: Any) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for place in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from("ttrhc"))
        if kind == "t":
            blocks.append({"type": "text", "text": draw(words.filter(bool))})
        elif kind == "r":
            blocks.append(
                {"type": "thinking", "thinking": draw(words), "signature": draw(st.sampled_from(["s", "ng1."]))}
            )
        elif kind == "h":
            blocks.append({"type": "redacted_thinking", "data": "sealed"})
        else:
            blocks.append(
                {"type": "tool_use", "id": f"t{place}", "name": "get_weather", "input": {"city": draw(words)}}
            )
    reason = draw(st.sampled_from(["end_turn", "tool_use", "refusal", "stop_sequence"]))
    stop = "END" if reason == "stop_sequence" else None
    return messages_reply(*blocks, content=blocks, stop_reason=reason, stop_sequence=stop)


def tidy(message: Any) -> dict[str, Any]:
    dumped = message.model_dump(exclude_none=True, exclude={"id"})
    for block in dumped["content"]:
        block.pop("parsed_output", None)
    return dumped


async def both(client: anthropic.AsyncAnthropic, **asked: Any) -> tuple[Any, Any]:
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        return whole, await stream.get_final_message()


async def check_views(client: anthropic.AsyncAnthropic, at: Bench) -> None:
    whole, streamed = await both(client, **ASK)
    (app,) = at.apps
    assert app.capture is not None
    first, second = app.capture.calls("r1")[-2:]
    assert tidy(whole) == tidy(streamed)
    assert (whole.id, streamed.id) == (first.reply.id, second.reply.id)
    assert (first.streamed, second.streamed) == (False, True)
    for record in (first, second):
        (choice,) = record.reply.choices
        said = [part.text for part in choice.parts if isinstance(part, Text | Refusal)]
        assert "".join(block.text for block in whole.content if block.type == "text") == "".join(said)  # A13
        thoughts = [part.text for part in choice.parts if isinstance(part, Reasoning) and (part.text or part.payload)]
        assert [getattr(b, "thinking", "") for b in whole.content if "thinking" in b.type] == thoughts
        called = [part for part in choice.parts if isinstance(part, ToolCall)]
        shown = [block for block in whole.content if block.type == "tool_use"]
        assert len(shown) == len(called) or whole.stop_reason == "max_tokens"  # A19
        usage = record.reply.usage
        assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) == usage.prompt
        assert whole.usage.output_tokens == usage.completion


def hold(tmp_path: Path, replies: Any, answer: Any, examples: int, **config: Any) -> None:
    """The law for every drawn reply, over one server."""
    given_reply: dict[str, Any] = {}

    def decide(request: Request) -> Answer:
        return answer(given_reply, request) if request.asks else Answer({"data": []})

    with asyncio.Runner() as runner:
        context = bench(tmp_path, decide, **config)
        at = runner.run(context.__aenter__())
        client = at.anthropic()

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(replies)
        def holds(reply: dict[str, Any]) -> None:
            given_reply.clear()
            given_reply.update(reply)
            runner.run(check_views(client, at))

        holds()
        runner.run(client.close())
        runner.run(context.__aexit__(None, None, None))


def whole(reply: dict[str, Any], _: Request) -> Answer:
    return Answer(reply)


def as_asked(reply: dict[str, Any], request: Request) -> Answer:
    return Answer(chunks=messages_events(reply)) if request.json().get("stream") else Answer(reply)


def test_three_views_agree_over_a_chat_backend(tmp_path: Path) -> None:  # V0
    hold(tmp_path, chat_replies(), whole, 25)


def test_three_views_agree_over_a_messages_backend(tmp_path: Path) -> None:  # V0
    hold(tmp_path, messages_replies(), whole, 15, api="messages")


def test_three_views_agree_where_the_backend_streams(tmp_path: Path) -> None:  # V0 A8
    hold(tmp_path, messages_replies(), as_asked, 15, api="messages", stream="relay")


@pytest.mark.nightly
@pytest.mark.parametrize("api", ["chat", "messages", "relay"])
def test_the_law_at_length(tmp_path: Path, api: str) -> None:  # V0
    if api == "chat":
        hold(tmp_path, chat_replies(), whole, 500)
    else:
        relay = {"stream": "relay"} if api == "relay" else {}
        hold(tmp_path, messages_replies(), as_asked if relay else whole, 500, api="messages", **relay)


# ---- streams


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def post(at: Bench, body: dict[str, Any], path: str = PATH, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=at.url, timeout=30) as client:
        return await client.post(path, json=body, headers=headers)


async def test_a_slow_reply_is_begun_and_kept_alive(tmp_path: Path) -> None:  # A7 A15
    async with bench(tmp_path, [Answer(chat_reply(), delay=0.6)], stream_commit_s=0.1, keepalive_s=0.1) as at:
        found = events((await post(at, ASK | {"stream": True})).text)
        (record,) = at.records()
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds.count("ping") >= 3
    assert kinds[-1] == "message_stop"
    assert found[0]["message"]["id"] == record.reply.id
    delta = next(event for event in found if event["type"] == "message_delta")
    assert delta["usage"]["input_tokens"] == 11  # M2: true, though the first event could not know them


async def test_a_failure_after_the_commit_ends_the_stream(tmp_path: Path) -> None:  # A7 M2
    broken = Answer({"error": {"message": "broken"}}, 500, delay=0.4)
    async with bench(tmp_path, [broken], stream_commit_s=0.1, keepalive_s=10) as at:
        found = events((await post(at, ASK | {"stream": True})).text)
        client = at.anthropic()
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with client.messages.stream(**ASK) as stream:
                await stream.get_final_message()
        await client.close()
    assert [event["type"] for event in found] == ["message_start", "ping", "error"]
    assert found[-1]["error"] == {"type": "api_error", "message": "broken"}
    assert caught.value.type == "api_error"


async def test_text_flows_and_tool_calls_wait(tmp_path: Path) -> None:  # A8
    call = {"index": 0, **tool_call("get_weather", '{"city": "Oslo"}')}
    chunks = chat_chunks(
        {"content": "Let "}, {"content": "me."}, {"tool_calls": [call]}, delay=0.2, finish="tool_calls"
    )
    async with bench(tmp_path, [Answer(chunks=chunks)], stream="relay") as at:
        found = events((await post(at, ASK | {"stream": True})).text)
        (record,) = at.records()
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == ["text_delta", "text_delta", "input_json_delta"]
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert record.reply.id == found[0]["message"]["id"]


# ---- what is asked


async def test_paths_headers_and_query_strings(tmp_path: Path) -> None:  # A1 C4
    async with bench(tmp_path, [Answer(chat_reply())], api_keys=["secret"]) as at:
        refused = await post(at, ASK, "/v1/messages?beta=true")
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "authentication_error")
        for path, headers in (
            ("/v1/messages?beta=true", {"x-api-key": "secret"}),
            ("/ng-rollout/r7/v1/messages?beta=true", {"authorization": "Bearer secret"}),
            ("/v1/messages", {"x-api-key": "ng-rollout:r7:secret"}),
        ):
            assert (await post(at, ASK, path, **headers)).status_code == 200
        bad = await post(at, ASK, "/ng-rollout/a$b/v1/messages", **{"x-api-key": "secret"})
        assert (bad.status_code, bad.json()["type"]) == (400, "error")
        assert [record.rollout_id for record in at.records()] == [None, None, "r7", "r7", None]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "body: Field required"),
        (b"{", "The body is not JSON"),
        (b"[]", "body: Input should be a valid dictionary"),
        (json.dumps(ASK | {"stream": 1}).encode(), "stream: Input should be a valid boolean"),
        (json.dumps(ASK | {"max_tokens": -1}).encode(), "max_tokens: Input should be greater than or equal to 0"),
        (json.dumps(ASK | {"max_tokens": 0}).encode(), "max_tokens: 0 only fills a provider's cache"),
    ],
)
async def test_bad_input_is_a_400_that_names_the_field(tmp_path: Path, data: bytes, said: str) -> None:  # A2 A3 C1
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        answer = await client.post(PATH, content=data)
        (record,) = at.records()
        assert not at.backend.calls
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["error"]["message"].startswith(said)
    assert answer.json()["request_id"] == "req_" + record.call_id.replace("-", "")
    assert record.status == "rejected"


async def test_a_large_bad_body_does_not_come_back(tmp_path: Path) -> None:  # A4
    block = {"type": "image", "source": {"type": "base64", "media_type": 3, "data": "A" * 100_000}}
    async with bench(tmp_path, [Answer(chat_reply())]) as at:
        answer = await post(at, ASK | {"messages": [{"role": "user", "content": [block]}]})
    assert answer.status_code == 400
    assert len(answer.content) < 1000


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, by a process that has not said anything yet."""
    monkeypatch.setattr(said, "_said", set())
    return caplog


async def test_unknown_fields_pass_or_not(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:  # A6
    body = ASK | {"context_management": {"edits": []}, "odd": 1}
    async with bench(tmp_path / "a", [Answer(messages_reply())], api="messages") as at:
        assert (await post(at, body)).status_code == 200
        sent = at.backend.calls[0].json()
        assert (sent["context_management"], sent["odd"]) == ({"edits": []}, 1)
        assert at.backend.calls[0].headers["anthropic-version"] == "2023-06-01"
    async with bench(tmp_path / "b", [Answer(messages_reply())], api="messages", forward_unknown=False) as at:
        assert (await post(at, body | {"service_tier": "auto"})).status_code == 200
        assert {"odd", "context_management"}.isdisjoint(at.backend.calls[0].json())
        assert at.backend.calls[0].json()["service_tier"] == "auto"
    assert "the field 'odd' of messages requests is not passed on" in told.text
    async with bench(tmp_path / "c", [Answer(chat_reply())], strict=True) as at:
        refused = await post(at, ASK | {"odd": 1})
        assert refused.json()["error"]["message"] == "odd: unknown field (this server is strict)"


SEARCH = {"type": "web_search_20250305", "name": "web_search"}


async def test_tools_of_a_provider(tmp_path: Path) -> None:  # R8 A18
    async with bench(tmp_path / "a", [Answer(chat_reply())]) as at:
        refused = await post(at, ASK | {"tools": [TOOL, SEARCH]})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("tools[1]: web_search_20250305 is run by a provider")
    later = TOOL | {"name": "later", "defer_loading": True}
    finder = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    async with bench(tmp_path / "b", [Answer(chat_reply())], web_search="ignore") as at:
        assert (await post(at, ASK | {"tools": [TOOL, SEARCH, later]})).status_code == 200
        assert (await post(at, ASK | {"tools": [TOOL, finder, later]})).status_code == 200
        names = [[tool["function"]["name"] for tool in call.json()["tools"]] for call in at.backend.calls]
    assert names == [["get_weather"], ["get_weather", "later"]]
    async with bench(tmp_path / "c", [Answer(messages_reply())], api="messages") as at:
        assert (await post(at, ASK | {"tools": [SEARCH]})).status_code == 200
        assert at.backend.calls[0].json()["tools"] == [SEARCH]


async def test_a_result_that_is_an_error_says_so(tmp_path: Path) -> None:  # M1
    call = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no such city", "is_error": True}
    turns = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    async with bench(tmp_path / "a", [Answer(chat_reply())]) as at:
        await post(at, ASK | {"messages": turns})
        assert at.backend.calls[0].json()["messages"][2]["content"] == "[error]\nno such city"
        assert at.records()[0].received.messages[2].parts[0].is_error
    async with bench(tmp_path / "b", [Answer(messages_reply())], api="messages") as at:
        await post(at, ASK | {"messages": turns})
        assert at.backend.calls[0].json()["messages"][2]["content"] == [result]


async def test_images_are_replaced_in_results_too(tmp_path: Path) -> None:  # A11
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    call = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "see"}, image]}
    turns = [{"role": "user", "content": [image]}, {"role": "assistant", "content": [call]}]
    turns.append({"role": "user", "content": [result]})
    for api, reply in (("chat", chat_reply()), ("messages", messages_reply())):
        async with bench(tmp_path / api, [Answer(reply)], api=api, vision=False) as at:
            assert (await post(at, ASK | {"messages": turns})).status_code == 200
            sent = at.backend.calls[0].body
        assert b"AA==" not in sent
        assert sent.count(b"image left out") == 2
        assert b'"see"' in sent


async def test_a_conversation_goes_on(tmp_path: Path) -> None:  # M5
    """Ids and signatures that went out come back as what they were, and the second call continues the first."""
    first = chat_reply(
        None, message={"reasoning_content": "Hm.", "tool_calls": [tool_call("get_weather", "{}", "f.x:0")]}
    )
    async with bench(tmp_path, [Answer(first), Answer(chat_reply("Rain."))]) as at:
        client = at.anthropic()
        reply = await client.messages.create(**ASK)
        thought, call = reply.content
        assert call.id == "toolu_ng_f_2ex_3a0"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        turns = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
        await client.messages.create(**ASK | {"messages": turns})
        await client.close()
        sent = at.backend.calls[1].json()["messages"]
        records = at.records()
    assert thought.signature
    assert sent[1]["tool_calls"] == [tool_call("get_weather", "{}", "f.x:0")]
    assert sent[1]["reasoning_content"] == "Hm."
    assert sent[2]["tool_call_id"] == "f.x:0"
    assert records[1].received.messages[1].parts == records[0].reply.choices[0].parts
    assert (records[1].relation, records[1].parent_call_id) == ("turn", records[0].call_id)


# ---- counting


async def test_a_stream_that_broke_is_given_again_unstreamed(tmp_path: Path) -> None:  # A16
    """As Claude Code asks: the same body, then with `stream` false. There is one sample."""
    count = iter(range(1, 9))

    def decide(request: Request) -> Answer:
        return Answer(chat_reply("x" * 8_000_000 + f" {next(count)}")) if request.asks else Answer({"data": []})

    async with bench(tmp_path, decide) as at:
        await break_off(at, ASK | {"stream": True})
        again = await post(at, ASK | {"stream": False})
        assert again.json()["content"][0]["text"].endswith(" 1")
        assert len(at.backend.calls) == 1
        for _ in range(1200):
            if len(records := at.records()) == 2:
                break
            await asyncio.sleep(0.05)
    first, second = sorted(records, key=lambda record: record.times.received)
    assert (first.streamed, second.streamed) == (True, False)
    assert (second.relation, second.parent_call_id) == ("repeat", first.call_id)
    assert second.reply == first.reply


async def break_off(at: Bench, body: dict[str, Any]) -> None:
    """Reads the first event of the answer and goes."""
    host, port = at.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, int(port)))
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        await loop.sock_sendall(sock, head.encode() + data)
        assert (await loop.sock_recv(sock, 100)).startswith(b"HTTP/1.1 200")


# ---- a Messages backend


async def test_a_backend_of_this_dialect_gets_its_key_and_a_limit(tmp_path: Path) -> None:
    body = {"messages": HELLO}
    async with bench(tmp_path / "a", [Answer(messages_reply())], api="messages", api_key="secret-key") as at:
        assert (await post(at, body, "/v1/chat/completions")).status_code == 200
        (asked,) = at.backend.calls
        assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == ("secret-key", "2023-06-01")
        assert "authorization" not in asked.headers
        assert asked.json()["max_tokens"] == 8192  # the API demands one
    more = {"max_tokens": 100}
    async with bench(tmp_path / "b", [Answer(messages_reply())], api="messages", extra_body=more) as at:
        await post(at, body, "/v1/chat/completions")
        await post(at, body | {"max_tokens": 5}, "/v1/chat/completions")
        assert [call.json()["max_tokens"] for call in at.backend.calls] == [100, 5]


async def test_what_a_client_asks_of_its_provider_reaches_it(tmp_path: Path) -> None:  # A6
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body, headers = ASK | {"thinking": thinking}, {"anthropic-beta": "one-2026-01-01,two-2026-02-02"}
    async with (
        bench(tmp_path / "a", [Answer(messages_reply())], api="messages") as at,
        httpx.AsyncClient(base_url=at.url, headers=headers, timeout=60) as client,
    ):
        assert (await client.post(PATH, json=body)).status_code == 200
        assert (await client.post("/ng-rollout/r2/v1/chat/completions", json={"messages": HELLO})).status_code == 200
        asked, other = at.backend.calls
        assert (asked.headers["anthropic-beta"], asked.json()["thinking"]) == (headers["anthropic-beta"], thinking)
        assert "anthropic-beta" not in other.headers
    async with (
        bench(tmp_path / "b", [Answer(chat_reply())]) as at,
        httpx.AsyncClient(base_url=at.url, headers=headers, timeout=60) as client,
    ):
        assert (await client.post(PATH, json=body)).status_code == 200
        assert "anthropic-beta" not in at.backend.calls[0].headers


async def test_a_reply_that_was_begun_is_continued_or_refused(tmp_path: Path) -> None:
    begun = ASK | {"messages": [*HELLO, {"role": "assistant", "content": "The weather is"}]}
    async with bench(tmp_path / "a", [Answer(messages_reply())], api="messages") as at:
        assert (await post(at, begun)).status_code == 200
        assert at.backend.calls[0].json()["messages"] == begun["messages"]
    async with bench(tmp_path / "b", [Answer(chat_reply())]) as at:
        refused = await post(at, begun)
        assert (refused.status_code, at.backend.calls) == (400, [])
        assert refused.json()["error"]["message"].startswith("messages: the last one is the assistant's")
        at.apps[0].readiness.capabilities = Capabilities(token_ids=True)
        assert (await post(at, begun)).status_code == 200
        sent = at.backend.calls[0].json()
        assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
        assert sent["messages"][-1]["content"] == "The weather is"
        assert [record.status for record in at.records()] == ["rejected", "answered"]


async def test_what_is_no_route_is_said_in_its_shape(tmp_path: Path) -> None:
    async with bench(tmp_path, []) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        for method, path, status, kind in (
            ("GET", PATH, 405, "invalid_request_error"),
            ("PUT", "/v1/messages/count_tokens", 405, "invalid_request_error"),
            ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (
                status,
                "error",
                kind,
            )
        assert "type" not in (await client.post("/v1/nothing")).json()


async def test_what_this_dialect_cannot_say_is_named(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:  # A6
    body = {"messages": HELLO, "seed": 3, "presence_penalty": 0.5, "n": 1}
    async with bench(tmp_path, [Answer(messages_reply())], api="messages") as at:
        answer = await post(at, body, "/v1/chat/completions")
        assert {"seed", "presence_penalty", "n"}.isdisjoint(at.backend.calls[0].json())
    assert answer.json()["created"] > 1_700_000_000  # this API gives no date
    assert "seed is not passed on: requests of messages cannot say it" in told.text
    assert "presence_penalty is not passed on" in told.text
