"""An eval job, from its config to an exit code.

0: the rollouts were made (those that failed are in `failures.jsonl`, and a resumed job makes them anew), or the job was
told to end before. 1: fewer than half of those that were begun came to a result, or no model call of any was recorded,
or no server could be reached any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console

from ..config import paths
from ..config.types import JobConfig
from ..web.peers import ServerClient
from . import manifest as manifests
from .collector import Finished
from .journal import JournalError
from .manifest import Lock, Refused
from .plan import Plan, unwritable
from .progress import Progress
from .start import OF_TOKENS as OF_TOKENS
from .start import JobResult, Start


class Fault(Struct, frozen=True):
    """A mistake in the job's config: the key, and what is wrong with its value."""

    key: str
    message: str


def preflight(job: JobConfig, served: Mapping[str, Any] | None = None) -> list[Fault]:
    """What can be known to be wrong before any server is started.

    Args:
        served: the settings of the servers, where they are known.
    """
    return _input_faults(job) + _output_faults(job, served or {})


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
    served: Mapping[str, Any] | None = None,
    began: Callable[[Progress], object] = lambda progress: None,
    finished: Finished | None = None,
) -> JobResult:
    """The whole job against running servers. Cancelled, it seals what is in flight and leaves a resumable output.

    Args:
        served: the settings of the servers, one of which a resumed job names when it is not what it was.
        began: told of the progress, once there is any.
        finished: given the row of each finished rollout; while it waits, no rollout is begun in that one's place.
    """
    faults = _input_faults(job)
    if faults:
        return JobResult(1, job.output, run_id, problem="; ".join(f"{fault.key}: {fault.message}" for fault in faults))
    try:
        lock = Lock(Path(job.output))
        try:
            if not job.resume and manifests.has_results(Path(job.output)):
                if not job.overwrite:
                    raise Refused(_exists(job))
                manifests.clear(Path(job.output), keep_run=run_id)
            config = {**(served or {}), "config_digest": config_digest}
            start = Start(job, client, run_id, model_servers, config, console, finished)
            began(start.progress)
            return await start.to_the_end()
        finally:
            lock.release()
    except (Refused, JournalError) as error:
        return JobResult(1, job.output, run_id, problem=str(error))
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else job.output
        return JobResult(1, job.output, run_id, problem=f"{where}: {error.strerror or error}")


def _input_faults(job: JobConfig) -> list[Fault]:
    return [Fault(key, words) for key, words in Plan(job).faults()]


def _output_faults(job: JobConfig, served: Mapping[str, Any]) -> list[Fault]:
    path = Path(job.output)
    if (fault := unwritable(job.output)) is not None:
        return [Fault("job.output", fault)]
    if fault := paths.no_folder(path):
        return [Fault("job.output", fault)]
    if (held := manifests.locked(path)) is not None:
        return [Fault("job.output", held)]
    try:
        earlier = manifests.load(path)
    except Refused as error:
        return [] if job.overwrite and not job.resume else [Fault("job.output", str(error))]
    if manifests.has_results(path) and not job.resume and not job.overwrite:
        return [Fault("job.output", _exists(job))]
    if job.resume and earlier is not None:
        asked = Plan(job).identity() | dict(served)
        changed = manifests.differences({name: earlier.identity.get(name) for name in asked}, asked)
        if changed and not job.accept_changes:
            return [Fault("job.resume", f"{path}: {manifests.not_the_same(changed)}")]
    if job.resume and earlier is None and (path / "rollouts.jsonl").exists():
        return [Fault("job.resume", f"{path} has rollouts but no manifest.json, so it is not known whose they are")]
    return []


def _exists(job: JobConfig) -> str:
    return (
        f"{job.output} already holds a run: set job.resume=true to finish it, "
        "or job.overwrite=true to remove it and start anew"
    )
