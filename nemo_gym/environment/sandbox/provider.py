"""Who runs sandboxes. A provider is known by a name: registered here, by an installed package, or built in.

An installed package names its providers as entry points of the group `nemo_gym.sandbox_providers`. What was registered
wins over what is built in, and that over what is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ...config.faults import did_you_mean
from .kinds import SandboxEndpoint, SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus

ENTRY_POINT_GROUP = "nemo_gym.sandbox_providers"


class SandboxProvider(Protocol):
    """Paths of files are in the sandbox, where they are strings, and on this machine, where they are paths."""

    name: str

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Returns when commands can be run. Raises SandboxCreateError when that does not come."""
        ...

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult: ...

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None: ...

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None: ...

    async def status(self, handle: SandboxHandle) -> SandboxStatus: ...

    async def close(self, handle: SandboxHandle) -> None:
        """Ends the sandbox; it may be asked again when it fails."""
        ...

    async def aclose(self) -> None:
        """Lets go of what the provider itself holds."""
        ...


@runtime_checkable
class ConnectableProvider(Protocol):
    """One whose sandboxes another process can go on with."""

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]: ...

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle: ...


@runtime_checkable
class SupportsSandboxEndpoint(Protocol):
    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint: ...


@runtime_checkable
class SupportsSandboxPauseResume(Protocol):
    async def pause(self, handle: SandboxHandle) -> None: ...

    async def resume(self, handle: SandboxHandle) -> None: ...


_registered: dict[str, type[SandboxProvider]] = {}
_BUILT_IN = ("local",)


def register_provider(name: str, provider_class: type[SandboxProvider], *, override: bool = False) -> None:
    """Raises ValueError where the name is taken."""
    if not name:
        raise ValueError("a sandbox provider needs a name")
    if not override and (name in _registered or name in _BUILT_IN):
        raise ValueError(f"Sandbox provider {name!r} is already registered")
    _registered[name] = provider_class


def get_provider_class(name: str) -> type[SandboxProvider]:
    """Raises ValueError with the names that there are."""
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        from .local import LocalProvider

        return LocalProvider
    if name in _installed():
        found: type[SandboxProvider] = _installed()[name].load()
        return found
    near = did_you_mean(name, list_providers()) or f". Available providers: {', '.join(list_providers())}"
    raise ValueError(
        f"Unknown sandbox provider {name!r}{near}; others are installed or registered by their own packages"
    )


def create_provider(config: Mapping[str, Any]) -> SandboxProvider:
    """The provider of `{name: settings}`. Raises ValueError or TypeError."""
    if len(config) != 1:
        raise ValueError(f"expected one sandbox provider, got {', '.join(map(str, config)) or 'none'}")
    ((name, settings),) = config.items()
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f"sandbox provider {name}: expected settings by name, got {type(settings).__name__}")
    return get_provider_class(name)(**dict(settings or {}))


def list_providers() -> list[str]:
    return sorted({*_registered, *_BUILT_IN, *_installed()})


@cache
def _installed() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for one in entry_points(group=ENTRY_POINT_GROUP):
        if one.name in found:
            raise ValueError(
                f"two installed packages have a sandbox provider {one.name!r}: {found[one.name]} and {one}"
            )
        found[one.name] = one
    return found
