"""`ng_status`: the runs, servers and jobs that are up, as seen from any shell of the same user."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import msgspec

from nemo_gym.config import paths
from nemo_gym.launch import head

from .arguments import split
from .pipe import ends_in_order

_USAGE = """usage: ng_status [--json]

Lists the runs that are up: their servers, with addresses, states and logs, and how far their jobs are."""
_COLOURS = {"ready": "green", "starting": "yellow", "ended": "red"}


@ends_in_order
def main(argv: list[str] | None = None) -> int:
    args, flags = split(argv, _USAGE, ["--json"])
    if args:
        print(f"ng_status takes no argument, got {' '.join(args)}\n{_USAGE}", file=sys.stderr)
        return 2
    try:
        found = [_described(run) for run in head.runs()]
    except PermissionError as error:
        print(error, file=sys.stderr)
        return 1
    if "--json" in flags:
        print(json.dumps({"runs": found}, indent=2))
    elif not found:
        print("nothing is running")
    else:
        _show(found)
    return 0


def _described(run: head.Run) -> dict[str, Any]:
    answer = head.ask(run)
    return {
        "run_id": run.run_id,
        "pid": run.pid,
        "folder": run.folder,
        "command": run.command,
        "started": run.started,
        "answers": answer is not None,
        **(answer or {"servers": []}),
    }


def _show(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape

    from nemo_gym.rollouts.progress import State, line

    console = Console(highlight=False, soft_wrap=True)
    for run in found:
        silent = "" if run["answers"] else ", does not answer"
        console.print(
            f"[bold]{escape(run['run_id'])}[/]  pid {run['pid']}, up {_age(run['started'])}{silent}{_on(run)}"
        )
        console.print(f"  {escape(' '.join(run['command']))}  in {escape(run['folder'])}", style="dim")
        if run.get("job"):
            console.print(f"  {escape(line(msgspec.convert(run['job'], State)))}", style="cyan")
            console.print(f"  {escape(paths.shown(run['job']['output']))}", style="dim")
        rows = [(server["name"], server["state"], server["url"], _kind(server)) for server in run["servers"]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for cells, server in zip(rows, run["servers"], strict=True):
            name, state, url, kind = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            log = escape(paths.shown(server["log"]))
            colour = _COLOURS.get(server["state"], "red")
            console.print(f"  {escape(name)}  [{colour}]{state}[/]  {url}  {kind}  [dim]{log}[/]")
            if server.get("note"):
                console.print(f"    {escape(server['note'])}", style="yellow")


def _on(run: dict[str, Any]) -> str:
    return f", a job on the servers of {run['on']}" if run.get("on") else ""


def _kind(server: dict[str, Any]) -> str:
    return f"{server['kind']}/{server['implementation']}"


def _age(since: float) -> str:
    seconds = int(time.time() - since)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


if __name__ == "__main__":
    sys.exit(main())
