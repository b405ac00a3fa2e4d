"""`ng_run` on two Ray nodes: servers on both, one capture, one culprit, nothing left."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.process import Child
from tests.live.conftest import Listening
from tests.project import World, alive, left
from tests.scripted import Answer, Request, ScriptedBackend, chat_reply, tool_call

pytest.importorskip("ray")
pytestmark = [pytest.mark.live, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
RAY_KEY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
WAIT_S = 300.0
SECRET = "sk-never-to-be-seen"
CONFIG = """\
config_paths:
  - resources_servers/example_weather_and_sums/configs/example_weather_and_sums.yaml
policy_model:
  responses_api_models:
    vllm_model:
      entrypoint: app.py
      base_url: {backend}
      api_key: {secret}
      model: scripted-model
      return_token_ids: false
      ray: {{resources: {{first: 0.1}}}}
example_weather_and_sums:
  resources_servers:
    example_weather_and_sums:
      ray: {{node: {second}}}
example_weather_and_sums_simple_agent:
  responses_api_agents:
    simple_agent:
      ray: {{resources: {{second: 0.1}}}}
ray:
  address: {address}
  files: brought
  node_dir: {folder}/nodes
  env: {{NG_TEST_TREE: {folder}}}
"""
ENGINES = """\
policy_model:
  responses_api_models:
    local_vllm_model:
      entrypoint: app.py
      model: {root}/models/tiny_policy
      num_gpus: 0
      num_replicas: 2
      engine_args: {{max_model_len: 1024}}
      tool_parser: hermes
      ray: {{resources: {{second: 0.1}}}}
"""
JOB = """\
job:
  agent: example_weather_and_sums_simple_agent
  input: resources_servers/example_weather_and_sums/data/example.jsonl
  output: {folder}/out
  limit: 4
  repeats: 2
  export: [sft]
"""
MODEL, ENVIRONMENT, AGENT = "policy_model", "example_weather_and_sums", "example_weather_and_sums_simple_agent"


class TwoNodes:
    def __init__(self, told: dict[str, Any]) -> None:
        self.address: str = told["address"]
        self.first, self.second = (node["id"] for node in told["nodes"])
        self.pids: list[int] = [node["pid"] for node in told["nodes"]]


@pytest.fixture
def cluster() -> Iterator[TwoNodes]:
    # Ray's sockets are below it, and a socket's path is short.
    with tempfile.TemporaryDirectory(prefix="ng2", dir="/tmp") as folder:
        log = Path(folder) / "cluster.log"
        script = str(Path(__file__).with_name("two_nodes.py"))
        child = Child.start([sys.executable, script, folder], env=os.environ | RAY_KEY, log_path=log)
        try:
            end = time.monotonic() + 600
            while not (found := re.search(r"^\{.*\}$", log.read_text(), re.M)):
                assert child.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield TwoNodes(json.loads(found[0]))
        finally:
            child.stop(1.0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.environment |= RAY_KEY
    yield made
    made.end()


class Backend(ScriptedBackend):
    """The tool, then an answer; calls wait while it is told to hold them."""

    def __init__(self) -> None:
        super().__init__(self.decide)
        self.hold = False

    def decide(self, request: Request) -> Answer:
        if not request.asks:
            return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
        if self.hold:
            return Answer(hang=True)
        if any(message["role"] == "tool" for message in request.json()["messages"]):
            return Answer(chat_reply("It is sunny."))
        return Answer(chat_reply(None, message={"tool_calls": [tool_call("get_weather", '{"city": "Prague"}')]}))


def write(world: World, cluster: TwoNodes, backend: str, *sections: str) -> None:
    said = {"folder": world.folder, "address": cluster.address, "second": cluster.second, "root": ROOT}
    text = (CONFIG + "".join(sections)).format(**said, backend=backend, secret=SECRET)
    (world.folder / "run.yaml").write_text(text)


def servers(world: World) -> dict[str, dict[str, Any]]:
    (run,) = json.loads(world.run("--json", command="status", config=False, seconds=WAIT_S)[1])["runs"]
    return {server["name"]: server for server in run["servers"]}


def until(wanted: Any, what: str) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := wanted()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


def until_asked(process: subprocess.Popen[str], backend: Backend) -> None:
    """A rollout's call is in flight."""

    def asked() -> bool:
        assert process.poll() is None, process.communicate()
        return any(request.asks for request in backend.requests)

    until(asked, "no call came")


def test_servers_on_two_nodes_from_a_job_to_a_kill(world: World, cluster: TwoNodes) -> None:
    backend = Backend()
    with Listening(backend) as url:
        write(world, cluster, url, JOB)
        a_job_on_both(world)
        resumed_after_the_launcher_was_killed(world, cluster, backend)
        a_lost_node_is_named(world, cluster, backend)


