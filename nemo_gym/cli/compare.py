"""Two runs of the same tasks, held against each other task by task."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .arguments import WRONG, Parser, a_path, from_overrides, in_words
from .pipe import ends_in_order
from .tables import between, chance, number, table

if TYPE_CHECKING:
    from nemo_gym.rollouts.comparison import Comparison, Paired
    from nemo_gym.rollouts.results import Result

_OVERRIDES = {"baseline_rollouts_jsonl_fpath": "", "candidate_rollouts_jsonl_fpaths": "", "agent_name": "--agent"}
_MOVED = 10


@ends_in_order
def main(argv: Sequence[str] | None = None) -> int:
    from nemo_gym.rollouts.comparison import compare
    from nemo_gym.rollouts.results import ResultsError

    arguments = _arguments(argv)
    try:
        first, second = (_read(run, arguments.by, arguments.agent) for run in (arguments.first, arguments.second))
        keyed = arguments.by is not None
        found = compare(first, second, (lambda result: result.subset or "") if keyed else None)
        if found.reward is None:
            raise ResultsError("the runs have no task in common" + ("" if keyed else "; --by FIELD matches by a field"))
    except (ResultsError, OSError) as error:
        print(f"ng_compare: {in_words(error)}", file=sys.stderr)
        return WRONG
    note = None if keyed else _note(Path(arguments.first), Path(arguments.second))
    if arguments.json:
        runs = {"first_run": arguments.first, "second_run": arguments.second, "note": note}
        print(json.dumps(runs | msgspec.to_builtins(found), indent=2))
    else:
        print("\n".join(lines(found, arguments.first, arguments.second)))
        if note is not None:
            print(f"note: {note}", file=sys.stderr)
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="ng_compare", description=__doc__)
    run = "a job's folder, a file of rollouts, or a pattern"
    parser.add_argument("first", type=a_path, metavar="A", help=run)
    parser.add_argument("second", type=a_path, metavar="B", help=f"{run}; differences are B less A")
    parser.add_argument("--by", metavar="FIELD", help="tasks are the same whose FIELD is; default their number")
    parser.add_argument("--agent", metavar="NAME", help="only this agent's rollouts")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser.parse_args(from_overrides(sys.argv[1:] if argv is None else argv, _OVERRIDES)[0])


def _read(run: str, by: str | None, agent: str | None) -> list[Result]:
    from nemo_gym.rollouts.results import Fields, ResultsError, read

    results = read([run], Fields(by or "", ""))
    if by is not None and (without := sum(result.subset is None for result in results)):
        raise ResultsError(f"{run}: {without} rollouts have no field {by!r}")
    chosen = [result for result in results if agent is None or result.agent == agent]
    if not chosen:
        names = ", ".join(sorted({result.agent for result in results}))
        raise ResultsError(f"{run}: no rollout of {agent!r}; there is {names}" if names else f"{run}: has no rollouts")
    return chosen


def _note(first: Path, second: Path) -> str | None:
    """That tasks of the same number may not be the same task."""
    digests = []
    for folder in (first, second):
        folder = folder if folder.is_dir() else folder.parent
        try:
            manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
            digests.append(manifest["identity"]["dataset_sha256"])
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            return None
    if digests[0] == digests[1]:
        return None
    return "the runs are of different datasets, and tasks are matched by their number; --by FIELD matches by a field"


def lines(found: Comparison, first: str, second: str) -> list[str]:
    """For a person."""
    assert found.reward is not None
    rows = [_row(one) for one in (found.reward, *found.others)]
    head = (f"{found.reward.tasks} tasks", "A", "B", "B - A", "95 % interval", "p", "p sign-flip", "higher", "lower")
    out = [f"A  {first}", f"B  {second}", "", *table(head, rows), ""]
    out += [f"p: {found.test}; sign-flip: permutation test on the same differences", _verdict(found.reward)]
    for count, whose in ((found.only_first, "A"), (found.only_second, "B")):
        if count:
            out.append(f"left out: {count} tasks that only {whose} has")
    if found.moved:
        out.append(
            "largest differences: " + ", ".join(f"{m.task} ({m.second - m.first:+.3f})" for m in found.moved[:_MOVED])
        )
    return out


def _row(one: Paired) -> tuple[str, ...]:
    return (
        one.figure,
        number(one.first),
        number(one.second),
        f"{one.difference:+,.3f}",
        between(one.low, one.high),
        chance(one.p),
        chance(one.p_sign_flip),
        str(one.better),
        str(one.worse),
    )


def _verdict(reward: Paired) -> str:
    if reward.p is None or reward.low is None or reward.high is None:
        return "one task alone tells nothing of chance"
    if reward.low <= 0 <= reward.high:
        return "reward: no difference beyond chance at 95 %"
    return f"reward: B is {'higher' if reward.difference > 0 else 'lower'}, beyond chance at 95 %"


if __name__ == "__main__":
    sys.exit(main())
