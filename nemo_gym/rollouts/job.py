"""An eval job, from its config to an exit code.

0: the rollouts were made (those that failed are in `failures.jsonl`, and a resumed job makes them anew). 1: fewer than
half of them were, or no model call of any was recorded, or no server could be reached any more.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct
from rich.console import Console

from ..config.types import JobConfig
from ..web.peers import ServerClient
from . import manifest as manifests
from .attempt import Attempt, gives_token_ids
from .collector import Collector
from .dataset import Dataset
from .journal import Journal, JournalError
from .manifest import Lock, Refused
from .outcome import Outcome
from .progress import Progress
from .summary import Summary, metrics, summarise

OF_TOKENS = ("token_rows", "nemo_rl", "verl")
"""Exports that would have nothing in them without token ids."""


class Fault(Struct, frozen=True):
    """A mistake in the job's config: the key, and what is wrong with its value."""

    key: str
    message: str


class JobResult(Struct, frozen=True):
    exit_code: int
    output: str
    run_id: str
    summary: Summary | None = None
    problem: str | None = None
    """Why the exit code is not 0, for the user."""


def preflight(job: JobConfig) -> list[Fault]:
    """What can be known to be wrong before any server is started."""
    return _input_faults(job) + _output_faults(job)


def kept_run_id(job: JobConfig) -> str | None:
    """The run id of the job that is resumed; None for a new one."""
    earlier = manifests.load(Path(job.output)) if job.resume else None
    return None if earlier is None else earlier.run_id


async def run_job(
    job: JobConfig,
    client: ServerClient,
    *,
    run_id: str,
    model_servers: Sequence[str],
    config_digest: str,
    console: Console,
) -> JobResult:
    """The whole job against running servers. Cancelled, it seals what is in flight and leaves a resumable output."""
    output = Path(job.output)
    dataset = Dataset(job.input, job.limit, job.responses_create_params)
    faults = _input_faults(job)
    if faults:
        return JobResult(1, job.output, run_id, problem="; ".join(f"{fault.key}: {fault.message}" for fault in faults))
    try:
        lock = Lock(output)
        try:
            run = _Run(job, client, dataset, output, run_id, model_servers, config_digest, console)
            return await run.to_the_end()
        finally:
            lock.release()
    except (Refused, JournalError) as error:
        return JobResult(1, job.output, run_id, problem=str(error))


