"""What a person pastes to point an agent or an SDK at a model server.

Each text is whole and is meant for one place; clients.md's findings are in it: a provider that does not repeat what the
server already repeated, a context by which the client compacts in time, no search that nobody would run.
"""

from __future__ import annotations

import json

from msgspec import Struct

ROLLOUT = "task-1"
"""Of the settings; a new one for each task keeps its calls together."""
NAME = "policy"
"""What agents call the model: Codex picks its tools by how the name begins, and this one begins like no provider's."""
_CONTEXT, _OUTPUT = 128_000, 8_192
_NO_KEY = "none"


class Pasted(Struct, frozen=True):
    client: str
    where: str
    """The file, or the shell, that the text belongs in."""
    text: str


def settings(url: str, model: str, *, context: int | None = None, key_variable: str | None = None) -> list[Pasted]:
    """For each client that is known.

    Args:
        url: the server's base URL, without `/v1`.
        model: what the server calls its model; SDKs name it so.
        context: the model's, in tokens, where it is known.
        key_variable: the environment variable with the key that the server asks of callers; None when it asks none.
    """
    base = f"{url}/ng-rollout/{ROLLOUT}"
    known = context or _CONTEXT
    return [
        Pasted("Codex", "~/.codex/config.toml", _codex(base, known, key_variable)),
        Pasted("OpenClaw", "openclaw.json", _openclaw(base, known, key_variable)),
        Pasted("Claude Code", "shell", _claude(base, key_variable)),
        Pasted("OpenAI SDK", "shell; model " + json.dumps(model), _openai(base, key_variable)),
        Pasted("Anthropic SDK", "shell; model " + json.dumps(model), _anthropic(base, key_variable)),
    ]


def _codex(base: str, context: int, key_variable: str | None) -> str:
    key = f"\nenv_key = {json.dumps(key_variable)}" if key_variable else ""
    return f"""\
model = "{NAME}"
model_provider = "nemo_gym"
model_context_window = {context}
web_search = "disabled"

[model_providers.nemo_gym]
name = "nemo_gym"
base_url = "{base}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0{key}"""


def _openclaw(base: str, context: int, key_variable: str | None) -> str:
    model = {
        "id": NAME,
        "name": NAME,
        "reasoning": True,
        "input": ["text"],
        "contextWindow": context,
        "maxTokens": min(_OUTPUT, context // 2),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": f"{base}/v1",
        "api": "openai-completions",
        "apiKey": f"${{{key_variable}}}" if key_variable else _NO_KEY,
        "models": [model],
    }
    config = {
        "models": {"mode": "replace", "providers": {"nemo_gym": provider}},
        "agents": {"defaults": {"model": {"primary": f"nemo_gym/{NAME}"}}},
    }
    return json.dumps(config, indent=2)


def _claude(base: str, key_variable: str | None) -> str:
    return f"""\
export ANTHROPIC_BASE_URL={base}
export ANTHROPIC_API_KEY={_shell_key(key_variable)}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude --model {NAME}"""


def _openai(base: str, key_variable: str | None) -> str:
    return f"export OPENAI_BASE_URL={base}/v1\nexport OPENAI_API_KEY={_shell_key(key_variable)}"


def _anthropic(base: str, key_variable: str | None) -> str:
    return f"export ANTHROPIC_BASE_URL={base}\nexport ANTHROPIC_API_KEY={_shell_key(key_variable)}"


def _shell_key(variable: str | None) -> str:
    return f'"${variable}"' if variable else _NO_KEY
