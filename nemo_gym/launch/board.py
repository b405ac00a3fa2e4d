"""What a person sees while servers start: one live line each in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Board:
    """Shows each server from its start until it is ready; used as a context manager."""

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self._console = console
        self._names = list(names)
        self._width = max(map(len, self._names), default=0)
        self._began = time.monotonic()
        self._said: dict[str, str] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.fields[name]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.description}", markup=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {
            name: self._progress.add_task("starting", name=name.ljust(self._width), total=1) for name in self._names
        }

    def __enter__(self) -> Board:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def note(self, name: str, text: str) -> None:
        """Why a server is not ready yet; said again only when it changes."""
        if self._said.get(name) == text:
            return
        self._said[name] = text
        self._progress.update(self._tasks[name], description=text)
        self._line(f"{name.ljust(self._width)}  {text}")

    def ready(self, name: str, url: str) -> None:
        self._progress.update(self._tasks[name], description=url, completed=1)
        self._line(f"{name.ljust(self._width)}  ready after {time.monotonic() - self._began:.1f} s  {url}")

    def failed(self, name: str) -> None:
        self._progress.update(self._tasks[name], description="[red]failed")

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
