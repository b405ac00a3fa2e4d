"""Sharded runs, put together into one folder and summed up as one run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .arguments import WRONG, Parser, a_path, from_overrides, in_words
from .pipe import ends_in_order
from .profile import lines

_OVERRIDES = {"input_glob": "", "output_jsonl_fpath": "--output", "overwrite": "--overwrite"}


@ends_in_order
def main(argv: Sequence[str] | None = None) -> int:
    from nemo_gym.rollouts.profile import add_profile, plain, profile
    from nemo_gym.rollouts.results import Fields, ResultsError, read
    from nemo_gym.rollouts.shards import merge
    from nemo_gym.viewer.report import write_report

    arguments = _arguments(argv)
    output = Path(arguments.output.removesuffix(".jsonl"))  # a run is a folder; NeMo Gym names a file
    try:
        merged = merge(arguments.shards, output, arguments.renumber, overwrite=arguments.overwrite)
        results = read([output], Fields(arguments.by, arguments.answer))
        found = profile(results)
        add_profile(output, found)
        write_report([output], output / "report.html", results=results, overwrite=True)
    except (ResultsError, OSError) as error:
        print(f"ng_aggregate_rollouts: {in_words(error)}", file=sys.stderr)
        return WRONG
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(merged) | {"profile": plain(found)}, indent=2))
        return 0
    failed = f", {merged.failures} failures" if merged.failures else ""
    print(f"{merged.rollouts} rollouts{failed} of {len(merged.shards)} shards in {output}")
    print("\n".join(["", *lines(found)]))
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="ng_aggregate_rollouts",
        description=__doc__,
        epilog="NeMo Gym's +input_glob=… (several with commas) and +output_jsonl_fpath=… are taken too.",
    )
    parser.add_argument(
        "shards", type=a_path, nargs="+", metavar="SHARD", help="a job's folder, a file of rollouts, or a pattern"
    )
    parser.add_argument(
        "--output", "-o", type=a_path, required=True, metavar="FOLDER", help="where the whole is written"
    )
    parser.add_argument(
        "--renumber",
        choices=("tasks", "repeats"),
        help="whose numbers are each shard's own: its tasks (the data was cut), or its repeats of the same tasks",
    )
    parser.add_argument("--by", metavar="FIELD", help="the field that says a row's subset; default subset, category, …")
    parser.add_argument("--answer", metavar="FIELD", help="the field with the answer, for majority@k")
    parser.add_argument("--overwrite", action="store_true", help="replaces a run that is in FOLDER already")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser.parse_args(from_overrides(sys.argv[1:] if argv is None else argv, _OVERRIDES)[0])


if __name__ == "__main__":
    sys.exit(main())
