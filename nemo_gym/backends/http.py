"""A dialect spoken to endpoints over HTTP.

One pooled client; every try bounded in time, the tries bounded in number, each of them in the
call's record. Only what the backend itself reported is passed on; a transport failure gives its type.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.payload import BytesPayload
from msgspec.structs import replace

from ..dialects import codec
from ..dialects.chat.reply import decode_reply
from ..exchange.call import Attempt, Call
from ..exchange.errors import ModelError
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest
from ..web.client import session
from . import counting
from .backend import Capabilities
from .failures import REPEATABLE, is_overflow, pause
from .sending import AT_ONCE, Turn

_PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
_VERSION = "2023-06-01"
"""Of the Messages API."""
_PROBE_S = 60.0
_PROBE_WORDS = 16
_ROLES = {
    "developer": ["PROBE", "user"],
    "several_systems": ["system", "PROBE", "user"],
    "late_system": ["user", "assistant", "PROBE", "user"],
}
"""A capability's probe: the message in question among others."""


Body = Callable[[], bytes | BytesPayload]
"""Made for each try, so that nothing holds the bytes while the endpoint generates."""


class HttpBackend:
    """Asks one of several equal endpoints, in turn, for a reply.

    Args:
        dialect: the dialect package that the endpoints speak.
        base_urls: each up to and including `/v1`.
        api_key: sent as a bearer token, in Messages as `x-api-key`; None sends none.
        model: what the endpoints call the model.
        extra_body: fields added to every request; the request's own win.
        ask_token_ids: ask for token ids and log-probs (vLLM's `return_token_ids`); None asks once at the probe.
        retries: further tries after the first.
        timeout_s: for one try.
    """

    def __init__(
        self,
        dialect: Any,
        base_urls: list[str],
        *,
        api_key: str | None,
        model: str,
        extra_body: Mapping[str, Any] | None = None,
        ask_token_ids: bool | None = None,
        retries: int = 4,
        timeout_s: float = 600.0,
    ) -> None:
        self._dialect = dialect
        self._urls = [url.rstrip("/") for url in base_urls]
        self._headers = {"content-type": "application/json"}
        if dialect.name == "messages":
            self._headers["anthropic-version"] = _VERSION
        if api_key and dialect.name == "messages":
            self._headers["x-api-key"] = api_key
        elif api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._secret = api_key if api_key and len(api_key) >= 8 else ""
        """A provider may quote the key that it refuses."""
        self._model = model
        self._extra_body = dict(extra_body or {})
        self._ask_token_ids = ask_token_ids
        self._retries = retries
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(10.0, timeout_s))
        self._roles: dict[str, bool] | None = None
        self._turn = 0
        self._sending = asyncio.Semaphore(AT_ONCE)

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply:
        relayed = call.relayed
        first = self._next_url(call.rollout_id)
        for number in range(self._retries + 1):
            url = self._urls[(first + number) % len(self._urls)]
            started = time.time()
            try:
                reply = await (self._relay if relayed else self._try)(url, request, call)
            except ModelError as error:
                call.attempts.append(Attempt(url, started, time.time(), error.kind))
                if number == self._retries or not _repeatable(error) or call.increments:
                    raise  # what a client has seen of a reply cannot be taken back
                await asyncio.sleep(pause(number, error))
            else:
                call.attempts.append(Attempt(url, started, time.time()))
                if any(c.tokens is not None and c.tokens.logprobs is not None for c in reply.choices):
                    call.logprobs_mode = "raw"  # what servers report unless they are told otherwise
                return reply if request.sampling.logprobs is not None else _without_texts(reply)
        raise AssertionError("unreachable")

    def _body(self, request: ModelRequest, relayed: bool) -> bytes:
        body = self._extra_body | self._dialect.write_request(replace(request, model=self._model))
        if request.sampling.max_tokens is None and "max_tokens" in self._extra_body:
            body["max_tokens"] = self._extra_body["max_tokens"]  # Messages demands one, and the client set none
        body.pop("stream", None)
        body.pop("stream_options", None)
        if self._ask_token_ids and self._dialect.name == "chat":
            body |= {"return_token_ids": True, "logprobs": True}
        if relayed:
            body["stream"] = True
            if self._dialect.name == "chat":
                body["stream_options"] = {"include_usage": True}
        return codec.encode(body)

    def _next_url(self, rollout_id: str | None) -> int:
        """A rollout keeps to its endpoint, where its prefix is cached."""
        if rollout_id is not None:
            return zlib.crc32(rollout_id.encode()) % len(self._urls)
        self._turn += 1
        return self._turn % len(self._urls)

    async def _try(self, url: str, request: ModelRequest, call: Call) -> ModelReply:
        path = _PATHS[self._dialect.name]
        async with Turn(self._sending, call.size) as turn:
            status, headers, data = await self._send(
                "POST", url + path, lambda: turn.noted(self._body(request, relayed=False))
            )
        call.raw = data
        if status != 200:
            raise self._failure(status, headers, data)
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
        path = _PATHS[self._dialect.name]
        async with (
            Turn(self._sending, call.size) as turn,
            self._response("POST", url + path, lambda: turn.noted(self._body(request, relayed=True))) as response,
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
            raise self._failure(response.status, response.headers, call.raw)
        return reader.finish() if streams else self._read(call.raw, call)

    async def _send(
        self, method: str, url: str, body: bytes | Body | None, limits: aiohttp.ClientTimeout | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        async with self._response(method, url, body, limits) as response:
            return response.status, response.headers, await response.read()

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, url: str, body: bytes | Body | None, limits: aiohttp.ClientTimeout | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The endpoint's answer; a transport failure as a ModelError that gives its type."""
        try:
            async with session().request(
                method,
                url,
                data=body() if callable(body) else body,
                headers=self._headers,
                timeout=limits or self._timeout,
            ) as response:
                yield response
        except TimeoutError:
            raise ModelError(504, "timeout", "the backend did not answer in time") from None
        except aiohttp.ClientConnectorError as error:
            raise ModelError(
                503, "unreachable", f"the backend cannot be reached ({type(error).__name__})", retry_after=2.0
            ) from None
        except aiohttp.ClientError as error:
            raise ModelError(502, "backend", f"the connection to the backend broke ({type(error).__name__})") from None

    def _failure(self, status: int, headers: Mapping[str, str], data: bytes) -> ModelError:
        # An answer below 400 that is no reply is no status for a client: some allow no body at all.
        error: ModelError = self._dialect.read_error(status if status >= 400 else 502, headers, data)
        if self._secret:
            error.message = error.message.replace(self._secret, "[redacted]")
        if is_overflow(status, error.code, error.message):
            error.code = "context_length_exceeded"
        return error

    async def probe(self) -> Capabilities:
        """Lists the models, and asks once for one token with ids to learn whether they come."""
        failure: ModelError | None = None
        for url in self._urls:
            try:
                served = await self._list(url)
                if self._ask_token_ids is None and self._dialect.name == "chat":
                    self._ask_token_ids = await self._gives_ids(url)
            except ModelError as error:
                failure = error
            else:
                if self._roles is None and self._dialect.name == "chat":
                    self._roles = await self._renders(url)
                context = served.get("max_model_len")
                return Capabilities(
                    token_ids=self._ask_token_ids,
                    logprobs=self._ask_token_ids,
                    context=context if isinstance(context, int) else None,
                    **(self._roles or {}),
                )
        raise failure or ModelError(503, "unreachable", "no endpoint is configured")

    async def _list(self, url: str) -> Mapping[str, Any]:
        """The served model's entry, {} where the endpoint lists none under that name."""
        status, headers, data = await self._send("GET", url + "/models", None, aiohttp.ClientTimeout(total=10))
        if status in (404, 405):
            return {}
        if status != 200:
            raise self._failure(status, headers, data)
        try:
            entries = codec.decode(data)["data"]
            return next((entry for entry in entries if entry.get("id") == self._model), {})
        except (ValueError, LookupError, TypeError, AttributeError):
            return {}

    async def _gives_ids(self, url: str) -> bool:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 1,
            "logprobs": True,
            "return_token_ids": True,
        }
        status, headers, data = await self._send(
            "POST", url + _PATHS["chat"], codec.encode(body), aiohttp.ClientTimeout(total=_PROBE_S)
        )
        if status in (400, 404, 422):
            return False
        if status != 200:
            raise self._failure(status, headers, data)
        try:
            reply = self._dialect.read_reply(codec.decode(data))
        except (ModelError, ValueError):
            return False
        return reply.prompt_ids is not None and all(c.tokens is not None and c.tokens.ids for c in reply.choices)

    async def _renders(self, url: str) -> dict[str, bool]:
        """Which system messages the template renders, by counting a probe's tokens (vLLM's tokenize route)."""
        found: dict[str, bool] = {}
        for name, roles in _ROLES.items():
            without = await self._tokens(url, [role for role in roles if role != "PROBE"])
            if without is None:
                return {}
            role = "developer" if name == "developer" else "system"
            probed = await self._tokens(url, [role if one == "PROBE" else one for one in roles], roles.index("PROBE"))
            found[name] = probed is not None and probed - without >= _PROBE_WORDS
        return found

    async def _tokens(self, url: str, roles: list[str], probe: int | None = None) -> int | None:
        """The tokens of a conversation of one-word messages; None when it cannot be rendered."""
        texts = [" ".join(["probe"] * _PROBE_WORDS) if place == probe else "a" for place in range(len(roles))]
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        body = codec.encode({"model": self._model, "messages": messages})
        root = url.removesuffix("/v1")
        status, _, data = await self._send("POST", root + "/tokenize", body, aiohttp.ClientTimeout(total=10))
        try:
            count = codec.decode(data)["count"] if status == 200 else None
        except (ValueError, LookupError, TypeError):
            return None
        return count if isinstance(count, int) else None

    async def count(self, request: ModelRequest) -> int:
        body = self._extra_body | self._dialect.write_request(replace(request, model=self._model))
        route, question = counting.asked(self._dialect.name, body)
        url = self._urls[0].removesuffix("/v1") if route.at_root else self._urls[0]
        status, headers, data = await self._send("POST", url + route.path, question)
        if status in (404, 405, 501):
            raise ModelError(501, "invalid", f"this backend cannot count tokens: it has no {route.path}")
        if status != 200:
            raise self._failure(status, headers, data)
        return counting.read(route, data)

    async def close(self) -> None:
        """The pooled client outlives its backends."""


def _repeatable(error: ModelError) -> bool:
    return error.status in REPEATABLE and error.code != "insufficient_quota"


def _without_texts(reply: ModelReply) -> ModelReply:
    """What was asked for the record alone is not the client's: it asked for no log-probs (A6)."""
    return replace(
        reply,
        choices=tuple(
            choice if choice.tokens is None else replace(choice, tokens=replace(choice.tokens, texts=None, top=None))
            for choice in reply.choices
        ),
    )
