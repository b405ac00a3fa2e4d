"""The law of the three views for Responses, over a real server: the stock client's own accumulation of the stream, the
unstreamed object and the record tell the same; and what came out, sent back in, is the same conversation. # V0"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from nemo_gym.dialects import chat, responses
from tests.bench import Bench, bench
from tests.dialects.responses.grammar import check_grammar
from tests.scripted import Answer, Request, chat_reply, responses_events, responses_reply
from tests.texts import long_texts

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "parameters": {"type": "object"}},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start:"}},
    {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]},
    {"type": "local_shell"},
]
ASK: Any = {"model": "m", "input": "Hi", "tools": TOOLS}

words = (
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
    | long_texts
    | st.sampled_from(
        [
            " ",
            "\n\n",
            "\r\n x\r",
            "\u00a0y\u2028",
            "e\u0301\u0301",
            "👩‍👩‍👧",
            "\ufeff",
            "\x00",
            " \t lead and trail \t ",
        ]
    )
)
arguments = st.sampled_from(['{"a": 1}', "{}", "", '{"input": "x"}', '{"a": ', "[]", '{"command": ["ls"]}']) | words
names = st.sampled_from(["get_weather", "apply_patch", "agents__spawn", "spawn", "local_shell", "unknown"])
finishes = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


@st.composite
def chat_replies(draw: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"content": draw(st.none() | words)}
    if draw(st.booleans()):
        message[draw(st.sampled_from(["reasoning_content", "reasoning"]))] = draw(words)
    if draw(st.integers(0, 4)) == 0:
        message["refusal"] = draw(words)
    if draw(st.booleans()):
        message["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": draw(names), "arguments": draw(arguments)}}
            for n in range(draw(st.integers(1, 3)))
        ]
    reply = chat_reply(message=message, finish_reason=draw(finishes))
    if draw(st.booleans()):
        reply.pop("usage")
    return reply


@st.composite
def responses_replies(draw: Any) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for place in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from("rptfcws"))
        if kind == "r":
            parts = [{"type": "summary_text", "text": draw(words)} for _ in range(draw(st.integers(0, 2)))]
            items.append({"type": "reasoning", "id": f"rs_{place}", "summary": parts})
        elif kind == "p":
            items.append({"type": "reasoning", "id": f"rs_{place}", "summary": [], "encrypted_content": "sealed"})
        elif kind == "t":
            content = [{"type": "output_text", "text": draw(words), "annotations": []}]
            if draw(st.booleans()):
                content.append({"type": "refusal", "refusal": draw(words)})
            item = {"type": "message", "id": f"msg_{place}", "role": "assistant", "content": content}
            items.append(item | {"status": "completed"} | draw(st.sampled_from([{}, {"phase": "commentary"}])))
        elif kind == "f":
            call = {"type": "function_call", "id": f"fc_{place}", "call_id": f"c{place}", "name": draw(names)}
            items.append(call | {"arguments": draw(arguments), "status": "completed"})
        elif kind == "c":
            call = {"type": "custom_tool_call", "id": f"ctc_{place}", "call_id": f"c{place}", "name": "apply_patch"}
            items.append(call | {"input": draw(words)})
        elif kind == "w":
            action = {"type": "search", "query": "x"}
            items.append({"type": "web_search_call", "id": f"ws_{place}", "status": "completed", "action": action})
        else:
            action = {"type": "exec", "command": ["ls"], "env": {}}
            shell = {"type": "local_shell_call", "id": f"lsh_{place}", "call_id": f"c{place}", "action": action}
            items.append(shell | {"status": "completed"})
    status, reason = draw(st.sampled_from([("completed", None), ("incomplete", "max_output_tokens")]))
    details = None if reason is None else {"reason": reason}
    return responses_reply(*items, output=items, status=status, incomplete_details=details)


def whole(reply: dict[str, Any], _: Request) -> Answer:
    return Answer(reply)


def as_asked(reply: dict[str, Any], request: Request) -> Answer:
    return Answer(chunks=responses_events(reply)) if request.json().get("stream") else Answer(reply)


def hold(tmp_path: Path, replies: Any, answer: Any, examples: int, **config: Any) -> None:
    """The law for every drawn reply, over one server."""
    given_reply: dict[str, Any] = {}

    def decide(request: Request) -> Answer:
        return answer(given_reply, request) if request.asks else Answer({"data": []})

    with asyncio.Runner() as runner:
        context = bench(tmp_path, decide, **config)
        at = runner.run(context.__aenter__())

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(replies)
        def holds(reply: dict[str, Any]) -> None:
            given_reply.clear()
            given_reply.update(reply)
            runner.run(check_views(at))

        try:
            holds()
        finally:
            runner.run(context.__aexit__(None, None, None))


async def check_views(at: Bench) -> None:
    client = at.client()
    unstreamed = (await client.responses.with_raw_response.create(**ASK)).http_response.json()
    state: Any = ResponseStreamState(input_tools=TOOLS, text_format=openai.omit)
    events, folded = [], None
    async for event in await client.responses.create(**ASK, stream=True):
        events.append(json.loads(event.to_json()))
        state.handle_event(event)
        if event.type not in ("response.completed", "response.incomplete"):
            folded = state._ResponseStreamState__current_snapshot
    await client.close()
    (app,) = at.apps
    first, second = app.capture.calls("r1")[-2:]
    streamed = events[-1]["response"]
    # The grammar, and what a client folds of it: by the events alone, and as the stock client does it.
    assert check_grammar(events) == streamed["output"]
    assert [stock(item.to_dict()) for item in folded.output] == [stock(item) for item in streamed["output"]]
    # The record, and the two deliveries of one generation.
    dialect = app._dialects["/v1/responses"]
    assert unstreamed == dialect.write_reply(first.reply, first.received)
    assert streamed == dialect.write_reply(second.reply, second.received)
    assert named(streamed, second.reply.id) == named(unstreamed, first.reply.id)
    assert (first.streamed, second.streamed) == (False, True)
    check_sent_back(unstreamed["output"], first)


def named(response: dict[str, Any], own: str) -> Any:
    return json.loads(json.dumps(response).replace(own, "ID"))


def stock(item: dict[str, Any]) -> Any:
    """What the stock client's helper folds of an item; of others it keeps the announcement."""
    texts = [part["text"] for part in item.get("content") or () if part["type"] == "output_text"]
    return item["type"], item["id"], texts, item.get("call_id"), item.get("name"), item.get("arguments")


