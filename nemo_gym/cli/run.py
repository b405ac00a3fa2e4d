"""`ng_run`: the servers of a configuration up, its job done, everything down again.

Faults are found before anything starts and end the command with 2. Without a job the servers stay up until Ctrl-C.
However the command ends, no server outlives it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nemo_gym.config.faults import Problem, did_you_mean
from nemo_gym.launch import forkserver

from .arguments import OVERRIDES, show, show_warnings, split
from .interrupt import ends_at_once
from .pipe import ends_in_order

if TYPE_CHECKING:
    from rich.console import Console

    from nemo_gym.config.compose import Composed
    from nemo_gym.config.types import JobConfig
    from nemo_gym.launch.launcher import Launcher, LaunchError
    from nemo_gym.rollouts.progress import Progress

_USAGE = f"""usage: ng_run [overrides]

Starts the servers of a configuration. With a `job` in it, runs the job, exports, and ends with its exit code;
without one, keeps the servers up until Ctrl-C.

{OVERRIDES}

  ng_run "+config_paths=[configs/quickstart.yaml]"
  ng_run "+config_paths=[configs/quickstart.yaml]" ++job.repeats=8 ++job.overwrite=true"""

BAD_CONFIG, FAILED = 2, 1
_TWICE_S = 0.5
"""Nearer to the first, a signal is the same one: what started this command passes on what the terminal sent to both."""


@ends_in_order
def main(argv: list[str] | None = None) -> int:
    args, _ = split(argv, _USAGE)
    forkserver.begin()
    try:
        with ends_at_once():
            import uvloop

            composed, problems = composed_to_run(args)
            if problems:
                show(problems)
                return BAD_CONFIG
            from nemo_gym.config.unknown import find_warnings

            show_warnings(find_warnings(composed))
            run = Run(composed, [Path(sys.argv[0]).name, *args])
        return uvloop.run(run.ended())
    except KeyboardInterrupt:  # before there was anything to end
        return 128 + signal.SIGINT
    finally:
        forkserver.end()


def composed_to_run(args: Sequence[str]) -> tuple[Composed, list[Problem]]:
    """The configuration, and its faults."""
    gc.disable()  # a fifth of the time that the imports take
    from nemo_gym.config.compose import compose

    composed = compose(args)
    forkserver.expect(composed.instances)
    problems = faults(composed, to_run=True)
    gc.enable()
    return composed, problems


def faults(composed: Composed, *, to_run: bool = False) -> list[Problem]:
    """All faults: the configuration's, and those of the job against its data and its output."""
    from nemo_gym.config.problems import find_problems

    problems = find_problems(composed)
    if problems:
        return problems
    if to_run and not composed.instances:
        return [Problem("", "", "no server is configured, so there is nothing to run")]
    return job_faults(composed)


def job_faults(composed: Composed) -> list[Problem]:
    """The job against its data, its output and the formats there are."""
    job = composed.job()
    if job is None:
        return []
    from nemo_gym.rollouts.job import preflight

    keys = {found: ("job", *found.key.removeprefix("job.").split(".")) for found in preflight(job, composed.served())}
    problems = [Problem(".".join(key), composed.origin(key), found.message) for found, key in keys.items()]
    if job.export:
        from nemo_gym.export.exporter import FORMATS

        where = composed.origin(("job", "export"))
        for name in sorted(set(job.export) - FORMATS.keys()):
            problems.append(Problem("job.export", where, f"there is no format {name!r}{did_you_mean(name, FORMATS)}"))
        if not composed.capture().enabled:
            problems.append(Problem("job.export", where, "needs captures, but capture.enabled is false"))
    return problems


