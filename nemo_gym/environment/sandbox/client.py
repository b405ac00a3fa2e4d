"""A sandbox as an environment uses it, whoever runs it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from .kinds import SandboxEndpoint, SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus
from .provider import (
    ConnectableProvider,
    SandboxProvider,
    SupportsSandboxEndpoint,
    SupportsSandboxPauseResume,
    create_provider,
)

COMMAND_S = 180.0


class AsyncSandbox:
    """One sandbox, from `start` to `stop`. An `async with` stops it, and starts nothing.

    Args:
        provider: one, or the `{name: settings}` of one.
        spec: what `start` asks for unless it is told otherwise.
        owns_provider: whether `stop` closes the provider too.
    """

    def __init__(
        self,
        provider: Mapping[str, Any] | SandboxProvider,
        spec: SandboxSpec | None = None,
        *,
        owns_provider: bool = True,
    ) -> None:
        self._provider: SandboxProvider = create_provider(provider) if isinstance(provider, Mapping) else provider
        self._spec = spec
        self._owns_provider = owns_provider
        self._handle: SandboxHandle | None = None
        self._connected = False
        self._stopped = False
        self._closed = False

    async def start(self, spec: SandboxSpec | None = None) -> AsyncSandbox:
        """Raises SandboxCreateError; then there is nothing left of it."""
        if self._closed:
            raise RuntimeError("Sandbox has been stopped")
        if self._handle is not None and not self._stopped:
            raise RuntimeError("Sandbox is already started")
        wanted = spec or self._spec
        if wanted is None:
            raise ValueError("start: expected a SandboxSpec, here or when the sandbox is made")
        self._handle, self._spec = await self._provider.create(wanted), wanted
        self._stopped = False
        try:
            for path, text in wanted.files.items():
                await self._write(path, text)
        except BaseException:
            await self.stop()
            raise
        return self

    async def start_with_setup(
        self, spec: SandboxSpec | None, setup: Callable[[AsyncSandbox], Awaitable[None]]
    ) -> AsyncSandbox:
        """Stopped again when its setup fails."""
        await self.start(spec)
        try:
            await setup(self)
        except BaseException:
            await self.stop()
            raise
        return self

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = COMMAND_S,
        user: str | int | None = None,
        preserve_background_services: bool = False,
    ) -> SandboxExecResult:
        """A shell command and what came of it.

        Args:
            preserve_background_services: what it starts in the background goes on, at providers that tell these apart.
        """
        where = cwd if cwd is not None or self._spec is None else self._spec.workdir
        keeping = getattr(self._provider, "exec_with_background_services", None)
        if preserve_background_services and keeping is not None:
            if env is not None or user is not None:
                raise ValueError("env, user: are not for a command whose background services are kept")
            kept: SandboxExecResult = await keeping(self._require_handle(), command, cwd=where, timeout_s=timeout_s)
            return kept
        return await self._provider.exec(
            self._require_handle(), command, cwd=where, env=env, timeout_s=timeout_s, user=user
        )

    async def upload(self, local_path: Path | str, remote_path: str) -> None:
        await self._provider.upload_file(self._require_handle(), Path(local_path), remote_path)

    async def download(self, remote_path: str, local_path: Path | str) -> None:
        await self._provider.download_file(self._require_handle(), remote_path, Path(local_path))

    async def status(self) -> SandboxStatus:
        if self._handle is None:
            return SandboxStatus.UNKNOWN
        return SandboxStatus.STOPPED if self._stopped else await self._provider.status(self._handle)

    async def endpoint(self, port: int) -> SandboxEndpoint:
        """Of a service on a port that the spec names."""
        declared = tuple(self._spec.ports) if self._spec is not None else ()
        if isinstance(port, bool) or port not in declared:
            raise ValueError(f"port {port!r} is none of the spec's ports: {list(declared)}")
        if not isinstance(self._provider, SupportsSandboxEndpoint):
            raise NotImplementedError(f"{self._named} gives no access to services in a sandbox")
        return await self._provider.endpoint(self._require_handle(), port)

    async def pause(self) -> None:
        if not isinstance(self._provider, SupportsSandboxPauseResume):
            raise NotImplementedError(f"{self._named} cannot pause a sandbox")
        await self._provider.pause(self._require_handle())

    async def resume(self) -> None:
        if not isinstance(self._provider, SupportsSandboxPauseResume):
            raise NotImplementedError(f"{self._named} cannot pause a sandbox")
        await self._provider.resume(self._require_handle())

    async def stop(self) -> None:
        """Ends it. What failed may be tried again: it counts as stopped when its provider says so."""
        if self._closed:
            return
        if self._handle is not None and not self._stopped:
            await self._provider.close(self._handle)
            self._stopped = True
        await self._let_go()

    async def serialize(self, *, scope: str | None = None) -> dict[str, Any]:
        """What another process needs to go on with it."""
        if not isinstance(self._provider, ConnectableProvider):
            raise RuntimeError(f"provider {self._named} does not support serialize()/connect()")
        said = await self._provider.serialize_handle(self._require_handle(), scope=scope)
        if self._spec is not None:
            said = {"workdir": self._spec.workdir} | {name: one for name, one in said.items() if one is not None}
            if self._spec.ports:
                said["ports"] = list(self._spec.ports)
        return said

    @classmethod
    async def connect(
        cls, descriptor: Mapping[str, Any], *, provider: SandboxProvider, owns_provider: bool = True
    ) -> AsyncSandbox:
        """One that another process has started, from what `serialize` said."""
        if not isinstance(provider, ConnectableProvider):
            raise RuntimeError(f"provider {_name(provider)} does not support serialize()/connect()")
        spec = SandboxSpec(workdir=descriptor.get("workdir"), ports=list(descriptor.get("ports") or ()))
        sandbox = cls(provider, spec, owns_provider=owns_provider)
        sandbox._handle, sandbox._connected = await provider.connect(descriptor), True
        return sandbox

    async def disconnect(self) -> None:
        """Leaves a sandbox to whoever has started it."""
        if not self._connected and not self._closed:
            raise RuntimeError("disconnect() is valid only for a sandbox rebuilt with connect()")
        self._handle, self._stopped = None, True
        await self._let_go()

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def _named(self) -> str:
        return _name(self._provider)

    async def _let_go(self) -> None:
        if not self._closed and self._owns_provider:
            await self._provider.aclose()
        self._closed = True

    async def _write(self, path: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "file"
            await asyncio.to_thread(file.write_text, text, encoding="utf-8")
            await self._provider.upload_file(self._require_handle(), file, path)

    def _require_handle(self) -> SandboxHandle:
        if self._handle is None or self._stopped:
            raise RuntimeError("Sandbox has not been started")
        return self._handle


def _name(provider: object) -> str:
    return repr(getattr(provider, "name", type(provider).__name__))
