"""A job on servers that are up: rollouts, exports, and the figures for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nemo_gym.config import paths
from nemo_gym.config.types import JobConfig
from nemo_gym.rollouts.job import run_job
from nemo_gym.rollouts.manifest import has_rollouts
from nemo_gym.rollouts.progress import Progress
from nemo_gym.rollouts.start import JobResult
from nemo_gym.rollouts.summary import lines
from nemo_gym.viewer.apart import ReportFailed, sum_up_apart
from nemo_gym.web import client as pooled
from nemo_gym.web.peers import ServerClient

if TYPE_CHECKING:
    from nemo_gym.export.exporter import ExportSummary


async def do_job(
    job: JobConfig,
    client: ServerClient,
    *,
    run_id: str,
    config_digest: str,
    captures: str | None,
    logs: Path | None,
    console: Console,
    served: Mapping[str, Any] | None = None,
    began: Callable[[Progress], object] = lambda progress: None,
    collect: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """The exit code, when the rollouts are made, exported and summed up. Cancelled, it still sums up what is done.

    Args:
        collect: has what was recorded elsewhere brought to `captures`.
    """
    try:
        result = await run_job(
            job,
            client,
            run_id=run_id,
            model_servers=[name for name, kind in client.kinds.items() if kind == "responses_api_models"],
            config_digest=config_digest,
            console=console,
            served=served,
            began=began,
        )
        if collect is not None:
            await collect()
        exported, fault = await _export(job, result, captures, console)
    except asyncio.CancelledError:
        if (report := await _report(job, captures, console)) is not None:
            console.print(f"what is done is in {paths.shown(report)}", markup=False)
        raise
    finally:
        await pooled.close()
    report = await _report(job, captures, console)
    _show(job, result, exported, report, captures, logs, console)
    if result.stopped is not None:
        console.print(f"ended early, as told: {result.stopped}", style="yellow", markup=False)
    for words in filter(None, (result.problem, fault)):
        console.print(words, style="bold red", markup=False)
    return result.exit_code or (1 if fault else 0)


async def _export(
    job: JobConfig, result: JobResult, captures: str | None, console: Console
) -> tuple[ExportSummary | None, str | None]:
    if not job.export or result.summary is None or result.summary.rollouts == 0:
        return None, None
    from nemo_gym.export.exporter import ExportError, export

    with console.status("exporting"):
        try:
            return await asyncio.to_thread(export, job.output, job.export, captures), None
        except (ExportError, OSError) as error:
            return None, f"export: {error}"


async def _report(job: JobConfig, captures: str | None, console: Console) -> Path | None:
    """`report.html`, and its figures in `metrics.json`. The job is no worse without it: a fault of it is only told."""
    if not has_rollouts(Path(job.output)):
        return None
    with console.status("writing the report"):
        try:
            return await sum_up_apart(Path(job.output), captures)
        except (ReportFailed, OSError) as error:
            console.print(f"report: {error}", style="yellow", markup=False)
            return None


def _show(
    job: JobConfig,
    result: JobResult,
    exported: ExportSummary | None,
    report: Path | None,
    captures: str | None,
    logs: Path | None,
    console: Console,
) -> None:
    if result.summary is None:
        return
    output = paths.shown(job.output)
    rows = lines(result.summary, f"{output}/rollouts.jsonl, metrics.json, manifest.json")
    places = {"captures": captures and paths.shown(captures), "logs": logs and paths.shown(logs)}
    if report is not None:
        places["report"] = paths.shown(report)
    if exported is not None:
        places["exports"] = ", ".join(paths.shown(folder) for folder in exported.folders.values())
        discarded = sum(exported.discarded.values())
        places["exported"] = (
            f"{exported.rows:,} rows of {exported.rollouts:,} rollouts   {exported.captured:,} tokens captured = "
            f"{exported.trained:,} trained + {exported.context:,} context + {discarded:,} discarded"
        )
    width = max((len(row.split("  ", 1)[0]) for row in rows), default=0)
    width = max(width, *map(len, places))
    rows += [f"{name:<{width}}  {where}" for name, where in places.items() if where]
    console.print()
    for row in rows:
        console.print(row, markup=False)
