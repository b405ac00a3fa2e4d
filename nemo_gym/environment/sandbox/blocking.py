"""A sandbox for code that is not async: its calls are made on a loop of its own, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from .client import COMMAND_S, AsyncSandbox
from .kinds import SandboxEndpoint, SandboxExecResult, SandboxSpec, SandboxStatus
from .provider import SandboxProvider

_CALL_S = 3600.0
"""The longest that a call may take."""
_END_S = 5.0
T = TypeVar("T")


class Sandbox:
    """An `AsyncSandbox` whose calls block; from `start` to `stop`, or as a `with`."""

    def __init__(self, provider: Mapping[str, Any] | SandboxProvider, spec: SandboxSpec | None = None) -> None:
        self._stopped = False
        self._sandbox = AsyncSandbox(provider, spec)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
        self._thread.start()

    def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        self._call("start", self._sandbox.start(spec))
        return self

    def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = COMMAND_S,
        user: str | int | None = None,
        preserve_background_services: bool = False,
    ) -> SandboxExecResult:
        asked = self._sandbox.exec(
            command,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            user=user,
            preserve_background_services=preserve_background_services,
        )
        return self._call("exec", asked)

    def upload(self, local_path: Path | str, remote_path: str) -> None:
        self._call("upload", self._sandbox.upload(local_path, remote_path))

    def download(self, remote_path: str, local_path: Path | str) -> None:
        self._call("download", self._sandbox.download(remote_path, local_path))

    def status(self) -> SandboxStatus:
        return SandboxStatus.STOPPED if self._stopped else self._call("status", self._sandbox.status())

    def endpoint(self, port: int) -> SandboxEndpoint:
        return self._call("endpoint", self._sandbox.endpoint(port))

    def pause(self) -> None:
        self._call("pause", self._sandbox.pause())

    def resume(self) -> None:
        self._call("resume", self._sandbox.resume())

    def stop(self) -> None:
        """Ends it, once; it is over even when its provider fails."""
        if self._stopped:
            return
        try:
            self._call("stop", self._sandbox.stop())
        finally:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_S)
            if not self._thread.is_alive():
                self._loop.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is not None:
            with suppress(Exception):
                self.stop()

    def _call(self, operation: str, asked: Coroutine[Any, Any, T]) -> T:
        if self._stopped:
            asked.close()
            raise RuntimeError(f"Sandbox.{operation}(): it is stopped")
        if _within_a_loop():
            asked.close()
            raise RuntimeError(f"Sandbox.{operation}() blocks: use AsyncSandbox in async code")
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            return future.result(_CALL_S)
        except TimeoutError:
            if future.cancel():
                raise TimeoutError(f"Sandbox.{operation}() took longer than {_CALL_S:g} s") from None
            raise


def _within_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
