from unittest.mock import MagicMock

from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.running_total.app import RunningTotalConfig, RunningTotalServer

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
TASK = {"responses_create_params": {"input": "Bring the total to 10."}, "start": 4, "target": 10}


class TestApp:
    def _app(self):
        config = RunningTotalConfig(host="0.0.0.0", port=8080, entrypoint="", name="running_total", step_limit=2)
        return RunningTotalServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()

    def test_sessions_do_not_see_each_other(self) -> None:
        app = self._app()
        first, second = TestClient(app), TestClient(app)
        for client in (first, second):
            assert client.post("/seed_session", json=TASK).status_code == 200
        assert first.post("/add", json={"amount": 6}).json() == {"total": 10}
        assert second.post("/get_total", json={}).json() == {"total": 4}
        assert first.post("/get_total").json() == {"total": 10}
        assert first.post("/verify", json={**TASK, "response": RESPONSE}).json()["reward"] == 1.0
        verified = second.post("/verify", json={**TASK, "response": RESPONSE}).json()
        assert (verified["reward"], verified["total"], verified["steps"]) == (0.0, 4, 0)

    def test_steps_are_limited(self) -> None:
        client = TestClient(self._app())
        client.post("/seed_session", json=TASK)
        assert [client.post("/add", json={"amount": 3}).status_code for _ in range(3)] == [200, 200, 409]
        assert client.post("/verify", json={**TASK, "response": RESPONSE}).json()["reward"] == 1.0
