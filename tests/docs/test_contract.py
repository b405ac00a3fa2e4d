"""Every line of the wire contract that a model server and its capture answer for has a test that names it."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

TESTS = Path(__file__).parents[1]
LINES = [
    *(f"A{number}" for number in range(1, 20)),
    *(f"B{number}" for number in range(1, 8)),
    *(f"C{number}" for number in range(1, 10)),
    *(f"R{number}" for number in (*range(1, 16), *range(20, 33))),
]


def named(file: Path) -> set[str]:
    """The ids in a test file's comments and strings."""
    found: set[str] = set()
    with tokenize.open(file) as source:
        text = source.read()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            found |= set(re.findall(r"(?<!\w)[A-Z]\d{1,2}(?!\w)", token.string))
    return found


def test_each_line_is_named_by_a_test() -> None:
    pinned = set().union(*(named(file) for file in TESTS.rglob("test_*.py") if file != Path(__file__)))
    assert [line for line in LINES if line not in pinned] == []
