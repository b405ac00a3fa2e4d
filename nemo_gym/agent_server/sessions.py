"""Sessions that a caller opens at an agent under an id of its own, and closes.

The same seed again finds the same session; another one under its id is refused. A close is answered alike for as long
as its caller may ask again, and a seed that comes after it makes nothing; what could not be closed is kept, to be
closed again. An agent that has such sessions overrides `_seed_agent_session_state` and `_close_agent_session_state`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from ..config.types import BaseRunServerInstanceConfig
from ..environment.episodes import EpisodeId, TaskId
from ..environment.observations import AgentObservationBundle
from ..environment.sandbox.access import SandboxAccess
from ..environment.tool_access import ToolAccess, each_named_once
from ..web.service import SimpleServer

AGENT_SESSION_COOKIE_KEY = "agent_session_id"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AgentSeedSessionRequest(_Closed):
    agent_session_id: str = Field(min_length=1)
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: list[ToolAccess] = Field(default_factory=list)
    sandbox_access: SandboxAccess | None = None

    @field_validator("tool_accesses")
    @classmethod
    def _named(cls, value: list[ToolAccess]) -> list[ToolAccess]:
        each_named_once(value)
        return value


class AgentSeedSessionResponse(_Closed):
    agent_session_id: str


class AgentCloseSessionRequest(_Closed):
    agent_session_id: str
    episode_id: EpisodeId


class AgentCloseSessionResponse(_Closed):
    agent_session_id: str
    agent_observations: AgentObservationBundle | None = None
    resources_cookies: dict[str, str] | None = None


@dataclass
class AgentSessionState:
    """What an agent keeps of a session. A dataclass, since agents' own states are, and extend it."""

    request: AgentSeedSessionRequest


class AgentSessionSetupError(Exception):
    """A session that was half made: `state` is what there is to be closed, `error` why it is no more."""

    def __init__(self, state: AgentSessionState, *, error: BaseException) -> None:
        super().__init__(str(error))
        self.state = state
        self.error = error


class AgentSessionsConfig(BaseRunServerInstanceConfig):
    session_close_retry_window_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """So long a close is answered again."""
    tool_accesses: list[ToolAccess] = Field(default_factory=list)
    """Of every session; one that a seed names wins over one of the same name here."""

    @field_validator("tool_accesses")
    @classmethod
    def _named(cls, value: list[ToolAccess]) -> list[ToolAccess]:
        each_named_once(value)
        return value


class _Record:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.state: AgentSessionState | None = None
        self.episode_id: EpisodeId | None = None
        self.closing = False
        self.answer: AgentCloseSessionResponse | None = None
        self.until = float("inf")

    @property
    def empty(self) -> bool:
        return self.state is None and self.answer is None


