"""The model server that others subclass: say how a ModelRequest becomes a ModelReply, the rest is here.

A subclass implements `generate`, or sets `self._backend` in `start`, or overrides `chat_completions` or `responses` as
in NeMo Gym. Dialects, streams, errors, capture and status are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from ..backends.backend import Backend, Capabilities
from ..config.types import BaseRunServerInstanceConfig, is_loopback
from ..exchange.call import Call
from ..exchange.errors import ModelError
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest
from ..pool.places import Places, places
from ..web.service import SimpleServer
from . import methods
from .versions import PolicyVersion

if TYPE_CHECKING:
    from ..engines.engine import Engine
    from ..engines.weights import Weights
    from .app import ModelApp


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """Keys that every model server has."""

    model: str = ""
    """The model that the backend is asked for, and that `/v1/models` lists."""
    stream: Literal["replay", "relay"] = "replay"
    """`relay`: text goes out while the backend still generates, where it can."""
    stream_commit_s: float = Field(default=30.0, gt=0)
    keepalive_s: float = Field(default=15.0, gt=0)
    repeat_grace_s: float = Field(default=5.0, ge=0)
    """How long a call of a rollout goes on without its client, for a repeat that takes it over."""
    web_search: Literal["refuse", "ignore"] = "refuse"
    """A tool that a provider would run (R8): a 400, or left out with a warning."""
    trainable: bool = True
    """False for a judge: a column of its records."""
    developer_role: Literal["auto", "developer", "system"] = "auto"
    reasoning_shape: Literal["summary", "content"] = "summary"
    """Where the items of Responses have the text of reasoning."""
    strict: bool = False
    """Unknown request fields are bad input."""
    forward_unknown: bool = False
    """Pass fields that no published API has on to a backend of the client's dialect."""
    vision: bool | None = None
    """False puts a short text in the place of each image; null asks the backend."""
    max_in_flight: int = Field(default=1024, ge=1)
    max_queue: int = Field(default=4096, ge=0)
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    max_header_bytes: int = Field(default=64 * 1024, ge=1024)
    timeout_s: float = Field(default=600.0, gt=0)
    """The longest that one call may take, all its tries and its wait in the queue included."""
    retries: int = Field(default=4, ge=0)
    sampling_overrides: dict[str, Any] = Field(default_factory=dict)
    """Wins over what the client asked for, so that rollouts are on-policy."""
    api_keys: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """An empty one, of a variable that is not set, would let everyone in."""
    allow_unauthenticated: bool = False
    """Serve addresses beyond loopback without a key."""

    @model_validator(mode="after")
    def _has_a_key_beyond_loopback(self) -> BaseResponsesAPIModelConfig:
        if not is_loopback(self.host) and not self.api_keys and not self.allow_unauthenticated:
            raise ValueError(
                f"host: {self.host} can be reached from other machines: expected api_keys beside it,"
                " or allow_unauthenticated: true"
            )
        return self

    @property
    def served_name(self) -> str:
        """What clients are told that the model is called."""
        return self.model


class SimpleResponsesAPIModel(SimpleServer):
    """A model server; see the module's paragraph for what a subclass does."""

    config: BaseResponsesAPIModelConfig
    _backend: Backend | None = PrivateAttr(default=None)
    _policy_version: PolicyVersion = PrivateAttr(default_factory=PolicyVersion)
    _admits: tuple[Places, Places] = PrivateAttr()

    def __init__(self, **given: Any) -> None:
        """Before workers are forked, which share the places; whatever a subclass makes of `model_post_init`."""
        super().__init__(**given)
        config, processes = self.config, self.processes()
        self._admits = places(config.max_in_flight, processes), places(config.max_queue, processes)

    @property
    def admits(self) -> tuple[Places, Places]:
        """Places of calls that run, and of those that wait."""
        return self._admits

    @property
    def policy_version(self) -> PolicyVersion:
        """What a trainer says of the engines' weights."""
        return self._policy_version

    @property
    def starting(self) -> str:
        """What `start` waits for, in words; /ready says it."""
        return ""

    @property
    def shared_engine(self) -> tuple[Engine, str] | None:
        """Engines that are this server's own, and the model's folder: other servers of the run may use them."""
        return None

    @property
    def adapters(self) -> Sequence[str]:
        """LoRA adapters that a request may name in the place of the model."""
        return ()

    @property
    def weights(self) -> Weights | None:
        """Those of engines that are this server's own."""
        return None

    @property
    def developer_role_unknown(self) -> bool:
        """Whether this kind of backend cannot be trusted to know the role `developer` (R9)."""
        return False

    @property
    def backend_dialect(self) -> str | None:
        """The dialect that the backend speaks; what only that dialect says goes through to it."""
        return None

    def asked_in(self, dialect: str) -> str | None:
        """The dialect in which the backend is asked for a client of this one."""
        return self.backend_dialect

    async def start(self) -> None:
        """Called once before the first call; `/ready` is 503 until it returns. Raising ends the process."""

    async def stop(self) -> None:
        """Called once, after the last call."""
        if self._backend is not None:
            await self._backend.close()

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply:
        """One call. Cancelling it must end the work behind it. Raises ModelError."""
        dialect = "chat" if request.origin is None else request.origin.dialect
        method = methods.overridden(self, dialect)
        if method is not None:
            return await methods.ask(self, method, request, call)
        return await self.backend.generate(request, call)

    @methods.inherited
    async def chat_completions(self, body: Any) -> Any:
        """For subclasses in NeMo Gym's manner: a Chat Completions body to its reply, by the server's own backend."""
        from ..dialects.chat.objects import NeMoGymChatCompletion  # the SDK: not where only a configuration is checked

        return NeMoGymChatCompletion.model_validate(await methods.through(self, "chat_completions", body))

    @methods.inherited
    async def responses(self, body: Any) -> Any:
        """The same of Responses."""
        from ..dialects.responses.objects import NeMoGymResponse

        return NeMoGymResponse.model_validate(await methods.through(self, "responses", body))

    async def probe(self) -> Capabilities:
        """What the backend can do, asked now. Raises ModelError while it does not answer."""
        return Capabilities() if self._backend is None else await self._backend.probe()

    async def count(self, request: ModelRequest) -> int:
        """Prompt tokens of a request. Raises ModelError, 501 where they cannot be known."""
        if self._backend is None:
            raise ModelError(501, "invalid", "this server cannot count tokens")
        return await self._backend.count(request)

    def processes(self) -> int:
        return self.config.num_workers or 1

    def setup_webserver(self) -> ModelApp:
        from .app import ModelApp  # Arrow and all: not where only the configuration is checked

        return ModelApp(self, self.context)

    @property
    def backend(self) -> Backend:
        """Raises ModelError while there is none."""
        private = self.__pydantic_private__ or {}  # by its name pydantic takes ten times as long, at every call
        backend: Backend | None = private.get("_backend")
        if backend is None:
            raise ModelError(503, "overloaded", "the backend is not ready yet", retry_after=1.0)
        return backend
