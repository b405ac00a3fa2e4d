"""The curve as an SVG: the reward of each step's batch, a line a seed; the held-out tasks as dots at both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .measure import Result

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 320, 48, 20, 24, 44
COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed")


def svg(results: Sequence[Result]) -> str:
    steps = max((len(result.curve) for result in results), default=0)

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (step + 1) / (steps + 1), 1)

    def y(reward: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * reward, 1)

    drawn = [_axes(steps, x, y)]
    for number, result in enumerate(results):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(line.step)},{y(line.reward)}" for line in result.curve)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for step, reward in ((-1, result.before), (steps, result.after)):
            drawn.append(f'<circle cx="{x(step)}" cy="{y(reward)}" r="4" fill="{colour}"/>')
        drawn.append(_text(LEFT + 12 + 90 * number, HEIGHT - 8, f"seed {result.seed}", colour))
    style = "font-family:sans-serif;font-size:12px;background:#fff"
    body = "\n".join(drawn)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="{style}">\n{body}\n</svg>\n'


def _axes(steps: int, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    parts = [_text(LEFT + 4, 14, "mean reward (dots: held-out tasks before and after)", "#444")]
    for tenth in range(0, 11, 2):
        at = y(tenth / 10)
        parts.append(f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(16, at + 4, f"{tenth / 10:.1f}", "#444"))
    parts += [_text(x(step) - 4, HEIGHT - BOTTOM + 18, str(step), "#444") for step in range(0, steps + 1, 4)]
    return "\n".join(parts)


def _text(x: float, y: float, words: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}">{words}</text>'
