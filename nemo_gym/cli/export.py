"""The captures of a job, or captures alone, into what a trainer reads."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from .arguments import WRONG, Parser, a_path, in_words
from .pipe import ends_in_order

if TYPE_CHECKING:
    from nemo_gym.export.exporter import ExportSummary
    from nemo_gym.export.options import Options


@ends_in_order
def main(argv: Sequence[str] | None = None) -> int:
    from nemo_gym.export.explain import explain, lines
    from nemo_gym.export.exporter import export
    from nemo_gym.export.options import ExportError

    arguments = _parser().parse_args(argv)
    try:
        if arguments.explain is not None:
            explanation = explain(arguments.output, arguments.explain, arguments.captures, arguments.branches)
        else:
            formats = arguments.formats or ["token_rows"]
            summary = export(
                arguments.output, formats, arguments.captures, _options(arguments), arguments.to, arguments.ray
            )
    except (ExportError, OSError) as error:
        print(f"ng_export: {in_words(error)}", file=sys.stderr)
        return WRONG
    if arguments.explain is not None:
        _print(explanation, list(lines(explanation)), as_json=arguments.json)
    else:
        _print(summary, _summary(summary), as_json=arguments.json)
    return 0


def _print(value: object, words: Sequence[str], *, as_json: bool) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2) if as_json else "\n".join(words))


def _summary(summary: ExportSummary) -> list[str]:
    from nemo_gym.export.explain import in_words

    words = []
    for name, one in summary.formats.items():
        words.append(f"{name}: {one.rows} rows of {summary.rollouts} rollouts in {one.folder}")
        words += [f"  could not be said: {count} ({reason})" for reason, count in sorted(one.skipped.items())]
    words.append("tokens: " + in_words(summary))
    if summary.sequences:
        began = ", ".join(f"{count} {cause}" for cause, count in sorted(summary.sequences.items()))
        words.append(f"sequences by their beginning: {began}")
    words += [f"left out: {count} rollouts ({reason})" for reason, count in sorted(summary.left_out.items())]
    return words


def _parser() -> argparse.ArgumentParser:
    from nemo_gym.export.formats import FORMATS
    from nemo_gym.export.options import ADVANTAGES, BRANCHES, INCLUDABLE

    parser = Parser(prog="ng_export", description=__doc__)
    parser.add_argument("output", type=a_path, help="the job's output folder, or a folder of captures without a job")
    parser.add_argument(
        *("--format", "-f"),
        action="append",
        choices=sorted(FORMATS),
        dest="formats",
        help="repeatable; default token_rows",
    )
    parser.add_argument(
        "--captures", type=a_path, metavar="FOLDER", help="where the captures are, if not in the job's own folder"
    )
    parser.add_argument(
        "--to", type=a_path, metavar="FOLDER", help="where to write; default exports, beside the captures"
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        default=os.environ.get("RAY_ADDRESS") or None,
        help="have it done on a Ray cluster (auto, host:port, or local for one of its own) that reaches the captures "
        "by the same path; default RAY_ADDRESS, where that is set",
    )
    parser.add_argument("--explain", metavar="ROLLOUT", help="how this rollout's sequences came about; writes nothing")
    parser.add_argument("--json", action="store_true", help="what is printed as JSON")

    what = parser.add_argument_group("what becomes a row")
    what.add_argument(
        "--branches",
        choices=BRANCHES,
        default="all",
        help="all branches, the main line alone, its last call alone, or one sequence a call; default all",
    )
    what.add_argument("--advantage", choices=ADVANTAGES, help="fills the column; default null")
    what.add_argument(
        "--include",
        action="append",
        default=[],
        choices=INCLUDABLE,
        help="rollouts that are left out for this reason; repeatable",
    )
    what.add_argument("--max-staleness", type=int, metavar="N", help="policy versions that a rollout may be behind")
    what.add_argument("--policy-version", type=int, metavar="V", help="counted from this one; default the newest")

    what.add_argument(
        "--shared",
        action="store_true",
        help="the captures are other jobs' too: leave out of the account what this one has no result for",
    )

    which = parser.add_argument_group("which rollouts")
    which.add_argument(
        "--agent", action="append", default=[], dest="agents", metavar="NAME", help="played by this agent; repeatable"
    )
    which.add_argument("--min-reward", type=float, metavar="R", help="rewarded with this or more")
    which.add_argument("--max-reward", type=float, metavar="R", help="rewarded with this or less")
    which.add_argument("--min-tokens", type=int, metavar="N", help="of a rollout's longest sequence, at least")
    which.add_argument("--max-tokens", type=int, metavar="N", help="of a rollout's longest sequence, at most")
    which.add_argument(
        "--where",
        metavar="SQL",
        help="an expression over a rollout's figures, such as \"seconds < 60 and row ->> '$.called'\"",
    )
    which.add_argument("--dedupe", action="store_true", help="of rollouts of a task that said the same, the first")
    which.add_argument("--sample", type=int, metavar="N", help="so many rollouts, drawn at random")
    which.add_argument("--seed", type=int, default=0, help="of samples and splits; default 0")

    files = parser.add_argument_group("files")
    files.add_argument("--split", type=_split, metavar="NAME=SHARE,…", help="by task, such as train=0.9,test=0.1")
    files.add_argument(
        "--rows-per-file", type=int, metavar="N", help="a new file after so many rows; default: one file"
    )
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    from nemo_gym.export.options import Options

    return Options(
        branches=arguments.branches,
        shared=arguments.shared,
        include=frozenset(arguments.include),
        max_staleness=arguments.max_staleness,
        policy_version=arguments.policy_version,
        advantage=arguments.advantage,
        where=arguments.where,
        agents=tuple(arguments.agents),
        min_reward=arguments.min_reward,
        max_reward=arguments.max_reward,
        min_tokens=arguments.min_tokens,
        max_tokens=arguments.max_tokens,
        dedupe=arguments.dedupe,
        sample=arguments.sample,
        seed=arguments.seed,
        splits=arguments.split or (),
        rows_per_file=arguments.rows_per_file,
    )


def _split(text: str) -> tuple[tuple[str, float], ...]:
    shares = []
    for one in text.split(","):
        name, _, share = one.partition("=")
        try:
            shares.append((name.strip(), float(share)))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{one!r} is not NAME=SHARE") from None
    return tuple(shares)


if __name__ == "__main__":
    sys.exit(main())
