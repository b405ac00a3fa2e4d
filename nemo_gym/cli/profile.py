"""What stored rollouts come to, by agent, subset and task; nothing is run."""

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
from .tables import UNKNOWN, between, number, table

if TYPE_CHECKING:
    from nemo_gym.rollouts.profile import AtK, Figures, Profile, TaskFigures
    from nemo_gym.rollouts.results import Result

_OVERRIDES = {
    "rollouts_jsonl_fpath": "",
    "materialized_inputs_jsonl_fpath": "--inputs",
    "allow_partial_rollouts": "--allow-partial",
}


@ends_in_order
def main(argv: Sequence[str] | None = None) -> int:
    from nemo_gym.rollouts.profile import plain, profile
    from nemo_gym.rollouts.results import Fields, ResultsError, read

    arguments, in_their_manner = _arguments(argv)
    try:
        results = read(arguments.runs, Fields(arguments.by, arguments.answer))
        if not results:
            raise ResultsError(f"{', '.join(arguments.runs)}: no rollout is finished there")
        _has_fields(arguments, results)
        missing = _missing(arguments.inputs, results)
        if missing and not arguments.allow_partial:
            raise ResultsError(f"{missing} rows of {arguments.inputs} have no rollout; --allow-partial leaves them out")
        found = profile(results)
        tasks = arguments.tasks or (_beside(arguments.runs[0]) if in_their_manner else None)
        if tasks is not None:
            _write_tasks(Path(tasks), found.tasks, overwrite=arguments.overwrite or in_their_manner)
        if arguments.report is not None:
            from nemo_gym.viewer.report import write_report

            write_report(arguments.runs, Path(arguments.report), results=results, overwrite=arguments.overwrite)
    except (ResultsError, OSError) as error:
        print(f"ng_reward_profile: {in_words(error)}", file=sys.stderr)
        return WRONG
    if arguments.json:
        tasks_json = [msgspec.to_builtins(task) for task in found.tasks]
        print(json.dumps(plain(found) | {"tasks": tasks_json}, indent=2))
    else:
        print("\n".join(lines(found)))
    for path in filter(None, (tasks, arguments.report)):
        print(f"written: {path}", file=sys.stderr)
    return 0


def _arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, bool]:
    args, in_their_manner = from_overrides(sys.argv[1:] if argv is None else argv, _OVERRIDES)
    parser = Parser(
        prog="ng_reward_profile",
        description=__doc__,
        epilog="NeMo Gym's +rollouts_jsonl_fpath=…, +materialized_inputs_jsonl_fpath=… are taken too; then the "
        "tasks are written to <rollouts>_reward_profiling.jsonl.",
    )
    parser.add_argument(
        "runs", type=a_path, nargs="+", metavar="RUN", help="a job's folder, a file of rollouts, or a pattern"
    )
    parser.add_argument("--by", metavar="FIELD", help="the field that says a row's subset; default subset, category, …")
    parser.add_argument("--answer", metavar="FIELD", help="the field with the answer, for majority@k")
    parser.add_argument("--tasks", type=a_path, metavar="FILE", help="writes a line for each task")
    parser.add_argument("--report", type=a_path, metavar="FILE", help="writes report.html anew")
    parser.add_argument("--overwrite", action="store_true", help="replaces these two where they are")
    parser.add_argument(
        "--inputs", type=a_path, metavar="FILE", help="the rows that were asked for: none may lack a rollout"
    )
    parser.add_argument("--allow-partial", action="store_true", help="some of them may")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser.parse_args(args), in_their_manner


