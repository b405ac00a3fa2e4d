"""An agent that is a process: from a dataset row to its result.

Each rollout has fresh folders, its own process tree, and limits: time, memory of the tree, what it prints. The tree is
ended whenever the rollout is over, its caller gone, or this server dead (`process.Child`). What the client did is asked
of the model server, so a client that was killed or printed nonsense has lost nothing. A client that failed, or that
never called the model, is a failure of its kind, never a reward.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from fastapi import Body, Request, Response
from msgspec import Struct
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from ..config import paths
from ..config.types import AggregateMetrics, AggregateMetricsRequest, ModelServerRef, ResourcesServerRef
from ..environment.server import BaseRunRequest
from ..process import Child
from ..web.body import dumps
from . import install, sandbox
from .environment import Environment, aggregated
from .failures import RolloutFailed
from .memory import tree_bytes
from .server import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from .trajectory import Trajectory
from .workspace import Workspace

_LOOK_S = 0.5
_GRACE_S = 1.0
_GONE_S = 15.0


class Invocation(Struct, frozen=True):
    """How a client is started for one rollout. `{places}` are filled in: see `CommandAgent.places`."""

    command: Sequence[str]
    """Without the program itself where `client` names one."""
    client: str | None = None
    """A pinned client (install.py)."""
    files: Mapping[str, Any] = {}
    """Below its home: text, or a value that is written as JSON."""
    environment: Mapping[str, str] = {}
    stdin: str = ""


class Ended(Struct):
    """How a client ended. `stopped` says by which limit, in words."""

    code: int | None
    last_words: str
    seconds: float
    stopped: str | None = None


OF_THE_MODEL_SERVER = "the client calls the run's model server, which knows model, address and key"
"""Why a key of NeMo Gym's agents is passed over."""


class CommandAgentConfig(BaseResponsesAPIAgentConfig):
    model_config = ConfigDict(extra="forbid")
    RENAMED: ClassVar[Mapping[str, str]] = {"timeout": "timeout_s", "concurrency": "max_concurrent"}
    """NeMo Gym's name of a key -> the name here."""

    model_server: ModelServerRef = ModelServerRef(type="responses_api_models", name="policy_model")
    resources_server: ResourcesServerRef | None = None
    model_name: str = Field(default="policy", min_length=1)
    """What the client calls the model. A name that begins as a provider's does may change how a client behaves."""
    api: Literal["chat", "responses", "messages"] = "responses"
    api_key: str = "none"
    """What the client gives the model server."""
    system_prompt: str | None = None
    """Words before those of every row."""
    context_window: int = Field(default=128_000, ge=1)
    max_output_tokens: int = Field(default=16_000, ge=1)
    timeout_s: float = Field(default=900.0, gt=0)
    """Of one client, from its start to its end."""
    max_concurrent: int = Field(default=8, ge=1)
    """Clients at a time; further rollouts wait."""
    memory_mb: int = Field(default=4096, ge=16)
    """Of a client's whole process tree."""
    output_mb: int = Field(default=64, ge=1)
    """What a client may print."""
    wrapper: list[str] = Field(default_factory=list)
    """Words before the client's command (bwrap, docker run …); `{command}` among them stands for it."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Further variables of the client's environment."""
    take: list[str] = Field(default_factory=list)
    """Patterns of files that the verifier gets."""
    folder: str | None = None
    """Where the rollouts' folders are made; the system's temporary folder if null."""
    keep_folders: bool = False

    @model_validator(mode="before")
    @classmethod
    def _as_nemo_gym_says_it(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: data[other] for other, name in cls.RENAMED.items() if data.get(other) is not None} | {
            name: value for name, value in data.items() if name not in cls.RENAMED
        }


