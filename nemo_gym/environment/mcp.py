"""An environment's tool routes as MCP tools at `/mcp`, without a change to the environment (`expose_tools_over_mcp`).

A call over MCP is answered by the route itself, as if it had come by HTTP: the same checks, the same session, the same
words on failure. The session is named by a signed token that the answer of `/seed_session` carries, so an agent that
speaks MCP needs no cookie. Some agents write a tool's name with the server's before it; `/verify` sees bare names, and
its answer has them as the model wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp.types as types
from fastapi import FastAPI
from fastapi.routing import APIRoute
from itsdangerous import BadSignature, URLSafeSerializer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from msgspec import Struct
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from ..web.session import SESSION_ID_KEY
from .asgi_calls import Answer, call, posted
from .episodes import MCPServerMetadata
from .mcp_names import NEMO_GYM_MCP_METADATA_KEY, NEMO_GYM_MCP_SESSION_TOKEN_HEADER, RESERVED_MCP_TOOL_NAMES

TOKEN_HEADER = NEMO_GYM_MCP_SESSION_TOKEN_HEADER
MCP_URL_PATH = "/mcp"
PERMISSIVE_SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": True}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SALT = "nemo-gym-mcp-session-token"


class MCPTool(Struct, frozen=True):
    """A tool as it is offered, and the path that answers for it."""

    name: str
    tool: types.Tool
    path: str


class CatchAll:
    """The one route with a path parameter; `tool` makes MCP tools that it answers for."""

    def __init__(self, path: str) -> None:
        self.path = path

    def tool(self, name: str, input_schema: dict[str, Any] | None = None, description: str | None = None) -> MCPTool:
        return _tool(name, re.sub(r"\{[^}]*\}", name, self.path), input_schema, description)


def maybe_auto_expose(server: Any, app: FastAPI) -> dict[str, MCPTool] | None:
    """The tools that are exposed; None where the server's config does not ask for it."""
    return install_auto_exposure(server, app) if getattr(server.config, "expose_tools_over_mcp", False) else None


def install_auto_exposure(server: Any, app: FastAPI) -> dict[str, MCPTool]:
    """Expose the tools of an app that has all its routes; once. Raises ValueError for what cannot be exposed."""
    exposed = getattr(app.state, "nemo_gym_mcp_tools", None)
    if exposed is not None:
        return exposed
    name = server.config.name or type(server).__name__
    if any(getattr(route, "path", None) == MCP_URL_PATH for route in app.routes):
        raise ValueError(f"{name}: expose_tools_over_mcp: it serves {MCP_URL_PATH} already")
    secret = getattr(app.state, "nemo_gym_session_secret", None)
    if secret is None:
        raise ValueError(f"{name}: expose_tools_over_mcp: its app has no sessions (setup_session_middleware)")
    tools = harvest_tools(server, app)
    exposure = _Exposure(server, name, app, tools, URLSafeSerializer(secret, salt=_SALT))
    app.user_middleware.append(Middleware(_Door, exposure=exposure))  # innermost: behind the sessions
    app.router.lifespan_context = exposure.lifespan(app.router.lifespan_context)
    app.state.nemo_gym_mcp_tools = tools
    return tools


def harvest_tools(server: Any, app: FastAPI) -> dict[str, MCPTool]:
    """The tools of an app's POST routes, as the server's `mcp_tools` leaves them."""
    found, catchall = [], None
    for route in app.routes:
        if not isinstance(route, APIRoute) or "POST" not in route.methods:
            continue
        name = route.path.removeprefix("/")
        if "{" in route.path:
            if not route.path.startswith("/ng-rollout/"):
                catchall = CatchAll(route.path)
        elif name not in RESERVED_MCP_TOOL_NAMES and _NAME.fullmatch(name):
            found.append(_tool(name, route.path, _schema(route), route.description or None))
    tools = list(server.mcp_tools(found, catchall) or ())
    for tool in tools:
        if not _NAME.fullmatch(tool.name) or tool.name in RESERVED_MCP_TOOL_NAMES:
            raise ValueError(f"{server.config.name}: mcp_tools: {tool.name!r} cannot be a tool's name")
    return {tool.name: tool for tool in tools}


def _tool(name: str, path: str, schema: dict[str, Any] | None, description: str | None) -> MCPTool:
    return MCPTool(name, types.Tool(name=name, description=description, input_schema=schema or PERMISSIVE_SCHEMA), path)


def _schema(route: APIRoute) -> dict[str, Any] | None:
    """The schema of the route's body; None where it declares none."""
    field = route.body_field
    kind = field.field_info.annotation if field is not None else None
    return kind.model_json_schema() if isinstance(kind, type) and issubclass(kind, BaseModel) else None


