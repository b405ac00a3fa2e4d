"""The plain agent against real servers on loopback: the example environment and a scripted model."""

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.server_utils import ServerClient
from nemo_gym.web import client as pooled
from resources_servers.example_weather_and_sums.app import WeatherAndSumsConfig, WeatherAndSumsServer
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from responses_api_agents.simple_agent.loop import added_usage
from tests.loopback import listening, serving

ROW: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": []},
    "expected": {"tool": "get_weather", "city": "Paris", "temperature": 12, "condition": "sunny"},
    "task_id": "weather-000",
    "_ng_task_index": 3,
    "_ng_rollout_id": "run-3-0",
}
RIGHT = "The weather in Paris is sunny with a temperature of 12 degrees."


def message(text, number=0):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}


def call(name, arguments, number=0):
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


class Model:
    """Plays its script, one list of items a call; an int is an HTTP status, a string is sent as it is."""

    def __init__(self):
        self.script = []
        self.requests = []
        self.records = []
        self.keeps = True

    def app(self):
        app = FastAPI()

        @app.post("/ng-rollout/{rollout_id}/v1/responses")
        async def responses(rollout_id: str, request: Request) -> Any:
            number = len(self.requests)
            self.requests.append(await request.json())
            said = self.script[number]
            if isinstance(said, int):
                return JSONResponse({"error": {"message": "no"}}, status_code=said)
            if isinstance(said, str):
                return PlainTextResponse(said)
            if said is None:
                await asyncio.sleep(30)
            self.records.append(
                {
                    "call_id": str(number),
                    "reply": {
                        "id": f"resp_{number}",
                        "prompt_ids": [1, 2],
                        "choices": [{"tokens": {"ids": [number, 9], "logprobs": [-0.5, -0.25]}}],
                    },
                }
            )
            return reply(number, said)

        @app.get("/ng-rollout/{rollout_id}/calls")
        async def calls(rollout_id: str) -> Any:
            if not self.keeps:
                return JSONResponse({}, status_code=400)
            return PlainTextResponse("".join(json.dumps(record) + "\n" for record in self.records))

        return app


