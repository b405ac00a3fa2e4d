"""`ng_collect_rollouts`: a job on servers that an `ng_run` in another shell keeps up."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from nemo_gym.config import paths
from nemo_gym.config.compose import COMMAND_LINE, Composed, compose
from nemo_gym.config.faults import Problem, did_you_mean
from nemo_gym.config.problems import find_job_problems
from nemo_gym.config.types import JobConfig
from nemo_gym.launch import head
from nemo_gym.rollouts.progress import Progress
from nemo_gym.web.peers import ServerClient

from .arguments import OVERRIDES, WRONG, show, split
from .pipe import ends_in_order
from .run import job_faults

_USAGE = f"""usage: ng_collect_rollouts +agent=NAME +input=FILE +output=FOLDER [overrides]

Runs a job on the servers of an ng_run in another shell. The keys are those of a `job` (`+agent_name`,
`+input_jsonl_fpath`, `+output_jsonl_fpath`, `+num_repeats`, … are accepted too). With several runs up, +run=RUN_ID
chooses one.

{OVERRIDES}"""


@ends_in_order
def main(argv: list[str] | None = None) -> int:
    args, _ = split(argv, _USAGE)
    composed = compose(args)
    wanted = composed.config.pop("run", None)
    by_keys = "job" not in composed.config
    if by_keys:
        composed = _as_job(composed)
    problems = find_job_problems(composed) or job_faults(composed)
    job = None if problems else composed.job()
    if job is None:
        show([_as_said(problem) for problem in problems] if by_keys else problems)
        return 2
    run = _chosen(wanted)
    if isinstance(run, str):
        print(run, file=sys.stderr)
        return 1 if wanted is None else WRONG
    answer = head.ask(run)
    if answer is None:
        print(f"run {run.run_id} does not answer", file=sys.stderr)
        return 1
    servers = {server["name"]: server for server in answer["servers"]}
    agents = [name for name, server in servers.items() if server["kind"] == "responses_api_agents"]
    for agent in job.agents():
        if agent not in agents:
            key = "+agent" if by_keys else "job.agent"
            print(f"{key}: run {run.run_id} has no agent {agent!r}{did_you_mean(agent, agents)}", file=sys.stderr)
            return 2
    return uvloop.run(_collect(job, run, answer, _asked_file(composed)))


def _as_job(composed: Composed) -> Composed:
    """NeMo Gym's way of saying it: the job's keys at the top of the command line."""
    said = {key[0] for key, origin in composed.origins.items() if len(key) == 1 and origin == COMMAND_LINE}
    job_keys = {key: value for key, value in composed.config.items() if key in said}
    for key in job_keys:
        del composed.config[key]
    composed.config["job"] = job_keys
    composed.origins.update({("job", *path): origin for path, origin in composed.origins.items()})
    return composed


def _as_said(problem: Problem) -> Problem:
    """Under the keys of the command line, which are not a `job`'s there."""
    key = re.sub(r"^job\.", "+", problem.key)
    message = re.sub(r"\bjob\.(?=[a-z_]+=)", "+", problem.message)
    return Problem(key, "" if problem.where == COMMAND_LINE else problem.where, message)


def _asked_file(composed: Composed) -> Path | None:
    """The file that NeMo Gym's `output_jsonl_fpath` names; a job writes a folder of its name beside it."""
    named = composed.config["job"].get("output_jsonl_fpath") or composed.config["job"].get("output")
    return paths.absolute(named) if isinstance(named, str) and named.endswith(".jsonl") else None


def _chosen(wanted: Any) -> head.Run | str:
    runs = [run for run in head.runs() if run.serves]
    if wanted is not None:
        found = [run for run in runs if run.run_id == wanted]
        return found[0] if found else f"+run: there is no run {wanted!r}{did_you_mean(str(wanted), _ids(runs))}"
    if not runs:
        return "nothing is running: start the servers with ng_run in another shell"
    if len(runs) > 1:
        return f"several runs are up: choose one with +run=… out of {', '.join(_ids(runs))}"
    return runs[0]


def _ids(runs: list[head.Run]) -> list[str]:
    return [run.run_id for run in runs]


async def _collect(job: JobConfig, run: head.Run, answer: dict[str, Any], file: Path | None) -> int:
    run_id = run.run_id
    progress: list[Progress] = []
    told = head.Head(f"{run_id}-job", lambda: _described(progress, run_id), ["ng_collect_rollouts"], serves=False)
    await told.start()
    try:
        code = await _done(job, run, answer, progress.append)
    finally:
        await told.stop()
    if file is not None and (Path(job.output) / "rollouts.jsonl").exists():
        _publish(Path(job.output) / "rollouts.jsonl", file)
    return code


def _described(progress: list[Progress], run_id: str) -> dict[str, Any]:
    """What `ng_status` is told of this job, which has no servers of its own."""
    job = msgspec.to_builtins(progress[-1].state()) if progress else None
    return {"servers": [], "job": job, "on": run_id}


async def _done(job: JobConfig, run: head.Run, answer: dict[str, Any], began: Callable[[Progress], object]) -> int:
    from .job import do_job
    from .terminal import console

    return await do_job(
        job,
        ServerClient.of_run(run, answer),
        run_id=run.run_id,
        config_digest="",
        captures=answer.get("captures"),
        logs=None,
        console=console(),
        began=began,
    )


def _publish(journal: Path, file: Path) -> None:
    scratch = file.with_name(file.name + ".tmp")
    shutil.copyfile(journal, scratch)
    os.replace(scratch, file)


if __name__ == "__main__":
    sys.exit(main())
