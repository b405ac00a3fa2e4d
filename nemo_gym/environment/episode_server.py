"""A server that plays whole episodes: at most so many at a time, each within its time, and whatever one has opened is
closed at its end.

A subclass says how an episode goes (`run`). A failure that belongs to the episode is an answer like another; only an
episode whose caller has gone has none.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, PrivateAttr, model_validator

from ..config.types import AggregateMetrics, AggregateMetricsRequest, BaseRunServerInstanceConfig
from ..web.rollout import rollout_context
from ..web.service import SimpleServer
from .episodes import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure, EpisodeId

_REASON = 2000
logger = logging.getLogger("nemo_gym")
Asked = TypeVar("Asked", bound=BaseEpisodeRequest[Any])
Answered = TypeVar("Answered", bound=BaseEpisodeResponse[Any])
Close = Callable[[], Awaitable[None]]


class BaseEnvironmentServerConfig(BaseRunServerInstanceConfig):
    model_config = ConfigDict(extra="forbid")

    max_concurrent_episodes: PositiveInt | None = None
    queue_timeout_seconds: PositiveFloat | None = None
    """How long an episode waits for its place."""
    default_episode_timeout_seconds: PositiveFloat | None = None
    cleanup_timeout_seconds: PositiveFloat
    """For all that one episode has to close."""

    @model_validator(mode="after")
    def _waits_have_an_end(self) -> BaseEnvironmentServerConfig:
        if self.max_concurrent_episodes is not None and self.queue_timeout_seconds is None:
            raise ValueError("queue_timeout_seconds: expected one, since max_concurrent_episodes lets episodes wait")
        return self


@dataclass
class _Open:
    name: str
    callback: Close
    closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        async with self.lock:
            if not self.closed:
                await self.callback()
                self.closed = True


@dataclass
class CleanupHandle:
    """Of what was registered, to close it before the episode's end."""

    entry: _Open
    timeout_seconds: float

    async def close(self) -> None:
        """Once; one that failed or took too long (TimeoutError) may be closed again, and is at the episode's end."""
        async with asyncio.timeout(self.timeout_seconds):
            await self.entry.close()


@dataclass
class CleanupContext:
    """What one episode has to close: the latest first, all within one time. What fails hinders no other.

    A callback may be called again, since one that took too long may have had its effect.
    """

    episode_id: EpisodeId
    cleanup_timeout_seconds: float
    _opened: list[_Open] = field(default_factory=list)

    def register_cleanup(self, name: str, callback: Close) -> CleanupHandle:
        entry = _Open(name, callback)
        self._opened.append(entry)
        return CleanupHandle(entry, self.cleanup_timeout_seconds)

    async def aclose(self) -> None:
        try:
            async with asyncio.timeout(self.cleanup_timeout_seconds):
                for entry in reversed(self._opened):
                    try:
                        await entry.close()
                    except Exception:
                        logger.exception("%s of episode %s could not be closed", entry.name, self.episode_id)
        except TimeoutError:
            logger.error("episode %s: not all was closed in %g s", self.episode_id, self.cleanup_timeout_seconds)


class HandledEpisodeError(Exception):
    """Ends an episode with this failure as its answer."""

    def __init__(self, failure: EpisodeFailure) -> None:
        super().__init__(failure.failure_reason)
        self.failure = failure


class BaseEnvironmentServer(SimpleServer, Generic[Asked, Answered]):
    """Subclasses name their two models, and say how an episode goes."""

    config: BaseEnvironmentServerConfig
    request_model: ClassVar[type[BaseModel]]
    response_model: ClassVar[type[BaseModel]]
    _admission: asyncio.Semaphore | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        if self.config.max_concurrent_episodes is not None:
            self._admission = asyncio.Semaphore(self.config.max_concurrent_episodes)

    def setup_webserver(self) -> FastAPI:
        async def run(body: Any) -> Any:
            return await self.run_request(body)

        async def aggregate_metrics(body: AggregateMetricsRequest) -> AggregateMetrics:
            return await self.aggregate_metrics(body)

        run.__annotations__ = {"body": self.request_model, "return": self.response_model}
        aggregate_metrics.__annotations__ = {"body": AggregateMetricsRequest, "return": AggregateMetrics}
        app = FastAPI()
        app.post("/run", response_model=self.response_model)(run)
        app.post("/aggregate_metrics", response_model=AggregateMetrics)(aggregate_metrics)
        return app

    @abstractmethod
    async def run(self, request: Asked, cleanup: CleanupContext) -> Answered:
        """One episode. Raises HandledEpisodeError for a failure that is the episode's own."""

    @abstractmethod
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics: ...

    async def run_request(self, request: Asked) -> Answered:
        """One episode within this server's limits. Its calls are recorded under the episode's own id."""
        if self._admission is None:
            return await self._closed_at_its_end(request)
        try:
            await asyncio.wait_for(self._admission.acquire(), self.config.queue_timeout_seconds)
        except TimeoutError:
            full = EpisodeFailure(failure_reason="Episode admission timed out", terminal=False, stage="admission")
            return self.failure_response(request, full)
        try:
            return await self._closed_at_its_end(request)
        finally:
            self._admission.release()

    def failure_response(self, request: Asked, failure: EpisodeFailure) -> Answered:
        answer = {"episode_id": request.episode_id, "task_id": request.task.task_id, "failure": failure.model_dump()}
        return self.response_model.model_validate(answer)  # type: ignore[return-value]

    @staticmethod
    def validate_response_identity(request: Asked, response: Answered) -> None:
        if response.episode_id != request.episode_id:
            raise ValueError("response episode_id does not match request")
        if response.task_id != request.task.task_id:
            raise ValueError("response task_id does not match request")

    async def _closed_at_its_end(self, request: Asked) -> Answered:
        cleanup = CleanupContext(request.episode_id, self.config.cleanup_timeout_seconds)
        with rollout_context(request.episode_id.capture_key):
            try:
                response = await self._played(request, cleanup)
            finally:
                await _to_the_end(cleanup.aclose())
        answer: Answered = self.response_model.model_validate(response)  # type: ignore[assignment]
        self.validate_response_identity(request, answer)
        return answer

    async def _played(self, request: Asked, cleanup: CleanupContext) -> Answered:
        deadline = asyncio.timeout(self.config.default_episode_timeout_seconds)
        try:
            async with deadline:
                return await self.run(request, cleanup)
        except HandledEpisodeError as error:
            return self.failure_response(request, error.failure)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                late = EpisodeFailure(failure_reason="Episode timed out", terminal=False)
                return self.failure_response(request, late)
            logger.exception("episode %s", request.episode_id)
            words = f"Unhandled environment server error: {type(error).__name__}: {error}"
            return self.failure_response(request, EpisodeFailure(failure_reason=words[:_REASON], terminal=True))


async def _to_the_end(closing: Awaitable[None]) -> None:
    """Also where this task is cancelled meanwhile."""
    task = asyncio.ensure_future(closing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
