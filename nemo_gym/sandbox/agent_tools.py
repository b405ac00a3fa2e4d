"""What agents within sandboxes share; names only."""

from nemo_gym.environment.sandbox.agent_tools import (
    restricted_network_policy,
    sandbox_server_url,
    seed_mcp_servers,
    verify_agent_response,
)

__all__ = ["restricted_network_policy", "sandbox_server_url", "seed_mcp_servers", "verify_agent_response"]