class CommandRunRequest(BaseRunRequest):
    """`files`: the task's files, by path below the work folder."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    files: dict[str, str] = Field(default_factory=dict)


class CommandAgent(SimpleResponsesAPIAgent):
    """A subclass says how its client is started: `invocation`."""

    config: CommandAgentConfig
    _slots: asyncio.Semaphore | None = PrivateAttr(default=None)

    def invocation(self) -> Invocation:
        raise NotImplementedError(f"{type(self).__name__} has no invocation()")

    # ---- routes

    async def run(self, request: Request, body: CommandRunRequest) -> Response:  # type: ignore[override]
        row = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
        rollout_id = self.rollout_id_from_run(body) or _new_rollout_id()
        environment = self._environment(dict(request.cookies))
        if environment is not None:
            await environment.seed(row)
        row |= await self._played(rollout_id, row["responses_create_params"], body.files)
        if environment is None or self.config.skip_verification:
            row |= {"reward": self.config.skip_verification_reward, "verification_skipped": True}
        else:
            row = await environment.verified(row)
        return Response(dumps(row), media_type="application/json")

    async def responses(self, request: Request, body: Annotated[dict[str, Any], Body()]) -> Response:  # type: ignore[override]
        rollout_id = request.path_params.get("rollout_id") or _new_rollout_id()
        played = await self._played(rollout_id, body, {})
        return Response(dumps(played["response"]), media_type="application/json")

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        if self.config.resources_server is None or self.config.skip_verification:
            return await super().aggregate_metrics(body)
        return await aggregated(self.server_client, self.config.resources_server.name, body)

    def _environment(self, cookies: dict[str, str]) -> Environment | None:
        server = self.config.resources_server
        if server is not None:
            return Environment(self.server_client, server.name, cookies)
        if not self.config.skip_verification:
            raise RolloutFailed("agent", f"{self.config.name} has no resources_server, so it cannot /run")
        return None

    # ---- one rollout

    async def _played(self, rollout_id: str, params: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
        """What a verifier gets of the rollout. Raises RolloutFailed."""
        program = await self.installed()
        async with self._slot(), self._workspace() as workspace:
            try:
                workspace.put(files)
            except (ValueError, OSError) as error:
                raise RolloutFailed("agent", f"the row's files cannot be put in: {error}") from error
            ended = await self.client_ended(program, rollout_id, params, workspace)
            trajectory = await Trajectory.asked(
                self.server_client, self.config.model_server.name, rollout_id, self._admin_key
            )
            _judge(ended, trajectory)
            return {
                "response": trajectory.response(),
                "final_message": trajectory.final_message(),
                "exit_code": ended.code,
                "taken_files": await asyncio.to_thread(workspace.taken, self.config.take),
                "diff": await asyncio.to_thread(workspace.diff),
                "client_seconds": round(ended.seconds, 3),
                "branches": [{"relation": one.relation, "calls": len(one.call_ids)} for one in trajectory.branches],
            }

    def places(self, rollout_id: str, params: Mapping[str, Any], workspace: Workspace) -> dict[str, str | int]:
        """What stands in an invocation's braces."""
        config = self.config
        base_url = self.resolve_model_base_url(config.model_server.name, rollout_id)
        return {
            "base_url": base_url,
            "root_url": base_url.removesuffix("/v1"),
            "model": config.model_name,
            "api": config.api,
            "api_key": self._call_key,
            "rollout_id": rollout_id,
            "prompt": "\n\n".join(filter(None, (config.system_prompt, prompt_of(params)))),
            "prompt_file": str(workspace.prompt),
            "root": str(workspace.root),
            "home": str(workspace.home),
            "work": str(workspace.work),
            "context_window": config.context_window,
            "max_output_tokens": config.max_output_tokens,
        }

    async def installed(self) -> list[str]:
        """The words that start the client's program; it is installed if need be. Raises RolloutFailed."""
        client = self.invocation().client
        if client is None:
            return []
        try:
            return await install.command(client)
        except install.CannotInstall as error:
            raise RolloutFailed("infrastructure", str(error)) from error

    async def client_ended(
        self, program: list[str], rollout_id: str, params: Mapping[str, Any], workspace: Workspace
    ) -> Ended:
        """Runs the client to its end, or to that of a limit; when this returns, none of its processes is left."""
        invocation = self.invocation()
        places = self.places(rollout_id, params, workspace)
        workspace.configure(_texts(sandbox.filled(invocation.files, places)))
        workspace.prompt.write_text(str(places["prompt"]), encoding="utf-8")
        words = [*program, *(str(sandbox.filled(word, places)) for word in invocation.command)]
        own = {**invocation.environment, **self.config.environment}
        child = Child.start(
            sandbox.wrapped(words, self.config.wrapper, places),
            stdin=str(sandbox.filled(invocation.stdin, places)).encode(),
            env=sandbox.environment(
                workspace,
                {name: str(sandbox.filled(value, places)) for name, value in own.items()},
                compiled=str(install.cache_folder().parent / "compiled"),
                model_host=urlsplit(str(places["base_url"])).hostname or "",
            ),
            log_path=workspace.log,
            cwd=workspace.work,
            grace_s=_GRACE_S,
        )
        started = time.monotonic()
        try:
            stopped = await self._watched(child, workspace.log)
        finally:
            child.ask_to_stop(_GRACE_S)  # whatever is left of the tree, also when the caller has gone
            code = await asyncio.shield(child.ended(_GONE_S))
            if code is None:
                code = await asyncio.shield(asyncio.to_thread(child.stop, 0.0))
        return Ended(code, child.last_words(), time.monotonic() - started, stopped)

    async def _watched(self, child: Child, log: Path) -> str | None:
        """Waits for the end; the words of the limit that was passed, if one was."""
        config = self.config
        until = time.monotonic() + config.timeout_s
        while await child.ended(min(_LOOK_S, max(0.0, until - time.monotonic()))) is None:
            if time.monotonic() >= until:
                return f"it was not finished within {config.timeout_s:g} s (timeout_s)"
            if os.stat(log).st_size > config.output_mb << 20:
                return f"it printed more than {config.output_mb} MB (output_mb)"
            if await asyncio.to_thread(tree_bytes, child.pid) > config.memory_mb << 20:
                return f"it took more than {config.memory_mb} MB of memory (memory_mb)"
        return None

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.config.max_concurrent)
        async with self._slots:
            yield

    @asynccontextmanager
    async def _workspace(self) -> AsyncIterator[Workspace]:
        folder = self.config.folder
        try:
            workspace = Workspace.fresh(None if folder is None else paths.absolute(folder))
        except OSError as error:
            raise RolloutFailed("infrastructure", f"no folder can be made for the rollout: {error}") from error
        try:
            yield workspace
        finally:
            if not self.config.keep_folders:
                await asyncio.shield(asyncio.to_thread(workspace.remove))

    @property
    def _call_key(self) -> str:
        """What was said, else what the run's model servers ask for."""
        needed = "" if self.context is None else self.context.call_key
        return needed if needed and "api_key" not in self.config.model_fields_set else self.config.api_key

    @property
    def _admin_key(self) -> str:
        return "" if self.context is None else self.context.admin_key


