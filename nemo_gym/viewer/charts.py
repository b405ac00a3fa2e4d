"""Figures as inline SVG: no script, no font, no colour of their own.

Places along a chart are percentages and heights are pixels, so a chart fits any width and its words stay as large as
they are; shapes that no percentage can say lie in a stretched box of their own. Colours are the page's (classes), so a
chart follows its theme. Each has a title and a description for those who do not see it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from ..rollouts.profile import AtK, Figures, TaskFigures
from ..rollouts.results import Result
from ..rollouts.statistics import Histogram, histogram
from .timeline import Timeline

_HEIGHT = 150
_FOOT, _TOP = 20, 15
"""Room for the words below and above."""
_CURVE = 300
"""Points of a curve at most."""
GRID_TASKS, GRID_REPEATS = 240, 32
"""Up to so many tasks and repeats each rollout has a cell of its own."""
_ids = itertools.count(1)


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def bars(values: Sequence[float], title: str, unit: str) -> Markup:
    """A histogram; the highest bar fills the height, and the axis says from where to where."""
    if not values:
        return Markup("")
    whole = _by_whole_numbers(values)
    found = whole or histogram(values)
    assert found is not None
    count, most = len(found.counts), max(found.counts)
    step = 1.0 if whole else (found.high - found.low) / count
    slot = 100 / count
    wide = min(slot * 0.86, 14.0)
    out = [_rule(_TOP, f"{most:,}"), _rule(_TOP + (_HEIGHT - _TOP) / 2, "")]
    for place, value in enumerate(found.counts):
        low = found.low + place * step
        what = number(low) if whole or step == 0 else f"{number(low)} to {number(low + step)}"
        height = max(2.0, value / most * (_HEIGHT - _TOP)) if value else 0.0
        out.append(
            f'<rect class="bar" x="{slot * (place + 0.5) - wide / 2:.2f}%" width="{wide:.2f}%"'
            f' y="{_HEIGHT - height:.1f}" height="{height:.1f}" rx="1.5">'
            f"<title>{value:,} rollouts: {escape(what)} {escape(unit)}</title></rect>"
        )
    if whole or count == 1:
        every = max(1, math.ceil(count / 8))
        ticks = [(slot * (n + 0.5), number(found.low + n)) for n in range(0, count, every)]
    else:
        ticks = [(0.0, number(found.low)), (50.0, number((found.low + found.high) / 2)), (100.0, number(found.high))]
    described = f"{len(values):,} rollouts from {number(found.low)} to {number(found.high)} {unit}"
    return _svg(title, described, out, ticks)


def _by_whole_numbers(values: Sequence[float]) -> Histogram | None:
    """A bar for each number, where they are whole and few."""
    low, high = min(values), max(values)
    if high - low > 24 or not all(float(value).is_integer() for value in values):
        return None
    counts = [0] * (int(high - low) + 1)
    for value in values:
        counts[int(value - low)] += 1
    return Histogram(low, high, tuple(counts))


def at_k(figures: Figures) -> Markup:
    """pass@k, pass^k and majority@k over k."""
    series = [("pass@k", "up", figures.pass_at), ("pass^k", "down", figures.pass_hat)]
    series.append(("majority@k", "vote", figures.majority_at))
    ks = [one.k for one in figures.pass_at]
    if len(ks) < 2:
        return Markup("")
    values = [one.mean for _, _, points in series for one in points]
    low, high = min(0.0, *values), max(1.0, *values)

    def across(k: int) -> float:
        return 4 + 92 * ks.index(k) / (len(ks) - 1)

    def up(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - 6) * (1 - (value - low) / (high - low))

    out = [_rule(up(value), number(value)) for value in (low, (low + high) / 2, high)]
    for name, kind, points in series:
        if len(points) < 2:
            continue
        line = " ".join(f"{across(one.k):.2f},{up(one.mean):.2f}" for one in points)
        out.append(_stretched(f'<polyline class="line {kind}" points="{line}"/>', 100, _HEIGHT))
        out += [_point(name, kind, one, across(one.k), up(one.mean)) for one in points]
    ticks = [(across(k), f"k={k}") for k in ks]
    described = "; ".join(
        f"{name}: " + ", ".join(f"{one.mean:.3f} at {one.k}" for one in points) for name, _, points in series if points
    )
    return _svg("pass@k and pass^k", described, out, ticks)


def _point(name: str, kind: str, one: AtK, x: float, y: float) -> str:
    spread = "" if one.low is None or one.high is None else f", 95 % interval {one.low:.3f} to {one.high:.3f}"
    title = f"{name[:-1]}{one.k}: {one.mean:.3f}{spread}, {one.tasks} tasks"
    return f'<circle class="dot {kind}" cx="{x:.2f}%" cy="{y:.1f}" r="4"><title>{escape(title)}</title></circle>'


def task_curve(tasks: Sequence[TaskFigures]) -> Markup:
    """Every task's mean, from the lowest to the highest."""
    means = sorted(task.mean for task in tasks)
    if len(means) < 2:
        return Markup("")
    low, high = min(0.0, means[0]), max(1.0, means[-1]) if means[-1] > 0 else 0.0
    high = high if high > low else low + 1
    places = sorted({round(step * (len(means) - 1) / (_CURVE - 1)) for step in range(_CURVE)})

    def up(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - 6) * (1 - (value - low) / (high - low))

    points = " ".join(f"{100 * place / (len(means) - 1):.2f},{up(means[place]):.2f}" for place in places)
    out = [_rule(up(value), number(value)) for value in (low, (low + high) / 2, high)]
    area = f"0,{up(0):.2f} {points} 100,{up(0):.2f}"
    shapes = f'<polygon class="area" points="{area}"/><polyline class="line up" points="{points}"/>'
    out.append(_stretched(shapes, 100, _HEIGHT))
    solved, none = sum(mean >= 1 for mean in means), sum(mean <= 0 for mean in means)
    described = f"{len(means):,} tasks: {none:,} with a mean of 0 or less, {solved:,} with 1 or more"
    return _svg("Mean reward by task, in order", described, out, [(0, "hardest"), (100, "easiest")])


