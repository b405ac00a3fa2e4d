"""What a backend is: it turns a ModelRequest into a ModelReply, and says what it can do when asked."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..exchange.call import Call
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest


class Capabilities(Struct, frozen=True):
    """Asked at start, not assumed. None = could not be told."""

    token_ids: bool | None = None
    logprobs: bool | None = None
    forced_tools: bool | None = None
    single_call: bool | None = None
    """Whether a reply can be kept to one tool call."""
    vision: bool | None = None
    context: int | None = None
    """Tokens."""
    developer: bool | None = None
    """Whether the role `developer` reaches the model under its own name."""
    several_systems: bool | None = None
    """Whether more than one leading system message does."""
    late_system: bool | None = None
    """Whether a system message after others does."""


class Backend(Protocol):
    """Where replies come from. Cancelling the task ends the work behind it. Raises only ModelError."""

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply: ...

    async def probe(self) -> Capabilities:
        """Raises ModelError while the backend does not answer."""
        ...

    async def count(self, request: ModelRequest) -> int:
        """Prompt tokens; ModelError 501 when that cannot be known."""
        ...

    async def close(self) -> None: ...
