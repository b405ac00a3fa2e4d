"""One start of a job, its output folder locked: what is missing is made, and all that is there is summed up."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct
from rich.console import Console

from ..config.types import JobConfig
from ..web.abilities import gives_token_ids
from ..web.peers import ServerClient
from . import manifest as manifests
from .attempt import Attempt
from .collector import Collector, Finished
from .entries import Entry
from .journal import Journal
from .plan import Plan
from .progress import Progress
from .stopping import Stopping
from .summary import Summary, metrics, summarise
from .tally import Tally
from .traffic import Traffic

OF_TOKENS = ("token_rows", "nemo_rl", "verl")
"""Exports that would have nothing in them without token ids."""
_TICK_S = 1.0


class JobResult(Struct, frozen=True):
    exit_code: int
    output: str
    run_id: str
    summary: Summary | None = None
    problem: str | None = None
    """Why the exit code is not 0, for the user."""
    stopped: str | None = None
    """Why it ended before its data did, as it was told to."""


class Start:
    """Made when the output is known to be this job's to write.

    Args:
        config: what of the configuration a resumed job must have in common with this one.
    """

    def __init__(
        self,
        job: JobConfig,
        client: ServerClient,
        run_id: str,
        model_servers: Sequence[str],
        config: Mapping[str, Any],
        console: Console,
        finished: Finished | None = None,
    ) -> None:
        self._job = job
        self._client = client
        self._model_servers = tuple(model_servers)
        self._output = Path(job.output)
        self._console = console
        agents = [name for name, kind in client.kinds.items() if kind == "responses_api_agents"]
        self._plan = plan = Plan(job, agents or None)
        identity = plan.measure() | dict(config)
        first = job.parts()[0].input
        self._manifest = manifests.begin(
            self._output, run_id, first, identity, resume=job.resume, accept_changes=job.accept_changes
        )
        self._asked = plan.asked
        self._tally = Tally(job.prices)
        self._stopping = Stopping(job.limits, job.stop_when, self._tally)
        self._journal = Journal(self._output, self._had)
        self._unwritten: str | None = None
        self._began = time.monotonic()
        self._traffic = Traffic(client, model_servers)
        self._collector = Collector(
            Attempt(client, model_servers, job.rollout_timeout_s),
            plan,
            self._journal,
            self._tally,
            self._stopping,
            concurrency=min(job.concurrency, max(1, self._asked)),
            # Of this start alone: a rollout that a kill cut off must not share an id with the one made in its place.
            prefix=f"{self._manifest.run_id[:80]}-{self._manifest.starts}{secrets.token_hex(2)}",
            retries={str(kind): limit for kind, limit in job.retries.items()},
            finished=finished,
        )
        self.progress = Progress(
            console,
            job.output,
            self._asked,
            self._tally,
            self._traffic,
            running=lambda: self._collector.in_flight,
            priced=bool(job.prices),
        )

    def _had(self, entry: Entry, row: dict[str, Any]) -> None:
        """A rollout of an earlier start."""
        self._tally.add(entry)
        self._stopping.saw(entry.task, row)

    async def to_the_end(self) -> JobResult:
        refusal = await self._no_token_ids()
        if refusal is not None:
            self._journal.close()
            return JobResult(1, self._job.output, self._manifest.run_id, problem=refusal)
        if self._journal.entries:
            self._say(f"resuming: {len(self._journal.entries)} of {self._asked} rollouts are done")
        beside = [asyncio.create_task(self._tick()), asyncio.create_task(self._traffic.watch())]
        try:
            with self.progress:
                await self._collector.run()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            try:
                self._journal.close()
            finally:
                summary = self._write_metrics()
        stopped = self._collector.stopped
        changed = await asyncio.to_thread(self._plan.changed)
        complete = not self._tally.failed and self._collector.gave_up is None and not changed
        finished = time.time() if complete or stopped else None
        manifests.save(self._output, manifests.replace(self._manifest, finished=finished, stopped=stopped))
        problem = self._problem(summary, changed)
        code = 0 if problem is None else 1
        return JobResult(code, self._job.output, self._manifest.run_id, summary, problem, stopped)

    async def _no_token_ids(self) -> str | None:
        """Why an export of token rows would have nothing in it: no model server gives token ids."""
        wanted = [name for name in self._job.export if name in OF_TOKENS]
        if not wanted or not self._model_servers:
            return None
        given = await asyncio.gather(*(gives_token_ids(self._client, name) for name in self._model_servers))
        if any(known is not False for known in given):
            return None
        return (
            f"job.export: {wanted[0]} needs token ids and their log-probs, and {', '.join(self._model_servers)} "
            f"gives none: use an engine that returns them, or leave {wanted[0]} out"
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.progress.tick()

    def _write_metrics(self) -> Summary:
        summary = summarise(
            self._journal.entries,
            self._tally.failed,
            asked=self._asked,
            repeats=self._most_repeats(),
            seconds=time.monotonic() - self._began,
        )
        told = metrics(summary, self._manifest.run_id) | {"retried": dict(self._tally.retried)}
        if self._job.prices:
            told |= {"cost": self._tally.cost, "unpriced": self._tally.unpriced}
        path = self._output / "metrics.json"
        try:
            _write_json(path, told | {"stopped": self._collector.stopped})
        except OSError as error:
            self._unwritten = f"{path} cannot be written: {error.strerror}"
        return summary

    def _most_repeats(self) -> int:
        return max((entry.repeat for entry in self._journal.entries), default=0) + 1

    def _problem(self, summary: Summary, changed: Sequence[str]) -> str | None:
        if (known := self._unwritten or self._collector.gave_up) is not None:
            return known
        if changed:
            return f"{', '.join(changed)} changed while the job ran, so some rollouts may be of other rows"
        failed = self._tally.failed.total()
        if summary.rollouts == 0:
            return f"no rollout was finished; why is in {self._journal.failures_path}"
        if failed > summary.rollouts:
            return (
                f"{failed} of {summary.rollouts + failed} rollouts failed, so the figures speak of a minority; why is "
                f"in {self._journal.failures_path}, and job.resume=true makes them anew"
            )
        if summary.calls == 0:
            return (
                "no model call was recorded: the agent did not call the model server at "
                "/ng-rollout/<_ng_rollout_id>/…, so there is nothing that these rewards could be held against"
            )
        return None

    def _say(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)


def _write_json(path: Path, value: Any) -> None:
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")
    os.replace(scratch, path)
