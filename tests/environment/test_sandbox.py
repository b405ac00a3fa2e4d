"""A sandbox from start to stop, over the local provider and one of a test's own; and what configurations say."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from omegaconf import OmegaConf

from nemo_gym.sandbox import (
    AsyncSandbox,
    Sandbox,
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    create_provider,
    list_providers,
    register_provider,
    resolve_provider_config,
    resolve_provider_metadata,
    rewrite_image,
)
from nemo_gym.sandbox.utils import CPU_CAP_ENV_VARS, cpu_cap_env
from tests.project import from_root


def sandbox(folder: Path | str, **spec: Any) -> AsyncSandbox:
    return AsyncSandbox({"local": {"workspace_root": str(folder)}}, SandboxSpec(**spec))


async def test_a_command_finds_its_files_and_leaves_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # a server runs in its own folder
    async with sandbox(
        from_root(tmp_path),
        files={"in/a.txt": "héllo"},
        env={"WHO": "me"},
        workdir="in",
    ) as box:
        assert await box.status() is SandboxStatus.UNKNOWN  # environments start it themselves, and catch what fails
        await box.start()
        result = await box.exec("cat a.txt; echo $WHO $MORE >out.txt; echo oops >&2; exit 3", env={"MORE": "too"})
        assert result == SandboxExecResult("héllo", "oops\n", 3)
        await box.download("in/out.txt", tmp_path / "fetched" / "out.txt")
        assert (tmp_path / "fetched" / "out.txt").read_text() == "me too\n"
        await box.upload(tmp_path / "fetched" / "out.txt", "deep/er/b.txt")
        assert (await box.exec("cat b.txt", cwd="deep/er")).stdout == "me too\n"
        assert await box.status() is SandboxStatus.RUNNING
    assert await box.status() is SandboxStatus.STOPPED
    assert os.listdir(tmp_path) == ["fetched"]
    await box.stop()  # once more is no fault


async def test_nothing_of_this_process_reaches_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    async with sandbox(tmp_path) as box:
        await box.start()
        assert "SOME_API_KEY" not in (await box.exec("env")).stdout


async def test_a_command_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as box:
        await box.start()
        result = await box.exec("echo $$ >pid; sleep 600 & sleep 600", timeout_s=2)
        assert (result.error_type, result.return_code) == ("timeout", 125)
        text = (await box.exec("cat pid")).stdout
    for _ in range(600):
        if not text.strip() or not _alive_in_group(int(text)):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("its children are still there")


def _alive_in_group(group: int) -> bool:
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (ProcessLookupError, psutil.Error):
            continue
    return False


class Odd:
    """A provider whose sandboxes cannot take files, and whose first end fails."""

    name = "odd"

    def __init__(self, ends: int = 1) -> None:
        self.ends = ends
        self.closed = 0
        self.left = 0

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        if spec.image == "none":
            raise SandboxCreateError("there is no such image")
        return SandboxHandle("1", self.name, None)

    async def exec(self, handle: SandboxHandle, command: str, **how: Any) -> SandboxExecResult:
        return SandboxExecResult(command, str(how["cwd"]), 0)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        raise OSError("no room")

    async def close(self, handle: SandboxHandle) -> None:
        self.closed += 1
        if self.closed < self.ends:
            raise ConnectionError("not now")

    async def aclose(self) -> None:
        self.left += 1


async def test_one_that_cannot_be_set_up_is_ended() -> None:
    provider: Any = Odd()
    with pytest.raises(OSError, match="no room"):
        await AsyncSandbox(provider, SandboxSpec(files={"a": "b"})).start()
    assert (provider.closed, provider.left) == (1, 1)
    with pytest.raises(SandboxCreateError, match="no such image"):
        await AsyncSandbox(provider).start(SandboxSpec(image="none"))
    assert provider.closed == 1


async def test_an_end_that_failed_may_be_tried_again() -> None:
    provider: Any = Odd(ends=2)
    box = await AsyncSandbox(provider, SandboxSpec(workdir="/w"), owns_provider=False).start()
    assert (await box.exec("x")).stderr == "/w"
    with pytest.raises(ConnectionError):
        await box.stop()
    await box.stop()
    assert (provider.closed, provider.left) == (2, 0)
    with pytest.raises(RuntimeError, match=r"does not support serialize\(\)/connect\(\)"):
        await box.serialize()
    with pytest.raises(NotImplementedError, match="cannot pause"):
        await box.pause()


async def test_misuse_is_told() -> None:
    box = AsyncSandbox({"local": None})
    with pytest.raises(RuntimeError, match="not been started"):
        await box.exec("ls")
    with pytest.raises(ValueError, match="expected a SandboxSpec"):
        await box.start()
    assert await box.status() is SandboxStatus.UNKNOWN


def test_providers_have_names() -> None:
    assert "local" in list_providers()
    with pytest.raises(ValueError, match="Unknown sandbox provider 'locall'; did you mean 'local'"):
        create_provider({"locall": {}})
    with pytest.raises(ValueError, match="expected one sandbox provider, got local, docker"):
        create_provider({"local": {}, "docker": {}})
    with pytest.raises(ValueError, match="already registered"):
        register_provider("local", Odd)  # type: ignore[type-abstract]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"resources": {"cpus": 1}}, "resources: unknown cpus; expected cpu, memory_mib"),
        ({"resources": {"cpu": "many"}}, "resources: "),
        ({"ports": [0]}, "ports: 0 is no TCP port"),
        ({"ports": [80, "80"]}, "ports: 80 is named twice"),
    ],
)
def test_a_spec_that_cannot_be(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SandboxSpec(**given)


def test_a_spec_as_configurations_say_it() -> None:
    spec = SandboxSpec(image="i", resources={"cpu": "2", "memory_mib": 512}, ports=["8080"])
    assert (spec.resources, spec.ports) == (SandboxResources(cpu=2.0, memory_mib=512), (8080,))


def test_a_block_by_its_name_or_as_it_is() -> None:
    blocks = OmegaConf.create({"box": {"docker": {"network": "none"}, "default_metadata": {"team": "a"}}, "x": 1})
    assert resolve_provider_config("box", blocks) == {"docker": {"network": "none"}}
    assert resolve_provider_metadata("box", blocks) == {"team": "a"}
    assert resolve_provider_config({"local": {}}) == {"local": {}}
    assert resolve_provider_metadata({"local": {}}) == {}
    with pytest.raises(ValueError, match=r"'bx' is not defined.*did you mean 'box'"):
        resolve_provider_config("bx", blocks)
    with pytest.raises(ValueError, match="exactly one provider key, got a, b"):
        resolve_provider_config({"a": {}, "b": {}})
    with pytest.raises(TypeError, match="expected a name or a block, got int"):
        resolve_provider_config(3)  # type: ignore[arg-type]


def test_what_sandboxes_share() -> None:
    assert rewrite_image("docker.io/a:1", [{"from": "x/", "to": "y/"}, {"from": "docker.io/", "to": "r/"}]) == "r/a:1"
    assert rewrite_image(None, [{"from": "", "to": "y"}]) is None
    assert cpu_cap_env(None) == {}
    assert cpu_cap_env(2.5)["OMP_NUM_THREADS"] == "2"
    assert set(cpu_cap_env(0.5)) == set(CPU_CAP_ENV_VARS)
    assert set(cpu_cap_env(0.5).values()) == {"1"}


def test_a_sandbox_for_code_that_is_not_async(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("given")
    with Sandbox({"local": {}}, SandboxSpec(files={"a.txt": "one"})) as sandbox:
        sandbox.start()
        assert sandbox.status() == SandboxStatus.RUNNING
        sandbox.upload(tmp_path / "given.txt", "b.txt")
        assert sandbox.exec("cat a.txt b.txt").stdout == "onegiven"
        sandbox.download("a.txt", tmp_path / "back.txt")
        assert (tmp_path / "back.txt").read_text() == "one"
    assert sandbox.status() == SandboxStatus.STOPPED
    sandbox.stop()
    with pytest.raises(RuntimeError, match=r"Sandbox.exec\(\): it is stopped"):
        sandbox.exec("true")


async def test_it_is_not_for_code_that_is() -> None:
    sandbox = Sandbox({"local": {}}, SandboxSpec())
    with pytest.raises(RuntimeError, match="use AsyncSandbox"):
        sandbox.start()
    await asyncio.to_thread(sandbox.stop)


async def test_commands_on_this_machine_by_its_settings(tmp_path: Path) -> None:
    settings = {"workspace_root": str(tmp_path), "shell": "/bin/sh", "default_timeout_s": 0.2, "concurrency": 1}
    async with AsyncSandbox({"local": settings}, SandboxSpec()) as box:
        await box.start()
        late = await box.exec("sleep 60", timeout_s=None)
        assert (late.error_type, late.stderr) == ("timeout", "the command took longer than 0.2 s")
        results = await asyncio.gather(*(box.exec("echo $0", timeout_s=60) for _ in range(3)))
        assert [result.stdout for result in results] == ["/bin/sh\n"] * 3
