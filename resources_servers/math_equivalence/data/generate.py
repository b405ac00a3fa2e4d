"""Writes example.jsonl: 50 problems of school algebra and calculus whose answers sympy works out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sympy as sp

x = sp.symbols("x")


def problems(rng: random.Random) -> Iterator[tuple[str, Any]]:
    while True:
        a, b, c, d = (rng.choice([n for n in range(-9, 10) if n]) for _ in range(4))
        yield (
            f"Expand ${sp.latex(sp.Mul(a * x + b, c * x + d, evaluate=False))}$.",
            sp.expand((a * x + b) * (c * x + d)),
        )
        power = rng.randint(3, 7)
        term = a * x**power + b * x**2 + c
        yield f"Differentiate ${sp.latex(term)}$ with respect to $x$.", sp.diff(term, x)
        first, second = sp.Rational(rng.randint(1, 9), rng.randint(2, 9)), sp.Rational(rng.randint(1, 9), 7)
        yield f"Compute ${sp.latex(first)} + {sp.latex(second)}$ as one fraction.", first + second
        root = rng.randint(2, 12) ** 2 * rng.choice([2, 3, 5, 7])
        yield f"Simplify $\\sqrt{{{root}}}$.", sp.sqrt(root)
        yield f"Solve ${sp.latex(a * x + b)} = {c}$ for $x$.", sp.Rational(c - b, a)
        upper = rng.randint(1, 5)
        yield f"Compute $\\int_0^{upper} ({sp.latex(a * x**2 + b)})\\,dx$.", sp.integrate(a * x**2 + b, (x, 0, upper))


def rows(count: int = 50, seed: int = 11) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for n, (problem, answer) in zip(range(count), problems(rng), strict=False):
        prompt = f"{problem}\nGive the final answer as \\boxed{{answer}}."
        yield {
            "task_id": f"math-{n:03}",
            "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
            "expected_answer": sp.latex(answer),
        }


if __name__ == "__main__":
    with Path(__file__).with_name("example.jsonl").open("w", encoding="utf-8") as file:
        for row in rows():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
