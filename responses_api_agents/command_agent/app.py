"""Any command-line agent, by configuration alone: its command, its files, its environment."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from nemo_gym.agent_server.command import CommandAgent, CommandAgentConfig, Invocation
from nemo_gym.agent_server.install import CLIENTS


class CommandLineAgentConfig(CommandAgentConfig):
    client: str | None = None
    """A client that is installed on first use; null when the command begins with a program of the machine."""
    command: list[str] = Field(default_factory=list)
    """Its words; `{prompt}`, `{base_url}`, `{model}` and the like are filled in."""
    files: dict[str, Any] = Field(default_factory=dict)
    """Below the home: text, or a mapping that is written as JSON."""
    stdin: str = ""

    @model_validator(mode="after")
    def _is_runnable(self) -> CommandLineAgentConfig:
        if self.client is None and not self.command:
            raise ValueError("command: expected the words of a command, since no client is named")
        if self.client is not None and self.client not in CLIENTS:
            raise ValueError(f"client: there is no {self.client!r}; expected one of {', '.join(CLIENTS)}")
        return self


class CommandLineAgent(CommandAgent):
    config: CommandLineAgentConfig

    def invocation(self) -> Invocation:
        config = self.config
        return Invocation(tuple(config.command), config.client, config.files, stdin=config.stdin)


if __name__ == "__main__":
    CommandLineAgent.run_webserver()
