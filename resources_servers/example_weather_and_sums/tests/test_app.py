import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.example_weather_and_sums.app import (
    CONDITIONS,
    Sum,
    Weather,
    WeatherAndSumsConfig,
    WeatherAndSumsServer,
    states,
)
from resources_servers.example_weather_and_sums.data import generate

DATA = Path(generate.__file__).with_name("example.jsonl")
WEATHER = {"tool": "get_weather", "city": "Paris", "temperature": 12, "condition": "sunny"}
SUM = {"tool": "calculator", "a": 17, "b": 29, "result": 46}
RIGHT_WEATHER = "The weather in Paris is sunny with a temperature of 12 degrees."


@pytest.fixture
def client():
    server = WeatherAndSumsServer(config=WeatherAndSumsConfig(name="env"), server_client=ServerClient({}))
    with TestClient(server.asgi()) as client:
        yield client


def call(name, arguments):
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": arguments}


def said(text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def row(expected, **more):
    return {"responses_create_params": {"input": "?"}, "expected": expected, "task_id": "t", **more}


def verify(client, expected, output):
    response = {
        "id": "resp_1",
        "created_at": 0,
        "model": "m",
        "object": "response",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": output,
    }
    answer = client.post("/verify", json=row(expected, response=response))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_right_rollouts_are_rewarded(client):
    weather = verify(client, WEATHER, [call("get_weather", {"city": "Paris"}), said(RIGHT_WEATHER)])
    assert (weather["reward"], weather["called"], weather["stated"], weather["task_id"]) == (1.0, True, True, "t")
    assert verify(client, SUM, [call("calculator", {"a": 17, "b": 29}), said("The answer is 46.")])["reward"] == 1.0
    assert verify(client, SUM, [call("calculator", {"b": 17, "a": 29}), said("17 + 29 = 46")])["reward"] == 1.0


@pytest.mark.parametrize(
    "output",
    [
        [],
        [said(RIGHT_WEATHER)],
        [call("get_weather", {"city": "Paris"})],
        [said(RIGHT_WEATHER), call("get_weather", {"city": "Paris"})],
        [call("get_weather", {"city": "London"}), said(RIGHT_WEATHER)],
        [call("get_weather", {"town": "Paris"}), said(RIGHT_WEATHER)],
        [call("get_weather", "{"), said(RIGHT_WEATHER)],
        [call("get_weather", "[]"), said(RIGHT_WEATHER)],
        [call("get_weather", ""), said(RIGHT_WEATHER)],
        [call("calculator", {"city": "Paris"}), said(RIGHT_WEATHER)],
        [call("get_weather", {"city": "Paris"}), said("")],
        [call("get_weather", {"city": "Paris"}), said(RIGHT_WEATHER), said("Sorry, I do not know.")],
        [call("get_weather", {"city": "Paris"}), {**said(""), "content": []}],
        [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": RIGHT_WEATHER}]}],
    ],
)
def test_everything_else_gets_nothing(client, output):
    assert verify(client, WEATHER, output)["reward"] == 0.0


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (RIGHT_WEATHER, True),
        ("sunny, 12 degrees", True),
        ("SUNNY and 12°C", True),
        ("It is 12.0 degrees and sunny", True),
        ("sunny, 1 degree", False),
        ("sunny, 123 degrees", False),
        ("sunny, -12 degrees", False),
        ("sunny, 12.5 degrees", False),
        ("sunny, 10 to 12 degrees", False),
        ("sunny or cloudy, 12 degrees", False),
        ("unsunny, 12 degrees", False),
        ("12 degrees", False),
        ("sunny", False),
        ("sunny, x12", False),
        ("", False),
    ],
)
def test_weather_is_compared_whole(text, stated):
    assert states(text, Weather.model_validate(WEATHER)) is stated


@pytest.mark.parametrize("text", ["minus 5", "it is 5", "it is 50"])
def test_the_sign_of_a_temperature_counts(text):
    cold = Weather.model_validate(WEATHER | {"temperature": -5})
    assert states("sunny, -5 degrees", cold)
    assert states("sunny, \u22125 degrees", cold)
    assert not states(f"sunny, {text}", cold)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The answer is 46.", True),
        ("17 plus 29 is 46", True),
        ("46", True),
        ("17 + 29", False),
        ("The answer is 146.", False),
        ("The answer is 4 6.", False),
        ("45, 46 or 47", False),
        ("4.6", False),
    ],
)
def test_sums_are_compared_whole(text, stated):
    assert states(text, Sum.model_validate(SUM)) is stated


def test_thousands_separators():
    assert states("That is 1,234.", Sum(tool="calculator", a=1000, b=234, result=1234))


def test_a_task_has_its_own_weather(client):
    assert client.post("/seed_session", json=row(WEATHER)).status_code == 200
    assert client.post("/get_weather", json={"city": "paris "}).json() == {
        "city": "Paris",
        "temperature": 12,
        "condition": "sunny",
    }
    elsewhere = client.post("/get_weather", json={"city": "Oslo"}).json()
    assert elsewhere == client.post("/get_weather", json={"city": "Oslo"}).json()
    assert elsewhere["condition"] in CONDITIONS
    client.cookies.clear()
    assert client.post("/get_weather", json={"city": "Paris"}).status_code == 200


def test_results_are_spelt_as_the_embedded_model_reads_them(client):
    client.post("/seed_session", json=row(WEATHER))
    answer = client.post("/get_weather", json={"city": "Paris"})
    assert answer.text == '{"city": "Paris", "temperature": 12, "condition": "sunny"}'
    assert client.post("/calculator", json={"a": 17, "b": 29}).text == '{"result": 46}'


def test_the_calculator(client):
    assert client.post("/calculator", json={"a": 17, "b": 29}).json() == {"result": 46}
    assert client.post("/calculator", json={"a": "many"}).status_code == 422


def test_a_lone_surrogate_is_no_crash(client):
    answer = client.post("/get_weather", content=b'{"city": "\\ud800"}', headers={"content-type": "application/json"})
    assert answer.json()["city"] == "?"


def test_the_committed_data_is_what_the_generator_writes():
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    assert rows == generate.tasks(48, 7)
    assert sum(row["expected"]["tool"] == "get_weather" for row in rows) == 24
    assert len({row["task_id"] for row in rows}) == 48
    assert all(row["expected"]["result"] not in (row["expected"]["a"], row["expected"]["b"]) for row in rows[1::2])


def test_metrics_over_many_rollouts(client):
    responses = [
        {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": float(task == repeat), "called": True}
        for task in range(2)
        for repeat in range(2)
    ]
    metrics = client.post("/aggregate_metrics", json={"verify_responses": responses}).json()
    assert metrics["agent_metrics"]["mean/reward"] == 0.5
    assert metrics["key_metrics"] == {"mean/reward": 0.5, "mean/called": 1.0}
    assert [group["_ng_task_index"] for group in metrics["group_level_metrics"]] == [0, 1]
    assert metrics["agent_metrics"]["num_repeats"] == 2
    assert client.get("/reverify_mode").json() == "stateless"
