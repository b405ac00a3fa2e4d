"""What every server gets, whatever its author wrote."""

import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from nemo_gym.server_utils import (
    SESSION_ID_KEY,
    BaseRunServerInstanceConfig,
    ServerClient,
    SimpleServer,
    raise_for_status,
)
from nemo_gym.web.service import ServerContext


class Config(BaseRunServerInstanceConfig):
    size: int = 1


class Server(SimpleServer):
    config: Config

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)

        @app.get("/who")
        async def who(request: Request):
            return request.session[SESSION_ID_KEY]

        @app.get("/fail")
        async def fail():
            raise ValueError("out of range")

        @app.get("/peer")
        async def peer():
            await raise_for_status(await self.server_client.get("gone", "/"))

        return app


def server(**settings):
    return Server(config=Config(name="one", **settings), server_client=ServerClient({}))


def test_alive_sessions_and_failures():
    with TestClient(server().asgi(), raise_server_exceptions=False) as client:
        assert client.get("/health").json() == {"status": "ok"}
        first = client.get("/who")
        assert client.get("/who").json() == first.json()
        assert list(first.cookies) == ["Server___one"]
        client.cookies.clear()
        assert client.get("/who").json() != first.json()
        failed = client.get("/fail")
        assert (failed.status_code, failed.json()) == (500, "ValueError('out of range')")


def test_a_forged_session_is_a_new_one():
    with TestClient(server().asgi()) as client, TestClient(server().asgi()) as other:
        mine = client.get("/who")
        other.cookies.set("Server___one", mine.cookies["Server___one"])
        assert other.get("/who").json() != mine.json()


def test_built_from_what_the_launcher_tells():
    told = ServerContext("one", "resources_servers", "tiny", {"size": 5, "port": 80}, {"peer": "http://h:1"})
    made = Server.from_context(told)
    assert (made.config.name, made.config.size, made.server_client.base_url("peer")) == ("one", 5, "http://h:1")
    assert "5" not in repr(told)
    with pytest.raises(SystemExit, match="one: size: Input should be a valid integer"):
        Server.from_context(ServerContext("one", "k", "i", {"size": "secret-looking"}))


def test_started_by_hand_it_says_what_to_do():
    entrypoint = Path(__file__).parents[2] / "resources_servers/example_weather_and_sums/app.py"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(entrypoint)], capture_output=True, text=True, env={"PYTHONPATH": root}, check=False
    )
    assert done.returncode == 1
    assert "is started by ng_run" in done.stderr
