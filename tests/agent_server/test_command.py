"""An agent that is a process: what goes in, what comes out, every limit, and that no process and no folder is left."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from nemo_gym.agent_server.command import CommandAgentConfig
from nemo_gym.agent_server.install import CLIENTS
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig
from nemo_gym.dialects.responses.objects import NeMoGymResponse
from nemo_gym.web.peers import ServerClient
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent
from responses_api_agents.codex_agent.app import CodexAgent
from responses_api_agents.command_agent.app import CommandLineAgent, CommandLineAgentConfig
from responses_api_agents.openclaw_agent.app import OpenClawAgent
from responses_api_agents.simple_agent.app import SimpleAgentConfig
from tests.bench import Bench, bench
from tests.loopback import serving
from tests.player import Player, Turn, shell
from tests.project import ROOT, from_root, left
from tests.scripted import Answer, chat_reply

# A small agent: asks, runs what it is told to, asks again until it is told no more; first it does what MODE says.
CLIENT = r"""
import json, os, subprocess, sys, time, urllib.request
mode = os.environ.get("MODE", "")
if mode == "silent": sys.exit(0)
if mode == "loud":
    while True: print("x" * 1000000)
if mode == "large":
    kept = bytearray(os.urandom(1)) * (200 << 20); time.sleep(60)
messages = [{"role": "user", "content": sys.stdin.read()}]
tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object",
    "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
while True:
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages, "tools": [tool]}).encode()
    url, kind = os.environ["BASE_URL"] + "/chat/completions", {"content-type": "application/json"}
    request = urllib.request.Request(url, body, kind)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    for call in message.get("tool_calls") or []:
        command = json.loads(call["function"]["arguments"])["command"]
        ended = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": ended.stdout})
    if mode == "stuck":
        subprocess.Popen(["sleep", "300"], start_new_session=True); time.sleep(300)
    if mode == "crash": sys.exit("out of ideas")
    if not message.get("tool_calls"): break
