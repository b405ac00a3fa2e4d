"""Servers that run one rollout: the kind `responses_api_agents`."""
