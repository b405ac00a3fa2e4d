"""A configuration that is written for NeMo Gym's agent of the same name means the same here, as far as it can."""

from unittest.mock import MagicMock

import pytest

from nemo_gym.config_types import ModelServerRef
from nemo_gym.server_utils import ServerClient
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent, ClaudeCodeAgentConfig
from responses_api_agents.codex_agent.app import CodexAgentConfig
from responses_api_agents.openclaw_agent.app import OpenClawAgentConfig

CODEX = {
    "concurrency": 32,
    "model": "m",
    "openai_api_key": "none",
    "openai_base_url": "http://127.0.0.1:1/v1",
    "sandbox_mode": "danger-full-access",
    "timeout": 600,
    "codex_version": "0.144.4",
    "system_prompt": "Be exact.",
    "reasoning_effort": None,
    "extra_config": {"model_verbosity": "low"},
}
OPENCLAW = {
    "concurrency": 8,
    "command": "openclaw",
    "model": "m",
    "openclaw_version": "2026.6.11",
    "thinking": "off",
    "setup_timeout": 900,
    "timeout": 900,
    "system_prompt": "Be exact.",
    "openclaw_config": {"models": {}},
}
CLAUDE = {
    "concurrency": 1,
    "model": "m",
    "anthropic_api_key": "none",
    "anthropic_base_url": None,
    "max_turns": 10,
    "timeout": 300,
    "system_prompt": None,
    "allowed_tools": "Bash,Read",
    "disallowed_tools": "WebFetch",
    "claude_code_version": None,
    "thinking": "disabled",
    "bare": True,
    "mcp_config": None,
    "settings": None,
}


@pytest.mark.parametrize(
    ("config_class", "said", "seconds", "at_once"),
    [
        (CodexAgentConfig, CODEX, 600.0, 32),
        (OpenClawAgentConfig, OPENCLAW, 900.0, 8),
        (ClaudeCodeAgentConfig, CLAUDE, 300.0, 1),
    ],
)
def test_its_keys_are_read(config_class, said, seconds, at_once):
    config = config_class.model_validate({"name": "agent"} | said)
    assert (config.timeout_s, config.max_concurrent, config.system_prompt) == (seconds, at_once, said["system_prompt"])
    assert config.model_server == ModelServerRef(type="responses_api_models", name="policy_model")


def test_codexs_own():
    config = CodexAgentConfig.model_validate({"name": "agent"} | CODEX)
    assert (config.effort, config.settings) == ("high", {"model_verbosity": "low"})


def test_claude_codes_own_options():
    config = ClaudeCodeAgentConfig.model_validate({"name": "agent"} | CLAUDE)
    command = list(ClaudeCodeAgent(config=config, server_client=MagicMock(spec=ServerClient)).invocation().command)
    said = {option: command[command.index(option) + 1] for option in ("--allowedTools", "--disallowedTools")}
    assert said == {"--allowedTools": "Bash,Read", "--disallowedTools": "WebFetch"}
    assert not {"--mcp-config", "--settings"} & set(command)


def test_our_own_names_win():
    config = CodexAgentConfig.model_validate({"name": "agent", "timeout": 5, "timeout_s": 7})
    assert config.timeout_s == 7.0
