"""Tool routes over MCP, as environments import it; names only. Needs the `mcp` extra."""

from nemo_gym.environment.mcp import (
    MCP_URL_PATH,
    PERMISSIVE_SCHEMA,
    TOKEN_HEADER,
    CatchAll,
    MCPTool,
    install_auto_exposure,
    maybe_auto_expose,
)
from nemo_gym.environment.mcp_names import NEMO_GYM_MCP_SESSION_TOKEN_HEADER

__all__ = [
    "MCP_URL_PATH",
    "NEMO_GYM_MCP_SESSION_TOKEN_HEADER",
    "PERMISSIVE_SCHEMA",
    "TOKEN_HEADER",
    "CatchAll",
    "MCPTool",
    "install_auto_exposure",
    "maybe_auto_expose",
]
