"""The tasks: files to write, programs to fix, functions to rename, facts to find, drawn from one seed.

A row carries its files, its checks and a `solution`: a shell command and an answer that earn the reward, for tests and
as a reference. Running this file writes `example.jsonl` beside it; the same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "juniper", "kelp", "larch")
KINDS = ("write", "fix", "rename", "find")
Row = dict[str, Any]


def write(draw: random.Random, _: int) -> Row:
    name, text = draw.choice(WORDS), " ".join(draw.sample(WORDS, 3))
    path = f"notes/{name}.txt"
    return {
        "prompt": f"Write the file {path} with exactly this one line: {text}",
        "files": {"README.md": "Notes go into notes/.\n"},
        "checks": [{"kind": "file_is", "path": path, "text": text}],
        "solution": {"command": f"mkdir -p notes && echo '{text}' > {path}", "answer": f"{path} is written."},
    }


BUGS = (
    ("total", "sum(values[1:])", "sum(values)", "total([2, 3, 4]) == 9"),
    ("largest", "sorted(values)[0]", "sorted(values)[-1]", "largest([2, 7, 4]) == 7"),
    ("mean", "sum(values) // len(values)", "sum(values) / len(values)", "mean([1, 2]) == 1.5"),
    ("count_even", "len([v for v in values if v % 2])", "len([v for v in values if v % 2 == 0])",
     "count_even([2, 4, 5]) == 2"),
    ("reversed_copy", "values[::-2]", "values[::-1]", "reversed_copy([1, 2, 3]) == [3, 2, 1]"),
    ("without_first", "values[:-1]", "values[1:]", "without_first([1, 2, 3]) == [2, 3]"),
    ("squares", "[v + v for v in values]", "[v * v for v in values]", "squares([3]) == [9]"),
    ("spread", "max(values) + min(values)", "max(values) - min(values)", "spread([2, 9]) == 7"),
)  # fmt: skip


def fix(draw: random.Random, turn: int) -> Row:
    name, wrong, right, law = BUGS[turn % len(BUGS)]
    module = draw.choice(WORDS)
    return {
        "prompt": f"`python3 check.py` fails. Find the fault in {module}.py and mend it; leave check.py as it is.",
        "files": {
            f"{module}.py": f"def {name}(values):\n    return {wrong}\n",
            "check.py": f"from {module} import {name}\n\nassert {law}\nprint('ok')\n",
        },
        "protected": ["check.py"],
        "checks": [{"kind": "runs", "path": "check.py"}],
        "solution": {
            "command": f"printf 'def {name}(values):\\n    return {right.replace('%', '%%')}\\n' > {module}.py",
            "answer": "It is mended.",
        },
    }


def rename(draw: random.Random, _: int) -> Row:
    old, new, first, second = draw.sample(WORDS, 4)
    number = draw.randint(2, 99)
    return {
        "prompt": f"Rename the function {old} to {new} in every file; `python3 main.py` must print the same as before.",
        "files": {
            f"lib/{first}.py": f"def {old}(x):\n    return x * {number}\n",
            f"lib/{second}.py": f"from lib.{first} import {old}\n\n\ndef twice(x):\n    return {old}({old}(x))\n",
            "main.py": f"from lib.{first} import {old}\nfrom lib.{second} import twice\n\nprint({old}(1), twice(1))\n",
            "check.py": (
                "import subprocess\nimport sys\n\n"
                "said = subprocess.run([sys.executable, '-B', 'main.py'], capture_output=True, text=True).stdout\n"
                f"assert said == '{number} {number * number}\\n', said\n"
                f"from lib.{first} import {new}\nassert {new}(2) == {number * 2}\n"
            ),
        },
        "protected": ["check.py"],
        "checks": [{"kind": "no_file_has", "word": old}, {"kind": "runs", "path": "check.py"}],
        "solution": {
            "command": f"sed -i 's/\\b{old}\\b/{new}/g' lib/*.py main.py",
            "answer": f"{old} is {new} now.",
        },
    }


def find(draw: random.Random, _: int) -> Row:
    name = draw.choice(WORDS)
    lines = []
    for minute in range(240):
        who, size = draw.choice(WORDS), draw.randint(100, 999)
        lines.append(f"12:{minute // 60:02d}:{minute % 60:02d} {who} sent {size} bytes")
    place, size = draw.randrange(len(lines)), draw.randint(10_000, 99_999)
    lines[place] = f"{lines[place].split()[0]} {name} failed after {size} bytes"
    return {
        "prompt": "One transfer in server.log failed. After how many bytes? Answer with the number.",
        "files": {"server.log": "\n".join(lines) + "\n"},
        "checks": [{"kind": "answer_has", "word": str(size)}],
        "solution": {"command": "grep failed server.log", "answer": f"It failed after {size} bytes."},
    }


def tasks(count: int, seed: int) -> list[Row]:
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        kind, turn = KINDS[number % len(KINDS)], number // len(KINDS)
        made = {"write": write, "fix": fix, "rename": rename, "find": find}[kind](draw, turn)
        task_id = f"{kind}-{turn:02d}"
        prompt = f"{made.pop('prompt')}\n\n(Task {task_id}; the files are in the current folder.)"
        params = {"input": [{"role": "user", "content": prompt}]}
        rows.append({"task_id": task_id, "responses_create_params": params, **made})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tasks.")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("example.jsonl"))
    arguments = parser.parse_args()
    lines = [json.dumps(row, ensure_ascii=False) for row in tasks(arguments.count, arguments.seed)]
    arguments.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