class _Exposure:
    def __init__(
        self, server: Any, name: str, app: FastAPI, tools: dict[str, MCPTool], serializer: URLSafeSerializer
    ) -> None:
        self._server, self._name, self._app, self._tools, self._serializer = server, name, app, tools, serializer
        self._manager = StreamableHTTPSessionManager(
            app=Server(name, on_list_tools=self._list, on_call_tool=self._call),
            json_response=True,
            stateless=True,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # no browser comes here
        )

    def lifespan(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with self._manager.run(), inner(app) as state:
                yield state

        return lifespan

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, receive, send)

    # ---- what the agent asks over MCP

    async def _list(self, context: ServerRequestContext[Any], params: Any) -> types.ListToolsResult:
        _, allowed = self._claims(context, required=False)
        return types.ListToolsResult(
            tools=[tool.tool for name, tool in self._tools.items() if allowed is None or name in allowed]
        )

    async def _call(self, context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Any:
        tool = self._tools.get(params.name)
        if tool is None:
            return _result(f"Unknown tool: {params.name!r}. Available tools: {sorted(self._tools)}", failed=True)
        try:
            session, allowed = self._claims(context, required=True)
        except ValueError as error:
            return _result(str(error), failed=True)
        if allowed is not None and params.name not in allowed:
            return _result(f"Tool {params.name!r} is not allowed for this session.", failed=True)
        answer = await call(self._app, tool.path, params.arguments or {}, session)
        text = answer.body.decode("utf-8", "replace")
        if answer.status >= 300:
            return _result(f"HTTP {answer.status} from POST {tool.path}: {_detail(text)}", failed=True)
        return _result(text)

    def _claims(self, context: ServerRequestContext[Any], required: bool) -> tuple[str, frozenset[str] | None]:
        """The session that the token names, and the tools that it may use (None: all)."""
        token = context.request.headers.get(TOKEN_HEADER) if context.request is not None else None
        try:
            claims = self._serializer.loads(token) if token else None
        except BadSignature:
            claims = None
        if claims is None:
            if required:
                raise ValueError(f"{'Invalid' if token else 'Missing'} {TOKEN_HEADER}: /seed_session gives it")
            return "", None
        return claims["sid"], None if claims["tools"] is None else frozenset(claims["tools"])

    # ---- what the environment's own routes are told and tell

    def metadata(self, session: str, seed: Any) -> dict[str, Any]:
        allowed = self._server.mcp_allowed_tools_for_session(seed if isinstance(seed, dict) else {})
        token = self._serializer.dumps({"sid": session, "tools": allowed})
        return MCPServerMetadata(server_name=self._name, headers={TOKEN_HEADER: str(token)}).model_dump()

    def bare(self, body: Any) -> dict[str, str]:
        """Takes the server's name from the names of the calls in a body; gives what each was, by its call id."""
        written: dict[str, str] = {}
        for item in _function_calls(body):
            written[str(item.get("call_id"))] = item["name"]
            item["name"] = self._server.normalize_tool_name(item["name"])
        return written


class _Door:
    """Serves `/mcp`, and adds to the environment's own routes what an agent that speaks MCP needs."""

    def __init__(self, app: ASGIApp, exposure: _Exposure) -> None:
        self._app, self._exposure = app, exposure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == MCP_URL_PATH or path.startswith(MCP_URL_PATH + "/")):
            await self._exposure.answer(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST" and path in ("/seed_session", "/verify"):
            await (self._seed if path == "/seed_session" else self._verify)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _seed(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, answer = await posted(self._app, scope, receive)
        told = answer.json()
        if answer.status < 300 and isinstance(told, dict):
            seed = asked.get("task_data", asked) if isinstance(asked, dict) else {}
            key = "resources_tools" if "resources_session_id" in told else NEMO_GYM_MCP_METADATA_KEY
            if told.get(key) is None:
                told[key] = self._exposure.metadata(scope["session"][SESSION_ID_KEY], seed)
                answer = answer.with_json(told)
        await answer.send(send)

    async def _verify(self, scope: Scope, receive: Receive, send: Send) -> None:
        written: dict[str, str] = {}

        def bare(body: Any) -> Any:
            written.update(self._exposure.bare(body))
            return body

        _, answer = await posted(self._app, scope, receive, bare)
        told = answer.json()
        if written and isinstance(told, dict):
            for item in _function_calls(told):
                item["name"] = written.get(str(item.get("call_id")), item["name"])
            answer = answer.with_json(told)
        await answer.send(send)


def _function_calls(body: Any) -> list[dict[str, Any]]:
    response = body.get("response") if isinstance(body, dict) else None
    output = response.get("output") if isinstance(response, dict) else None
    return [
        item
        for item in (output if isinstance(output, list) else ())
        if isinstance(item, dict) and item.get("type") == "function_call" and isinstance(item.get("name"), str)
    ]


def _detail(text: str) -> str:
    """FastAPI's `detail`, or the words themselves."""
    try:
        told = json.loads(text)
    except ValueError:
        return text
    told = told.get("detail", told) if isinstance(told, dict) else told
    return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)


def _result(text: str, failed: bool = False) -> types.CallToolResult:
    """A text; an object's fields beside it. A JSON string is its value."""
    value: Any = None
    if not failed:
        try:
            value = Answer(200, text.encode()).json()
        except ValueError:
            value = None
        text = value if isinstance(value, str) else text
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=value if isinstance(value, dict) else None,
        is_error=failed,
    )
