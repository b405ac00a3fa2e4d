"""A job over each environment that is written in NeMo Gym's style: config, data and servers as they are."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripted import Answer, Request, chat_reply, scripted, tool_call

pytestmark = pytest.mark.ci
ROOT = Path(__file__).parents[2]
ENVIRONMENTS = Path(__file__).parent / "resources_servers"


def played(request: Request) -> Answer:
    """What a good model would say, by the tools that it is offered and what has been said to it."""
    if not request.asks:
        return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
    body = request.json()
    messages = body["messages"]
    asked = next(_text(message) for message in reversed(messages) if message["role"] == "user")
    results = [message["content"] for message in messages if message["role"] == "tool"]
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    calls = _calls(names[0] if names else "", asked, len(results))
    if calls is None:
        return Answer(chat_reply(_said(asked)))
    return Answer(chat_reply(None, message={"tool_calls": [tool_call(calls[0], json.dumps(calls[1]))]}))


def _calls(tool: str, asked: str, made: int) -> tuple[str, dict[str, Any]] | None:
    numbers = [int(found) for found in re.findall(r"-?\d+", asked)]
    if tool == "step":
        way = numbers[1] - numbers[0]
        return ("step", {"action": 1 if way > 0 else -1}) if made < abs(way) else None
    if made:
        return None
    if tool == "get_capital":
        return tool, {"country": asked.split(" of ")[1].rstrip("?")}
    if tool == "add":
        return tool, {"amount": numbers[1] - numbers[0]}
    if tool == "write_note":
        title, _, text = asked.removeprefix("Note ").removesuffix(".").partition(" as ")
        return tool, {"title": title, "text": text}
    return None


def _said(asked: str) -> str:
    if "Given:" in asked:
        return "[[same]]"
    return f"Glad to help: {sum(int(n) for n in re.findall(r'[0-9]+', asked))}"


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize(
    "name", sorted(folder.name for folder in ENVIRONMENTS.iterdir() if (folder / "app.py").exists())
)
async def test_a_job_over_it(name, tmp_path):
    async with scripted(played) as backend:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "nemo_gym.cli.main", "run",
            "+config_paths=[responses_api_models/vllm_model/configs/vllm_model.yaml,"
            f"resources_servers/{name}/configs/{name}.yaml]",
            f"++policy_base_url={backend.url}", "++policy_model_name=scripted-model", "++policy_api_key=none",
            "++policy_model.responses_api_models.vllm_model.api_keys=[for-callers-from-outside]",
            f"++job={{agent: {name}_simple_agent, input: resources_servers/{name}/data/example.jsonl, "
            f"output: '{tmp_path}/out', repeats: 2, concurrency: 4}}",
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "NEMO_GYM_EXTRA_ROOTS": str(ENVIRONMENTS.parent),
                              "NEMO_GYM_RUNTIME_DIR": str(tmp_path / "runtime")},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            out, _ = await asyncio.wait_for(process.communicate(), 240)
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    assert process.returncode == 0, out.decode()
    rows = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 10
    assert all(row["reward"] > 0.8 for row in rows), [row["reward"] for row in rows]
