"""`ng_export`: the captures of a job into what a trainer reads."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import msgspec


def main(argv: Sequence[str] | None = None) -> int:
    from nemo_gym.export.exporter import FORMATS, ExportError, ExportSummary, export

    parser = argparse.ArgumentParser(prog="ng_export", description=__doc__)
    parser.add_argument("output", help="the job's output folder")
    parser.add_argument(
        "--format", action="append", choices=sorted(FORMATS), dest="formats", help="repeatable; default token_rows"
    )
    parser.add_argument("--captures", help="where the captures are, if not in the job's own folder")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    arguments = parser.parse_args(argv)
    try:
        summary: ExportSummary = export(arguments.output, arguments.formats or ["token_rows"], arguments.captures)
    except ExportError as error:
        print(f"ng_export: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(summary), indent=2))
        return 0
    for name, folder in summary.folders.items():
        print(f"{name}: {summary.rows} rows of {summary.rollouts} rollouts in {folder}")
    print(f"tokens: {summary.captured:,} captured = {summary.trained:,} trained + {summary.context:,} context", end="")
    for reason, count in sorted(summary.discarded.items()):
        print(f" + {count:,} discarded ({reason})", end="")
    print()
    for reason, count in sorted(summary.left_out.items()):
        print(f"left out: {count} rollouts ({reason})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