def prompt_of(params: Mapping[str, Any]) -> str:
    """A row's instructions and input as one text. Raises RolloutFailed for what is no text."""
    given = params.get("input")
    messages = [{"content": given}] if isinstance(given, str) else given or []
    texts = [params.get("instructions") or ""]
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = [{"text": content}] if isinstance(content, str) else content or []
        texts += [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    prompt = "\n\n".join(text for text in texts if text)
    if not prompt:
        raise RolloutFailed("agent", "responses_create_params.input: there is no text in it for the client")
    return prompt


def _judge(ended: Ended, trajectory: Trajectory) -> None:
    """Raises RolloutFailed where the rollout came to nothing."""
    said = f"; its last words: {ended.last_words}" if ended.last_words else ""
    if ended.stopped is not None:
        raise RolloutFailed(
            "timeout" if "timeout_s" in ended.stopped else "agent", f"the client: {ended.stopped}{said}"
        )
    failure = trajectory.failure()
    if failure is not None:
        raise RolloutFailed("model", f"the client's last call failed ({failure}); it ended with {ended.code}{said}")
    if ended.code != 0:
        raise RolloutFailed("agent", f"the client ended with exit code {ended.code}{said}")
    if not trajectory.main:
        raise RolloutFailed("agent", f"the client never called the model{said}")


def _texts(files: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else dumps(value).decode() for name, value in files.items()}


def _new_rollout_id() -> str:
    return f"run-{uuid.uuid4().hex}"