def lines(found: Profile) -> list[str]:
    """For a person."""
    parts = {"all": found.overall}
    if len(found.agents) > 1:
        parts |= {f"agent {name}": one for name, one in found.agents.items()}
    if len(found.subsets) > 1:
        parts |= {f"subset {name}": one for name, one in found.subsets.items()}
    head = ("", "tasks", "rollouts", "masked", "reward", "95 % interval", *_at_names(found.overall))
    out = table(head, [(name, *_row(one, found.overall)) for name, one in parts.items()])
    out += ["", *_measures(found.overall)]
    if found.overall.cut_off:
        out.append(f"{found.overall.cut_off} rollouts ended at a limit of tokens")
    uncertain = sorted(found.tasks, key=lambda task: (-task.std, task.mean, task.task))[:5]
    worst = sorted(found.tasks, key=lambda task: (task.mean, task.task))[:5]
    for title, chosen in (("lowest", worst), ("most uncertain", [task for task in uncertain if task.std])):
        if chosen:
            words = (f"{task.task} ({number(task.mean)} ± {number(task.std)} of {task.rollouts})" for task in chosen)
            out.append(f"{title} tasks: {', '.join(words)}")
    return out


def _at(found: Figures) -> list[tuple[str, AtK]]:
    pairs = (("pass@", found.pass_at), ("pass^", found.pass_hat), ("majority@", found.majority_at))
    return [(f"{sign}{one.k}", one) for sign, figures in pairs for one in figures if one.k > 1]


def _at_names(found: Figures) -> list[str]:
    return [name for name, _ in _at(found)]


def _row(one: Figures, overall: Figures) -> list[str]:
    at = {name: figure.mean for name, figure in _at(one)}
    reward = one.reward
    cells = [UNKNOWN] * 3
    if reward is not None:
        cells = [str(reward.tasks), number(reward.mean), between(reward.low, reward.high)]
    return [
        cells[0],
        f"{one.rollouts:,}",
        str(one.masked),
        *cells[1:],
        *(number(at.get(n)) for n in _at_names(overall)),
    ]


def _measures(one: Figures) -> list[str]:
    head = ("a rollout", "mean", "std", "min", "p25", "p50", "p75", "p95", "max")
    rows = [
        (name, *map(number, (d.mean, d.std, d.min, d.p25, d.p50, d.p75, d.p95, d.max)))
        for name, d in one.measures.items()
    ]
    return table(head, rows) if rows else []


def _has_fields(arguments: argparse.Namespace, results: Sequence[Result]) -> None:
    """A field that was named and is in no rollout is a slip: the figures would be those without it."""
    from nemo_gym.rollouts.results import ResultsError

    for option, values in (("by", (one.subset for one in results)), ("answer", (one.answer for one in results))):
        field = getattr(arguments, option)
        if field is not None and all(value is None for value in values):
            raise ResultsError(f"--{option}: no rollout has a field {field!r} with a plain value")


def _missing(inputs: str | None, results: Sequence[Result]) -> int:
    """Rows that were asked for and have no rollout; a row that names no repeat has one if any is of its task."""
    if inputs is None:
        return 0
    from nemo_gym.rollouts.dataset import Dataset
    from nemo_gym.rollouts.results import ResultsError

    if not Path(inputs).is_file():
        raise ResultsError(f"--inputs: expected a file, there is none at {inputs}")
    done = {(result.task, result.repeat) for result in results}
    tasks = {task for task, _ in done}
    missing = 0
    for row in Dataset(inputs):
        if not row.data:
            raise ResultsError(f"--inputs: {row.fault}")
        task, repeat = row.data.get("_ng_task_index", row.task), row.data.get("_ng_rollout_index")
        missing += task not in tasks if repeat is None else (task, repeat) not in done
    return missing


def _beside(rollouts: str) -> str:
    path = Path(rollouts)
    return str(path.with_name(f"{path.stem}_reward_profiling.jsonl"))


def _write_tasks(path: Path, tasks: Sequence[TaskFigures], *, overwrite: bool) -> None:
    from nemo_gym.rollouts.results import ResultsError

    if path.exists() and not overwrite:
        raise ResultsError(f"{path}: is there already; say --overwrite to replace it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            fields = {
                "_ng_task_index": task.task,
                "agent_ref": {"name": task.agent},
                "subset": task.subset,
                "num_rollouts": task.rollouts,
                "mean/reward": task.mean,
                "std/reward": task.std,
                "min/reward": task.worst,
                "max/reward": task.best,
            }
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
