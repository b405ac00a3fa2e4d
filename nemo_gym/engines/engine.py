"""What an engine is: it takes token ids and gives token ids, and knows nothing of messages, text formats or HTTP.

Importable without Ray or vLLM. Ids and log-probs are `array.array`s, never lists of Python numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from ..exchange.call import Attempt
from ..exchange.reply import Finish, TokenTrace, Usage
from ..exchange.request import Sampling


class EngineRequest(Struct, frozen=True):
    prompt_ids: array
    """array('i')"""
    sampling: Sampling
    guide: Mapping[str, Any] | None = None
    """Guided output, as vLLM's structured outputs: `json`, `json_object` or `structural_tag`."""
    prompt_logprobs: bool = False
    ends: tuple[int, ...] = ()
    """Tokens that end the generation, beside the model's own."""
    adapter: str | None = None
    """The LoRA adapter's name; None: the model itself."""
    prompt_text: str | None = None
    """What the ids are of, for an engine that takes only text (`takes_ids` is false)."""
    affinity: str | None = None
    """Rollout id: routing, and so the prefix cache."""
    endless: bool = False
    """Only its length ends it: the token is not wanted, but what was computed for it."""
    handoff: Mapping[str, Any] | None = None
    """KV transfer, as vLLM's connectors read it; never leaves the deployment."""


class EngineOutput(Struct, frozen=True):
    index: int
    tokens: TokenTrace
    text: str
    """Everything that was generated, special tokens too, but for the token or string that ended it."""
    finish: Finish
    stop_sequence: str | None = None


class EnginePiece(Struct, frozen=True):
    """What has come of one output since the piece before; the pieces of an output join to it. Text may lag behind
    ids, never run ahead of them."""

    index: int
    text: str
    tokens: TokenTrace


class EngineReply(Struct, frozen=True):
    outputs: tuple[EngineOutput, ...]
    cached: int | None = None
    prompt_logprobs: array | None = None
    """array('f') of the prompt's tokens, where they were asked for; the first has none, and is not a number."""
    usage: Usage | None = None
    """As the engine counts, where it gives no ids to count."""
    handoff: Mapping[str, Any] | None = None


class Engine(Protocol):
    """Cancelling the task of `generate` ends the work behind it. Raises only ModelError."""

    @property
    def takes_ids(self) -> bool:
        """Whether prompts are token ids, and replies have them."""
        ...

    @property
    def context(self) -> int | None:
        """Tokens of prompt and completion together; None while it is not known."""
        ...

    async def generate(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> EngineReply:
        """One whole answer. `on_piece` gets it as it comes, where the engine streams: what it got is not asked for
        again elsewhere. `on_attempt` gets each try as it ends."""
        ...

    async def load(self, source: str | Any, version: int) -> None:
        """Weights; tokens sampled after it returns bear `version`."""
        ...

    async def pause(self, abort: bool) -> None: ...

    async def resume(self) -> None: ...

    async def check(self) -> int:
        """One real token; the policy version it bears."""
        ...

    async def close(self) -> None: ...
