"""An Engine over HTTP: a vLLM that runs elsewhere, a trainer's own or one started by hand.

It is asked for token ids and gives token ids. A server of completions that knows only text is asked with text; then
there are no ids, and nobody makes some from its text.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import aiohttp
import msgspec

from ..exchange.call import Attempt
from ..exchange.errors import ErrorKind, ModelError
from ..exchange.reply import Usage
from ..exchange.request import Sampling
from . import wire
from .engine import EnginePiece, EngineReply, EngineRequest
from .gather import Gathered
from .room import room

_CHECK_S = 60.0
_UNKNOWN_ROUTE = (404, 405, 501)
_EVENT = b"data:"


class Link(Protocol):
    """HTTP to the endpoint, with its key and its limits; failures as ModelErrors."""

    def response(
        self, method: str, url: str, body: bytes | None = None, *, seconds: float | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]: ...

    def failure(self, status: int, headers: Mapping[str, str], data: bytes) -> ModelError: ...


class HttpEngine:
    """Args:
    link: to the endpoint.
    url: up to and including `/v1`.
    model: what the endpoint calls the model.
    route: how it is asked.
    context: tokens of prompt and completion together, where they are known.
    defaults: of sampling, for what a request leaves open; the completions route has the model's own.
    """

    def __init__(
        self,
        link: Link,
        url: str,
        model: str,
        *,
        route: wire.Route = "completions",
        context: int | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = url
        self.context = context
        self._link = link
        self._url = (url.removesuffix("/v1") if route == "generate" else url) + wire.PATHS[route]
        self._model = model
        self._route: wire.Route = route
        self._defaults = defaults or {}

    @property
    def takes_ids(self) -> bool:
        return self._route != "text"

    async def generate(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> EngineReply:
        left = room(len(request.prompt_ids), self.context)
        # A stream has no place for the prompt's log-probs.
        streams = on_piece is not None and not request.prompt_logprobs
        told = wire.body(self._route, self._model, request, left, streams, self._defaults)
        answer = _Answer(request, self._route, on_piece)
        started = time.time()
        failed: ErrorKind | None = "disconnected"
        try:
            await self._ask(msgspec.json.encode(told), answer)
            reply, failed = answer.whole(), None
            return reply
        except ModelError as error:
            failed = error.kind
            raise
        finally:
            if on_attempt is not None:
                on_attempt(Attempt(self.name, started, time.time(), failed))

    async def _ask(self, data: bytes, answer: _Answer, seconds: float | None = None) -> None:
        async with self._link.response("POST", self._url, data, seconds=seconds) as response:
            if response.status != 200:
                raise self._link.failure(response.status, response.headers, await response.read())
            if response.content_type != "text/event-stream":
                answer.add(wire.read(await response.read()))
                return
            async for event in _events(response.content.iter_any()):
                said = wire.read(event)
                if said.error is not None:
                    raise self._link.failure(502, {}, event)
                answer.add(said)

    async def gives(self) -> bool | None:
        """Whether this route gives the ids of prompt and reply; None where the endpoint does not know the route."""
        probe = EngineRequest(array("i", [0]), Sampling(max_tokens=1), prompt_text="a")
        answer = _Answer(probe, self._route, None)
        told = wire.body(self._route, self._model, probe, None, False, {})
        try:
            await self._ask(msgspec.json.encode(told), answer, _CHECK_S)
            (output,) = answer.whole().outputs
        except ModelError as error:
            if error.status in _UNKNOWN_ROUTE:
                return None
            if error.status in (400, 422):
                return False
            raise
        known = answer.prompt in (None, [0]) if self._route == "generate" else answer.prompt == [0]
        return known and bool(output.tokens.ids)

    async def load(self, source: str | Any, version: int) -> None:
        raise ModelError(501, "invalid", "the weights of an engine behind a URL are its owner's to load")

    async def pause(self, abort: bool) -> None:
        raise ModelError(501, "invalid", "an engine behind a URL is its owner's to pause")

    async def resume(self) -> None:
        raise ModelError(501, "invalid", "an engine behind a URL is its owner's to resume")

    async def check(self) -> int:
        """One real token; the version is the owner's to say, and 0 where it does not."""
        request = EngineRequest(array("i", [0]), Sampling(max_tokens=1), prompt_text="a")
        reply = await self.generate(request)
        runs = reply.outputs[0].tokens.versions
        return runs[-1][1] if runs else 0

    async def close(self) -> None:
        """The pooled client outlives its engines."""


class _Answer:
    """What has been said so far."""

    def __init__(
        self, request: EngineRequest, route: wire.Route, on_piece: Callable[[EnginePiece], None] | None
    ) -> None:
        self._request = request
        self._route: wire.Route = route
        self._on_piece = on_piece
        self._outputs: dict[int, Gathered] = {}
        self._usage: wire.Counted | None = None
        self._prompt_logprobs: array | None = None
        self.prompt: list[int] | None = None

    def add(self, said: wire.Said) -> None:
        self._usage = said.usage or self._usage
        if self._request.prompt_logprobs and self._prompt_logprobs is None:
            self._prompt_logprobs = wire.prompt_logprobs(said, self._request.prompt_ids)
        for choice in said.choices:
            self.prompt = choice.prompt_token_ids or self.prompt
            piece = wire.piece(choice, self._request.sampling.logprobs, self._route)
            output = self._outputs.setdefault(choice.index, Gathered(choice.index))
            output.add(piece)
            if choice.finish_reason is not None:
                output.finish, output.stop_sequence = wire.finish(choice)
                output.versions = wire.versions(choice)
            if self._on_piece is not None and (piece.text or piece.tokens.ids):
                self._on_piece(piece)

    def whole(self) -> EngineReply:
        outputs = [self._outputs[index] for index in sorted(self._outputs)]
        if len(outputs) != self._request.sampling.n or any(output.finish is None for output in outputs):
            raise ModelError(502, "backend", "the backend's reply ended before it was whole")
        counted = self._usage or wire.Counted()
        cached = None if counted.prompt_tokens_details is None else counted.prompt_tokens_details.cached_tokens
        usage = Usage(counted.prompt_tokens, counted.completion_tokens, None, cached)
        return EngineReply(
            tuple(output.whole() for output in outputs),
            cached,
            self._prompt_logprobs,
            usage if self._route == "text" else None,
        )


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event; an engine's are one line each."""
    begun = bytearray()
    async for chunk in chunks:
        begun += chunk
        *lines, rest = begun.split(b"\n")
        begun = bytearray(rest)
        for line in lines:
            data = line.removeprefix(_EVENT).strip()
            if line.startswith(_EVENT) and data and data != b"[DONE]":
                yield bytes(data)
