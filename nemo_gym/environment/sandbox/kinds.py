"""What is said of a sandbox: what is wanted, what there is, what came of a command."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field


class SandboxStatus(str, Enum):  # noqa: UP042 - environments format it as the plain enum that it is elsewhere
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


class SandboxCreateError(RuntimeError):
    """There is no sandbox that could run anything."""


class SandboxCreateVerificationError(SandboxCreateError):
    """There is one, and it is not what was asked for."""


class SandboxResources(Struct, frozen=True):
    """None: what the provider gives by itself."""

    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    gpu: int | None = None
    gpu_type: str | None = None

    @classmethod
    def from_mapping(cls, resources: Mapping[str, Any] | None) -> SandboxResources:
        """Raises ValueError that names what it does not know."""
        given = dict(resources or {})
        unknown = sorted(given.keys() - set(cls.__struct_fields__))
        if unknown:
            raise ValueError(f"resources: unknown {', '.join(unknown)}; expected {', '.join(cls.__struct_fields__)}")
        try:
            return msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"resources: {error}") from None


class SandboxSpec(Struct, frozen=True):
    """What is wanted. `files`: path in the sandbox -> text that is there when it starts."""

    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    resources: SandboxResources | Mapping[str, Any] = SandboxResources()
    entrypoint: list[str] | None = None
    provider_options: dict[str, Any] = field(default_factory=dict)
    ports: tuple[int, ...] | list[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.resources, SandboxResources):
            msgspec.structs.force_setattr(self, "resources", SandboxResources.from_mapping(self.resources))
        msgspec.structs.force_setattr(self, "ports", _ports(self.ports))


def _ports(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list | tuple):
        raise TypeError("ports: expected a list of TCP ports")
    found: list[int] = []
    for one in given:
        if isinstance(one, bool) or not str(one).isdecimal() or not 1 <= int(one) <= 65535:
            raise ValueError(f"ports: {one!r} is no TCP port")
        if int(one) in found:
            raise ValueError(f"ports: {one} is named twice")
        found.append(int(one))
    return tuple(found)


class SandboxHandle(Struct):
    """One sandbox, for its provider; `raw` is the provider's own."""

    sandbox_id: str
    provider_name: str
    raw: Any


class SandboxExecResult(Struct, frozen=True):
    """`error_type` says that no command has ended: then `return_code` is none of a process."""

    stdout: str | None
    stderr: str | None
    return_code: int
    error_type: str | None = None


class SandboxEndpoint(Struct, frozen=True):
    """Where a service in the sandbox is reached, and the headers that it takes."""

    endpoint: str
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint.strip())
        if not parts.scheme or not parts.netloc:
            raise ValueError(f"endpoint: expected an absolute URL, got {self.endpoint!r}")
        msgspec.structs.force_setattr(self, "endpoint", self.endpoint.strip())
