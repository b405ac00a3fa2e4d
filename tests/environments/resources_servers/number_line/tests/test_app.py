from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from pytest import approx, fixture

from nemo_gym.server_utils import ServerClient
from resources_servers.number_line.app import NumberLineConfig, NumberLineServer

RESPONSE = {
    "id": "resp_1",
    "created_at": 0,
    "model": "dummy",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class TestApp:
    @fixture
    def client(self) -> TestClient:
        config = NumberLineConfig(host="0.0.0.0", port=8080, entrypoint="", name="number_line", max_steps=3)
        return TestClient(NumberLineServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver())

    def _verify(self, client: TestClient) -> dict:
        body = {"responses_create_params": {"input": "Reach 2."}, "response": RESPONSE}
        return client.post("/verify", json=body).json()

    def test_it_ends_at_the_goal(self, client: TestClient) -> None:
        assert client.post("/step", json={"action": 1}).status_code == 409
        client.post("/seed_session", json={"start": 0, "goal": 2, "responses_create_params": {"input": ""}})
        first = client.post("/step", json={"action": 1}).json()
        assert first == {
            "observation": "at 1",
            "reward": -0.05,
            "terminated": False,
            "truncated": False,
            "info": {},
        }
        second = client.post("/step", json={"action": 1}).json()
        assert (second["observation"], second["terminated"]) == ("at 2", True)
        assert client.post("/step", json={"action": 1}).status_code == 409
        verified = self._verify(client)
        assert verified["reward"] == approx(0.9)
        assert (verified["steps"], verified["reached"]) == (2, True)

    def test_it_is_truncated_and_reset(self, client: TestClient) -> None:
        assert client.post("/reset", json={"goal": 2}).json()["observation"] == "at 0"
        steps = [client.post("/step", json={"action": -1}).json()["truncated"] for _ in range(3)]
        assert steps == [False, False, True]
        assert client.post("/reset", json={"start": 1, "goal": 2}).json()["observation"] == "at 1"
        assert client.post("/step", json={"action": 5}).status_code == 422
        assert client.post("/step", json={"action": 1}).json()["terminated"] is True
        assert self._verify(client)["reward"] == approx(0.95)
