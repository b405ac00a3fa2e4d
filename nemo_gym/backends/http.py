"""A dialect spoken to the endpoints of one provider.

A pool says which of them is asked and for how long a call may wait; the tries are bounded in number and in time
together, each of them in the call's record. What a client has seen of a reply is never asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ..dialects import chat, codec
from ..dialects.chat import columns
from ..dialects.chat.reply import decode_reply
from ..exchange.call import Call
from ..exchange.errors import ModelError
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest
from ..pool.attempts import Attempts
from ..pool.limits import Limits
from ..pool.pool import Pool
from . import abilities, counting
from .backend import Capabilities
from .failures import is_repeatable
from .link import Link
from .provider import Provider
from .sending import AT_ONCE, Turn


class HttpBackend:
    """Asks one of several equal endpoints for a reply.

    Args:
        dialect: the dialect package that the endpoints speak.
        base_urls: each up to and including `/v1`.
        api_key: sent as a bearer token, in Messages as `x-api-key`; None sends none.
        model: what the endpoints call the model.
        provider: how its API differs from the dialect as published.
        extra_body: fields added to every request; the request's own win.
        ask_token_ids: ask for token ids and log-probs (vLLM's `return_token_ids`); None asks once at the probe.
        logprobs_mode: `raw` or `processed`; None measures it where token ids are found out too, else takes `raw`.
        retries: further tries after the first.
        timeout_s: for all tries and their waits.
        attempt_timeout_s: for one try; None leaves it all there is.
        pool: of the URLs, where several backends ask the same endpoints.
    """

    def __init__(
        self,
        dialect: Any,
        base_urls: list[str],
        *,
        api_key: str | None,
        model: str,
        provider: Provider | None = None,
        extra_body: Mapping[str, Any] | None = None,
        ask_token_ids: bool | None = None,
        logprobs_mode: str | None = None,
        retries: int = 4,
        timeout_s: float = 600.0,
        attempt_timeout_s: float | None = None,
        pool: Pool[str] | None = None,
    ) -> None:
        self._dialect = dialect
        self._urls = [url.rstrip("/") for url in base_urls]
        self._provider = provider or Provider()
        self._link = Link(dialect, self._provider, api_key, attempt_timeout_s)
        self._count_s = min(timeout_s, attempt_timeout_s or timeout_s)
        self._model = model
        self._extra_body = dict(extra_body or {})
        # What a provider looks into has to be there as it is.
        encoded = dialect.name == "chat" and self._provider.reasoning_back
        self._write = chat.write_encoded if encoded else dialect.write_request
        self._asks = self._provider.own_routes and dialect.name == "chat"
        self._ask_token_ids = ask_token_ids
        self._asked = columns.ASKED[0]
        """How they are asked for."""
        self._logprobs_mode = logprobs_mode
        self._roles: dict[str, bool] | None = None
        self._vision: bool | None = None
        self._sending = asyncio.Semaphore(AT_ONCE)
        self._pool = pool or pool_of(base_urls, retries=retries)
        self._attempts = Attempts(tries=retries + 1, seconds=timeout_s, repeatable=is_repeatable)

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply:
        ask = self._relay if call.relayed else self._try
        reply = await self._attempts.answer(self._pool, call, lambda url: ask(url, request, call))
        if self._dialect.name == "chat":
            reply = columns.completed(reply)
        traces = [choice.tokens for choice in reply.choices if choice.tokens is not None]
        if any(trace.logprobs is not None for trace in traces):
            call.logprobs_mode = self._logprobs_mode or "raw"  # what servers report unless they are told otherwise
        return _without_texts(reply) if traces and request.sampling.logprobs is None else reply

    def _body(self, request: ModelRequest, relayed: bool) -> bytes:
        body = self._extra_body | self._write(replace(request, model=self._model))
        if request.sampling.max_tokens is None and "max_tokens" in self._extra_body:
            body["max_tokens"] = self._extra_body["max_tokens"]  # Messages demands one, and the client set none
        body.pop("stream", None)
        body.pop("stream_options", None)
        if self._ask_token_ids and self._dialect.name == "chat":
            body |= self._asked
        if relayed:
            body["stream"] = True
            if self._dialect.name == "chat":
                body["stream_options"] = {"include_usage": True}
        return codec.encode(self._provider.body(body))

    async def _try(self, url: str, request: ModelRequest, call: Call) -> ModelReply:
        async with Turn(self._sending, call.size) as turn:
            status, headers, data = await self._link.send(
                "POST",
                url + self._link.path,
                lambda: turn.noted(self._body(request, relayed=False)),
                betas=call.betas,
            )
        call.raw = data
        if status != 200:
            raise self._link.failure(status, headers, data)
        return self._read(data, call)

    def _read(self, data: bytes, call: Call) -> ModelReply:
        try:
            reply: ModelReply
            if self._dialect.name == "chat":
                reply = decode_reply(data, texts=call.request.sampling.logprobs is not None)
            else:
                reply = self._dialect.read_reply(codec.decode(data))
        except ModelError:
            raise
        except Exception as error:
            kind = type(error).__name__
            raise ModelError(502, "backend", f"the backend's reply could not be read ({kind})") from error
        return reply

    async def _relay(self, url: str, request: ModelRequest, call: Call) -> ModelReply:
        """A try whose increments go out as they come."""
        reader = self._dialect.stream_reader()
        chunks: list[bytes] = []
        async with (
            Turn(self._sending, call.size) as turn,
            self._link.response(
                "POST",
                url + self._link.path,
                lambda: turn.noted(self._body(request, relayed=True)),
                betas=call.betas,
            ) as response,
        ):
            streams = response.status == 200 and response.content_type == "text/event-stream"
            async for data in response.content.iter_any():
                chunks.append(data)
                if not streams:
                    continue
                for increment in reader.feed(data):
                    call.begun = call.begun or reader.begun
                    call.emit(increment)
        call.raw = b"".join(chunks)
        if response.status != 200:
            raise self._link.failure(response.status, response.headers, call.raw)
        return reader.finish() if streams else self._read(call.raw, call)

    async def probe(self) -> Capabilities:
        """What the first endpoint that answers can do; how requests are written follows from it."""
        failure: ModelError | None = None
        for url in self._urls:
            try:
                return await self._probe(url)
            except ModelError as error:
                failure = error
        raise failure or ModelError(503, "unreachable", "no endpoint is configured")

    async def _probe(self, url: str) -> Capabilities:
        served = await abilities.served(self._link, url, self._model)
        if self._ask_token_ids is None and self._asks:
            asked = await abilities.gives_ids(self._link, url, self._model)
            if asked is not None and self._logprobs_mode is None:
                self._logprobs_mode = await abilities.logprobs_mode(self._link, url, self._model)
            self._ask_token_ids, self._asked = asked is not None, asked or self._asked
        if self._roles is None and self._asks:
            self._roles = await abilities.renders(self._link, url, self._model)
            self._vision = await abilities.sees(self._link, url, self._model)
        context = served.get("max_model_len")
        return Capabilities(
            token_ids=self._ask_token_ids,
            logprobs=self._ask_token_ids,
            vision=self._vision,
            context=context if isinstance(context, int) else None,
            **(self._roles or {}),
        )

    async def count(self, request: ModelRequest) -> int:
        body = self._extra_body | self._dialect.write_request(replace(request, model=self._model))
        route, question = counting.asked(self._dialect.name, body)
        for place, url in enumerate(self._urls, 1):
            try:
                return await self._count(url, route, question)
            except ModelError as error:
                if error.kind != "unreachable" or place == len(self._urls):
                    raise
        raise AssertionError("there is no endpoint")

    async def _count(self, url: str, route: counting.Route, question: bytes) -> int:
        base = url.removesuffix("/v1") if route.at_root else url
        status, headers, data = await self._link.send("POST", base + route.path, question, seconds=self._count_s)
        if status in (404, 405, 501):
            raise ModelError(501, "invalid", f"this backend cannot count tokens: it has no {route.path}")
        if status != 200:
            raise self._link.failure(status, headers, data)
        return counting.read(route, data)

    async def close(self) -> None:
        """The pooled client outlives its backends."""


def pool_of(
    base_urls: Sequence[str], *, retries: int, most: int | None = None, limits: Limits | None = None
) -> Pool[str]:
    """A pool of endpoints. With one of them and no retries an error is passed on, and nobody waits for another's."""
    urls = [url.rstrip("/") for url in base_urls]
    return Pool({url: url for url in urls}, most=most, limits=limits, patient=retries > 0 or len(urls) > 1)


def _without_texts(reply: ModelReply) -> ModelReply:
    """What was asked for the record alone is not the client's: it asked for no log-probs (A6)."""
    return replace(
        reply,
        choices=tuple(
            choice if choice.tokens is None else replace(choice, tokens=replace(choice.tokens, texts=None, top=None))
            for choice in reply.choices
        ),
    )
