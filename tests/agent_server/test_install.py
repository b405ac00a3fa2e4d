"""Clients in a cache folder: installed once by whoever comes first, whole or not at all, refused in clear words."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from nemo_gym.agent_server import install
from nemo_gym.agent_server.install import CLIENTS, CannotInstall, Package
from tests.project import ROOT

NPM = """#!/bin/sh
# Takes the place of npm: a package with one program, a second later; every run leaves a line.
echo "$@" >> "$RUNS"
[ -z "$FAIL" ] || { echo "npm error network: cannot reach anything" >&2; exit 1; }
sleep ${SECONDS_EACH:-0}
mkdir -p node_modules/agent/bin
echo '#!/bin/sh' > node_modules/agent/bin/agent
"""
AGENT = Package("agent", "agent", "1.2.3", ("agent/bin/agent",))
INSTALL = """
from nemo_gym.agent_server import install
print(install.install(install.Package("agent", "agent", "1.2.3", ("agent/bin/agent",))))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(NPM)
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    monkeypatch.setenv("NEMO_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "cache" / "agents"


def runs(cache: Path) -> list[str]:
    return (cache.parents[1] / "runs").read_text().splitlines()


def test_installed_once_at_the_pinned_version(cache: Path) -> None:
    folder = install.install(AGENT)
    assert folder == cache / "agent-1.2.3"
    assert install.install(AGENT) == folder
    (argv,) = runs(cache)
    assert argv.endswith("--save-exact agent@1.2.3")
    assert "--ignore-scripts" in argv
    assert [entry.name for entry in cache.iterdir() if not entry.name.endswith(".lock")] == ["agent-1.2.3"]


def test_many_processes_at_once_install_it_once(cache: Path) -> None:
    os.environ["SECONDS_EACH"] = "0.5"
    try:
        started = [
            subprocess.Popen([sys.executable, "-c", INSTALL], stdout=subprocess.PIPE, text=True) for _ in range(3)
        ]
        said = [process.communicate(timeout=60)[0].strip() for process in started]
    finally:
        del os.environ["SECONDS_EACH"]
    assert said == [str(cache / "agent-1.2.3")] * 3
    assert len(runs(cache)) == 1


def test_what_a_killed_installer_left_is_done_anew(cache: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", INSTALL], env=os.environ | {"SECONDS_EACH": "60"})
    try:
        partial = cache / ".agent-1.2.3.partial"
        end = time.monotonic() + 60
        while not (cache.parents[1] / "runs").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        (partial / "rubbish").write_text("half")
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    folder = install.install(AGENT)
    assert not (folder / "rubbish").exists()
    assert not partial.exists()


def test_no_npm_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setattr(install, "_of_extra", lambda: None)
    with pytest.raises(CannotInstall, match=r"agent@1\.2\.3 is not installed and there is no npm.*agent-1\.2\.3"):
        install.install(AGENT)
    monkeypatch.undo()


def test_no_network_gives_npms_words_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(CannotInstall, match=r"could not install agent@1\.2\.3.*cannot reach anything"):
        install.install(AGENT)
    assert [entry.name for entry in cache.iterdir()] == [".agent-1.2.3.lock"]
    monkeypatch.delenv("FAIL")
    assert install.install(AGENT).is_dir()


def test_a_package_without_a_program_for_this_machine_is_refused(cache: Path) -> None:
    with pytest.raises(CannotInstall, match="no program for this machine"):
        install.install(Package("agent", "agent", "1.2.3", ("agent/bin/other",)))
    assert not (cache / "agent-1.2.3").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEMO_GYM_CACHE", str(tmp_path / "file"))
    with pytest.raises(CannotInstall, match="cannot be put into"):
        install.install(AGENT)


def test_an_unknown_client_names_those_that_there_are() -> None:
    with pytest.raises(CannotInstall, match="codex, openclaw, claude-code, opencode, pi"):
        asyncio.run(install.command("cursor"))


def test_a_node_that_is_too_old_is_replaced(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = cache.parents[1] / "bin" / "node"
    node.write_text("#!/bin/sh\necho v20.20.2\n")
    node.chmod(0o755)
    monkeypatch.setattr(install, "_of_extra", lambda: None)
    assert install._node((20, 6)) == str(node)
    with pytest.raises(CannotInstall, match=r"node-linux-(x64|arm64)@24"):  # what this npm gives is no node
        install._node((24, 16))


@pytest.mark.ci
def test_the_extra_is_enough_where_there_is_no_node(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "extra")]
    subprocess.run([*pip, *extras["agents"]], check=True, timeout=300)
    monkeypatch.syspath_prepend(str(tmp_path / "extra"))
    monkeypatch.setenv("PATH", str(tmp_path))
    package = Package("semver", "semver", "7.7.2", ("semver/bin/semver.js",), node=(24, 16))
    program = install._command(package)
    assert Path(program[0]).is_relative_to(tmp_path / "extra")
    said = subprocess.run([*program, "1.2.3", "-i", "minor"], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "1.3.0"


def test_versions_are_exact() -> None:
    assert {name: client.version for name, client in CLIENTS.items()} == {
        "codex": "0.171.0",
        "openclaw": "2026.9.6",
        "claude-code": "2.1.332",
        "pi": "0.73.1",
        "opencode": "1.18.33",
    }