def reply(number, output, **more):
    return {
        "id": f"resp_{number}",
        "created_at": 1,
        "model": "m",
        "object": "response",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "completed",
        "output": output,
        "usage": {
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "input_tokens_details": {"cached_tokens": 1},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    } | more


class Rooms:
    def __init__(self, url, model, client):
        self.url, self.model, self.client = url, model, client

    async def run(self, row=ROW, path="/run"):
        async with aiohttp.ClientSession() as session, session.post(self.url + path, json=row) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def rooms():
    model, sock = Model(), listening()
    client = ServerClient({})
    environment = WeatherAndSumsServer(config=WeatherAndSumsConfig(name="env"), server_client=client)
    config = SimpleAgentConfig.model_validate(
        {
            "name": "agent",
            "resources_server": {"type": "resources_servers", "name": "env"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
            "max_steps": 3,
        }
    )
    agent = SimpleAgent(config=config, server_client=client)
    async with contextlib.AsyncExitStack() as stack:
        client.base_urls["env"] = await stack.enter_async_context(serving(environment.asgi()))
        client.base_urls["policy_model"] = await stack.enter_async_context(serving(model.app()))
        url = await stack.enter_async_context(serving(agent.asgi(), sock))
        stack.push_async_callback(pooled.close)
        yield Rooms(url, model, client)


async def test_a_rollout_of_two_turns(rooms):
    rooms.model.script = [[call("get_weather", {"city": "Paris"})], [message(RIGHT)]]
    status, result = await rooms.run()
    assert status == 200
    assert (result["reward"], result["task_id"], result["_ng_task_index"]) == (1.0, "weather-000", 3)
    first, tool, last = result["response"]["output"]
    assert json.loads(tool["output"]) == {"city": "Paris", "temperature": 12, "condition": "sunny"}
    assert result["response"]["usage"]["total_tokens"] == 30
    assert result["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 2
    for number, item in enumerate((first, last)):
        assert item["prompt_token_ids"] == [1, 2]
        assert item["generation_token_ids"] == [number, 9]
        assert item["generation_log_probs"] == [-0.5, -0.25]
    assert "prompt_token_ids" not in tool


async def test_each_prompt_begins_with_the_one_before(rooms):
    output = [{"type": "reasoning", "id": "rs_0", "summary": []}, call("get_weather", {"city": "Paris"})]
    rooms.model.script = [output, [message(RIGHT)]]
    await rooms.run()
    first, second = (request["input"] for request in rooms.model.requests)
    assert first == ROW["responses_create_params"]["input"]
    assert second[: len(first) + 2] == first + output
    assert second[len(first) + 2]["type"] == "function_call_output"


async def test_several_calls_of_one_turn_are_answered_in_order(rooms):
    calls = [call("get_weather", {"city": "Paris"}, 0), call("calculator", {"a": 1, "b": 2}, 1)]
    rooms.model.script = [calls, [message(RIGHT)]]
    _, result = await rooms.run()
    output = result["response"]["output"]
    assert [item.get("call_id") for item in output[:4]] == ["call_0", "call_1", "call_0", "call_1"]
    assert output[3]["output"] == '{"result": 3}'
    assert "prompt_token_ids" in output[1] and "prompt_token_ids" not in output[0]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (call("get_weather", "{"), "not JSON"),
        (call("get_weather", "[1]"), "must be a JSON object"),
        (call("get_weather", {"town": 1}), "city"),
        (call("fly", {}), "Not Found"),
        (call("verify", {}), "no tool named"),
        (call("../verify", {}), "no tool named"),
        (call("..", {}), "no tool named"),
        (call("a b?c", {}), "Not Found"),
    ],
)
async def test_a_bad_call_is_told_to_the_model(rooms, bad, words):
    rooms.model.script = [[bad], [call("get_weather", {"city": "Paris"})], [message(RIGHT)]]
    status, result = await rooms.run()
    assert (status, result["reward"]) == (200, 1.0)
    assert words in result["response"]["output"][1]["output"]


async def test_the_limit_of_steps_is_kept(rooms):
    rooms.model.script = [[call("get_weather", {"city": "Paris"}, n)] for n in range(9)]
    status, result = await rooms.run()
    assert (status, result["reward"], len(rooms.model.requests)) == (200, 0.0, 3)
    assert result["response"]["metadata"]["ng_termination_reason"] == "max_steps"


async def test_an_empty_reply_ends_the_rollout_without_reward(rooms):
    rooms.model.script = [[]]
    status, result = await rooms.run()
    assert (status, result["reward"], result["response"]["output"]) == (200, 0.0, [])


@pytest.mark.parametrize("said", [500, 400, "garbage", "[]", '{"output": [1]}', '{"output": []}'])
async def test_a_failing_model_is_the_models_failure(rooms, said):
    rooms.model.script = [[call("get_weather", {"city": "Paris"})], said]
    status, result = await rooms.run()
    assert (status, result["error"]["kind"]) == (502, "model")


async def test_a_model_that_is_gone(rooms, monkeypatch):
    monkeypatch.setattr("nemo_gym.web.peers._FIRST_WAIT_S", 0.001)
    rooms.client.base_urls["policy_model"] = "http://127.0.0.1:9"
    status, result = await rooms.run()
    assert (status, result["error"]["kind"]) == (502, "model")


async def test_a_row_that_the_environment_refuses(rooms):
    status, result = await rooms.run(ROW | {"expected": {"tool": "no_such"}})
    assert (status, result["error"]["kind"]) == (503, "infrastructure")
    status, _ = await rooms.run({"responses_create_params": {"nonsense": 1}})
    assert status == 422


async def test_without_records_the_rollout_is_still_whole(rooms):
    rooms.model.script = [[message(RIGHT)]]
    rooms.model.keeps = False
    status, result = await rooms.run()
    assert status == 200
    assert "prompt_token_ids" not in result["response"]["output"][0]


async def test_rollouts_do_not_share_a_session(rooms):
    async def one(city, temperature):
        expected = ROW["expected"] | {"city": city, "temperature": temperature}
        return await rooms.run(ROW | {"expected": expected})

    rooms.model.script = [[message("")]] * 8
    results = await asyncio.gather(*(one("Paris", n) for n in range(8)))
    assert [result["expected"]["temperature"] for _, result in results] == list(range(8))


async def test_the_loop_alone(rooms):
    rooms.model.script = [[call("calculator", {"a": 1, "b": 2})], [message("3")]]
    status, result = await rooms.run({"input": "1 + 2?", "temperature": 0.5}, "/ng-rollout/r/v1/responses")
    assert (status, [item["type"] for item in result["output"]]) == (
        200,
        ["function_call", "function_call_output", "message"],
    )
    assert rooms.model.requests[0] == {"input": [{"role": "user", "content": "1 + 2?"}], "temperature": 0.5}


async def test_metrics_come_from_the_environment(rooms):
    body = {"verify_responses": [{"_ng_task_index": 0, "reward": 1.0}]}
    status, result = await rooms.run(body, "/aggregate_metrics")
    assert (status, result["key_metrics"]) == (200, {"mean/reward": 1.0})


def test_usage_adds_up():
    assert added_usage(None, None) is None
    assert added_usage({"a": 1, "b": None}, {"a": 2, "b": 3}) == {"a": 3, "b": None}
    assert added_usage({"a": 1}, None) == {"a": 1}


class Unprepared(WeatherAndSumsServer):
    seed_session = SimpleResourcesServer.seed_session  # type: ignore[assignment]


TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}


@pytest.mark.parametrize(
    ("kind", "tools", "seeds"),
    [(Unprepared, [], 0), (Unprepared, [TOOL], 2), (WeatherAndSumsServer, [], 2), (None, [], 2)],
)
async def test_a_seed_that_prepares_nothing_is_left_out_where_there_are_no_tools(rooms, kind, tools, seeds):
    """Two rollouts; `None` is an environment that does not say what its seed does."""
    asked = []
    app = (kind or Unprepared)(config=WeatherAndSumsConfig(name="env"), server_client=rooms.client).asgi()

    async def counting(scope, receive, send):
        if scope["type"] == "http":
            asked.append(scope["path"])
            if kind is None and scope["path"] == "/seed_mode":
                scope = scope | {"path": "/no/such", "raw_path": b"/no/such"}
        await app(scope, receive, send)

    row = ROW | {"responses_create_params": ROW["responses_create_params"] | {"tools": tools}}
    async with serving(counting) as url:
        rooms.client.base_urls["env"] = url
        rooms.model.script = [[message(RIGHT)], [message(RIGHT)]]
        for _ in range(2):
            status, result = await rooms.run(row)
            assert (status, result["task_id"]) == (200, "weather-000")
    assert asked.count("/seed_session") == seeds
    assert asked.count("/verify") == 2
    assert asked.count("/seed_mode") == (0 if tools else 1)