def check_sent_back(output: list[dict[str, Any]], record: Any) -> None:
    """R12: the output items, sent back as input, are the turn that was generated; and through chat and back (R13)."""
    request = responses.read_request({"input": [{"role": "user", "content": "Hi"}, *output], "tools": TOOLS})
    said = [part for part in record.reply.choices[0].parts if responses_says(part)]
    (turn,) = request.messages[1:] or (None,)
    shown = [meaning(part) for part in (turn.parts if turn is not None else ())]
    assert shown == [meaning(part) for part in said][: len(shown)]
    assert len(shown) == len(said) or record.reply.choices[0].finish == "length"
    again = chat.read_request(chat.write_request(request))
    assert calls(again) == calls(request)


def responses_says(part: Any) -> bool:
    return bool(getattr(part, "text", True)) or getattr(part, "payload", None) is not None


def meaning(part: Any) -> Any:
    fields = ("text", "payload", "name", "call_id", "namespace", "custom", "body")
    found = {name: getattr(part, name, None) for name in fields} | {"type": type(part).__name__}
    if found["name"] != "local_shell":  # whose arguments travel as an action
        found["arguments"] = getattr(part, "arguments", None)
    return found


def calls(request: Any) -> list[str]:
    parts = [part for message in request.messages for part in message.parts]
    return [part.call_id for part in parts if type(part).__name__ == "ToolCall"]


@pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.nightly)])
def test_three_views_agree_over_a_chat_backend(tmp_path: Path, examples: int) -> None:  # V0 R20-R22 R26 R27 R29 R30
    hold(tmp_path, chat_replies(), whole, examples)


def test_three_views_agree_with_reasoning_as_content(tmp_path: Path) -> None:  # V0 R23
    hold(tmp_path, chat_replies(), whole, 10, reasoning_shape="content")


@pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.nightly)])
def test_three_views_agree_over_a_responses_backend(tmp_path: Path, examples: int) -> None:  # V0 R12 R24 R26
    hold(tmp_path, responses_replies(), whole, examples, api="responses")


@pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.nightly)])
def test_three_views_agree_as_a_stream_is_relayed(tmp_path: Path, examples: int) -> None:  # V0 A8 R25
    hold(tmp_path, responses_replies(), as_asked, examples, api="responses", stream="relay")
