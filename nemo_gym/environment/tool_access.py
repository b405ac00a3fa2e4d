"""By what an agent reaches an environment's tools, as a caller that opens its session says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field

_Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DirectHTTPToolAccess(_Closed):
    """Each tool is a route below `base_url`."""

    kind: Literal["direct_http"] = "direct_http"
    name: _Name
    required: bool
    base_url: AnyHttpUrl
    cookies: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)


class MCPStreamableHTTPConnection(_Closed):
    transport: Literal["streamable_http"] = "streamable_http"
    url: AnyHttpUrl
    headers: dict[str, str] = Field(default_factory=dict)


class MCPToolAccess(_Closed):
    """An MCP server. One that is required and cannot be reached fails the session; another is left out."""

    kind: Literal["mcp"] = "mcp"
    name: _Name
    required: bool
    connection: MCPStreamableHTTPConnection


ToolAccess = Annotated[DirectHTTPToolAccess | MCPToolAccess, Field(discriminator="kind")]


def each_named_once(accesses: Sequence[DirectHTTPToolAccess | MCPToolAccess]) -> None:
    """Raises ValueError for a name that two of them have."""
    names = [access.name for access in accesses]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"tool access names must be unique, {twice!r} is there twice")
