"""Small tasks in a folder; what the agent left there is checked in a fresh copy, under limits.

The copy holds what the agent left, with the row's own check files put back, so a reward depends on the work and not on
an agent's edit of its check. Checks are run one after another; each has its time, memory and file size.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.process import Child

_LIMITED = 'ulimit -t {cpu}; ulimit -v {memory}; ulimit -f 65536; exec "$@"'
_FILES = 2000


class WorkspaceTasksConfig(BaseResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS
    check_timeout_s: float = Field(default=20.0, gt=0)
    check_memory_mb: int = Field(default=2048, ge=64)
    max_concurrent: int = Field(default=8, ge=1)


class FileIs(BaseModel):
    """A file has this text; white space at its end aside."""

    kind: Literal["file_is"]
    path: str
    text: str


class NoFileHas(BaseModel):
    """The word is in no file any more."""

    kind: Literal["no_file_has"]
    word: str


class Runs(BaseModel):
    """A Python file of the folder runs and exits with 0."""

    kind: Literal["runs"]
    path: str


class AnswerHas(BaseModel):
    """The final message states this, as a whole word."""

    kind: Literal["answer_has"]
    word: str


Check = Annotated[FileIs | NoFileHas | Runs | AnswerHas, Field(discriminator="kind")]


class VerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    checks: list[Check] = Field(min_length=1)
    files: dict[str, str] = Field(default_factory=dict)
    """As the row had them."""
    protected: list[str] = Field(default_factory=list)
    """Files that count as the row had them."""
    taken_files: dict[str, str] = Field(default_factory=dict)
    """As the agent left them."""
    final_message: str = ""


class VerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    failed_check: str | None = None


class WorkspaceTasks(SimpleResourcesServer):
    config: WorkspaceTasksConfig
    _slots: asyncio.Semaphore | None = None

    async def verify(self, body: VerifyRequest) -> VerifyResponse:  # type: ignore[override]
        failed = await self._first_failure(body)
        row = body.model_dump(exclude_unset=True, by_alias=True)
        return VerifyResponse(**row, reward=float(failed is None), failed_check=failed)

    async def _first_failure(self, body: VerifyRequest) -> str | None:
        files = body.taken_files | {name: body.files[name] for name in body.protected if name in body.files}
        for check in body.checks:
            if isinstance(check, Runs):
                failure = await self._run(check, files)
            else:
                failure = _failure(check, files, body.final_message)
            if failure is not None:
                return failure
        return None

    async def _run(self, check: Runs, files: Mapping[str, str]) -> str | None:
        if check.path not in files:
            return f"{check.path} is not there"
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.config.max_concurrent)
        async with self._slots:
            with tempfile.TemporaryDirectory(prefix="check-", ignore_cleanup_errors=True) as folder:
                return await self._ended(check, Path(folder), files)

    async def _ended(self, check: Runs, folder: Path, files: Mapping[str, str]) -> str | None:
        copy = folder / "copy"
        await asyncio.to_thread(_write, copy, files)
        config = self.config
        limits = _LIMITED.format(cpu=int(config.check_timeout_s) + 1, memory=config.check_memory_mb << 10)
        child = Child.start(
            ["/bin/sh", "-c", limits, "sh", sys.executable, "-B", "-S", check.path],
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(folder), "TMPDIR": str(folder)},
            cwd=copy,
            log_path=folder / "said.log",
            grace_s=0.2,
        )
        try:
            status = await child.ended(config.check_timeout_s)
        finally:
            child.ask_to_stop(0.2)
            await asyncio.shield(child.ended(10))
        if status is None:
            return f"{check.path} did not end within {config.check_timeout_s:g} s"
        return None if status == 0 else f"{check.path} exits with {status}: {child.last_words(5)}"


def _failure(check: FileIs | NoFileHas | AnswerHas, files: Mapping[str, str], answer: str) -> str | None:
    if isinstance(check, FileIs):
        if check.path not in files:
            return f"{check.path} is not there"
        return None if files[check.path].rstrip() == check.text.rstrip() else f"{check.path} has another text"
    if isinstance(check, NoFileHas):
        holders = [name for name, text in files.items() if _has(text, check.word)]
        return f"{check.word} is still in {', '.join(sorted(holders)[:5])}" if holders else None
    return None if _has(answer, check.word) else f"the final message does not state {check.word}"


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-]|\.\w)", text) is not None


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir()
    folder = folder.resolve()
    for name, text in list(files.items())[:_FILES]:
        path = (folder / name).resolve()
        if folder in path.parents:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__":
    WorkspaceTasks.run_webserver()
