"""Claude Code, headless, on a model of one's own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nemo_gym.agent_server.command import OF_THE_MODEL_SERVER, CommandAgent, CommandAgentConfig, Invocation

_QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_AUTOUPDATER",
    "IS_SANDBOX",  # it lets nobody skip its permissions as root elsewhere
)


class ClaudeCodeAgentConfig(CommandAgentConfig):
    PASSED_OVER = {  # noqa: RUF012
        "model": OF_THE_MODEL_SERVER,
        "anthropic_api_key": OF_THE_MODEL_SERVER,
        "anthropic_base_url": OF_THE_MODEL_SERVER,
        "claude_code_version": "the client's version is pinned here",
        "thinking": "what a model thinks is set at its server",
        "max_thinking_tokens": "what a model thinks is set at its server",
        "bare": "each rollout has a fresh home",
    }

    api: Literal["messages"] = "messages"
    tools: list[str] | None = None
    """The tools that it offers; all of its own if null."""
    allowed_tools: str | None = None
    disallowed_tools: str | None = None
    mcp_config: str | None = None
    settings: str | None = None
    """As the client's own options of these names take them; a tool that is disallowed is not offered."""
    max_turns: int | None = Field(default=None, ge=1)
    limit_output: bool = False
    """Hold it to `max_output_tokens`; else it has a limit of its own, and raises it after a stop for length."""


class ClaudeCodeAgent(CommandAgent):
    config: ClaudeCodeAgentConfig

    def invocation(self) -> Invocation:
        config = self.config
        flags = ["-p", "--output-format", "json", "--dangerously-skip-permissions", "--model", "{model}"]
        if config.tools is not None:
            flags += ["--tools", ",".join(config.tools)]
        for option, value in (
            ("--allowedTools", config.allowed_tools),
            ("--disallowedTools", config.disallowed_tools),
            ("--mcp-config", config.mcp_config),
            ("--settings", config.settings),
        ):
            flags += [option, value] if value else []
        if config.max_turns is not None:
            flags += ["--max-turns", str(config.max_turns)]
        environment = {
            "ANTHROPIC_BASE_URL": "{root_url}",
            "ANTHROPIC_API_KEY": "{api_key}",
            "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
            **dict.fromkeys(_QUIET, "1"),
        }
        if config.limit_output:
            environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = "{max_output_tokens}"
        return Invocation(tuple(flags), "claude-code", environment=environment, stdin="{prompt}")


if __name__ == "__main__":
    ClaudeCodeAgent.run_webserver()