def task_grid(results: Iterable[Result], tasks: Sequence[TaskFigures]) -> Markup:
    """A column for each task, the hardest first, and a cell for each repeat; nothing where there are too many."""
    ordered = sorted(tasks, key=lambda task: (task.mean, task.agent, task.task))
    columns = {(task.agent, task.task): place for place, task in enumerate(ordered)}
    cells: dict[tuple[int, int], float] = {}
    height: dict[int, int] = {}
    for result in sorted((one for one in results if not one.masked), key=lambda one: (-one.reward, one.repeat)):
        column = columns[result.agent, result.task]
        cells[column, height.get(column, 0)] = result.reward
        height[column] = height.get(column, 0) + 1
    most = max(height.values(), default=0)
    if not 1 < len(columns) <= GRID_TASKS or not 1 < most <= GRID_REPEATS:
        return Markup("")
    low, high = min(cells.values()), max(cells.values())
    paths: dict[int, list[str]] = {}
    for (column, place), reward in cells.items():
        shade = 4 if high == low else round(4 * (reward - low) / (high - low))
        paths.setdefault(shade, []).append(f"M{column + 0.04:g} {place + 0.04:g}h.92v.92h-.92z")
    shapes = "".join(f'<path class="cell s{shade}" d="{"".join(found)}"/>' for shade, found in sorted(paths.items()))
    pixels = most * 16
    described = f"{len(columns)} tasks in columns, up to {most} rollouts each, rewards {number(low)} to {number(high)}"
    out = [_stretched(shapes, len(columns), most, pixels)]
    return _svg("Every rollout, by task", described, out, [(0, "hardest task"), (100, "easiest")], pixels + 4)


