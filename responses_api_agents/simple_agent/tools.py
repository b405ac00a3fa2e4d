"""The environment's tools as the loop calls them: over its routes, or over MCP.

A call comes back as what the model is shown: an error of the tool is shown as well. Only an environment that cannot be
reached, or that is not set up for the way it is called, fails the rollout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol
from urllib.parse import quote

from aiohttp import ClientTimeout

from nemo_gym.agent_server.environment import cookies_of
from nemo_gym.agent_server.failures import RolloutFailed, unreachable_is
from nemo_gym.server_utils import ServerClient

Shown = str | list[dict[str, Any]]
"""A tool's result in the conversation: a text, or parts of input."""

_RESERVED = frozenset(
    {"verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "health", "docs", "openapi.json"}
)
_ITS_OWN = ClientTimeout(total=None, sock_connect=10)  # a call has its own deadline around it
_PAGES = 100
_CONNECT_S = 10.0
_OPEN_S = 60.0


class Tools(Protocol):
    declared: list[dict[str, Any]]
    """What is offered to the model beside the row's own tools."""

    async def call(self, name: object, arguments: dict[str, Any]) -> Shown: ...


class RouteTools:
    """Each tool is a POST route of the environment, in the session of `cookies`, which are kept up to date."""

    def __init__(self, client: ServerClient, environment: str, cookies: Mapping[str, str]) -> None:
        self.declared: list[dict[str, Any]] = []
        self.cookies = dict(cookies)
        self._client = client
        self._environment = environment

    async def call(self, name: object, arguments: dict[str, Any]) -> Shown:
        if not isinstance(name, str) or not name.strip(".") or "/" in name or name in _RESERVED:
            return error(f"there is no tool named {name!r}")
        with unreachable_is("infrastructure", self._environment):
            path = "/" + quote(name, safe="")
            response = await self._client.post(
                self._environment, path, json=arguments, cookies=self.cookies, timeout=_ITS_OWN
            )
            text = (await response.read()).decode(errors="replace")
        self.cookies.update(cookies_of(response))
        return text if text or response.ok else error(f"the tool answered {response.status} and nothing else")


class McpTools:
    """The tools of an MCP server, by a session of the `mcp` package."""

    def __init__(self, session: Any, listed: list[Any], environment: str) -> None:
        self.declared = [_declared(tool) for tool in listed]
        self._names = {tool.name for tool in listed}
        self._session = session
        self._environment = environment

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, environment: str, base_url: str, seed: Mapping[str, Any], key: Mapping[str, str] | None = None
    ) -> AsyncIterator[McpTools]:
        """A session at the MCP server that the environment named when it was seeded.

        Args:
            seed: `MCPServerMetadata`: the server's path, and the headers that name the rollout's session.
            key: the header that the environment asks of its peers, if it does.
        """
        try:
            import httpx2
            from mcp import Client
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as missing:
            words = "tools: mcp needs the mcp package (pip install 'nemo-gym[mcp]')"
            raise RolloutFailed("infrastructure", f"{words}: {missing}") from missing
        headers = dict(key or {}) | {str(name): str(value) for name, value in (seed.get("headers") or {}).items()}
        timeout = httpx2.Timeout(None, connect=_CONNECT_S)
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=timeout) as http:
            url = base_url + str(seed.get("url_path") or "/mcp")
            client = Client(streamable_http_client(url, http_client=http), mode="legacy")
            with _failing(environment):
                async with asyncio.timeout(_OPEN_S):
                    await client.__aenter__()
            try:
                with _failing(environment):
                    async with asyncio.timeout(_OPEN_S):
                        listed = await _listed(client)
                yield cls(client, listed, environment)
            finally:
                await client.__aexit__(None, None, None)  # told of no failure, so it puts none into a group

    async def call(self, name: object, arguments: dict[str, Any]) -> Shown:
        if name not in self._names:
            return error(f"there is no tool named {name!r}")
        with _failing(self._environment):
            return _shown(await self._session.call_tool(name, arguments))


@contextmanager
def _failing(environment: str) -> Iterator[None]:
    """An MCP server that cannot be reached, or does not speak the protocol, fails the rollout."""
    try:
        yield
    except Exception as failed:
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        words = f"{environment}: over MCP: {type(first).__name__}: {first}"
        raise RolloutFailed("infrastructure", words) from failed


async def _listed(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _declared(tool: Any) -> dict[str, Any]:
    """An MCP tool as a Responses request declares it."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": False,
    }


def _shown(result: Any) -> Shown:
    """A result's texts; with images as parts."""
    parts: list[dict[str, Any]] = []
    for content in result.content:
        if content.type == "text":
            parts.append({"type": "input_text", "text": content.text})
        elif content.type == "image":
            url = f"data:{content.mime_type};base64,{content.data}"
            parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
        else:
            parts.append({"type": "input_text", "text": content.model_dump_json(by_alias=True, exclude_none=True)})
    if any(part["type"] == "input_image" for part in parts):
        return parts
    text = "\n".join(part["text"] for part in parts)
    return error(text or "the tool failed and said nothing") if result.is_error else text


def error(message: str) -> str:
    """How a failed call is told to the model."""
    return json.dumps({"error": message})