class AgentSessions(SimpleServer):
    config: AgentSessionsConfig
    _session_records: dict[str, _Record] = PrivateAttr(default_factory=dict)

    # ---- for subclasses

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> AgentSessionState:
        """Makes what a session needs. Raises AgentSessionSetupError for what is half made and has to be closed."""
        raise NotImplementedError(f"{type(self).__name__} has no sessions of episodes")

    async def _close_agent_session_state(self, state: AgentSessionState) -> AgentCloseSessionResponse:
        """Frees it; when this raises, it is kept and closed again."""
        raise NotImplementedError(f"{type(self).__name__} has no sessions of episodes")

    def effective_tool_accesses(self, request: AgentSeedSessionRequest) -> list[ToolAccess]:
        """The config's and the seed's own."""
        named = {access.name: access for access in (*self.config.tool_accesses, *request.tool_accesses)}
        return list(named.values())

    def _require_agent_session(self, agent_session_id: str) -> AgentSessionState:
        record = self._session_records.get(agent_session_id)
        if record is None or record.state is None or record.closing:
            raise HTTPException(409, f"there is no open session {agent_session_id!r} here")
        return record.state

    @staticmethod
    def _agent_session_id_from_request(request: Request | None) -> str | None:
        """The session that a request's cookie names; None without one."""
        session = request.scope.get("session") if isinstance(request, Request) else getattr(request, "session", None)
        if not isinstance(session, Mapping) or AGENT_SESSION_COOKIE_KEY not in session:
            return None
        found = session[AGENT_SESSION_COOKIE_KEY]
        if not isinstance(found, str) or not found:
            raise HTTPException(409, "the cookie names no agent session")
        return found

    # ---- routes

    async def seed_agent_session(self, request: Request, body: AgentSeedSessionRequest) -> AgentSeedSessionResponse:
        named = self._named_by(request, body.agent_session_id)
        async with self._held(body.agent_session_id) as record:
            if record.answer is not None or record.closing:
                raise HTTPException(409, f"the session {body.agent_session_id!r} is closed")
            if record.state is None:
                if named:
                    raise HTTPException(409, f"the session {body.agent_session_id!r} of the cookie is gone")
                await self._made(record, body)
            elif record.state.request != body:
                raise HTTPException(409, f"the session {body.agent_session_id!r} was seeded with another request")
            request.session[AGENT_SESSION_COOKIE_KEY] = body.agent_session_id
            return AgentSeedSessionResponse(agent_session_id=body.agent_session_id)

    async def close_agent_session(self, request: Request, body: AgentCloseSessionRequest) -> AgentCloseSessionResponse:
        if type(self)._close_agent_session_state is AgentSessions._close_agent_session_state:
            raise NotImplementedError(f"{type(self).__name__} has no sessions of episodes")
        named = self._named_by(request, body.agent_session_id)
        async with self._held(body.agent_session_id) as record:
            if record.episode_id is not None and record.episode_id != body.episode_id:
                raise HTTPException(409, f"the session {body.agent_session_id!r} is of another episode")
            if record.answer is None:
                if record.state is None and named:
                    raise HTTPException(409, f"how the session {body.agent_session_id!r} was closed is forgotten")
                await self._freed(record, body)
                request.session[AGENT_SESSION_COOKIE_KEY] = body.agent_session_id  # a late call must not go without one
            assert record.answer is not None
            return record.answer.model_copy(deep=True)

    async def _made(self, record: _Record, body: AgentSeedSessionRequest) -> None:
        record.episode_id = body.episode_id
        try:
            record.state = await self._seed_agent_session_state(body.model_copy(deep=True))
        except AgentSessionSetupError as error:
            record.state, record.closing = error.state, True
            raise error.error from None

    async def _freed(self, record: _Record, body: AgentCloseSessionRequest) -> None:
        answer = AgentCloseSessionResponse(agent_session_id=body.agent_session_id)
        if record.state is not None:
            record.closing = True
            answer = await self._close_agent_session_state(record.state)
        record.state, record.episode_id, record.answer = None, body.episode_id, answer.model_copy(deep=True)
        record.until = time.monotonic() + self.config.session_close_retry_window_seconds

    def _named_by(self, request: Any, session_id: str) -> bool:
        """Whether the caller's cookie names this session; one that names another is refused."""
        named = self._agent_session_id_from_request(request)
        if named is not None and named != session_id:
            raise HTTPException(409, f"the cookie is of another session than {session_id!r}")
        return named is not None

    @asynccontextmanager
    async def _held(self, session_id: str) -> AsyncIterator[_Record]:
        """The session's record, for one request at a time; it is dropped again when nothing came of it."""
        now, records = time.monotonic(), self._session_records
        for name in [name for name, record in records.items() if record.until <= now]:
            del records[name]
        while True:
            record = records.setdefault(session_id, _Record())
            async with record.lock:
                if records.get(session_id) is not record:
                    continue  # it was dropped while this request waited for it
                try:
                    yield record
                finally:
                    if record.empty:
                        del records[session_id]
                return
