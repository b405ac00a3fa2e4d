"""A new environment that runs and passes its own test at once: one tool, one verifier, five rows, to be changed."""

from __future__ import annotations

import json
import keyword
import re
from pathlib import Path

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima", "Norway": "Oslo"}


class ScaffoldError(Exception):
    """Why nothing was written, in words for whoever asked."""


def scaffold(folder: Path) -> list[Path]:
    """Writes an environment named as its folder is. Raises ScaffoldError; nothing is ever written over."""
    name = folder.name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ScaffoldError(
            f"{name!r} is no name for an environment: expected small letters, digits and _, as in {_like(name)}"
        )
    if folder.absolute().parent.name != "resources_servers":
        raise ScaffoldError(f"expected a name, or a path that ends in resources_servers/{name}, got {folder}")
    if folder.exists():
        raise ScaffoldError(f"{folder} exists already")
    words = {"NAME": name, "CLASS": "".join(part.title() for part in name.split("_"))}
    files = {
        "app.py": _APP,
        f"configs/{name}.yaml": _CONFIG,
        "tests/test_app.py": _TEST,
        "README.md": _README,
        "data/example.jsonl": "".join(json.dumps(_row(*pair)) + "\n" for pair in _CAPITALS.items()),
    }
    written = []
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _like(name: str) -> str:
    """A name that would do, as near to this one as can be."""
    near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    near = f"{near}_env" if keyword.iskeyword(near) else near
    return near if _NAME.fullmatch(near) else "my_env"


def _row(country: str, capital: str) -> dict[str, object]:
    country_of = {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]}
    tool = {
        "type": "function",
        "name": "get_capital",
        "description": "The capital of a country.",
        "parameters": country_of,
        "strict": False,
    }
    asked = {"role": "user", "content": f"What is the capital of {country}?"}
    return {"responses_create_params": {"input": [asked], "tools": [tool]}, "expected_answer": capital}


_APP = '''"""TODO: what this environment asks of a model, and when it gives a reward."""

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima", "Norway": "Oslo"}


class @CLASS@Config(BaseResourcesServerConfig):
    """Keys of its own, beside those of every server; any other is refused."""

    model_config = ConfigDict(extra="forbid")


class GetCapitalRequest(BaseModel):
    country: str


class GetCapitalResponse(BaseModel):
    capital: str


class @CLASS@VerifyRequest(BaseVerifyRequest):
    """The fields of a row of the data set that the verifier reads."""

    expected_answer: str


class @CLASS@VerifyResponse(BaseVerifyResponse):
    expected_answer: str


class @CLASS@Server(SimpleResourcesServer):
    config: @CLASS@Config

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/get_capital")(self.get_capital)
        return app

    async def get_capital(self, body: GetCapitalRequest) -> GetCapitalResponse:
        return GetCapitalResponse(capital=CAPITALS.get(body.country, "unknown"))

    async def verify(self, body: @CLASS@VerifyRequest) -> @CLASS@VerifyResponse:
        right = body.expected_answer in body.response.output_text
        return @CLASS@VerifyResponse(**body.model_dump(), reward=float(right))


if __name__ == "__main__":
    @CLASS@Server.run_webserver()
'''

_CONFIG = """# The environment, and an agent that plays it with whatever `policy_model` the job brings.
@NAME@:
  resources_servers:
    @NAME@:
      entrypoint: app.py
      domain: other
      verified: false
      description: TODO
@NAME@_simple_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: @NAME@
      model_server:
        type: responses_api_models
        name: policy_model
      datasets:
        - name: example
          type: example
          jsonl_fpath: resources_servers/@NAME@/data/example.jsonl
"""

_TEST = """from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.@NAME@.app import @CLASS@Config, @CLASS@Server


def replied(text: str) -> dict:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "resp_1",
        "created_at": 0,
        "model": "a-model",
        "object": "response",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


@pytest.fixture
def client():
    config = @CLASS@Config(host="127.0.0.1", port=8080, entrypoint="app.py", name="@NAME@")
    server = @CLASS@Server(config=config, server_client=MagicMock(spec=ServerClient))
    with TestClient(server.setup_webserver()) as client:
        yield client


def test_the_tool(client):
    assert client.post("/get_capital", json={"country": "Peru"}).json() == {"capital": "Lima"}


@pytest.mark.parametrize(("text", "reward"), [("It is Paris.", 1.0), ("It is Rome.", 0.0), ("", 0.0)])
def test_the_verifier(client, text, reward):
    row = {"responses_create_params": {"input": "What is the capital of France?"}, "expected_answer": "Paris"}
    answer = client.post("/verify", json={**row, "response": replied(text)})
    assert answer.status_code == 200, answer.text
    assert answer.json()["reward"] == reward
"""

_README = """# @NAME@

TODO: what is asked, which tools there are, when there is a reward, where the data is from and under which licence.

    ng_test resources_servers/@NAME@
    MODEL=responses_api_models/vllm_model/configs/vllm_model.yaml
    ng_run "+config_paths=[$MODEL,resources_servers/@NAME@/configs/@NAME@.yaml]" \\
        ++policy_base_url=http://127.0.0.1:8000/v1 ++policy_model_name=my-model ++policy_api_key=none \\
        "++job={agent: @NAME@_simple_agent, input: resources_servers/@NAME@/data/example.jsonl, output: results/@NAME@}"
"""
