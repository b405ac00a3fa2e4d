"""A project of one's own in a temporary folder: small real servers, and a configuration that uses them."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

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
"""What a launcher sees of a model server: /ready is 503 for a moment after it was first asked, and says why."""
import json, time
from nemo_gym.server_utils import BaseRunServerInstanceConfig, SimpleServer

class LocalTinyConfig(BaseRunServerInstanceConfig):
    model: str
    base_url: str | list[str] = "http://127.0.0.1:1"
    ready_after_s: float = 0.3

class LocalTiny(SimpleServer):
    config: LocalTinyConfig

    def setup_webserver(self):
        asked = []

        async def app(scope, receive, send):
            if scope["type"] == "lifespan":
                while (message := await receive())["type"] != "lifespan.shutdown":
                    await send({"type": "lifespan.startup.complete"})
                await send({"type": "lifespan.shutdown.complete"})
                return
            if scope["path"] == "/ready":
                asked.append(time.monotonic())
            waiting = scope["path"] == "/ready" and time.monotonic() - asked[0] < self.config.ready_after_s
            body = {"error": {"message": "weights are being read"}} if waiting else {"model": self.config.model}
            if scope["path"].endswith("/seal"):
                body = {"rollout_id": scope["path"].split("/")[2], "call_ids": ["c"], "digest": "d", "incomplete": None}
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 503 if waiting else 200, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(body).encode()})

        return app

if __name__ == "__main__":
    LocalTiny.run_webserver()
'''

AGENT = '''
"""An agent that asks nobody: half of its rollouts are right."""
import asyncio
from fastapi import FastAPI, Request
from nemo_gym.server_utils import BaseRunServerInstanceConfig, SimpleServer

class TinyAgentConfig(BaseRunServerInstanceConfig):
    seconds: float = 0.0

class TinyAgent(SimpleServer):
    config: TinyAgentConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()

        @app.post("/run")
        async def run(request: Request):
            row = await request.json()
            await asyncio.sleep(self.config.seconds)
            return row | {"response": {"id": "r", "output": []}, "reward": float(row["_ng_task_index"] % 2)}

        return app

if __name__ == "__main__":
    TinyAgent.run_webserver()
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

JOB = (
    CONFIG
    + """\
agent:
  responses_api_agents:
    tiny_agent:
      entrypoint: app.py
job:
  agent: agent
  input: rows.jsonl
"""
)


def make(folder: Path, config: str = CONFIG) -> Path:
    """Write the project; commands that are run in `folder` find its servers and `run.yaml`."""
    for kind, name, source in (
        ("resources_servers", "tiny", ENVIRONMENT),
        ("responses_api_models", "local_tiny", MODEL),
        ("responses_api_agents", "tiny_agent", AGENT),
    ):
        (folder / kind / name).mkdir(parents=True)
        (folder / kind / name / "app.py").write_text(source)
    (folder / "weights").mkdir()
    (folder / "weights" / "config.json").write_text("{}")
    (folder / "rows.jsonl").write_text('{"responses_create_params": {"input": "hello"}}\n' * 4)
    (folder / "run.yaml").write_text(textwrap.dedent(config))
    return folder


def from_root(folder: Path) -> str:
    """A path as a configuration has it."""
    return os.path.relpath(folder, ROOT)


def alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has gone, also while it is looked at, or is a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lives(pid: int) -> bool:
    try:
        return alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> str:
    """Its command line; empty for one that has gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def left(folder) -> list[int]:
    """Living processes that carry this test's mark, zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"NG_TEST_TREE={folder}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class World:
    """A project, and commands in it whose every process bears a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = make(folder)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NG_TEST_TREE": str(folder),
            "NEMO_GYM_RUNTIME_DIR": str(folder / "runtime"),
        }

    def end(self) -> None:
        for pid in left(self.folder):
            os.kill(pid, signal.SIGKILL)

    def start(self, command, *args) -> subprocess.Popen:
        """`ng <command>` in the project's folder, output as text."""
        return subprocess.Popen(
            [sys.executable, "-m", "nemo_gym.cli.main", command, *args],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args, command="run", config=True, seconds=180):
        paths = ["+config_paths=[run.yaml]", f"++capture.dir={self.folder}/captures"] if config else []
        process = self.start(command, *paths, *args)
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err

    def until_up(self, process) -> str:
        said = ""
        while "ng_status" not in said:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            said += line
        return said

    def gone(self, seconds) -> float:
        began = time.monotonic()
        while left(self.folder):
            assert time.monotonic() - began < seconds, left(self.folder)
            time.sleep(0.02)
        return time.monotonic() - began
