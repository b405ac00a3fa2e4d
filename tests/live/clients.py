"""The published agents as a test runs them: headless, in a fresh home and folder, with no network but loopback."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from nemo_gym.agent_server import install
from nemo_gym.process import Child

NOWHERE = "http://127.0.0.1:9"
CONTEXT, OUTPUT = 128_000, 8_000
APIS = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}


class Recipe(Struct, frozen=True):
    """How one client is run. `{…}` in the command and in the environment are filled in by `run`."""

    client: str
    command: tuple[str, ...]
    files: Mapping[str, str] = {}
    """Below the home."""
    environment: Mapping[str, str] = {}


class Ended(Struct):
    code: int | None
    """None: it did not end in time."""
    said: str
    home: Path
    work: Path

    def note(self, name: str = "note.txt") -> str:
        return (self.work / name).read_text()


def run(recipe: Recipe, folder: Path, prompt: str, seconds: float = 300) -> Ended:
    """Run it to its end in `folder`, or go on in a folder that an earlier run left."""
    home, work, temporary = (folder / name for name in ("home", "work", "tmp"))
    for made in (home, work, temporary):
        made.mkdir(parents=True, exist_ok=True)
    places = {"{home}": str(home), "{work}": str(work), "{prompt}": prompt}
    for name, text in recipe.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(text, places))
    program = asyncio.run(install.command(recipe.client))
    environment = {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "NODE_COMPILE_CACHE": str(install.cache_folder() / "compiled"),
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
        "npm_config_registry": NOWHERE,
        **{name: _filled(value, places) for name, value in recipe.environment.items()},
    }
    log = folder / "said.log"
    argv = [*program, *(_filled(word, places) for word in recipe.command)]
    child = Child.start(argv, env=environment, log_path=log, cwd=work)
    code = child.wait(seconds)
    if code is None:
        child.stop(1)
    return Ended(code, child.last_words(400), home, work)


def _filled(text: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        text = text.replace(place, value)
    return text


def pi(url: str, api: str, *, reasoning: bool = True) -> Recipe:
    base = url if api == "messages" else f"{url}/v1"
    model = {"id": "policy", "reasoning": reasoning, "contextWindow": CONTEXT, "maxTokens": OUTPUT}
    provider = {"baseUrl": base, "api": APIS[api], "apiKey": "none", "models": [model]}
    return Recipe(
        "pi",
        ("-p", "--mode", "json", "--provider", "ng", "--model", "policy", "{prompt}"),
        {".pi/agent/models.json": json.dumps({"providers": {"ng": provider}})},
        {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    )


def openclaw(url: str, api: str, *, reasoning: bool = True) -> Recipe:
    base = url if api == "messages" else f"{url}/v1"
    model = {
        "id": "policy",
        "name": "policy",
        "reasoning": reasoning,
        "input": ["text"],
        "contextWindow": CONTEXT,
        "maxTokens": OUTPUT,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {"baseUrl": base, "api": APIS[api], "apiKey": "none", "models": [model]}
    config = {
        "models": {"mode": "replace", "providers": {"ng": provider}},
        "agents": {"defaults": {"model": {"primary": "ng/policy"}}},
        "plugins": {"enabled": False},
        "session": {"maintenance": {"mode": "warn"}},
    }
    flags = ("--config", "{home}/openclaw.json", "--cwd", "{work}", "--json", "--model", "ng/policy")
    return Recipe("openclaw", ("agent", "exec", *flags, "{prompt}"), {"openclaw.json": json.dumps(config)})


_AI_SDK = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}


def opencode(url: str, api: str, *, reasoning: bool = True) -> Recipe:
    model = {
        "name": "policy",
        "reasoning": reasoning,
        "tool_call": True,
        "limit": {"context": CONTEXT, "output": OUTPUT},
    }
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "provider": {"ng": {"npm": _AI_SDK[api], "name": "ng", "options": options, "models": {"policy": model}}},
        "model": "ng/policy",
        "small_model": "ng/policy",
    }
    environment = {
        "OPENCODE_CONFIG": "{home}/opencode.json",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    flags = ("--format", "json", "--pure", "--title", "a task", "--model", "ng/policy")
    return Recipe("opencode", ("run", *flags, "{prompt}"), {"opencode.json": json.dumps(config)}, environment)


def codex(url: str, *, model: str = "policy", more: str = "", command: tuple[str, ...] = ("{prompt}",)) -> Recipe:
    config = f"""\
model = "{model}"
model_provider = "ng"
model_reasoning_effort = "high"
model_context_window = {CONTEXT}
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
{more}
[model_providers.ng]
name = "ng"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
"""
    return Recipe(
        "codex",
        ("exec", "--json", "--skip-git-repo-check", *command),
        {".codex/config.toml": config},
        {"CODEX_HOME": "{home}/.codex"},
    )


def claude(url: str, **environment: Any) -> Recipe:
    flags = ("--output-format", "json", "--dangerously-skip-permissions", "--model", "policy")
    return Recipe(
        "claude-code",
        ("-p", *flags, "{prompt}"),
        environment={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
            **environment,
        },
    )
