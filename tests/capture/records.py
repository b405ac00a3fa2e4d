"""Records to write, made by hand."""

from __future__ import annotations

import time
from array import array
from typing import Any

from nemo_gym.capture.record import CallRecord, Times
from nemo_gym.exchange.call import Attempt
from nemo_gym.exchange.ids import uuid7
from nemo_gym.exchange.parts import Message, Origin, Text, ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace, Usage
from nemo_gym.exchange.request import ModelRequest


def record(**fields: Any) -> CallRecord:
    now = time.time()
    values: dict[str, Any] = {
        "call_id": uuid7(),
        "run_id": "run",
        "rollout_id": "r1",
        "attempt": 0,
        "session_id": None,
        "parent_call_id": None,
        "relation": "first",
        "server": "policy",
        "dialect": "chat",
        "backend_dialect": None,
        "streamed": False,
        "times": Times(now, now, None, now),
        "attempts": (Attempt("replica-0", now, now),),
        "status": "answered",
        "trainable": True,
        "received": None,
        "sent": None,
        "reply": None,
        "error": None,
    }
    return CallRecord(**{**values, **fields})


def chat_request(messages: list[dict[str, Any]], **body: Any) -> ModelRequest:
    """As a chat dialect reads it: each message's origin is an element of the body."""
    whole = {"model": "m", "messages": messages, **body}
    read = tuple(
        Message(one["role"], (Text(one["content"]),), origin=Origin("chat", one))
        if "tool_calls" not in one
        else Message("assistant", (ToolCall("f", one["tool_calls"][0]),), origin=Origin("chat", one))
        for one in messages
    )
    return ModelRequest(read, model="m", origin=Origin("chat", whole))


def reply(text: str, prompt: list[int] | array, ids: list[int] | array, version: int = 3) -> ModelReply:
    trace = TokenTrace(array("i", ids), array("f", [-0.25] * len(ids)), ((0, version),))
    choice = Choice(0, (Text(text),), "stop", trace)
    return ModelReply(f"id-{len(prompt)}", "m", 1, (choice,), Usage(len(prompt), len(ids)), array("i", prompt))


def conversation(turns: int, *, rollout_id: str = "r1", words: int = 60, ids: int = 50) -> list[CallRecord]:
    """A rollout whose every call continues the one before it."""
    made: list[CallRecord] = []
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent. " * 30}]
    prompt = array("i", range(100))
    for turn in range(turns):
        messages = [*messages, {"role": "user", "content": f"observation {turn}: " + f"w{turn} " * words}]
        request = chat_request(messages, temperature=1.0)
        text = f"answer {turn}: " + f"a{turn} " * words
        completion = array("i", range(1000 * turn, 1000 * turn + ids))
        made.append(
            record(
                rollout_id=rollout_id,
                parent_call_id=made[-1].call_id if made else None,
                relation="turn" if made else "first",
                received=request,
                sent=request,
                reply=reply(text, prompt, completion),
            )
        )
        messages = [*messages, {"role": "assistant", "content": text}]
        prompt = prompt + completion + array("i", [7, turn, 8])
    return made
