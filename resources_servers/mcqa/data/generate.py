"""Writes example.jsonl: 50 questions whose right option follows by rule, so none of them can be wrong."""

from __future__ import annotations

import calendar
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LETTERS = "ABCD"
_DAYS = list(calendar.day_name)
_WORDS = ("orchard", "lantern", "granite", "harbour", "meadow", "compass", "whisper", "thunder", "velvet", "saffron")


def questions(rng: random.Random) -> Iterator[tuple[str, str, list[str]]]:
    """A question, its answer, and wrong ones."""
    while True:
        a, b = rng.randint(12, 99), rng.randint(12, 99)
        yield f"What is {a} times {b}?", str(a * b), [str(a * b + d) for d in (10, -a, b)]
        day, later = rng.randrange(7), rng.randint(8, 60)
        right = _DAYS[(day + later) % 7]
        yield (
            f"Today is {_DAYS[day]}. Which day is it in {later} days?",
            right,
            rng.sample([name for name in _DAYS if name != right], 3),
        )
        words = rng.sample(_WORDS, 4)
        yield "Which of these words comes first in the alphabet?", min(words), [w for w in words if w != min(words)]
        word = rng.choice(_WORDS)
        yield f"How many letters has the word '{word}'?", str(len(word)), [str(len(word) + d) for d in (-2, -1, 1)]
        number = rng.randint(20, 200)
        yield f"What is {number} in binary?", f"{number:b}", [f"{number + d:b}" for d in (-1, 1, 2)]


def rows(count: int = 50, seed: int = 7) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for n, (question, right, wrong) in zip(range(count), questions(rng), strict=False):
        texts = [right, *wrong]
        rng.shuffle(texts)
        options = [{letter: text} for letter, text in zip(_LETTERS, texts, strict=True)]
        shown = "\n".join(f"{letter}: {text}" for letter, text in zip(_LETTERS, texts, strict=True))
        prompt = f"{question}\n{shown}\nThink, then give the letter of the right option as \\boxed{{letter}}."
        yield {
            "task_id": f"mcqa-{n:03}",
            "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
            "options": options,
            "expected_answer": _LETTERS[texts.index(right)],
        }


if __name__ == "__main__":
    with Path(__file__).with_name("example.jsonl").open("w", encoding="utf-8") as file:
        for row in rows():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
