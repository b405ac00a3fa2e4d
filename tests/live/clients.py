"""The published agents as a test runs them: by the agent servers' own hands, one client at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from nemo_gym.agent_server.command import CommandAgent, Invocation
from nemo_gym.agent_server.workspace import Workspace
from nemo_gym.web.peers import ServerClient
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent
from responses_api_agents.codex_agent.app import CodexAgent
from responses_api_agents.command_agent.app import CommandLineAgent
from responses_api_agents.openclaw_agent.app import OpenClawAgent
from tests.project import ROOT

APIS = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}
AI_SDK = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}


class Ended(Struct):
    code: int | None
    said: str
    work: Path

    def note(self) -> str:
        return (self.work / "note.txt").read_text()


def run(agent: CommandAgent, folder: Path, rollout_id: str, prompt: str) -> Ended:
    """Run it to its end in `folder`, or go on in a folder that an earlier run left."""
    workspace = Workspace(folder)

    async def ended() -> int | None:
        program = await agent.installed()
        return (await agent.client_ended(program, rollout_id, {"input": prompt}, workspace)).code

    code = asyncio.run(ended())
    return Ended(code, workspace.log.read_text(errors="replace"), workspace.work)


def _made(kind: type[CommandAgent], url: str, **settings: Any) -> Any:
    model_server = {"type": "responses_api_models", "name": "policy_model"}
    config = kind.config_class().model_validate({"name": "agent", "model_server": model_server, **settings})
    return kind(config=config, server_client=ServerClient({"policy_model": url}))


def _configured(name: str) -> dict[str, Any]:
    """The settings of a client that comes as a configuration."""
    text = (ROOT / "responses_api_agents" / "command_agent" / "configs" / f"{name}.yaml").read_text()
    settings: dict[str, Any] = yaml.safe_load(text)[f"{name}_agent"]["responses_api_agents"]["command_agent"]
    return {key: value for key, value in settings.items() if key not in ("entrypoint", "resources_server")}


def pi(url: str, api: str) -> CommandAgent:
    settings = _configured("pi") | {"api": api}
    provider = settings["files"][".pi/agent/models.json"]["providers"]["ng"]
    provider["api"] = APIS[api]
    if api == "messages":
        provider["baseUrl"] = "{root_url}"
    return _made(CommandLineAgent, url, **settings)


def opencode(url: str, api: str) -> CommandAgent:
    settings = _configured("opencode") | {"api": api}
    settings["files"]["opencode.json"]["provider"]["ng"]["npm"] = AI_SDK[api]
    return _made(CommandLineAgent, url, **settings)


def openclaw(url: str, api: str) -> CommandAgent:
    return _made(OpenClawAgent, url, api=api)


def claude(url: str) -> CommandAgent:
    return _made(ClaudeCodeAgent, url)


def codex(url: str, **settings: Any) -> CommandAgent:
    return _made(CodexAgent, url, **settings)


class _Resuming(CodexAgent):
    """The same home's last session, with one more thing said."""

    def invocation(self) -> Invocation:
        first = super().invocation()
        return replace(first, command=(*first.command[:-1], "resume", "--last", "-"))


def codex_again(url: str, **settings: Any) -> CommandAgent:
    return _made(_Resuming, url, **settings)
