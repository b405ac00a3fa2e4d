"""A project of one's own in a temporary folder: small real servers, and a configuration that uses them."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]

ENVIRONMENT = '''
"""A small environment: a tool, a session, a way to fail, a family of processes."""
import os, sys, time
from fastapi import FastAPI, Request
from pydantic import Field
from nemo_gym.config_types import ModelServerRef
from nemo_gym.server_utils import SESSION_ID_KEY, BaseRunServerInstanceConfig, SimpleServer, get_response_json

class TinyConfig(BaseRunServerInstanceConfig):
    size: int = Field(default=1, ge=1)
    mode: str = "plain"
    api_key: str = ""
    model_server: ModelServerRef | None = None

class Tiny(SimpleServer):
    config: TinyConfig

    def setup_webserver(self) -> FastAPI:
        if self.config.mode == "die":
            print("I was here", flush=True)
            raise RuntimeError("no such thing as a tiny server")
        if self.config.mode == "stray" and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                time.sleep(300)
            os._exit(0)
        app = FastAPI()
        self.setup_session_middleware(app)

        @app.get("/who")
        async def who(request: Request):
            return {"name": self.config.name, "size": self.config.size, "session": request.session[SESSION_ID_KEY]}

        @app.get("/argv")
        async def argv():
            return {"argv": sys.argv, "environ": dict(os.environ), "run": self.context.run_id}

        @app.get("/peer")
        async def peer():
            return await get_response_json(await self.server_client.get("policy_model", "/v1/models"))

        @app.get("/exit")
        async def leave():
            print("leaving in a hurry", flush=True)
            os._exit(7)

        return app

if __name__ == "__main__":
    Tiny.run_webserver()
'''

MODEL = '''
"""What a launcher sees of a model server: /ready is 503 for a moment, and says why."""
import json, time
from nemo_gym.server_utils import BaseRunServerInstanceConfig, SimpleServer

class LocalTinyConfig(BaseRunServerInstanceConfig):
    model: str
    base_url: str | list[str] = "http://127.0.0.1:1"
    ready_after_s: float = 0.3

class LocalTiny(SimpleServer):
    config: LocalTinyConfig

    def setup_webserver(self):
        born = time.monotonic()

        async def app(scope, receive, send):
            if scope["type"] == "lifespan":
                while (message := await receive())["type"] != "lifespan.shutdown":
                    await send({"type": "lifespan.startup.complete"})
                await send({"type": "lifespan.shutdown.complete"})
                return
            waiting = scope["path"] == "/ready" and time.monotonic() - born < self.config.ready_after_s
            body = {"error": {"message": "weights are being read"}} if waiting else {"model": self.config.model}
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 503 if waiting else 200, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(body).encode()})

        return app

if __name__ == "__main__":
    LocalTiny.run_webserver()
'''

CONFIG = """\
policy_model:
  responses_api_models:
    local_tiny:
      entrypoint: app.py
      model: weights
env:
  resources_servers:
    tiny:
      entrypoint: app.py
      domain: agent
      size: 3
      api_key: ${env_key}
      model_server:
        type: responses_api_models
        name: policy_model
env_key: s3cr3t-value
"""


def make(folder: Path, config: str = CONFIG) -> Path:
    """Write the project; commands that are run in `folder` find its servers and `run.yaml`."""
    for kind, name, source in (
        ("resources_servers", "tiny", ENVIRONMENT),
        ("responses_api_models", "local_tiny", MODEL),
    ):
        (folder / kind / name).mkdir(parents=True)
        (folder / kind / name / "app.py").write_text(source)
    (folder / "weights").mkdir()
    (folder / "weights" / "config.json").write_text("{}")
    (folder / "run.yaml").write_text(textwrap.dedent(config))
    return folder


def command(folder: Path, *args: str, env: dict[str, str]) -> subprocess.Popen:
    """`ng <args>` in the project's folder, output as text."""
    return subprocess.Popen(
        [sys.executable, "-m", "nemo_gym.cli.main", *args],
        cwd=folder,
        env={**env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
