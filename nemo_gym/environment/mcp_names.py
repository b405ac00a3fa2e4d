"""The names by which an environment's tools are known over MCP."""

from __future__ import annotations

NEMO_GYM_MCP_SESSION_TOKEN_HEADER = "X-NeMo-Gym-Session-Token"
"""Carries the rollout's session; it is in the answer of `/seed_session`, under the key below."""
NEMO_GYM_MCP_METADATA_KEY = "mcp"
RESERVED_MCP_TOOL_NAMES = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "mcp"})


def normalize_tool_name(name: str, server_name: str | None = None) -> str:
    """`mcp__<server>__<tool>`, as some agents call it -> `<tool>`; only that server's prefix, where one is given."""
    if not name.startswith("mcp__"):
        return name
    if server_name is not None:
        return name.removeprefix(f"mcp__{server_name}__")
    _, found, tool = name.removeprefix("mcp__").partition("__")
    return tool if found else name