class _Run:
    """One start of a job, its output folder locked."""

    def __init__(
        self,
        job: JobConfig,
        client: ServerClient,
        dataset: Dataset,
        output: Path,
        run_id: str,
        model_servers: Sequence[str],
        config_digest: str,
        console: Console,
    ) -> None:
        self._job = job
        self._client = client
        self._model_servers = tuple(model_servers)
        self._output = output
        self._console = console
        if not job.resume and manifests.has_results(output):
            if not job.overwrite:
                raise Refused(_exists(job))
            manifests.clear(output, keep_run=run_id)
        rows, digest = dataset.measure()
        identity = _asked_for(job) | {"dataset_sha256": digest, "rows": rows, "config_digest": config_digest}
        self._manifest = manifests.begin(output, run_id, job.input, identity, resume=job.resume)
        self._journal = Journal(output)
        self._asked = rows * job.repeats
        self._failures: Counter[str] = Counter()
        self._began = time.monotonic()
        entries = self._journal.entries
        self._progress = Progress(console, self._asked, len(entries), sum(entry.reward for entry in entries))
        self._collector = Collector(
            Attempt(client, model_servers, job.rollout_timeout_s),
            dataset,
            self._journal,
            agent=job.agent,
            repeats=job.repeats,
            concurrency=max(1, min(job.concurrency, self._asked - len(entries))),
            # Of this start alone: a rollout that a kill cut off must not share an id with the one made in its place.
            prefix=f"{self._manifest.run_id[:80]}-{self._manifest.starts}{secrets.token_hex(2)}",
            ended=self._ended,
        )

    async def to_the_end(self) -> JobResult:
        refusal = await self._no_token_ids()
        if refusal is not None:
            self._journal.close()
            return JobResult(1, self._job.output, self._manifest.run_id, problem=refusal)
        if self._journal.entries:
            self._say(f"resuming: {len(self._journal.entries)} of {self._asked} rollouts are done")
        ticking = asyncio.create_task(self._tick())
        try:
            with self._progress:
                await self._collector.run()
        finally:
            ticking.cancel()
            self._journal.close()
            summary = self._write_metrics()
        problem = self._problem(summary)
        finished = time.time() if summary.rollouts == summary.asked else None
        manifests.save(self._output, manifests.replace(self._manifest, finished=finished))
        return JobResult(0 if problem is None else 1, self._job.output, self._manifest.run_id, summary, problem)

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

    def _ended(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self._failures[outcome.failure.kind] += 1
        self._progress.ended(outcome)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._progress.tick()

    def _write_metrics(self) -> Summary:
        summary = summarise(
            self._journal.entries,
            self._failures,
            asked=self._asked,
            repeats=self._job.repeats,
            seconds=time.monotonic() - self._began,
        )
        _write_json(self._output / "metrics.json", metrics(summary, self._manifest.run_id))
        return summary

    def _problem(self, summary: Summary) -> str | None:
        if self._collector.gave_up is not None:
            return self._collector.gave_up
        if summary.rollouts == 0:
            return f"no rollout was finished; why is in {self._journal.failures_path}"
        if summary.rollouts * 2 < summary.asked:
            failed = summary.asked - summary.rollouts
            return (
                f"{failed} of {summary.asked} rollouts failed, so the figures speak of a minority; why is in "
                f"{self._journal.failures_path}, and job.resume=true makes them anew"
            )
        if summary.calls == 0:
            return (
                "no model call was recorded: the agent did not call the model server at "
                "/ng-rollout/<_ng_rollout_id>/…, so there is nothing that these rewards could be held against"
            )
        return None

    def _say(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)


def _input_faults(job: JobConfig) -> list[Fault]:
    path = Path(job.input)
    if not path.is_file():
        return [Fault("job.input", f"expected a JSONL file, there is none at {path}")]
    try:
        fault = Dataset(path).first_fault()
    except OSError as error:
        fault = f"{path} cannot be read: {error.strerror}"
    return [] if fault is None else [Fault("job.input", f"expected rows of a dataset: {fault}")]


def _output_faults(job: JobConfig) -> list[Fault]:
    path = Path(job.output)
    if path.exists() and not path.is_dir():
        return [Fault("job.output", f"expected a folder, {path} is a file")]
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".ng-", dir=there))
    except OSError as error:
        return [Fault("job.output", f"expected a folder that can be written, {there} cannot: {error.strerror}")]
    try:
        earlier = manifests.load(path)
    except Refused as error:
        return [] if job.overwrite and not job.resume else [Fault("job.output", str(error))]
    if manifests.has_results(path) and not job.resume and not job.overwrite:
        return [Fault("job.output", _exists(job))]
    if job.resume and earlier is not None:
        asked = _asked_for(job)
        changed = manifests.differences({name: earlier.identity.get(name) for name in asked}, asked)
        if changed:
            return [Fault("job.resume", f"{path} holds another run: {'; '.join(changed)}")]
    if job.resume and earlier is None and (path / "rollouts.jsonl").exists():
        return [Fault("job.resume", f"{path} has rollouts but no manifest.json, so it is not known whose they are")]
    return []


def _asked_for(job: JobConfig) -> dict[str, Any]:
    """What of a run's identity the job says by itself."""
    return {
        "agent": job.agent,
        "limit": job.limit,
        "repeats": job.repeats,
        "responses_create_params": job.responses_create_params,
    }


def _exists(job: JobConfig) -> str:
    return (
        f"{job.output} already holds a run: set job.resume=true to finish it, "
        "or job.overwrite=true to remove it and start anew"
    )


def _write_json(path: Path, value: Any) -> None:
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")
    os.replace(scratch, path)