def a_job_on_both(world: World) -> None:
    code, out, err = world.run("+config_paths=[run.yaml]", config=False, seconds=WAIT_S)
    assert code == 0, (out, err)
    assert "8 of 8" in out
    captures = world.folder / "out" / "captures"
    report = CaptureStore(captures).verify()
    assert (report.problems, report.unsealed, report.open, report.torn) == ([], [], [], [])
    assert (report.rollouts, report.calls, report.without_rollout) == (8, 16, 0)
    (run,) = captures.iterdir()
    assert [path.name.partition("-")[2] for path in run.iterdir()] == [MODEL]
    assert list((world.folder / "nodes").iterdir()) == []  # what was brought is not kept there
    assert list((world.folder / "out" / "exports" / "sft").iterdir())
    for name in (MODEL, ENVIRONMENT, AGENT):
        assert (world.folder / "out" / "logs" / f"{name}.log").is_file()
    assert world.run("verify", str(captures), command="captures", config=False, seconds=WAIT_S)[0] == 0
    assert left(world.folder) == []


def resumed_after_the_launcher_was_killed(world: World, cluster: TwoNodes, backend: Backend) -> None:
    backend.hold = True
    backend.requests.clear()
    process = world.start("run", "+config_paths=[run.yaml]", "++job.overwrite=true")
    until_asked(process, backend)
    up = servers(world)
    assert {name: server["node"] for name, server in up.items()} == {
        MODEL: cluster.first,
        ENVIRONMENT: cluster.second,
        AGENT: cluster.second,
    }
    _others_are_refused(up)
    _no_secret(world)
    process.kill()
    process.communicate()
    until(lambda: not left(world.folder), "something is left of a killed launcher")
    backend.hold = False
    code, out, err = world.run("+config_paths=[run.yaml]", "++job.resume=true", config=False, seconds=WAIT_S)
    assert code == 0, (out, err)
    assert "8 of 8" in out


def _others_are_refused(up: dict[str, dict[str, Any]]) -> None:
    asked = {AGENT: "/run", ENVIRONMENT: "/verify", MODEL: "/v1/chat/completions"}
    for name, path in asked.items():
        assert httpx.post(up[name]["url"] + path, json={}, timeout=60).status_code == 401
        assert httpx.get(up[name]["url"] + "/health", timeout=60).status_code == 200


def _no_secret(world: World) -> None:
    """Neither the user's key nor the run's is in an argument of any process, in a log or in what the head says."""
    (file,) = (world.folder / "runtime").iterdir()
    keys = [SECRET, json.loads(file.read_bytes())["key"]]
    assert keys[1]
    seen = "".join(path.read_text() for path in (world.folder / "out" / "logs").glob("*.log"))
    seen += world.run("--json", command="status", config=False, seconds=WAIT_S)[1]
    for pid in left(world.folder):
        try:
            process = psutil.Process(pid)
            seen += " ".join(process.cmdline()) + str(process.environ())
        except psutil.Error:
            continue
    assert [key for key in keys if key in seen] == []


def a_lost_node_is_named(world: World, cluster: TwoNodes, backend: Backend) -> None:
    backend.hold = True
    backend.requests.clear()
    process = world.start("run", "+config_paths=[run.yaml]", "++job.overwrite=true")
    until_asked(process, backend)
    raylet = psutil.Process(cluster.pids[1])
    os.kill(cluster.pids[1], signal.SIGKILL)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1, (out, err)
    assert re.search(rf"^({AGENT}|{ENVIRONMENT}): was lost.*{cluster.second[:12]}", out, re.M), (out, err)
    assert not alive(raylet)
    until(lambda: not left(world.folder), "something is left of a lost node")


def test_engines_on_the_cluster_of_a_run(world: World, cluster: TwoNodes) -> None:
    """The replicas of a server's own engines are actors beside those of the servers."""
    write(world, cluster, "", JOB)
    whole = (world.folder / "run.yaml").read_text()
    model = whole[whole.index("policy_model:") : whole.index("example_weather_and_sums:\n")]
    engines = ENGINES.format(root=ROOT)
    (world.folder / "run.yaml").write_text(whole.replace(model, engines).replace("[sft]", "[token_rows]"))
    code, out, err = world.run("+config_paths=[run.yaml]", config=False, seconds=2 * WAIT_S)
    assert code == 0, (out, err)
    assert "8 of 8" in out
    store = CaptureStore(world.folder / "out" / "captures")
    report = store.verify()
    assert (report.problems, report.unsealed, report.open, report.torn) == ([], [], [], [])
    calls = list(store.calls())
    assert {attempt.replica for call in calls for attempt in call.attempts} == {"vllm-0", "vllm-1"}
    assert all(call.reply is not None and call.reply.choices[0].tokens is not None for call in calls)
    assert list((world.folder / "out" / "exports" / "token_rows").glob("*.parquet"))
    assert left(world.folder) == []
