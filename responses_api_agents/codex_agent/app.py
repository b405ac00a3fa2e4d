"""Codex, headless, on a model of one's own.

The model server retries, so the client does not. A model name that begins as a provider's does picks another set of
tools; `policy` gives plain functions.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from nemo_gym.agent_server.command import OF_THE_MODEL_SERVER, CommandAgent, CommandAgentConfig, Invocation

Value = str | int | bool


class CodexAgentConfig(CommandAgentConfig):
    RENAMED = {  # noqa: RUF012
        **CommandAgentConfig.RENAMED,
        "reasoning_effort": "effort",
        "extra_config": "settings",
    }
    PASSED_OVER = {  # noqa: RUF012
        "model": OF_THE_MODEL_SERVER,
        "openai_api_key": OF_THE_MODEL_SERVER,
        "openai_base_url": OF_THE_MODEL_SERVER,
        "codex_version": "the client's version is pinned here",
        "sandbox_mode": "see `wrapper` for what closes a client in",
        "cwd": "each rollout has a fresh folder: see `folder` for where",
        "stream_idle_timeout_ms": "replies are kept alive",
    }

    api: Literal["responses"] = "responses"
    effort: Literal["minimal", "low", "medium", "high", "xhigh"] = "high"
    sub_agents: bool = True
    web_search: Literal["disabled", "cached", "live"] = "disabled"
    compact_at_tokens: int | None = Field(default=None, ge=1)
    """The context that makes it compact; by its own rule if null."""
    settings: dict[str, Value | dict[str, Value]] = Field(default_factory=dict)
    """Further keys of its config.toml, one table deep."""


class CodexAgent(CommandAgent):
    config: CodexAgentConfig

    def invocation(self) -> Invocation:
        flags = ("exec", "--json", "--skip-git-repo-check", "-")
        return Invocation(
            flags,
            "codex",
            {".codex/config.toml": self._toml()},
            {"CODEX_HOME": "{home}/.codex"},
            stdin="{prompt}",
        )

    def _toml(self) -> str:
        config = self.config
        top: dict[str, Any] = {
            "model": "{model}",
            "model_provider": "ng",
            "model_reasoning_effort": config.effort,
            "model_context_window": config.context_window,
            "approval_policy": "never",
            "sandbox_mode": "danger-full-access",
            "web_search": config.web_search,
            "check_for_update_on_startup": False,
        }
        if config.compact_at_tokens is not None:
            top["model_auto_compact_token_limit"] = config.compact_at_tokens
        tables: dict[str, dict[str, Any]] = {
            "model_providers.ng": {
                "name": "ng",
                "base_url": "{base_url}",
                "wire_api": "responses",
                "experimental_bearer_token": "{api_key}",
                "request_max_retries": 0,
                "stream_max_retries": 0,
                "stream_idle_timeout_ms": 300_000,
            },
            "features": {"goals": False},
            "agents": {"enabled": config.sub_agents},
            "analytics": {"enabled": False},
        }
        for name, value in config.settings.items():
            if isinstance(value, dict):
                tables.setdefault(name, {}).update(value)
            else:
                top[name] = value
        return (
            "\n".join(_lines(top) + [line for name in tables for line in (f"[{name}]", *_lines(tables[name]))]) + "\n"
        )


def _lines(table: dict[str, Any]) -> list[str]:
    """TOML of plain values: JSON spells strings, numbers and booleans the same."""
    return [f"{name} = {json.dumps(value)}" for name, value in table.items()]


if __name__ == "__main__":
    CodexAgent.run_webserver()
