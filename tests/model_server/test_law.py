"""The law over a real server: stock client, streamed and not, and the record. # V0 B7"""

from __future__ import annotations

import asyncio
import json
from array import array
from pathlib import Path
from typing import Any

import openai
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState

from nemo_gym.exchange.parts import plain_text
from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, Request
from tests.texts import long_texts

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
count = st.none() | st.integers(0, 10**6)


@st.composite
def calls(draw: Any, number: int) -> dict[str, Any]:
    call_id = draw(st.sampled_from(["", None])) or f"call_{number}"
    if draw(st.integers(0, 3)) == 0:
        return {"id": call_id, "type": "custom", "custom": {"name": "patch", "input": draw(words)}}
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": draw(words)}}


@st.composite
def replies(draw: Any) -> dict[str, Any]:
    choices = []
    for index in range(draw(st.integers(1, 3))):
        message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | words)}
        if draw(st.booleans()):
            message[draw(st.sampled_from(["reasoning_content", "reasoning"]))] = draw(words)
        if draw(st.integers(0, 4)) == 0:
            message["refusal"] = draw(words)
        if draw(st.booleans()):
            message["tool_calls"] = [draw(calls(n)) for n in range(draw(st.integers(1, 3)))]
        choice = {
            "index": index,
            "message": message,
            "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"])),
            "token_ids": list(range(index + 1)),
        }
        entries = [{"token": draw(words), "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in range(index + 1)]
        choices.append(choice | {"logprobs": {"content": entries}})
    body = {"id": "chatcmpl-x", "object": "chat.completion", "created": 17, "model": "m", "choices": choices}
    if draw(st.booleans()):
        body["system_fingerprint"] = "fp"
    if draw(st.booleans()):
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": draw(st.integers(0, 9)), "total_tokens": 12}
    return body | {"prompt_token_ids": [1, 2, 3]}


def tidy(completion: dict[str, Any]) -> dict[str, Any]:
    for choice in completion["choices"]:
        message = choice["message"]
        message.pop("parsed", None)
        message["tool_calls"] = [
            {k: v for k, v in call.items() if k not in ("index", "parsed_arguments")}
            for call in message.get("tool_calls") or ()
        ]
        for call in message["tool_calls"]:
            (call.get("function") or {}).pop("parsed_arguments", None)
    return completion


def custom(reply: dict[str, Any]) -> bool:
    return any(
        call["type"] == "custom" for choice in reply["choices"] for call in choice["message"].get("tool_calls") or ()
    )


def whole(reply: dict[str, Any], _: Request) -> Answer:
    return Answer(reply)


def hold(tmp_path: Path, examples: int, answer: Any = whole, **config: Any) -> None:
    """The law for every drawn reply, over one server."""
    given_reply: dict[str, Any] = {}

    def decide(request: Request) -> Answer:
        return answer(given_reply, request) if request.asks else Answer({"data": []})

    with asyncio.Runner() as runner:
        context = bench(tmp_path, decide, **config)
        at = runner.run(context.__aenter__())
        client = at.client()

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(replies(), st.booleans())
        def holds(reply: dict[str, Any], logprobs: bool) -> None:
            given_reply.clear()
            given_reply.update(reply)
            runner.run(compare(client, reply, logprobs, at))

        try:
            holds()
        finally:
            runner.run(client.close())
            runner.run(context.__aexit__(None, None, None))


def test_three_views_of_one_generation_agree(tmp_path: Path) -> None:  # V0
    hold(tmp_path, 60, return_token_ids=True)


async def compare(client: openai.AsyncOpenAI, reply: dict[str, Any], logprobs: bool, at: Any) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": [TOOL], "n": len(reply["choices"])}
    if logprobs:
        asked["logprobs"] = True
    whole = await client.chat.completions.with_raw_response.create(**asked)
    completion = whole.parse()
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    if custom(reply):  # the client's helper cannot fold those
        assert folded(chunks) == [
            (choice.message.content, said(choice.message.tool_calls)) for choice in completion.choices
        ]
    else:
        state = ChatCompletionStreamState()
        for chunk in chunks:
            state.handle_chunk(chunk)
        assert tidy(state.current_completion_snapshot.model_dump()) == tidy(completion.model_dump())
    first, second = latest(at, 2)
    assert first.reply == second.reply
    for choice, recorded, raw in zip(completion.choices, first.reply.choices, reply["choices"], strict=True):
        assert (choice.message.content or "") == plain_text(recorded.parts) == (raw["message"]["content"] or "")  # A13
        assert choice.index == recorded.index
        assert recorded.tokens.ids == array("i", raw["token_ids"])
        assert list(recorded.tokens.logprobs) == [-0.5] * len(raw["token_ids"])  # C3
        assert (choice.logprobs is not None) == logprobs  # B4 A6
    assert list(first.reply.prompt_ids) == [1, 2, 3]
    assert (completion.usage is None) == ("usage" not in reply)
    assert completion.id == first.reply.id == "chatcmpl-x"


def latest(at: Any, number: int) -> list[Any]:
    (app,) = at.apps
    return app.capture.calls("r1")[-number:]


def said(found: Any) -> list[tuple[str, str, str]]:
    return [
        (call.id, call.custom.name, call.custom.input)
        if call.type == "custom"
        else (call.id, call.function.name, call.function.arguments)
        for call in found or ()
    ]


def folded(chunks: list[Any]) -> list[tuple[str | None, list[tuple[str, str, str]]]]:
    """Contents and calls, from the raw chunks (B5)."""
    contents: dict[int, str | None] = {}
    found: dict[tuple[int, int], list[str]] = {}
    for chunk in chunks:
        for choice in json.loads(chunk.model_dump_json())["choices"]:
            index, delta = choice["index"], choice["delta"]
            contents.setdefault(index, None)
            if delta.get("content") is not None:
                contents[index] = (contents[index] or "") + delta["content"]
            for call in delta.get("tool_calls") or ():
                body = call.get("custom") or call.get("function") or {}
                kept = found.setdefault((index, call["index"]), ["", "", ""])
                kept[0] += call.get("id") or ""
                kept[1] += body.get("name") or ""
                kept[2] += (body.get("input") if "input" in body else body.get("arguments")) or ""
    return [
        (content, [(a, b, c) for (index, _), (a, b, c) in sorted(found.items()) if index == choice])
        for choice, content in sorted(contents.items())
    ]
