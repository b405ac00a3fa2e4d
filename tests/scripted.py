"""The scripted backend: an HTTP endpoint on loopback that answers as a test tells it to.

It speaks raw HTTP/1.1 over a socket, so that it can do what no framework lets a test do: stop in the
middle of a byte sequence, answer garbage, say nothing. Every request that came is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct


class Request(Struct):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def asks(self) -> bool:
        """Whether it asks for a generation."""
        return self.method == "POST" and self.path.partition("?")[0].endswith(
            ("/completions", "/responses", "/messages")
        )

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Answer(Struct):
    """What one request gets.

    `delay`: seconds before the first byte. `cut`: close the connection after so many bytes of the body.
    `hang`: never answer. `held`: not before it is set. `chunks`: the body in pieces, each after so many seconds, as an
    event stream.
    """

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}
    delay: float = 0.0
    cut: int | None = None
    hang: bool = False
    chunks: list[tuple[float, bytes]] | None = None
    held: asyncio.Event | None = None

    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)


def chat_reply(content: str | None = "Hello!", **changes: Any) -> dict[str, Any]:
    """A Chat Completions reply as a server gives it; `message` updates the message, the rest the reply."""
    message = {"role": "assistant", "content": content} | changes.pop("message", {})
    finish = changes.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None} | changes.pop("choice", {})
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "scripted-model",
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
    } | changes


def chat_chunks(*deltas: dict[str, Any], delay: float = 0.0, finish: str | None = "stop") -> list[tuple[float, bytes]]:
    """A Chat Completions stream, one delta a piece; without `finish` it just stops."""

    def event(body: dict[str, Any]) -> bytes:
        head = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1_700_000_000}
        return b"data: " + msgspec.json.encode({**head, "model": "scripted-model", **body}) + b"\n\n"

    pieces = [
        (delay if place else 0.0, event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        for place, delta in enumerate(deltas)
    ]
    if finish is not None:
        usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
        pieces.append((delay, event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})))
        pieces.append((0.0, event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"))
    return pieces


def tool_call(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def responses_reply(*items: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A Responses object as a server gives it; `items` are its output, one message unless given."""
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "scripted-model",
        "output": list(items) or [output_text("Hello!")],
        "error": None,
        "incomplete_details": None,
        "usage": usage,
    } | changes


def responses_events(reply: dict[str, Any], delay: float = 0.0) -> list[tuple[float, bytes]]:
    """The same as a server streams it, each text in two pieces."""
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**reply, "output": [], "usage": None}}]
    for place, item in enumerate(reply["output"]):
        own = {"output_index": place, "item_id": item.get("id")}
        empty = {
            name: {"content": [], "summary": [], "arguments": "", "input": ""}.get(name, value)
            for name, value in item.items()
        }
        events.append({"type": "response.output_item.added", "output_index": place, "item": empty})
        for index, part in enumerate(item.get("content") or ()):
            kind = {"output_text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text"}[
                part["type"]
            ]
            at = {**own, "content_index": index}
            text = part.get("text", part.get("refusal", ""))
            events += [{"type": f"response.{kind}.delta", **at, "delta": half} for half in _halves(text)]
        for index, part in enumerate(item.get("summary") or ()):
            at = {**own, "summary_index": index}
            events += [
                {"type": "response.reasoning_summary_text.delta", **at, "delta": half} for half in _halves(part["text"])
            ]
        for field, kind in (("arguments", "function_call_arguments"), ("input", "custom_tool_call_input")):
            if isinstance(item.get(field), str):
                events += [{"type": f"response.{kind}.delta", **own, "delta": half} for half in _halves(item[field])]
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": f"response.{reply['status']}", "response": reply})
    return [
        (
            delay if number else 0.0,
            b"event: "
            + event["type"].encode()
            + b"\ndata: "
            + msgspec.json.encode(event | {"sequence_number": number})
            + b"\n\n",
        )
        for number, event in enumerate(events)
    ]


def output_text(text: str, item_id: str = "msg_scripted") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": content}


