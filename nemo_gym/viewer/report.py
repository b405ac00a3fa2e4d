"""`report.html`: one run in one file that needs nothing else, no network, no script.

Everything that comes from a rollout is escaped by the template; and should that ever fail, the page's own policy lets
no script run and nothing be fetched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from ..rollouts.profile import MEASURES, add_profile
from ..rollouts.results import Fields, Result, ResultsError, read
from . import charts
from .conversation import Gap
from .run import Run, load

_NAMES = {  # what a chart is called, and the unit of its axis
    "output_tokens": ("Tokens generated", "tokens"),
    "prompt_tokens": ("Tokens read", "tokens"),
    "turns": ("Turns of the model", "turns"),
    "tool_calls": ("Tool calls", "calls"),
    "calls": ("Model calls recorded", "calls"),
    "seconds": ("Time", "s"),
    "log_prob": ("Log-prob of a token", ""),
}
_DRAWN = ("output_tokens", "turns", "seconds", "log_prob")


def sum_up(folder: Path, captures: str | Path | None = None, fields: Fields | None = None) -> Path:
    """The report of a job's folder, in it, and the profile that it shows in `metrics.json`."""
    results = read([folder], fields)
    run = load([folder], results, captures)
    path = _write(run, folder / "report.html")
    add_profile(folder, run.profile)
    return path


def write_report(
    named: Sequence[str | Path],
    path: Path,
    *,
    results: Sequence[Result] | None = None,
    captures: str | Path | None = None,
    fields: Fields | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the report of a run, whole or not at all.

    Args:
        named: the run's folders or files.
        results: what they hold, where it was read before.
        captures: where the run's calls are, if not in its own folder.

    Raises:
        ResultsError: no rollouts are there, or a report is and it may not be replaced.
    """
    if path.exists() and not overwrite:
        raise ResultsError(f"{path}: is there already; say --overwrite to replace it")
    return _write(load(named, read(named, fields) if results is None else results, captures), path)


def _write(run: Run, path: Path) -> Path:
    scratch = path.with_name(path.name + ".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text(page(run), encoding="utf-8", errors="replace")  # a lone surrogate is no text
    os.replace(scratch, path)
    return path


def page(run: Run) -> str:
    measured = [result for result in run.results if not result.masked]
    overall = run.profile.overall
    drawn = []
    for name in _DRAWN:
        values = [value for value in map(MEASURES[name], measured) if value is not None]
        if name in overall.measures and (chart := charts.bars(values, *_NAMES[name])):
            drawn.append((_NAMES[name], overall.measures[name], chart))
    return _template().render(
        run=run,
        overall=overall,
        css=resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8"),
        rewards=charts.bars([result.reward for result in measured], "Rewards", "reward"),
        at_k=charts.at_k(overall),
        curve=charts.task_curve(run.profile.tasks),
        grid=charts.task_grid(measured, run.profile.tasks),
        agents=charts.intervals(run.profile.agents),
        subsets=charts.intervals(run.profile.subsets),
        measures=drawn,
        table=[(_NAMES[name][0], one) for name, one in overall.measures.items()],
        groups=[
            ("worst", "Worst", "The lowest rewards.", run.worst),
            (
                "uncertain",
                "Most uncertain",
                "Tasks whose repeats disagree, or replies that were improbable.",
                run.uncertain,
            ),
            ("best", "Best", "The highest rewards, of the hardest tasks first.", run.best),
        ],
        waterfall=charts.waterfall,
        number=charts.number,
        seconds=charts.seconds,
        when=_when,
        is_gap=lambda turn: isinstance(turn, Gap),
    )


@lru_cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _when(moment: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment)) if moment else ""
