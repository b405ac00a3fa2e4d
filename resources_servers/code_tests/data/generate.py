"""Writes example.jsonl: 50 small programming tasks; the tests' outputs are those of a reference program, run here."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Draw = Callable[[random.Random], str]


class Task(NamedTuple):
    says: str
    program: str
    draw: Draw
    """An input."""


def _numbers(low: int, high: int, least: int = 1, most: int = 8) -> Draw:
    return lambda rng: " ".join(str(rng.randint(low, high)) for _ in range(rng.randint(least, most)))


def _words(rng: random.Random) -> str:
    letters = "abcdeghilmnorst"
    return " ".join("".join(rng.choices(letters, k=rng.randint(2, 7))) for _ in range(rng.randint(2, 6)))


_INTS = "numbers = [int(word) for word in input().split()]\n"
_TEXT = "words = input().split()\n"


def tasks() -> Iterator[Task]:
    """Templates, each with several parameters."""
    for k in (2, 3, 4, 5, 7):
        yield Task(f"the sum of those numbers that {k} divides",
                   _INTS + f"print(sum(n for n in numbers if n % {k} == 0))", _numbers(-40, 40))  # fmt: skip
        yield Task(f"how many numbers are greater than {k * 3}", _INTS + f"print(sum(n > {k * 3} for n in numbers))",
                   _numbers(0, 40))  # fmt: skip
        yield Task(f"the numbers, each multiplied by {k}, in ascending order, with one space between",
                   _INTS + f"print(*sorted(n * {k} for n in numbers))", _numbers(-20, 20))  # fmt: skip
        yield Task(f"the largest sum of {k} neighbouring numbers",
                   _INTS + f"print(max(sum(numbers[i:i + {k}]) for i in range(len(numbers) - {k} + 1)))",
                   _numbers(-20, 20, k, k + 6))  # fmt: skip
        yield Task(f"the words that have more than {k} letters, in their order, with one space between; an empty line "
                   "if there is none", _TEXT + f"print(*[w for w in words if len(w) > {k}])", _words)  # fmt: skip
        yield Task(f"each word without its first {k - 1} letters, with one space between",
                   _TEXT + f"print(*[w[{k - 1}:] for w in words])", _words)  # fmt: skip
        yield Task(f"the words sorted by length and then by the alphabet, only the first {k} of them, with one space "
                   "between", _TEXT + f"print(*sorted(words, key=lambda w: (len(w), w))[:{k}])", _words)  # fmt: skip
        yield Task(f"the sum of the numbers in base {k}, without a prefix",
                   _INTS + f"n, s = sum(numbers), ''\nwhile n:\n    s, n = str(n % {k}) + s, n // {k}\nprint(s or '0')",
                   _numbers(0, 60))  # fmt: skip
        yield Task(f"the remainder of the product of the numbers divided by {k * 13}",
                   _INTS + f"p = 1\nfor n in numbers:\n    p = p * n % {k * 13}\nprint(p)",
                   _numbers(1, 60))  # fmt: skip
        yield Task(f"how many different letters occur at least {k - 1} times in the line",
                   f"line = input()\nprint(sum(line.count(c) >= {k - 1} for c in set(line) if c != ' '))",
                   _words)  # fmt: skip


def output(program: str, given: str) -> str:
    """What the reference program prints; it is ours, so it runs right here."""
    printed, kept = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(given)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "reference", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdin = kept
    return printed.getvalue()


def rows(seed: int = 13) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for n, task in enumerate(tasks()):
        inputs = [task.draw(rng) + "\n" for _ in range(5)]
        kind = "numbers" if task.program.startswith(_INTS) else "words"
        prompt = (
            f"Write a Python program that reads one line of {kind} parted by single spaces from standard input, and "
            f"prints {task.says}.\nGive the whole program in one ```python block."
        )
        yield {
            "task_id": f"code-{n:03}",
            "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
            "tests": [{"input": given, "output": output(task.program, given)} for given in inputs],
        }


if __name__ == "__main__":
    with Path(__file__).with_name("example.jsonl").open("w", encoding="utf-8") as file:
        for row in rows():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
