"""A job with everything that breaks a conversation, killed and resumed: its export accounts for every token.

The rollouts have tool calls, an answer that is thrown away and asked for anew, a sub-agent, a compaction, a judge's
calls and a backend that fails. Generated tokens are numbers that the backend gives once only, so it can be said of each
where it went.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

from nemo_gym.capture import CallRecord, CaptureStore
from nemo_gym.export.exporter import Options, export
from tests.live.conftest import Listening
from tests.project import World
from tests.scripted import Answer, Request, ScriptedBackend, chat_reply, tool_call

pytestmark = [pytest.mark.live, pytest.mark.ci]

AGENT = '''
"""A small agent that does with its model server whatever breaks a conversation."""
import asyncio, json, pathlib
from fastapi import FastAPI, Request
from nemo_gym.server_utils import BaseRunServerInstanceConfig, SimpleServer, get_response_json

class BreakingAgentConfig(BaseRunServerInstanceConfig):
    released: str

def function(name):
    parameters = {"type": "object", "properties": {"task": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}

TOOLS = [function("look"), function("delegate")]

class BreakingAgent(SimpleServer):
    config: BreakingAgentConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        app.post("/run")(self.run)
        return app

    async def ask(self, rollout, messages, server="policy_model", tools=TOOLS):
        body = {"messages": messages, "temperature": 1.0} | ({"tools": tools} if tools else {})
        answer = await self.server_client.post(server, f"/ng-rollout/{rollout}/v1/chat/completions", json=body)
        said = await get_response_json(answer)
        return said["choices"][0]["message"]

    async def turn(self, rollout, messages, result):
        """One more answer, and its tool's result."""
        said = await self.ask(rollout, messages)
        call = said["tool_calls"][0]
        kept = {"role": "assistant", "content": said["content"], "tool_calls": said["tool_calls"]}
        return [*messages, kept, {"role": "tool", "tool_call_id": call["id"], "content": result}], call

    async def run(self, request: Request):
        row = await request.json()
        rollout, number = row["_ng_rollout_id"], row["_ng_task_index"]
        task = {"role": "user", "content": f"Task {number}: call look"}
        messages, _ = await self.turn(rollout, [{"role": "system", "content": "Be brief."}, task], "seen")
        if number >= 4:  # under way when the job is killed
            while not pathlib.Path(self.config.released).exists():
                await asyncio.sleep(0.1)
        await self.ask(rollout, messages)  # an answer that is thrown away,
        messages, _ = await self.turn(rollout, messages, "seen again")  # and asked for anew
        messages, call = await self.turn(rollout, [*messages, {"role": "user", "content": "call delegate"}], "done")
        task = json.loads(call["function"]["arguments"])["task"]
        inner, _ = await self.turn(rollout, [{"role": "user", "content": f"You are a helper. {task} call look"}], "ok")
        await self.ask(rollout, inner)
        summary = await self.ask(rollout, [*messages, {"role": "user", "content": "Summarise it all."}], tools=None)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": summary["content"]}]
        last = await self.ask(rollout, messages)
        await self.ask(rollout, [{"role": "user", "content": f"Judge {last['content']}"}], "judge", None)
        message = {"type": "message", "role": "assistant", "id": "m", "status": "completed"}
        text = {"type": "output_text", "text": last["content"], "annotations": []}
        return row | {"response": {"id": "r", "output": [message | {"content": [text]}]}, "reward": float(number % 2)}

if __name__ == "__main__":
    BreakingAgent.run_webserver()
