"""Figures for a person: aligned columns, and numbers as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

UNKNOWN = "-"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Lines with the first column to the left and the others to the right."""
    cells = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append(indent + "  ".join(padded).rstrip())
    return lines


def number(value: float | None) -> str:
    """Three digits after the point for what is small, none for what is large; a dash for what is not known."""
    if value is None:
        return UNKNOWN
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def between(low: float | None, high: float | None) -> str:
    return UNKNOWN if low is None or high is None else f"{number(low)} to {number(high)}"


def chance(p: float | None) -> str:
    return UNKNOWN if p is None else "< 0.0001" if p < 0.0001 else f"{p:.4f}"
