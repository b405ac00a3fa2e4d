"""Model servers for real clients: one `ng_run` with a server of each backend dialect, before one scripted backend."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.record import CallRecord
from tests.live.device import DEVICES
from tests.live.two_replicas import TwoReplicas
from tests.live.two_replicas import running as replicas_running
from tests.live.vllm import PLAIN, running
from tests.project import World
from tests.scripted import Answer, Request, Script, ScriptedBackend

SERVER = """\
{name}:
  responses_api_models:
    vllm_model:
      entrypoint: app.py
      base_url: {url}
      api_key: none
      model: scripted-model
      api: {api}
      return_token_ids: false
      retries: 1
      {more}
"""
SERVERS = {
    "chat": {"api": "chat"},
    "responses": {"api": "responses"},
    "messages": {"api": "messages"},
    "early": {"api": "chat", "more": "stream_commit_s: 0.5\n      repeat_grace_s: 60"},
}


class Servers:
    """Real model server processes. One script at a time plays for all of them."""

    def __init__(self, world: World, backend: ScriptedBackend) -> None:
        self.backend = backend
        self.urls: dict[str, str] = {}
        self._world = world
        self._script: Script | None = None

    def play(self, script: Script) -> None:
        """What answers from now on; what was asked before is forgotten."""
        self._script = script
        self.backend.requests.clear()

    def decide(self, request: Request) -> Answer:
        if request.method == "GET" or self._script is None:
            return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
        return self._script(request)

    def calls(self, rollout_id: str) -> list[CallRecord]:
        """All that was captured of a rollout, sealed and verified."""
        for url in self.urls.values():
            sealed = httpx.post(f"{url}/ng-rollout/{rollout_id}/seal", json={"incomplete": None}, timeout=30)
            assert sealed.status_code == 200, sealed.text
        store = CaptureStore(self._world.folder / "captures")
        report = store.verify()
        assert report.ok, report.problems
        assert report.without_rollout == 0
        assert rollout_id not in report.unsealed
        return sorted(store.calls(rollout_id), key=lambda call: call.times.received)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks the same engines comes together, and after all else: they are up no longer than they are asked."""
    items.sort(key=lambda item: [name in getattr(item, "fixturenames", ()) for name in ("plain_vllm", "two_replicas")])


@pytest.fixture(scope="session")
def plain_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its base URL, without `/v1`."""
    pytest.importorskip("vllm")
    with running(tmp_path_factory.mktemp("vllm"), *PLAIN) as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=DEVICES)
async def two_replicas(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TwoReplicas]:
    pytest.importorskip("ray")
    pytest.importorskip("vllm")
    async with replicas_running(request.param, tmp_path_factory.mktemp("captures")) as at:
        yield at


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder: Path = tmp_path_factory.mktemp("servers")
    world = World(folder)
    backend = ScriptedBackend(lambda request: at.decide(request))
    at = Servers(world, backend)
    with Listening(backend) as url:
        sections = [
            SERVER.format(name=name, url=url, **({"more": ""} | settings)) for name, settings in SERVERS.items()
        ]
        (folder / "run.yaml").write_text("".join(sections))
        process = world.start("run", "+config_paths=[run.yaml]", f"++capture.dir={folder}/captures")
        try:
            world.until_up(process)
            runs = json.loads(world.run("--json", command="status", config=False)[1])["runs"]
            at.urls = {server["name"]: server["url"] for server in runs[0]["servers"]}
            yield at
        finally:
            process.terminate()
            process.communicate(timeout=60)
            world.end()


class Listening:
    """A scripted backend on a loop of its own, for tests that wait for processes."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self._backend = backend
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        self._server: Any = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._backend.handle, "127.0.0.1", 0), self._loop
        ).result(60)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