def messages_reply(*blocks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A Messages object as a server gives it; `blocks` are its content, one text unless given."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    usage = {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": "scripted-model",
        "content": list(blocks) or [{"type": "text", "text": "Hello!"}],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": usage,
    } | changes


def messages_events(reply: dict[str, Any], delay: float = 0.0) -> list[tuple[float, bytes]]:
    """A Messages stream that tells this reply, one event a piece."""

    def event(kind: str, **fields: Any) -> tuple[float, bytes]:
        data = msgspec.json.encode({"type": kind, **fields})
        return delay, b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    ends = {"stop_reason": reply["stop_reason"], "stop_sequence": reply["stop_sequence"]}
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = reply["usage"] | {"output_tokens": 1}
    pieces = [event("message_start", message=reply | begun), event("ping")]
    for index, block in enumerate(reply["content"]):
        empty, deltas = _unfolded(block)
        pieces.append(event("content_block_start", index=index, content_block=empty))
        pieces += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        pieces.append(event("content_block_stop", index=index))
    pieces.append(event("message_delta", delta=ends, usage={"output_tokens": reply["usage"]["output_tokens"]}))
    return [*pieces, event("message_stop")]


def _unfolded(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it is announced, and its deltas."""
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in _halves(block["text"])]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return block | {"thinking": "", "signature": ""}, [*deltas, signed]
    if block["type"] == "tool_use":
        said = msgspec.json.encode(block["input"]).decode()
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": one} for one in _halves(said)]
    return block, []


def _halves(text: str) -> list[str]:
    return [piece for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if piece]


Script = Callable[[Request], Answer]


class ScriptedBackend:
    """`answers` are given in order, the last one again and again; or a function of the request decides."""

    def __init__(self, answers: Iterable[Answer] | Script) -> None:
        self._decide = answers if callable(answers) else self._in_order(list(answers))
        self.requests: list[Request] = []
        self.hung_up = 0
        self.hung_up_at = 0.0
        """When the last one did, of `time.monotonic`."""
        self.url = ""

    @property
    def calls(self) -> list[Request]:
        """The requests that asked for a generation."""
        return [request for request in self.requests if request.asks]

    def _in_order(self, answers: list[Answer]) -> Script:
        def decide(request: Request) -> Answer:
            if request.method == "GET":
                return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
            if not request.asks:
                return Answer({"detail": "Not Found"}, 404)
            return answers[min(len(self.calls), len(answers)) - 1]

        return decide

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await self._read(reader)) is not None:
                self.requests.append(request)
                if not await self._answer(self._decide(request), reader, writer):
                    break
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(method, path, headers, body)

    async def _answer(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if answer.hang or answer.delay or answer.held is not None:
            gone = asyncio.ensure_future(reader.read(1))
            waits = {gone} if answer.held is None else {gone, asyncio.ensure_future(answer.held.wait())}
            seconds = answer.delay if answer.held is None and not answer.hang else None
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            hung_up = gone.done()
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            if hung_up:
                self.hung_up += 1
                self.hung_up_at = time.monotonic()
                return False
        if answer.chunks is not None:
            return await self._stream(answer, reader, writer)
        data = answer.data()
        headers = {"content-type": "application/json", "content-length": str(len(data))} | dict(answer.headers)
        lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode("latin-1") + data[: answer.cut])
        await writer.drain()
        return answer.cut is None

    async def _stream(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ends by closing the connection; cut or not is a matter of what the chunks hold."""
        assert answer.chunks is not None
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        gone = asyncio.ensure_future(reader.read(1))
        for delay, data in answer.chunks:
            done, _ = await asyncio.wait({gone}, timeout=delay)
            if done:
                self.hung_up += 1
                self.hung_up_at = time.monotonic()
                return False
            writer.write(data)
            await writer.drain()
        gone.cancel()
        return False


@contextlib.asynccontextmanager
async def scripted(answers: Iterable[Answer] | Script) -> AsyncIterator[ScriptedBackend]:
    """A scripted backend that listens; `url` ends in `/v1`."""
    backend = ScriptedBackend(answers)
    server = await asyncio.start_server(backend.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield backend
    finally:
        server.close()
