"""`ng_status`: the runs and servers that are up, as seen from any shell of the same user."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from nemo_gym.launch import head

from .arguments import split

_USAGE = """usage: ng_status [--json]

Lists the runs that are up and their servers, with addresses, states and logs."""
_MARKS = {"ready": "[green]ready[/]", "starting": "[yellow]starting[/]", "ended": "[red]ended[/]"}


def main(argv: list[str] | None = None) -> int:
    _, flags = split(argv, _USAGE, ["--json"])
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
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for run in found:
        silent = "" if run["answers"] else ", does not answer"
        console.print(f"[bold]{escape(run['run_id'])}[/]  pid {run['pid']}, up {_age(run['started'])}{silent}")
        console.print(f"  {escape(' '.join(run['command']))}  in {escape(run['folder'])}", style="dim")
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim", pad_edge=False)
        for column in ("  server", "kind", "state", "address", "log"):
            table.add_column(column, no_wrap=not sys.stdout.isatty())
        for server in run["servers"]:
            note = f" [dim]{escape(server['note'])}[/]" if server.get("note") else ""
            table.add_row(
                "  " + escape(server["name"]),
                f"{server['kind']}/{server['implementation']}",
                _MARKS.get(server["state"], server["state"]) + note,
                server["url"],
                escape(server["log"]),
            )
        console.print(table)


def _age(since: float) -> str:
    seconds = int(time.time() - since)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


if __name__ == "__main__":
    sys.exit(main())