def intervals(parts: dict[str, Figures]) -> Markup:
    """Means with their intervals, one below the other."""
    known = {name: one.reward for name, one in parts.items() if one.reward is not None}
    if len(known) < 2:
        return Markup("")
    ends = [value for one in known.values() for value in (one.mean, one.low, one.high) if value is not None]
    low, high = min(0.0, *ends), max(ends)
    high = high if high > low else low + 1
    out = []
    for place, (name, one) in enumerate(known.items()):
        y = 34 * place + 12

        def across(value: float) -> float:
            return 2 + 96 * (value - low) / (high - low)

        title = f"{name}: {one.mean:.3f}"
        if one.low is not None and one.high is not None:
            title += f", 95 % interval {one.low:.3f} to {one.high:.3f}"
            left, right = across(one.low), across(one.high)
            out.append(
                f'<rect class="whisker" x="{left:.2f}%" width="{right - left:.2f}%" y="{y + 7}" height="6" rx="3"/>'
            )
        out.append(f'<text class="name" x="0" y="{y}">{escape(name[:60])}</text>')
        out.append(
            f'<circle class="dot up" cx="{across(one.mean):.2f}%" cy="{y + 10}" r="5">'
            f"<title>{escape(title)}</title></circle>"
        )
    height = 34 * len(known)
    described = "; ".join(f"{name[:60]}: {one.mean:.3f}" for name, one in known.items())
    return _svg(
        "Mean rewards with their 95 % intervals", described, out, [(2, number(low)), (98, number(high))], height
    )


def waterfall(found: Timeline) -> Markup:
    """One row a span, from the rollout's beginning to its end."""
    total = found.seconds or 1e-9
    out = []
    step = 18
    for place, span in enumerate(found.spans):
        left, right = 100 * max(0.0, span.start) / total, 100 * min(total, span.end) / total
        wide = max(0.25, right - left)
        y = place * step + 3
        seconds = _seconds(span.end - span.start)
        title = f"{span.label}: {seconds}, from {_seconds(span.start)}"
        if span.first_token is not None:
            title += f"; first token after {_seconds(span.first_token - span.start)}"
        out.append(
            f'<rect class="span {span.kind}" x="{min(left, 99.7):.2f}%" width="{wide:.2f}%" y="{y}" height="{step - 5}"'
            f' rx="2"><title>{escape(title)}</title></rect>'
        )
        words = f"{escape(span.label[:48])} · {seconds}"
        room = {"beside": 100 - right, "before": left, "within": right - left}
        place_of_words = max(room, key=lambda name: room[name])
        x, dx, anchor = {"beside": (right, 6, "start"), "before": (left, -6, "end"), "within": (left, 6, "start")}[
            place_of_words
        ]
        out.append(f'<text class="words" x="{x:.2f}%" dx="{dx}" y="{y + 10}" text-anchor="{anchor}">{words}</text>')
    described = (
        f"{found.calls} calls in {_seconds(found.seconds)}: model {_seconds(found.model)}, "
        f"tools {_seconds(found.tools)}, agent {_seconds(found.agent)}"
    )
    ticks = [(0.0, "0 s"), (50.0, _seconds(total / 2)), (100.0, _seconds(total))]
    return _svg("Where the time went", described, out, ticks, step * len(found.spans) + 4)


def _seconds(value: float) -> str:
    value = max(0.0, value)
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


seconds = _seconds


def _svg(
    title: str, described: str, inner: Iterable[str], ticks: Iterable[tuple[float, str]], height: float = _HEIGHT
) -> Markup:
    own = f"c{next(_ids)}"
    foot = "".join(
        f'<text class="tick" x="{min(99.9, max(0.1, x)):.2f}%" y="{height + 15}" text-anchor="{_anchor(x)}">'
        f"{escape(words)}</text>"
        for x, words in ticks
    )
    return Markup(
        f'<svg class="chart" width="100%" height="{height + _FOOT:g}" role="img" aria-labelledby="{own}t {own}d">'
        f'<title id="{own}t">{escape(title)}</title><desc id="{own}d">{escape(described)}</desc>'
        f'<line class="axis" x1="0" x2="100%" y1="{height + 0.5:g}" y2="{height + 0.5:g}"/>{"".join(inner)}{foot}</svg>'
    )


def _anchor(x: float) -> str:
    return "start" if x < 10 else "end" if x > 90 else "middle"


def _rule(y: float, words: str) -> str:
    label = f'<text class="tick" x="0" y="{y - 4:.1f}">{escape(words)}</text>' if words else ""
    return f'<line class="rule" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>{label}'


def _stretched(inner: str, width: float, height: float, pixels: float | None = None) -> str:
    return (
        f'<svg x="0" y="0" width="100%" height="{pixels or height:g}" viewBox="0 0 {width:g} {height:g}"'
        f' preserveAspectRatio="none" aria-hidden="true">{inner}</svg>'
    )
