"""A job's report, written by a process of its own: what reading a whole run takes is given back when it is done.

The process is out of reach of a Ctrl-C in the terminal, so a job that is told to end still leaves its report; and it
ends with the job's own process, however that ends.

    python -m nemo_gym.viewer.apart FOLDER [CAPTURES]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from ..process import die_with

_LONGEST_S = 3600.0


class ReportFailed(Exception):
    """The last words of the process that was to write it."""


async def sum_up_apart(folder: Path, captures: str | Path | None = None) -> Path:
    """As `report.sum_up`. Cancelled, it ends after the report is written all the same.

    Raises:
        ReportFailed: there is no report, or it is the one of before.
    """
    work = asyncio.create_task(_done(folder, captures))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with contextlib.suppress(ReportFailed):
            await work
        raise


async def _done(folder: Path, captures: str | Path | None) -> Path:
    arguments = [os.fspath(folder), *([] if captures is None else [os.fspath(captures)])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nemo_gym.viewer.apart", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {_PARENT: str(os.getpid())},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_LONGEST_S):
            _, said = await process.communicate()
    except TimeoutError:
        raise ReportFailed(f"not written within {_LONGEST_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        words = said.decode("utf-8", "replace").strip().splitlines()
        raise ReportFailed(words[-1] if words else f"its process ended with {process.returncode}")
    return folder / "report.html"


# ---- the process

_PARENT = "NG_REPORT_OF"


def main() -> None:
    if (parent := os.environ.pop(_PARENT, None)) is not None:
        die_with(int(parent))
    from .report import sum_up

    folder, *captures = sys.argv[1:]
    sum_up(Path(folder), captures[0] if captures else None)


if __name__ == "__main__":
    main()
