"""All servers up or one culprit named; nothing of a run is left, and no secret is where others can see it."""

import asyncio
import io
import signal
import time

import aiohttp
import psutil
import pytest
from rich.console import Console

from nemo_gym.config.compose import compose
from nemo_gym.launch.launcher import Launcher, LaunchError, upstreams
from tests import project


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(project.make(tmp_path))
    return tmp_path


@pytest.fixture
def launcher_of(folder):
    made = []

    def launcher(*overrides, **kwargs):
        composed = compose(["+config_paths=[run.yaml]", f"++capture.dir={folder}/captures", *overrides])
        made.append(Launcher(composed, "run-1", folder / "logs", **kwargs))
        return made[-1]

    yield launcher
    for one in made:
        for server in one._running.values():
            server.child.stop(0.1)


def family(launcher) -> list[psutil.Process]:
    """The keepers and all that is below them, strays with other parents included."""
    keepers = [psutil.Process(server.child.pid) for server in launcher._running.values()]
    return [process for keeper in keepers for process in (keeper, *keeper.children(recursive=True))]


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


async def fetch(url):
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.json()


async def test_up_serve_down(launcher_of):
    launcher = launcher_of("++env.resources_servers.tiny.mode=stray")
    console = quiet()
    await launcher.up(console)
    said = console.file.getvalue()
    assert "policy_model  weights are being read" in said
    assert "env           ready after" in said
    assert {row["name"]: row["state"] for row in launcher.describe()} == {"policy_model": "ready", "env": "ready"}
    first, second = await fetch(launcher.servers["env"] + "/who"), await fetch(launcher.servers["env"] + "/who")
    assert (first["name"], first["size"]) == ("env", 3)
    assert first["session"] != second["session"]
    assert await fetch(launcher.servers["env"] + "/health") == {"status": "ok"}
    assert await fetch(launcher.servers["env"] + "/peer") == {"model": "weights"}
    tree = family(launcher)
    assert len(tree) >= 5
    await launcher.down()
    assert not [process for process in tree if project.alive(process)]


async def test_secrets_are_in_neither_argv_nor_environment(launcher_of):
    launcher = launcher_of()
    await launcher.up(quiet())
    seen = str(await fetch(launcher.servers["env"] + "/argv"))
    seen += "".join(" ".join(process.cmdline()) + str(process.environ()) for process in family(launcher))
    assert "s3cr3t-value" not in seen
    assert launcher.admin_key not in seen
    assert "s3cr3t-value" not in str(launcher.describe())
    await launcher.down()


async def test_server_that_dies_at_start_is_named_with_its_last_words(launcher_of):
    launcher = launcher_of("++env.resources_servers.tiny.mode=die")
    with pytest.raises(LaunchError) as caught:
        await launcher.up(quiet())
    assert caught.value.server == "env"
    assert str(caught.value) == "ended with status 1 before it was ready"
    assert "I was here" in caught.value.last_words
    assert caught.value.last_words.endswith("RuntimeError: no such thing as a tiny server")
    assert all(server.child.poll() is not None for server in launcher._running.values())


async def test_why_a_server_is_not_ready_and_a_start_that_is_broken_off(launcher_of):
    launcher = launcher_of("++policy_model.responses_api_models.local_tiny.ready_after_s=100")
    starting = asyncio.create_task(launcher.up(quiet()))
    async with asyncio.timeout(60):
        while not any(row["note"] == "weights are being read" for row in launcher.describe()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    tree = family(launcher)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not [process for process in tree if project.alive(process)]


async def test_server_that_never_is_ready_is_named(launcher_of):
    launcher = launcher_of("++policy_model.responses_api_models.local_tiny.ready_after_s=100", start_timeout_s=0.5)
    with pytest.raises(LaunchError, match=r"was not ready after 0\.5 s") as caught:
        await launcher.up(quiet())
    assert caught.value.server in ("policy_model", "env")
    assert all(server.child.poll() is not None for server in launcher._running.values())


async def test_server_that_dies_later_is_noticed(launcher_of):
    launcher = launcher_of()
    await launcher.up(quiet())
    with pytest.raises(aiohttp.ClientError):
        await fetch(launcher.servers["env"] + "/exit")
    error = await launcher.watch()
    assert (error.server, str(error)) == ("env", "ended with status 7")
    assert error.last_words.endswith("leaving in a hurry")
    await launcher.down()


async def test_killed_server_is_said_to_be(launcher_of):
    launcher = launcher_of()
    await launcher.up(quiet())
    psutil.Process(launcher._running["env"].child.pid).children()[0].send_signal(signal.SIGKILL)
    assert str(await launcher.watch()) == "was ended by SIGKILL"
    await launcher.down()


async def test_port_that_is_taken_meanwhile(launcher_of):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launcher = launcher_of(f"++env.resources_servers.tiny.port={port}")
        began = time.monotonic()
        with pytest.raises(LaunchError, match=f"127.0.0.1:{port} cannot be listened on: Address already in use"):
            await launcher.up(quiet())
        assert time.monotonic() - began < 30
        assert launcher.servers == {}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (None, ""),
        ("http://me:secret@10.0.0.1:8000/v1?key=secret", "http://10.0.0.1:8000/v1"),
        (["http://a/v1", "http://b/v1"], "http://a/v1, http://b/v1"),
    ],
)
def test_where_a_backend_should_be_is_told_without_a_key(said, shown):
    assert upstreams({"base_url": said}) == shown
