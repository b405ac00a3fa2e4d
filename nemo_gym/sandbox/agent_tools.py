"""What agents within sandboxes share; names only. It is the module itself, since tests of agents replace names."""

import sys

from nemo_gym.environment.sandbox import agent_tools
from nemo_gym.environment.sandbox.agent_tools import (
    restricted_network_policy,
    sandbox_server_url,
    seed_mcp_servers,
    verify_agent_response,
)

__all__ = ["restricted_network_policy", "sandbox_server_url", "seed_mcp_servers", "verify_agent_response"]

sys.modules[__name__] = agent_tools
