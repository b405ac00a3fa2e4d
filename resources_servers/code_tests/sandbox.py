"""Runs a program that is not trusted, in a process of its own with limits.

`inside` runs in that process before the program does: it leaves the network and the other processes behind where the
kernel lets it (user namespaces), sets limits that the program cannot raise, and becomes the program. This is a guard
against accidents and cheap tricks, not a wall against attackers: for those, run the server itself in a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_OUTPUT = 1 << 16
_START_S = 10.0
"""What starting Python may take on a busy machine, beyond the program's own limit of processor time."""
_END_S = 5.0
_NEW_USER, _NEW_PID, _NEW_NET, _NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
_DIE_WITH_PARENT = 1


class Limits(NamedTuple):
    time_s: float
    memory_mb: int


class Result(NamedTuple):
    output: str
    failure: str | None
    """`time`, `output` (too much of it), or `error`; None for a program that ended well."""


async def run(code: str, given: str, limits: Limits) -> Result:
    """The program's output for an input. It and all that it started are gone when this returns."""
    with tempfile.TemporaryDirectory(prefix="code_tests_") as folder:
        program = Path(folder) / "program.py"
        program.write_text(code, encoding="utf-8", errors="replace")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(Path(__file__)), str(program), str(limits.time_s), str(limits.memory_mb),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": folder, "PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
            start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(limits.time_s * 2 + _START_S):
                output = await _talk(process, given)
                if len(output) > _OUTPUT:
                    return Result("", "output")
                code_ = await process.wait()
        except TimeoutError:
            return Result("", "time")
        finally:
            await _end(process)
    if code_ in (-signal.SIGXCPU, 128 + signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGKILL):
        return Result("", "time")
    return Result(output.decode("utf-8", "replace"), "error" if code_ else None)


async def _talk(process: asyncio.subprocess.Process, given: str) -> bytes:
    """Gives the input, and takes the output up to its limit."""
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def give() -> None:
        with contextlib.suppress(ConnectionError):  # a program need not read its input
            stdin.write(given.encode("utf-8", "replace"))
            await stdin.drain()
        stdin.close()

    giving = asyncio.create_task(give())
    output = b""
    try:
        while len(output) <= _OUTPUT and (piece := await stdout.read(_OUTPUT)):
            output += piece
    finally:
        giving.cancel()
        await asyncio.gather(giving, return_exceptions=True)
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the program and all that it started. What it still wrote is read away: asyncio waits for the pipe's end."""
    assert process.stdout is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # a child that left the group may hold the pipe open
        async with asyncio.timeout(_END_S):
            while await process.stdout.read(_OUTPUT):
                pass
            await process.wait()


def inside(program: str, time_s: float, memory_mb: int) -> None:
    """Becomes the program, behind its limits. The exit status is the program's, or 128 and its signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    alone = libc.unshare(_NEW_USER | _NEW_PID | _NEW_NET | _NEW_IPC) == 0
    child = os.fork()  # in a namespace of processes this one is the first, and all end with it
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    seconds = math.ceil(time_s)
    memory = memory_mb << 20
    for what, most in (
        (resource.RLIMIT_CPU, (seconds, seconds + 1)),
        (resource.RLIMIT_AS, (memory, memory)),
        (resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
        (resource.RLIMIT_NOFILE, (64, 64)),
        (resource.RLIMIT_CORE, (0, 0)),
    ):
        resource.setrlimit(what, most)
    if alone:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
    os.execv(sys.executable, [sys.executable, "-I", program])


if __name__ == "__main__":
    inside(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
