"""/health, /ready, /v1/models: what a client or a launcher asks before it calls."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ..backends.backend import Capabilities
from ..exchange.errors import ModelError

if TYPE_CHECKING:
    from .server import SimpleResponsesAPIModel

_FRESH_S = 2.0
_PROBE_S = 30.0


class Readiness:
    """Whether the backend answers, asked at most every two seconds however often the question comes."""

    def __init__(self, server: SimpleResponsesAPIModel) -> None:
        self._server = server
        self._lock = asyncio.Lock()
        self._asked = 0.0
        self.started = False
        self.capabilities: Capabilities | None = None
        self.reason: str | None = "starting"
        self.refused = False
        """The backend answers, and takes no key of ours."""

    async def ask(self) -> bool:
        """True when the backend answered; `reason` says why it did not."""
        if not self.started:
            return False
        async with self._lock:
            if time.monotonic() - self._asked < _FRESH_S:
                return self.reason is None
            try:
                async with asyncio.timeout(_PROBE_S):
                    self.capabilities = await self._server.probe()
                self.reason = None
            except ModelError as error:
                self.reason = error.message
                self.refused = error.kind == "auth"
            except TimeoutError:
                self.reason = "the backend did not answer in time"
            self._asked = time.monotonic()
            return self.reason is None


def models(name: str, capabilities: Capabilities | None, created: int) -> dict[str, Any]:
    """The body of GET /v1/models."""
    entry: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "nemo_gym"}
    if capabilities is not None and capabilities.context is not None:
        entry["max_model_len"] = capabilities.context
    return {"object": "list", "data": [entry]}