class Run:
    """One run of a configuration, from its first server to the last that ends."""

    def __init__(self, composed: Composed, command: Sequence[str]) -> None:
        from .terminal import console

        self.composed = composed
        self.command = [_unkeyed(argument) for argument in command]
        self.job = composed.job()
        self.run_id = _run_id(self.job)
        self.console = console()
        self.signals: list[signal.Signals] = []
        self._ending = 0.0
        self.progress: Progress | None = None
        # Without a job there is no folder that is this run's alone, and two runs at once must not share files.
        self.logs = composed.logs() if self.job else composed.logs() / self.run_id

    async def ended(self) -> int:
        """The exit code, when all is down."""
        work = asyncio.create_task(self.work())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.interrupted, number, work)
        try:
            return await work
        except asyncio.CancelledError:
            if not self.signals:
                raise
            return 128 + self.signals[0]

    def interrupted(self, number: signal.Signals, work: asyncio.Task[int]) -> None:
        """The first signal ends the run in order; Ctrl-C after it, at once: the keepers end every server then."""
        if not self.signals:
            self.signals.append(number)
            self._ending = time.monotonic()
            work.cancel()
            self.console.print("ending… (Ctrl-C once more ends it at once)", style="dim")
        elif number == signal.SIGINT and time.monotonic() - self._ending > _TWICE_S:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    async def work(self) -> int:
        from nemo_gym.launch.head import Head
        from nemo_gym.launch.launcher import Launcher, LaunchError

        launcher = Launcher(self.composed, self.run_id, self.logs)
        head = Head(self.run_id, lambda: self.described(launcher), self.command, key=launcher.client_key)
        began = time.monotonic()
        try:
            await head.start()
            await launcher.up(self.console)
            self.console.print(f"{_count(launcher)} up after {time.monotonic() - began:.1f} s", style="dim")
            working = asyncio.create_task(self.run_job(launcher) if self.job else self.stay(launcher))
            return await _unless_a_server_ends(working, launcher)
        except LaunchError as error:
            self.show_culprit(error)
            return FAILED
        finally:
            await asyncio.shield(_down(launcher, head))

    async def stay(self, launcher: Launcher) -> int:
        for name, url in launcher.servers.items():
            self.console.print(f"  {name}  [cyan]{url}[/]")
        self.console.print("Ctrl-C ends them; ng_status in another shell lists them", style="dim")
        await asyncio.Event().wait()
        return 0

    async def run_job(self, launcher: Launcher) -> int:
        from .job import do_job

        assert self.job is not None
        capture = self.composed.capture()
        return await do_job(
            self.job,
            launcher.client,
            run_id=self.run_id,
            config_digest=self.composed.digest(),
            served=self.composed.served(),
            captures=capture.dir if capture.enabled else None,
            logs=self.logs,
            console=self.console,
            began=self.began,
            collect=launcher.collect,
        )

    def began(self, progress: Progress) -> None:
        self.progress = progress

    def described(self, launcher: Launcher) -> dict[str, Any]:
        """What the head tells: servers, and how far the job is."""
        capture = self.composed.capture()
        job = None if self.progress is None else msgspec.to_builtins(self.progress.state())
        return {
            "servers": launcher.describe(),
            "captures": capture.dir if capture.enabled else None,
            "job": job,
        }

    def show_culprit(self, error: LaunchError) -> None:
        """The one server that is to blame, and its last words."""
        console: Console = self.console
        console.print(f"{error.server}: {error}" if error.server else str(error), style="bold red", markup=False)
        if error.last_words:
            console.print(error.last_words, markup=False)
        if error.server:
            console.print(f"its log: {self.logs / error.server}.log", style="dim", markup=False)


async def _unless_a_server_ends(working: asyncio.Task[int], launcher: Launcher) -> int:
    """The work's result; LaunchError as soon as a server has died under it."""
    watching = asyncio.create_task(launcher.watch())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise watching.result()
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _down(launcher: Launcher, head: Any) -> None:
    await launcher.down()
    await head.stop()


def _unkeyed(argument: str) -> str:
    """An override as it may be shown: `ng_status` prints the command."""
    from nemo_gym.config.secrets import MASK, secret_name

    key, equals, _ = argument.partition("=")
    return f"{key}={MASK}" if equals and secret_name(key.rpartition(".")[2]) else argument


def _run_id(job: JobConfig | None) -> str:
    """The resumed run's id, the one asked for, or a new one that sorts by time."""
    if job is not None:
        from nemo_gym.rollouts.job import kept_run_id

        if known := kept_run_id(job) or job.run_id:
            return known
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def _count(launcher: Launcher) -> str:
    count = len(launcher.servers)
    return f"{count} {'server' if count == 1 else 'servers'}"


if __name__ == "__main__":
    sys.exit(main())