'''
CONFIG = """\
policy_model:
  responses_api_models:
    vllm_model: {{entrypoint: app.py, base_url: {url}, api_key: none, model: scripted-model, return_token_ids: true}}
judge:
  responses_api_models:
    vllm_model: {{entrypoint: app.py, base_url: {url}, api_key: none, model: scripted-model, return_token_ids: true,
                  trainable: false}}
agent:
  responses_api_agents:
    breaking_agent: {{entrypoint: app.py, released: {folder}/released}}
job:
  agent: agent
  input: rows.jsonl
  output: {folder}/out
"""
ROWS = 8
HELD = 4
"""Rollouts that are under way when the job is killed."""


class Backend:
    """Renders and generates: a word is an id, a message begins and ends with one, and what is generated is new."""

    def __init__(self) -> None:
        self.failed: set[bytes] = set()
        self._words: dict[str, int] = {}
        self._new = itertools.count(1_000_000)
        self._calls = itertools.count(1)

    def __call__(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
        if not request.asks:
            return Answer({"detail": "Not Found"}, 404)
        body = request.json()
        if "Task 1:" in str(body["messages"]) and request.body not in self.failed:
            self.failed.add(request.body)
            return Answer({"error": {"message": "out of order"}}, 500)
        said = [next(self._new) for _ in range(7)]
        words = " ".join(f"<{one}>" for one in said[:-1])
        message = {"role": "assistant", "content": words}
        if body.get("tools") and (called := re.search(r"call (\w+)$", str(_last_user(body["messages"])))):
            arguments = json.dumps({"task": words})
            message |= {"content": None, "tool_calls": [tool_call(called[1], arguments, f"call_{next(self._calls)}")]}
        logprobs = {"content": [{"token": f"<{one}>", "logprob": -0.5, "top_logprobs": []} for one in said]}
        usage = {"prompt_tokens": 1, "completion_tokens": len(said), "total_tokens": 1 + len(said)}
        return Answer(
            chat_reply(
                message=message,
                choice={"token_ids": said, "logprobs": logprobs},
                prompt_token_ids=[*itertools.chain(*map(self._rendered, body["messages"])), 1],
                usage=usage,
            )
        )

    def _rendered(self, message: dict[str, Any]) -> list[int]:
        said = str(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            said = json.loads(call["function"]["arguments"])["task"]
        found = re.findall(r"<(\d+)>", said)
        if message["role"] == "assistant":  # as it was generated, its end included
            return [1, *map(int, found), int(found[-1]) + 1]
        return [2, *(self._words.setdefault(word, 100 + len(self._words)) for word in said.split()), 3]


def _last_user(messages: list[dict[str, Any]]) -> str:
    return next(str(one["content"]) for one in reversed(messages) if one["role"] == "user")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accounted")
    made = World(folder)
    agent = folder / "responses_api_agents" / "breaking_agent"
    agent.mkdir()
    (agent / "app.py").write_text(AGENT)
    (folder / "rows.jsonl").write_text('{"responses_create_params": {"input": "x"}}\n' * ROWS)
    backend = ScriptedBackend(Backend())
    with Listening(backend) as url:
        (folder / "run.yaml").write_text(CONFIG.format(url=url, folder=folder))
        try:
            _killed_and_resumed(made, backend)
            yield made
        finally:
            made.end()


def _killed_and_resumed(world: World, backend: ScriptedBackend) -> None:
    process = world.start("run", "+config_paths=[run.yaml]", f"++capture.dir={world.folder}/captures")
    journal = world.folder / "out" / "rollouts.jsonl"
    until = time.monotonic() + 120
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= ROWS - HELD and _begun(backend) == ROWS):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    process.kill()
    process.communicate()
    world.gone(60)
    (world.folder / "released").touch()
    code, out, err = world.run("++job.resume=true", seconds=120)
    assert code == 0, out + err


def _begun(backend: ScriptedBackend) -> int:
    """Rollouts whose first tool has been called and answered."""
    found = [re.search(rb"Task (\d+):", one.body) for one in backend.calls]
    return len({one[1] for one in found if one is not None})


@pytest.fixture(scope="module")
def calls(world) -> list[CallRecord]:
    store = CaptureStore(world.folder / "captures")
    assert store.verify().ok
    return [call for call in store.calls() if call.status == "answered"]


@pytest.fixture(scope="module")
def finished(world) -> set[str]:
    """The rollouts that have a result."""
    lines = (world.folder / "out" / "rollouts.jsonl").read_text().splitlines()
    return {json.loads(line)["_ng_rollout_id"] for line in lines}


def said(call: CallRecord) -> tuple[int, ...]:
    assert call.reply is not None and call.reply.choices[0].tokens is not None
    return tuple(call.reply.choices[0].tokens.ids or ())


def exported(world, **options) -> tuple[Any, list[dict[str, Any]]]:
    folder = world.folder / "exports"
    summary = export(world.folder / "out", ["token_rows"], world.folder / "captures", Options(**options), folder)
    return summary, pq.read_table(folder / "token_rows").to_pylist()


def test_the_job_had_everything_in_it(calls, finished):
    assert len(finished) == ROWS
    relations = Counter((call.relation, call.server) for call in calls if call.rollout_id in finished)
    assert relations["subagent", "policy_model"] == ROWS
    assert relations["retry", "policy_model"] == ROWS
    assert relations["compaction", "policy_model"] == 2 * ROWS  # the summary, and what goes on from it
    assert sum(call.server == "judge" for call in calls) == ROWS
    assert any(len(call.attempts) > 1 for call in calls)
    assert len({call.rollout_id for call in calls} - finished) == HELD  # cut off by the kill


def test_every_token_is_in_one_place(world, calls, finished):
    summary, rows = exported(world)
    assert summary.captured == summary.trained + summary.context + sum(summary.discarded.values())
    trained = Counter(one for row in rows for one, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask)
    wanted = {one for call in calls if call.trainable and call.rollout_id in finished for one in said(call)}
    assert set(trained) == wanted and set(trained.values()) == {1}
    assert summary.trained == len(wanted)
    assert summary.rollouts == ROWS and summary.left_out == {"no_result": HELD}
    assert summary.calls == {"not_trainable": ROWS, "no_result": HELD}
    # What the kill cut off and what the judge said are discarded with their prompts, and nothing else is.
    lost = [call for call in calls if call.rollout_id not in finished]
    judged = [call for call in calls if not call.trainable]
    assert summary.discarded == {"no_result": size(lost), "not_trainable": size(judged)}
    assert all(row["complete"] for row in rows)


def test_what_is_not_asked_for_is_discarded_and_still_accounted_for(world, calls, finished):
    whole, _ = exported(world)
    summary, rows = exported(world, branches="main")
    assert summary.captured == whole.captured
    assert summary.captured == summary.trained + summary.context + sum(summary.discarded.values())
    aside = [call for call in calls if call.rollout_id in finished and call.trainable and not is_main(call, calls)]
    assert len(aside) == 3 * ROWS  # two calls of the helper, and the answer that was thrown away
    trained = {one for row in rows for one, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask}
    assert not trained & {one for call in aside for one in said(call)}
    assert whole.trained - summary.trained == sum(len(said(call)) for call in aside)


def is_main(call: CallRecord, calls: list[CallRecord]) -> bool:
    """Of the helper's calls the first is a sub-agent's; an answer that was asked for anew has a later brother."""
    of_rollout = [one for one in calls if one.rollout_id == call.rollout_id]
    if call.relation == "subagent" or any(
        one.call_id == call.parent_call_id and one.relation == "subagent" for one in of_rollout
    ):
        return False
    again = (one for one in of_rollout if one.relation == "retry" and one.parent_call_id == call.parent_call_id)
    return call.relation == "retry" or not any(one is not call and asked(one) == asked(call) for one in again)


def asked(call: CallRecord) -> Any:
    assert call.received is not None
    return call.received.messages


def size(calls: list[CallRecord]) -> int:
    """Their tokens; each of these calls stands alone in its rollout, or continues none of its server's."""
    return sum(len(call.reply.prompt_ids or ()) + len(said(call)) for call in calls if call.reply is not None)
