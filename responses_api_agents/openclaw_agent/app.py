"""OpenClaw, headless, on a model of one's own.

It speaks Responses by default, where its prompts only grow. In Chat and in Messages it moves a message of context to
the end with every call, so no prompt begins with the one before, and a trainer gets one sequence a call.
"""

from __future__ import annotations

from typing import Any, Literal

from nemo_gym.agent_server.command import OF_THE_MODEL_SERVER, CommandAgent, CommandAgentConfig, Invocation

_APIS = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}


_PINNED = "the client is installed here, at a pinned version"


class OpenClawAgentConfig(CommandAgentConfig):
    RENAMED = {**CommandAgentConfig.RENAMED, "env": "environment", "workspace_root": "folder"}  # noqa: RUF012
    PASSED_OVER = {  # noqa: RUF012
        "model": OF_THE_MODEL_SERVER,
        "openclaw_config": OF_THE_MODEL_SERVER,
        "openclaw_version": _PINNED,
        "command": _PINNED,
        "node_bin_dir": _PINNED,
        "setup_timeout": _PINNED,
    }

    reasoning: bool = True
    """The model thinks: its reasoning is sent back to it."""
    plugins: bool = False
    """Its bundled plugins: more tools, and twice the time to start."""
    thinking: Literal["off", "minimal", "low", "medium", "high"] | None = None


class OpenClawAgent(CommandAgent):
    config: OpenClawAgentConfig

    def invocation(self) -> Invocation:
        flags = ["--config", "{home}/openclaw.json", "--cwd", "{work}", "--json", "--model", "ng/{model}"]
        flags += ["--timeout", str(int(self.config.timeout_s) + 1), "--message-file", "{prompt_file}"]
        if self.config.thinking is not None:
            flags += ["--thinking", self.config.thinking]
        return Invocation(("agent", "exec", *flags), "openclaw", {"openclaw.json": self._settings()})

    def _settings(self) -> dict[str, Any]:
        config = self.config
        model = {
            "id": "{model}",
            "name": "{model}",
            "reasoning": config.reasoning,
            "input": ["text"],
            "contextWindow": "{context_window}",
            "maxTokens": "{max_output_tokens}",
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
        provider = {
            "baseUrl": "{root_url}" if config.api == "messages" else "{base_url}",
            "api": _APIS[config.api],
            "apiKey": "{api_key}",
            "models": [model],
        }
        return {
            "models": {"mode": "replace", "providers": {"ng": provider}},
            "agents": {"defaults": {"model": {"primary": "ng/{model}"}}},
            "plugins": {"enabled": config.plugins},
            "session": {"maintenance": {"mode": "warn"}},  # else it starts workers to tidy up a fresh database
        }


if __name__ == "__main__":
    OpenClawAgent.run_webserver()
