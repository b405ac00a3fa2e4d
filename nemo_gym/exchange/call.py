"""One call in progress: its ids, its clock, its attempts and what has come out so far."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

from msgspec import Struct

from .ids import uuid7
from .increments import Increment
from .reply import ModelReply
from .request import ModelRequest


class Attempt(Struct, frozen=True, gc=False):
    """One try at one replica; Unix seconds. `error` is the ModelError's kind."""

    replica: str
    started: float
    ended: float
    error: str | None = None


class Prior(Struct, frozen=True, gc=False):
    """The parent call's ids, for exact continuation."""

    call_id: str
    tokens: array
    """array('i'): prompt + completion, as they were."""
    messages: int
    """How many of the request's messages they cover; 0 where none stands where it was."""
    reasoned: bool = False
    """Whether the completion began with reasoning."""
    prompt: int = 0
    """How many of the tokens were the prompt's; 0 where it is not known."""
    left_out: bool = False
    """Whether the client left the call's own turn out, as some do with one that was reasoning alone."""
    parts: int = 0
    """Of the message behind those, so many parts are covered too: a client may join what stood around such a turn."""


class Call:
    """A plain object, changed only by the way of the call and by its backend."""

    def __init__(
        self,
        request: ModelRequest,
        *,
        rollout_id: str | None = None,
        prior: Prior | None = None,
        relay: Callable[[Increment], None] | None = None,
    ) -> None:
        self.id = uuid7()
        self.request = request
        self.rollout_id = rollout_id
        self.prior = prior
        self.attempts: list[Attempt] = []
        self.increments: list[Increment] = []
        self.received = time.time()
        self.size = 0
        """Bytes of the client's body."""
        self.sent: float | None = None
        self.replied: float | None = None
        """When the backend had answered, or failed."""
        self.first_token: float | None = None
        self.history: str | None = None
        """`exact` or `template`, set by a backend that renders."""
        self.prefix_break: tuple[int, str] | None = None
        self.logprobs_mode: str | None = None
        """`processed`: of the distribution sampled from; `raw`: before temperature and truncation."""
        self.prompt_logprobs: array | None = None
        """array('f') of the prompt's tokens, where they were asked for."""
        self.betas = ""
        """What a client of Messages asks of its provider beyond the published API: its `anthropic-beta` header."""
        self.raw: bytes | None = None
        """The backend's last answer as received; recorded when `capture.raw` says so."""
        self.begun: ModelReply | None = None
        """What a backend that streams has said of its reply so far: id, model, date; no choices."""
        self.until: float | None = None
        """When whoever takes the call cancels it, by the loop's clock; then nothing below needs a timer of its own."""
        self.late = False
        """Whether that is why it was cancelled."""
        self.relay = relay

    @property
    def relayed(self) -> bool:
        """Whether a backend that can stream should."""
        return self.relay is not None

    def emit(self, increment: Increment) -> None:
        """Called by a backend as output comes: relays it if the client streams, dates the first token,
        and is what a hang-up's record holds. Never required."""
        if self.first_token is None:
            self.first_token = time.time()
        self.increments.append(increment)
        if self.relay is not None:
            self.relay(increment)