print(message["content"])
"""
PLAN = [
    Turn((shell("cat task.txt; printf 'a\nb\n' > out/made.txt; env > out/env.txt; ln -s /etc/passwd out/link"),)),
    Turn(text="It is made.", reasoning=("Nothing is left.",)),
]
ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "Make it."}]},
    "files": {"task.txt": "the task\n", "out/made.txt": "a\n"},
    "_ng_rollout_id": "r1",
}


class World:
    def __init__(self, url: str, model: Bench, folder: Path) -> None:
        self.url = url
        self.model = model
        self.folder = folder

    async def run(self, row: dict[str, Any] = ROW) -> httpx.Response:
        async with httpx.AsyncClient(timeout=120) as client:
            return await client.post(f"{self.url}/run", json=row)


@contextlib.asynccontextmanager
async def world(tmp_path: Path, script: Any = None, **settings: Any) -> AsyncIterator[World]:
    async with bench(tmp_path / "captures", script or Player(PLAN)) as model:
        config = CommandLineAgentConfig(
            name="agent",
            model_server={"type": "responses_api_models", "name": "policy_model"},
            skip_verification=True,
            skip_verification_reward=1.0,
            folder=from_root(tmp_path / "rollouts"),
            command=[sys.executable, "-c", CLIENT],
            stdin="{prompt}",
            take=["out/*"],
            environment={"BASE_URL": "{base_url}", "MODEL": "{model}", "NG_TEST_TREE": str(tmp_path)}
            | settings.pop("environment", {}),
            **settings,
        )
        agent = CommandLineAgent(config=config, server_client=ServerClient({"policy_model": model.url}))
        async with serving(agent.asgi()) as url:
            yield World(url, model, tmp_path)
        for _ in range(600):  # a caller that went is not told when all has ended
            if not left(tmp_path) and not any((tmp_path / "rollouts").iterdir()):
                break
            await asyncio.sleep(0.1)
        assert left(tmp_path) == []
        assert list((tmp_path / "rollouts").iterdir()) == []


async def test_a_rollout_from_its_files_to_its_diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-machine")
    monkeypatch.chdir(tmp_path)  # a server runs in its own folder
    async with world(tmp_path) as at:
        answer = await at.run()
        assert answer.status_code == 200, answer.text
        result = answer.json()
        assert len(at.model.records()) == len(at.model.backend.calls) == 2
        assert {record.rollout_id for record in at.model.records()} == {"r1"}
    assert (result["reward"], result["exit_code"], result["final_message"]) == (1.0, 0, "It is made.")
    assert sorted(result["taken_files"]) == ["out/env.txt", "out/made.txt"]  # the link is not followed
    assert result["taken_files"]["out/made.txt"] == "a\nb\n"
    assert "--- a/out/made.txt\n+++ b/out/made.txt\n@@ -1 +1,2 @@\n a\n+b\n" in result["diff"]
    assert "task.txt" not in result["diff"]
    assert "sk-machine" not in result["taken_files"]["out/env.txt"]
    assert "HTTPS_PROXY=http://127.0.0.1:9" in result["taken_files"]["out/env.txt"]

    response = NeMoGymResponse.model_validate(result["response"])
    kinds = [item["type"] for item in result["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "reasoning", "message"]
    assert result["response"]["output"][1]["output"] == "the task\n"
    assert result["response"]["output"][0]["call_id"] == result["response"]["output"][1]["call_id"]
    sizes = [len(request.body) // 4 for request in at.model.backend.calls]
    assert response.usage.input_tokens == sum(sizes)
    assert response.usage.output_tokens == 40


async def test_tokens_are_on_the_items(tmp_path: Path) -> None:
    reply = chat_reply(
        "Done.", prompt_token_ids=[1, 2], choice={"token_ids": [3, 4], "logprobs": logprobs(-0.5, -0.25)}
    )
    async with world(tmp_path, [Answer(reply)]) as at:
        (item,) = (await at.run()).json()["response"]["output"]
    assert (item["prompt_token_ids"], item["generation_token_ids"]) == ([1, 2], [3, 4])
    assert item["generation_log_probs"] == [-0.5, -0.25]


def logprobs(*values: float) -> dict[str, Any]:
    return {"content": [{"token": "t", "logprob": one, "bytes": None, "top_logprobs": []} for one in values]}


async def test_responses_is_the_loop_alone(tmp_path: Path) -> None:
    async with world(tmp_path, [Answer(chat_reply("Hi."))]) as at, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{at.url}/ng-rollout/r7/v1/responses", json={"input": "Say hi."})
        assert [record.rollout_id for record in at.model.records()] == ["r7"]
    assert answer.json()["output"][0]["content"][0]["text"] == "Hi."


@pytest.mark.parametrize(
    ("mode", "settings", "words"),
    [
        ("silent", {}, "never called the model"),
        ("crash", {}, "exit code 1; its last words: out of ideas"),
        ("loud", {"output_mb": 1}, "output_mb"),
        ("large", {"memory_mb": 64}, "memory_mb"),
    ],
)
async def test_a_client_that_fails_is_a_failure_of_its_kind(
    tmp_path: Path, mode: str, settings: dict[str, Any], words: str
) -> None:
    async with world(tmp_path, environment={"MODE": mode}, **settings) as at:
        answer = await at.run()
        assert answer.status_code == 500, answer.text
        error = answer.json()["error"]
        assert error["kind"] == "agent"
        assert words in error["message"]
        assert [record.status for record in at.model.records()] == (["answered"] if mode == "crash" else [])


@pytest.mark.ci
async def test_a_client_at_its_deadline_keeps_its_calls(tmp_path: Path) -> None:
    async with world(tmp_path, environment={"MODE": "stuck"}, timeout_s=10) as at:
        answer = await at.run()
        assert answer.status_code == 504, answer.text
        error = answer.json()["error"]
        assert error["kind"] == "timeout"
        assert "not finished within 10 s" in error["message"]
        assert [record.status for record in at.model.records()] == ["answered"]


async def test_a_model_that_fails_is_the_models_failure(tmp_path: Path) -> None:
    refused = Answer({"error": {"message": "no such model", "type": "x"}}, 404)
    async with world(tmp_path, lambda request: refused) as at:
        answer = await at.run()
    assert answer.status_code == 502
    assert answer.json()["error"]["kind"] == "model"
    assert "no such model" in answer.json()["error"]["message"]


async def test_a_caller_that_hangs_up_ends_the_client(tmp_path: Path) -> None:
    async with world(tmp_path, environment={"MODE": "stuck"}) as at:
        await hung_up(at)


async def hung_up(at: World) -> None:
    """A caller that goes once its client has asked the model."""
    running = asyncio.ensure_future(at.run())
    end = time.monotonic() + 60
    while not at.model.backend.calls:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_so_many_at_a_time_each_in_its_own_folder(tmp_path: Path) -> None:
    plan = [Turn((shell("pwd; ls; sleep 1; touch mine"),)), Turn(text="Done.")]
    async with world(tmp_path, Player(plan), max_concurrent=2) as at:
        started = time.monotonic()
        answers = await asyncio.gather(*(at.run({**ROW, "_ng_rollout_id": f"r{n}", "files": {}}) for n in range(4)))
        seconds = time.monotonic() - started
    seen = [answer.json()["response"]["output"][1]["output"].split() for answer in answers]
    assert len({one[0] for one in seen}) == 4
    assert all(len(one) == 1 for one in seen)  # nobody's file but one's own
    assert seconds >= 2


async def test_a_wrapper_stands_before_the_command(tmp_path: Path) -> None:
    wrapper = ["env", "WRAPPED={rollout_id}", "{command}"]
    async with world(tmp_path, wrapper=wrapper) as at:
        result = (await at.run()).json()
    assert "WRAPPED=r1\n" in result["taken_files"]["out/env.txt"]


PAGE = (ROOT / "fern" / "pages" / "agents.mdx").read_text()
BUBBLEWRAP = yaml.safe_load(re.search(r"wrapper: (\[bwrap.*?\])", PAGE, re.DOTALL)[1])


def bubblewrap_works() -> bool:
    """Whether it is installed, and may make its namespaces here."""
    with contextlib.suppress(OSError):
        return (
            subprocess.run(["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "true"], capture_output=True).returncode
            == 0
        )
    return False


needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="no bubblewrap, or no namespaces for it")


@needs_bubblewrap
async def test_in_bubblewrap_a_client_sees_and_changes_no_more_than_its_folders(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "secret").write_text("s3cr3t")
    wrapper = [str(hidden) if word == "/home" else word for word in BUBBLEWRAP]
    assert wrapper != BUBBLEWRAP
    looks = f"touch {tmp_path}/outside; cat {hidden}/secret; ls -d /proc/[0-9]* | wc -l; pwd; mkdir out; echo > out/in"
    async with world(tmp_path, Player([Turn((shell(looks),)), Turn(text="Done.")]), wrapper=wrapper) as at:
        answer = await at.run({**ROW, "files": {}})
        assert answer.status_code == 200, answer.text
        assert len(at.model.records()) == 2  # it reached the model server
    result = answer.json()
    processes, work = result["response"]["output"][1]["output"].split()
    assert not (tmp_path / "outside").exists()
    assert int(processes) < 10
    assert Path(work).parent.parent == tmp_path / "rollouts"
    assert result["taken_files"] == {"out/in": "\n"}


@needs_bubblewrap
async def test_in_bubblewrap_too_the_whole_tree_is_ended(tmp_path: Path) -> None:
    async with world(tmp_path, environment={"MODE": "stuck"}, wrapper=BUBBLEWRAP) as at:
        await hung_up(at)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "", "a/../../b"])
async def test_a_file_cannot_be_put_outside(tmp_path: Path, name: str) -> None:
    async with world(tmp_path) as at:
        answer = await at.run({**ROW, "files": {name: "x"}})
        assert (answer.status_code, at.model.backend.calls) == (500, [])
    assert repr(name) in answer.json()["error"]["message"]


async def test_a_row_without_text_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        answer = await at.run({"responses_create_params": {"input": []}})
    assert answer.status_code == 500
    assert "responses_create_params.input" in answer.json()["error"]["message"]


def test_a_config_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="command: expected the words of a command"):
        CommandLineAgentConfig(name="a", model_server={"type": "responses_api_models", "name": "m"})


def test_every_key_and_every_version_is_documented() -> None:
    shared = set(BaseResponsesAPIAgentConfig.model_fields)
    own = (set(CommandAgentConfig.model_fields) | set(SimpleAgentConfig.model_fields)) - shared
    assert {key for key in own if f"`{key}`" not in PAGE} == set()
    for kind in (CodexAgent, ClaudeCodeAgent, OpenClawAgent, CommandLineAgent):
        keys = set(kind.config_class().model_fields) - set(CommandAgentConfig.model_fields)
        assert {key for key in keys if f"`{key}`" not in PAGE} == set()
    assert all(client.version in PAGE for client in CLIENTS.values())
