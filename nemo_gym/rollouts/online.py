"""Rollouts as they finish, for a trainer that takes them as they come.

A job as any other, written down as any other, whose finished rollouts are handed to one reader. A reader that is slow
holds the job back: no more than `concurrency` rollouts are in flight or wait to be taken, and `ahead` besides.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from msgspec import Struct
from rich.console import Console

from ..config.types import JobConfig
from ..web import client as pooled
from ..web import runs
from ..web.peers import ServerClient
from .job import kept_run_id, run_job
from .journal import REPEAT, ROLLOUT, TASK
from .start import JobResult


class JobFailed(Exception):
    """The job came to a bad end; raised after the last rollout that there was. Words for the user."""


class Turn(NamedTuple):
    """What one model call was given and what it generated, as token ids."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]


class Rollout(Struct, frozen=True):
    task: int
    """Repeats of one task have one number: a group."""
    repeat: int
    rollout_id: str
    agent: str
    reward: float
    masked: bool
    """The reward is no measurement."""
    row: dict[str, Any]
    """The whole line as it is in `rollouts.jsonl`."""

    @property
    def turns(self) -> list[Turn]:
        """The model calls whose token ids are known, in order."""
        response = self.row.get("response")
        items = response.get("output") if isinstance(response, dict) else None
        known = [
            item for item in items or () if isinstance(item, dict) and item.get("generation_token_ids") is not None
        ]
        return [Turn(*(item[field] for field in Turn._fields)) for item in known]


class Rollouts:
    """An asynchronous iterator over the finished rollouts of a job on servers that are up.

        async with Rollouts({"agent": "my_agent", "input": "train.jsonl", "output": "results/train"}) as rollouts:
            async for rollout in rollouts:
                ...

    Leaving the block ends the job; what was in flight is made anew by a job that resumes. A resumed job hands out what
    it makes, not what its output has already.

    Args:
        job: a JobConfig, or its keys.
        servers: name to base URL; the servers of an `ng_run` of this user unless given.
        kinds: name to kind, with `servers`: without it, all but the job's agents are taken for model servers.
        run: which `ng_run`, by its id, where there are several.
        ahead: finished rollouts that may wait beyond the job's concurrency.
    """

    def __init__(
        self,
        job: JobConfig | Mapping[str, Any],
        *,
        servers: Mapping[str, str] | None = None,
        kinds: Mapping[str, str] | None = None,
        run: str | None = None,
        ahead: int = 0,
    ) -> None:
        self.job = job if isinstance(job, JobConfig) else JobConfig.model_validate(dict(job))
        self.result: JobResult | None = None
        """What the job came to, once it has ended."""
        self._servers = servers
        self._kinds = kinds
        self._run_name = run
        self._ready: asyncio.Queue[dict[str, Any]] = asyncio.Queue(max(1, ahead))
        self._running: asyncio.Task[JobResult] | None = None
        self._next: asyncio.Future[dict[str, Any]] | None = None

    async def __aenter__(self) -> Rollouts:
        client, models, run_id = await self._found()
        self._running = asyncio.create_task(self._run(client, models, run_id))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        ending: set[asyncio.Future[Any]] = {self._running} if self._next is None else {self._running, self._next}
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)

    def __aiter__(self) -> Rollouts:
        return self

    async def __anext__(self) -> Rollout:
        if self._running is None:
            raise RuntimeError("rollouts are read within `async with Rollouts(…) as rollouts:`")
        if self._next is None:  # kept when a reader gives up waiting, so that it loses nothing
            self._next = asyncio.ensure_future(self._ready.get())
        either: set[asyncio.Future[Any]] = {self._next, self._running}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._next.done() or not self._ready.empty():
            row = await self._next
            self._next = None
            return _rollout(row)
        self.result = self._running.result()
        if self.result.problem is not None:
            raise JobFailed(self.result.problem)
        raise StopAsyncIteration

    async def _run(self, client: ServerClient, models: list[str], run_id: str) -> JobResult:
        try:
            return await run_job(
                self.job,
                client,
                run_id=run_id,
                model_servers=models,
                config_digest="",
                console=Console(quiet=True),
                finished=self._ready.put,
            )
        finally:
            await pooled.close()

    async def _found(self) -> tuple[ServerClient, list[str], str]:
        """The servers, which of them are model servers, and the id of the run."""
        new = kept_run_id(self.job) or self.job.run_id or time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        if self._servers is not None:
            kinds = self._kinds or {
                name: "responses_api_agents" if name in self.job.agents() else "responses_api_models"
                for name in self._servers
            }
            return ServerClient(self._servers, kinds), _models(kinds), new
        run = self._chosen()
        answer = await asyncio.to_thread(runs.ask, run)
        if answer is None:
            raise JobFailed(f"run {run.run_id} does not answer")
        client = ServerClient.of_run(run, answer)
        return client, _models(client.kinds), run.run_id

    def _chosen(self) -> runs.Run:
        up = [run for run in runs.runs() if run.serves and self._run_name in (None, run.run_id)]
        if len(up) == 1:
            return up[0]
        if not up:
            raise JobFailed("nothing is running: start the servers with ng_run in another shell, or give servers=…")
        raise JobFailed(f"several runs are up: choose one with run=… out of {', '.join(run.run_id for run in up)}")


def _models(kinds: Mapping[str, str]) -> list[str]:
    return [name for name, kind in kinds.items() if kind == "responses_api_models"]


def _rollout(row: dict[str, Any]) -> Rollout:
    return Rollout(
        task=row[TASK],
        repeat=row[REPEAT],
        rollout_id=row[ROLLOUT],
        agent=row["agent_ref"]["name"],
        reward=float(row["reward"]),
        masked=bool(row.get("mask_sample")),
        row=row,
    )
