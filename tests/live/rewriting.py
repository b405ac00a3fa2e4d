"""Conversations as clients hold them: each turn sent back as its client rewrites it, in any of the three dialects.

Reasoning comes back as it was, in another spelling, or not at all; a turn of which nothing else is left comes back
empty, or is left out whole.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import httpx

Body = dict[str, Any]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SUM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = (("get_weather", "Get the current weather for a city.", CITY), ("calculator", "Add two integers.", SUM))
CITIES = ("Paris", "Tokyo", "Berlin", "Oslo", "Seoul", "Lima", "Dublin", "Madrid")


def asked(draw: random.Random) -> str:
    if draw.random() < 0.6:
        return f"What is the weather in {draw.choice(CITIES)}?"
    return f"What is {draw.randint(1, 60)} + {draw.randint(1, 60)}?"


def told(draw: random.Random) -> str:
    """A tool's result."""
    return json.dumps({"city": draw.choice(CITIES), "temperature": draw.randint(-9, 35), "condition": "rainy"})


def reprinted(arguments: str, draw: random.Random) -> str:
    """The same arguments, as another language would write them."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return json.dumps(
        value, separators=draw.choice([(",", ":"), (", ", ": ")]), sort_keys=True, indent=draw.choice([None, 1])
    )


class Chat:
    """Arguments printed anew, reasoning dropped; ids lose what is no letter or digit and are cut to 40 (OpenClaw)."""

    path = "/v1/chat/completions"

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._said: list[Body] = []

    def ask(self, text: str) -> None:
        self._said.append({"role": "user", "content": text})

    def body(self, most: int) -> Body:
        tools = [{"type": "function", "function": {"name": n, "description": d, "parameters": s}} for n, d, s in TOOLS]
        return {"model": "m", "messages": self._said, "tools": tools, "max_tokens": most}

    def answered(self, reply: Body) -> bool:
        """Sends its calls' results back; False when there are none."""
        message = reply["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        content = message.get("content") or ""
        if not calls and not content.strip() and self._draw.random() < 0.5:
            return False
        kept: Body = {"role": "assistant", "content": content if content.strip() else ""}
        if message.get("reasoning_content"):
            kept |= self._reasoning(message["reasoning_content"])
        if calls:
            kept["tool_calls"] = [self._rewritten(call) for call in calls]
        self._said.append(kept)
        for call in kept.get("tool_calls") or ():
            self._said.append({"role": "tool", "tool_call_id": call["id"], "content": told(self._draw)})
        return bool(calls)

    def _reasoning(self, text: str) -> Body:
        return self._draw.choice([{}, {"reasoning_content": text}, {"reasoning": text.strip() + "\n"}])

    def _rewritten(self, call: Body) -> Body:
        function = call["function"]
        arguments = reprinted(function["arguments"], self._draw)
        short = re.sub("[^A-Za-z0-9]", "", call["id"])[:40]
        return {"id": short, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


class Moving(Chat):
    """A message of context that stands last in each request, and is moved along instead of left (OpenClaw)."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self._calls = 0

    def body(self, most: int) -> Body:
        self._calls += 1
        context = {"role": "user", "content": f"<context>step {self._calls}</context>"}
        return super().body(most) | {"messages": [*self._said, context]}


class Responses:
    """Items sent back as they came, but for reasoning, and arguments that are printed anew."""

    path = "/v1/responses"

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._said: list[Body] = []

    def ask(self, text: str) -> None:
        self._said.append({"role": "user", "content": [{"type": "input_text", "text": text}]})

    def body(self, most: int) -> Body:
        tools = [{"type": "function", "name": n, "description": d, "parameters": s} for n, d, s in TOOLS]
        return {"model": "m", "input": self._said, "tools": tools, "max_output_tokens": most, "store": False}

    def answered(self, reply: Body) -> bool:
        calls = []
        way = self._draw.choice(["dropped", "kept", "respelled"])
        for item in reply["output"]:
            if item["type"] == "reasoning" and way != "kept":
                if way == "respelled":
                    text = "".join(part["text"] for part in item["summary"])
                    self._said.append(
                        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
                    )
                continue
            if item["type"] == "function_call":
                item = item | {"arguments": reprinted(item["arguments"], self._draw)}
                calls.append(item["call_id"])
            self._said.append(item)
        for call_id in calls:
            self._said.append({"type": "function_call_output", "call_id": call_id, "output": told(self._draw)})
        return bool(calls)


class Messages:
    """Arguments that are objects, thinking dropped or kept, a cache mark that moves; one message of the user's at a
    time, so that what stood around a turn that is left out is joined."""

    path = "/v1/messages"

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._said: list[Body] = []

    def ask(self, text: str) -> None:
        self._user([{"type": "text", "text": text}])

    def _user(self, blocks: list[Body]) -> None:
        if self._said and self._said[-1]["role"] == "user":
            self._said[-1]["content"] += blocks
        else:
            self._said.append({"role": "user", "content": blocks})

    def body(self, most: int) -> Body:
        tools = [{"name": n, "description": d, "input_schema": s} for n, d, s in TOOLS]
        said = json.loads(json.dumps(self._said))
        said[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return {"model": "m", "messages": said, "tools": tools, "max_tokens": most}

    def answered(self, reply: Body) -> bool:
        said = [block for block in reply["content"] if block["type"] != "thinking"]
        said = [block for block in said if block["type"] != "text" or block["text"].strip()]
        kept = said if self._draw.random() < 0.5 else reply["content"]
        calls = [block["id"] for block in kept if block["type"] == "tool_use"]
        if kept:
            self._said.append({"role": "assistant", "content": kept})
        if calls:
            self._user([{"type": "tool_result", "tool_use_id": one, "content": told(self._draw)} for one in calls])
        return bool(calls)


DIALECTS: tuple[Any, ...] = (Chat, Responses, Messages)


async def held(client: httpx.AsyncClient, base: str, kind: Any, draw: random.Random, most: int) -> None:
    """One conversation, to its end, of `most` calls at most; some of its turns are cut."""
    conversation = kind(draw)
    conversation.ask(asked(draw))
    for _ in range(draw.randint(2, most)):
        body = conversation.body(draw.choice([5, 40, 40, 40])) | {"temperature": 1.0, "stream": False}
        answer = await client.post(base + kind.path, json=body)
        assert answer.status_code == 200, answer.text
        if not conversation.answered(answer.json()):
            conversation.ask(asked(draw))
