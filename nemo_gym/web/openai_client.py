"""A small client for OpenAI-compatible endpoints, as environments with a judge of their own use it.

Answers that may be different on a second try are tried again, a bounded number of times; a spent or refused key is not.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import ClientResponse
from pydantic import BaseModel, Field

from .peers import get_response_json, raise_for_status, request

RATE_LIMIT_ERROR_CODES = [429, 502, 503, 504, 520]
RETRY_ERROR_CODES = [*RATE_LIMIT_ERROR_CODES, 404, 408, 500]
"""404 too: some gateways answer so while a model is being routed."""
MAX_NUM_TRIES = 3
_PERMANENT = frozenset({"budget_exceeded", "insufficient_quota"})
_WAIT_S = 0.5
_WAIT_LIMIT_S = 30.0


class NeMoGymAsyncOpenAI(BaseModel):
    """Each method takes the request's fields as keywords and gives the answer's JSON; a failure raises
    aiohttp's ClientResponseError with `response_content`."""

    base_url: str
    api_key: str
    internal: bool = False
    """Kept for configurations that set it; retries are bounded in either case."""
    max_connection_retries: int | None = None
    max_http_attempts: int = Field(default=MAX_NUM_TRIES, ge=1)
    default_headers: dict[str, str] = Field(default_factory=dict)

    async def create_models(self) -> Any:
        return await self._call("GET", "/models")

    async def create_chat_completion(self, **kwargs: Any) -> Any:
        return await self._call("POST", "/chat/completions", json=kwargs)

    async def create_completion(self, **kwargs: Any) -> Any:
        return await self._call("POST", "/completions", json=kwargs)

    async def create_response(self, **kwargs: Any) -> Any:
        return await self._call("POST", "/responses", json=kwargs)

    async def create_tokenize(self, **kwargs: Any) -> Any:
        """vLLM's route, which lies beside `/v1`."""
        return await self._call(
            "POST", "/tokenize", base_url=self.base_url.rstrip("/").removesuffix("/v1"), json=kwargs
        )

    async def _call(self, method: str, path: str, *, base_url: str | None = None, **kwargs: Any) -> Any:
        response = await self._request(method=method, url=(base_url or self.base_url).rstrip("/") + path, **kwargs)
        await raise_for_status(response)
        return await get_response_json(response)

    async def _request(self, **kwargs: Any) -> ClientResponse:
        headers = {**self.default_headers, **(kwargs.pop("headers", None) or {})}
        headers["Authorization"] = f"Bearer {self.api_key}"
        for attempt in range(1, self.max_http_attempts + 1):
            response = await request(headers=headers, **kwargs)
            if response.status not in RETRY_ERROR_CODES or attempt == self.max_http_attempts:
                return response
            content = await response.read()
            if response.status == 429 and _permanent(content):
                return response
            await asyncio.sleep(_patience(response))
        raise AssertionError("unreachable")


def _permanent(content: bytes) -> bool:
    """A spent key answers 429 as well."""
    try:
        error = orjson.loads(content)["error"]
        return bool({str(error.get("code")), str(error.get("type"))} & _PERMANENT)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return False


def _patience(response: ClientResponse) -> float:
    try:
        asked = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return _WAIT_S
    return min(max(asked, 0.0), _WAIT_LIMIT_S)
