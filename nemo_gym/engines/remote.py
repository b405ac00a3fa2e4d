"""The engines of another server of the same run, as one Engine: several servers on one deployment.

Requests and replies cross as they are, in msgpack, numbers as their bytes: nothing is printed and read again, and the
replicas that were tried are told for this server's record too. A call that is relayed comes in pieces as they come, and
the whole answer last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import msgspec
from msgspec import Struct

from ..exchange.call import Attempt
from ..exchange.errors import ErrorKind, ModelError
from .engine import EnginePiece, EngineReply, EngineRequest
from .packed import numbers_read, packed

PATH = "/ng-engine"
"""GET: Facts; POST: an EngineRequest for an Answer, or, to whoever accepts `IN_PIECES`, for frames."""
IN_PIECES = "application/x-ng-pieces"
_LENGTH = 4
"""Bytes before each frame that say how long it is."""


class Facts(Struct, frozen=True):
    """What the servers that share a deployment need to know of it."""

    folder: str
    """Of the model: its tokenizer and its template."""
    context: int | None
    policy_version: int
    adapters: tuple[str, ...] = ()
    """LoRA's, by name."""


class Refused(Struct, frozen=True):
    """A ModelError on its way."""

    status: int
    kind: str
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None


class Answer(Struct, frozen=True):
    attempts: tuple[Attempt, ...]
    reply: EngineReply | None = None
    refused: Refused | None = None


class Frame(Struct, frozen=True, omit_defaults=True):
    """One of those that a relayed call is answered with: pieces, and the answer last."""

    piece: EnginePiece | None = None
    answer: Answer | None = None


Send = Callable[[str, bytes | None], Awaitable[bytes]]
"""Sends to `PATH` by this method; raises ModelError when there is no answer."""
Flow = Callable[[bytes], AsyncIterator[bytes]]
"""Posts to `PATH` for an answer in pieces, and gives its bytes as they come; raises ModelError when there is none."""


_REQUEST = msgspec.msgpack.Decoder(EngineRequest, dec_hook=numbers_read)
_ANSWER = msgspec.msgpack.Decoder(Answer, dec_hook=numbers_read)
_FRAME = msgspec.msgpack.Decoder(Frame, dec_hook=numbers_read)
_FACTS = msgspec.msgpack.Decoder(Facts)


def framed(frame: Frame) -> bytes:
    data = packed(frame)
    return len(data).to_bytes(_LENGTH) + data


class Frames:
    """Frames out of bytes that come cut anywhere."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        while len(self._data) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._data[:_LENGTH])
            if len(self._data) < end:
                return
            yield _decoded(_FRAME, bytes(self._data[_LENGTH:end]))
            del self._data[:end]


def read_request(data: bytes) -> EngineRequest:
    """Raises ModelError."""
    try:
        return _REQUEST.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise ModelError(400, "invalid", f"no request for an engine: {error}") from None


def refused(error: ModelError) -> Refused:
    return Refused(error.status, error.kind, error.message, error.code, error.param, error.retry_after)


class RemoteEngine:
    """Args:
    send: reaches the server that has the engines.
    flow: the same, for an answer in pieces.
    facts: what it said of them.
    """

    takes_ids = True

    def __init__(self, send: Send, flow: Flow, facts: Facts) -> None:
        self._send = send
        self._flow = flow
        self._facts = facts

    @classmethod
    async def connected(cls, send: Send, flow: Flow) -> tuple[RemoteEngine, Facts]:
        """Raises ModelError while that server is not ready."""
        facts = _decoded(_FACTS, await send("GET", None))
        return cls(send, flow, facts), facts

    @property
    def context(self) -> int | None:
        return self._facts.context

    async def generate(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> EngineReply:
        if on_piece is None:
            answer: Answer = _decoded(_ANSWER, await self._send("POST", packed(request)))
        else:
            answer = await self._in_pieces(request, on_piece)
        for attempt in answer.attempts if on_attempt is not None else ():
            on_attempt(attempt)  # type: ignore[misc]
        if (no := answer.refused) is not None:
            raise ModelError(
                no.status,
                cast(ErrorKind, no.kind),
                no.message,
                code=no.code,
                param=no.param,
                retry_after=no.retry_after,
            )
        reply = answer.reply
        if reply is None:
            raise ModelError(502, "backend", "the engine's answer says nothing")
        return reply

    async def _in_pieces(self, request: EngineRequest, on_piece: Callable[[EnginePiece], None]) -> Answer:
        frames = Frames()
        answer: Answer | None = None
        async for data in self._flow(packed(request)):
            for frame in frames.feed(data):
                if frame.piece is not None:
                    on_piece(frame.piece)
                answer = frame.answer or answer
        if answer is None:
            raise ModelError(502, "backend", "the server that has the engines ended an answer before it was whole")
        return answer

    async def load(self, source: str | Any, version: int) -> None:
        raise ModelError(501, "invalid", "new weights are given to the server that has the engines")

    async def pause(self, abort: bool) -> None:
        raise ModelError(501, "invalid", "the server that has the engines pauses them")

    async def resume(self) -> None:
        raise ModelError(501, "invalid", "the server that has the engines resumes them")

    async def check(self) -> int:
        """That server's own word: it asks its engines for a token before it says so."""
        facts: Facts = _decoded(_FACTS, await self._send("GET", None))
        return facts.policy_version

    async def close(self) -> None:
        """The server that has the engines ends them."""


def _decoded(decoder: Any, data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        raise ModelError(502, "backend", "the server that has the engines gave no answer of theirs") from None
