"""The plain agent's tools and limits: a real environment over its routes and over MCP, a real model server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request, Response
from mcp import types
from pydantic import BaseModel

from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyResponse, SimpleResourcesServer
from nemo_gym.base_resources_server import BaseVerifyRequest as VerifyRequest
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.web import client as pooled
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from responses_api_agents.simple_agent.tools import _shown
from tests.bench import Bench, bench
from tests.scripted import Answer, chat_reply, tool_call
from tests.serving import serving

NOTE = {"type": "function", "name": "note", "parameters": {"type": "object"}, "strict": False}
MCP: dict[str, Any] = {"tools": "mcp"}


class Note(BaseModel):
    text: str


class Notes(SimpleResourcesServer):
    """Keeps what it is told, by session; the reward is how many notes there are."""

    config: BaseResourcesServerConfig
    kept: dict[str, list[str]]
    inside: int = 0
    peak: int = 0
    wanted: int = 1
    cancelled: int = 0

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for tool in (self.note, self.hang, self.broken, self.refuse):
            app.post(f"/{tool.__name__}")(tool)
        return app

    async def note(self, request: Request, body: Note) -> dict[str, Any]:
        """Keep a note."""
        notes = self.kept.setdefault(request.session[SESSION_ID_KEY], [])
        notes.append(body.text)
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        await until(lambda: self.peak >= self.wanted)  # so many are here at once
        self.inside -= 1
        return {"kept": body.text, "notes": len(notes)}

    async def hang(self) -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def broken(self) -> Response:
        return Response(status_code=500)

    async def refuse(self) -> None:
        raise HTTPException(409, "not before noon")

    async def verify(self, request: Request, body: VerifyRequest) -> BaseVerifyResponse:  # type: ignore[override]
        notes = self.kept.get(request.session[SESSION_ID_KEY], [])
        return BaseVerifyResponse(**body.model_dump(), reward=float(len(notes)))


class Rooms:
    def __init__(self, url: str, model: Bench, notes: Notes, client: ServerClient) -> None:
        self.url, self.model, self.notes, self.client = url, model, notes, client

    async def run(self, **params: Any) -> httpx.Response:
        row = {"responses_create_params": {"input": "Note it.", **params}, "_ng_rollout_id": "r1"}
        async with httpx.AsyncClient(timeout=120) as client:
            return await client.post(f"{self.url}/run", json=row)

    async def output(self, **params: Any) -> list[dict[str, Any]]:
        answer = await self.run(**params)
        assert answer.status_code == 200, answer.text
        return answer.json()["response"]["output"]

    def asked(self) -> list[dict[str, Any]]:
        return [request.json() for request in self.model.backend.calls]


@contextlib.asynccontextmanager
async def rooms(tmp_path: Path, answers: Any, over_mcp: bool = True, **settings: Any) -> AsyncIterator[Rooms]:
    client = ServerClient({})
    notes = Notes(
        config=BaseResourcesServerConfig(name="env", expose_tools_over_mcp=over_mcp), server_client=client, kept={}
    )
    config = SimpleAgentConfig.model_validate(
        {
            "name": "agent",
            "resources_server": {"type": "resources_servers", "name": "env"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
            **settings,
        }
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(pooled.close)
        model = await stack.enter_async_context(bench(tmp_path, answers))
        client.base_urls["policy_model"] = model.url
        client.base_urls["env"] = await stack.enter_async_context(serving(notes.asgi()))
        agent = SimpleAgent(config=config, server_client=client)
        url = await stack.enter_async_context(serving(agent.asgi()))
        yield Rooms(url, model, notes, client)


def calls(*made: tuple[str, Any], **changes: Any) -> Answer:
    """One turn of tool calls."""
    told = [tool_call(name, json.dumps(arguments), f"call_{n}") for n, (name, arguments) in enumerate(made)]
    return Answer(chat_reply(None, message={"tool_calls": told}, **changes))


def notes(count: int) -> Answer:
    return calls(*(("note", {"text": f"t{n}"}) for n in range(count)))


DONE = Answer(chat_reply("Done."))


def results(output: list[dict[str, Any]]) -> list[Any]:
    return [item["output"] for item in output if item["type"] == "function_call_output"]


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


# ---- several calls of one turn


@pytest.mark.parametrize("how", [{}, MCP])
async def test_calls_of_one_turn_run_at_once_and_their_results_stand_in_order(tmp_path: Path, how: Any) -> None:
    async with rooms(tmp_path, [notes(3), DONE], parallel_tools=3, **how) as at:
        at.notes.wanted = 3
        output = await at.output(tools=[NOTE])
        assert [item.get("call_id") for item in output[:-1]] == ["call_0", "call_1", "call_2"] * 2
        assert [json.loads(result)["kept"] for result in results(output)] == ["t0", "t1", "t2"]
        told = [message for message in at.asked()[1]["messages"] if message["role"] == "tool"]
        assert [message["tool_call_id"] for message in told] == ["call_0", "call_1", "call_2"]
        assert [message["content"] for message in told] == results(output)
        assert at.notes.peak == 3


async def test_no_more_run_at_once_than_the_limit(tmp_path: Path) -> None:
    async with rooms(tmp_path, [notes(6), DONE], parallel_tools=2) as at:
        at.notes.wanted = 2
        assert len(results(await at.output())) == 6
        assert at.notes.peak == 2


async def test_by_default_each_call_sees_what_those_before_it_did(tmp_path: Path) -> None:
    async with rooms(tmp_path, [notes(4), DONE]) as at:
        output = await at.output()
        assert [json.loads(result) for result in results(output)] == [
            {"kept": f"t{n}", "notes": n + 1} for n in range(4)
        ]
        assert at.notes.peak == 1


# ---- deadlines


@pytest.mark.parametrize("how", [{}, MCP])
async def test_a_tool_that_takes_too_long_is_told_to_the_model(tmp_path: Path, how: Any) -> None:
    async with rooms(tmp_path, [calls(("hang", {})), DONE], tool_timeout_s=1.5, **how) as at:
        output = await at.output()
        assert [json.loads(result) for result in results(output)] == [{"error": "the tool did not answer within 1.5 s"}]
        assert output[-1]["content"][0]["text"] == "Done."
        if not how:  # over MCP a session outlives its calls
            await until(lambda: at.notes.cancelled == 1)  # the environment's work for it has ended too


async def test_a_rollout_at_its_deadline_is_a_timeout_and_keeps_its_calls(tmp_path: Path) -> None:
    async with rooms(tmp_path, [calls(("hang", {})), DONE], timeout_s=4) as at:
        answer = await at.run()
        assert (answer.status_code, answer.json()["error"]["kind"]) == (504, "timeout")
        assert "not finished within 4 s (timeout_s)" in answer.json()["error"]["message"]
        await until(lambda: len(at.model.records()) >= len(at.model.backend.calls))
        assert len(at.model.backend.calls) <= 1


# ---- tokens


async def test_generated_tokens_have_a_limit_over_the_rollout(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
    cut = Answer(chat_reply("Not yet d", finish_reason="length", usage=usage))
    async with rooms(tmp_path, [notes(1), cut], max_tokens=5) as at:
        response = (await at.run()).json()["response"]
        assert [body["max_tokens"] for body in at.asked()] == [5, 2]  # the first took 3
    assert response["usage"]["output_tokens"] == 5
    assert response["status"] == "incomplete"
    assert response["metadata"]["ng_termination_reason"] == "max_tokens"


async def test_a_limit_that_is_used_up_ends_the_rollout_after_its_tools(tmp_path: Path) -> None:
    async with rooms(tmp_path, [notes(1), DONE], max_tokens=3) as at:
        response = (await at.run(max_output_tokens=2)).json()["response"]
        assert [body["max_tokens"] for body in at.asked()] == [2]  # the row's own, which is less
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output"]
    assert response["metadata"]["ng_termination_reason"] == "max_tokens"


async def test_a_limit_of_tokens_needs_a_model_that_counts_them(tmp_path: Path) -> None:
    async with rooms(tmp_path, [Answer(chat_reply("Hi.", usage=None))], max_tokens=5) as at:
        answer = await at.run()
    assert (answer.status_code, answer.json()["error"]["kind"]) == (502, "model")
    assert "max_tokens cannot be kept" in answer.json()["error"]["message"]


# ---- failures that the model is shown


async def test_failures_of_tools_are_shown_to_the_model(tmp_path: Path) -> None:
    script = [calls(("broken", {}), ("refuse", {}), ("note", {}), ("fly", {})), DONE]
    async with rooms(tmp_path, script) as at:
        broken, refused, unfit, unknown = map(json.loads, results(await at.output()))
    assert broken == {"error": "the tool answered 500 and nothing else"}
    assert refused == {"detail": "not before noon"}
    assert unfit["detail"][0]["loc"] == ["body", "text"]
    assert unknown == {"detail": "Not Found"}


async def test_failures_of_tools_over_mcp_are_shown_to_the_model(tmp_path: Path) -> None:
    script = [calls(("broken", {}), ("refuse", {}), ("note", {}), ("fly", {}), ("verify", {})), DONE]
    async with rooms(tmp_path, script, **MCP) as at:
        broken, refused, unfit, *unknown = (json.loads(one)["error"] for one in results(await at.output()))
    assert broken.startswith("HTTP 500 from POST /broken")
    assert refused == "HTTP 409 from POST /refuse: not before noon"
    assert unfit.startswith("HTTP 422 from POST /note")
    assert unknown == ["there is no tool named 'fly'", "there is no tool named 'verify'"]


# ---- over MCP


async def test_the_tools_of_an_environment_over_mcp(tmp_path: Path) -> None:
    async with rooms(tmp_path, [notes(1), notes(2), DONE], **MCP) as at:
        own = NOTE | {"description": "The row's own."}
        answer = await at.run(tools=[own])
        offered = {one["function"]["name"]: one["function"] for one in at.asked()[0]["tools"]}
        assert len(at.asked()[0]["tools"]) == 4
        assert set(offered) == {"note", "hang", "broken", "refuse"}
        assert offered["note"]["description"] == "The row's own."
    result = answer.json()
    assert result["reward"] == 3.0  # the verifier saw the session of the calls
    assert json.loads(results(result["response"]["output"])[-1]) == {"kept": "t1", "notes": 3}


async def test_a_row_without_tools_gets_those_of_the_mcp_server(tmp_path: Path) -> None:
    async with rooms(tmp_path, [DONE], **MCP) as at:
        await at.output()
        (note,) = [one["function"] for one in at.asked()[0]["tools"] if one["function"]["name"] == "note"]
    assert note["description"] == "Keep a note."
    assert (note["parameters"]["required"], list(note["parameters"]["properties"])) == (["text"], ["text"])


async def test_rollouts_over_mcp_do_not_share_a_session(tmp_path: Path) -> None:
    async with rooms(tmp_path, lambda asked: DONE if b"kept" in asked.body else notes(1), **MCP) as at:
        answers = await asyncio.gather(*(at.run() for _ in range(4)))
    assert [answer.json()["reward"] for answer in answers] == [1.0] * 4


async def test_an_environment_that_exposes_nothing_is_told_so(tmp_path: Path) -> None:
    async with rooms(tmp_path, [DONE], over_mcp=False, **MCP) as at:
        answer = await at.run()
        assert at.asked() == []
    assert (answer.status_code, answer.json()["error"]["kind"]) == (503, "infrastructure")
    assert "expose_tools_over_mcp" in answer.json()["error"]["message"]


async def test_the_loop_alone_over_mcp_takes_the_session_from_a_header(tmp_path: Path) -> None:
    async with rooms(tmp_path, [notes(1), DONE], **MCP) as at, httpx.AsyncClient(timeout=60) as client:
        seeded = await client.post(f"{at.client.base_urls['env']}/seed_session", json={})
        answer = await client.post(
            f"{at.url}/ng-rollout/r2/v1/responses", json={"input": "x"}, headers=seeded.json()["mcp"]["headers"]
        )
        assert json.loads(results(answer.json()["output"])[0]) == {"kept": "t0", "notes": 1}
        unknown = await client.post(f"{at.url}/v1/responses", json={"input": "x"})
        assert unknown.status_code == 200


def test_an_image_from_a_tool_is_an_image_to_the_model() -> None:
    image = types.ImageContent(type="image", data="AAAA", mime_type="image/png")
    result = types.CallToolResult(content=[types.TextContent(type="text", text="Here:"), image])
    assert _shown(result) == [
        {"type": "input_text", "text": "Here:"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
    ]


def test_a_failure_without_words_is_still_shown_as_one() -> None:
    assert json.loads(str(_shown(types.CallToolResult(content=[], is_error=True)))) == {
        "error": "the tool failed and said nothing"
    }
