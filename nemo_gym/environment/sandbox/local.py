"""Commands on this machine, in a folder of their own: for trying an environment out, not for code that nobody trusts.

Nothing is closed off: a command sees this machine's files and its network. It gets none of this process's environment
but the path, and its whole tree is ended with it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...config import paths
from .kinds import SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus

_PASSED = ("PATH", "LANG", "LC_ALL", "TZ")
_NOT_RUN = 125
"""The code of a command that no process has ended."""


class LocalProvider:
    """Args:
    workspace_root: where sandboxes have their folders; the system's temporary folder unless it is given.
    shell: by which commands are run.
    default_timeout_s: of a command that says none.
    concurrency: so many commands at a time; more wait.
    """

    name = "local"

    def __init__(
        self,
        workspace_root: str | None = None,
        shell: str = "/bin/bash",
        default_timeout_s: float = 180.0,
        concurrency: int = 8,
    ) -> None:
        self._root = str(paths.absolute(workspace_root)) if workspace_root else None
        self._shell = shell if Path(shell).exists() else "/bin/sh"
        self._default_timeout_s = default_timeout_s
        self._slots = asyncio.Semaphore(concurrency)

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="ng-sandbox-", dir=self._root))
        return SandboxHandle(uuid.uuid4().hex, self.name, {"workspace": folder, "env": dict(spec.env)})

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        if user is not None:
            raise ValueError("user: commands of a local sandbox run as this process's user")
        folder = _at(handle, cwd or ".")
        own = {name: os.environ[name] for name in _PASSED if name in os.environ}
        own |= {"HOME": str(handle.raw["workspace"])} | handle.raw["env"] | (env or {})
        async with self._slots:
            return await self._run(command, folder, own, self._default_timeout_s if timeout_s is None else timeout_s)

    async def _run(self, command: str, folder: Path, env: dict[str, str], timeout_s: float) -> SandboxExecResult:
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            process = await asyncio.create_subprocess_exec(
                *(self._shell, "-c", command),
                cwd=folder,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return SandboxExecResult(None, str(error), _NOT_RUN, "sandbox")
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate()
        except TimeoutError:
            return SandboxExecResult(None, f"the command took longer than {timeout_s:g} s", _NOT_RUN, "timeout")
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind too
            await process.wait()
        code = process.returncode or 0
        return SandboxExecResult(out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        await asyncio.to_thread(_copy, source_path, _at(handle, target_path))

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        await asyncio.to_thread(_copy, _at(handle, source_path), target_path)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.RUNNING if handle.raw["workspace"].is_dir() else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        await asyncio.to_thread(shutil.rmtree, handle.raw["workspace"], ignore_errors=True)

    async def aclose(self) -> None:
        """It holds nothing."""


def _at(handle: SandboxHandle, path: str) -> Path:
    folder: Any = handle.raw["workspace"]
    return Path(folder) / path


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
