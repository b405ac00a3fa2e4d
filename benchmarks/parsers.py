"""What parsing costs: MB/s whole and in increments of four characters, beside vLLM's own parsers, and growth to 10 MB.

    python -m benchmarks.parsers              # everything; vLLM where it is installed
    python -m benchmarks.parsers --quick      # small sizes, no vLLM

The larger texts have 10 MB, or as many as are read in about a quarter of a minute: each line says how many. Times are
CPU times of this process, the best of a few runs, so a busy machine changes them little; ratios are printed because
absolute figures are one machine's.
"""

from __future__ import annotations

import argparse
import gc
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from nemo_gym.parsers import Parser, output_parser
from tests.parsers.cutting import by
from tests.parsers.writers import TOOLS, WRITERS, Item, parser_name

STEP = 4
"""Characters of an increment, about those of a token."""
ITEMS: list[Item] = [
    "I will look at the weather in both places first, and then decide which of them is nicer.\n",
    ("get_weather", {"city": "Zürich", "days": 3, "metric": True, "options": {"units": ["C", "mm"], "note": "a < b"}}),
    (
        "get_weather",
        {"city": "Rome, and this is a longer value: " + "so it goes on and on. " * 12, "hours": [6, 12, 18]},
    ),
]
VALUES = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": "',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n",
    "glm47": "<tool_call>f<arg_key>a</arg_key><arg_value>",
}
"""How a value begins that never ends."""
ADVERSARIAL = {
    "<": "<",
    "opener": "<tool_call>",
    "openers of values": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>",
    "closing tags": "</arg_value>",
    "JSON openers": '<tool_call>{"name": "',
    "brackets": "[[",
    "white space": " ",
    "functions": "<tool_call>\n<function=f>\n<parameter=a>\n",
    "think tags": "<think></think>",
    "quotes": "\\'\"",
    "nested JSON": '<tool_call>{"a":{"a":',
    "digits": "1",
    "partial markers": "<tool_ca",
}
IN_VALUES = {"letters": "a", "openers": "<tool_call>f<function=f>", "quotes": '\\\\"', "brackets": "[["}
SECONDS = 15
"""That one text may take: a larger one is made smaller."""


def measure(work: Callable[..., Any], *arguments: Any, runs: int = 3) -> float:
    best = float("inf")
    for _ in range(runs):
        gc.collect()
        begun = time.process_time()
        work(*arguments)
        best = min(best, time.process_time() - begun)
    return best


def feed(parser: Parser, pieces: Iterable[str]) -> None:
    stream = parser.stream()
    for piece in pieces:
        stream.feed(piece)
    stream.finish()


def speeds(size: int, vllm: Any) -> None:
    print(f"{'format':22} {'whole':>12} {'incremental':>13}   vLLM's time over ours, whole and incremental")
    for writer, write in WRITERS.items():
        one = write(ITEMS)
        parser = output_parser(parser_name(writer), tools=TOOLS)
        text = one * max(1, size // len(one))
        whole, incremental = measure(parser.parse, text), measure(feed, parser, by(text, STEP))
        line = f"{writer:22} {len(text) / whole / 1e6:7.1f} MB/s {len(text) / incremental / 1e6:8.2f} MB/s"
        if vllm is not None:
            items: list[Item] = [item for item in ITEMS if not isinstance(item, str)] if writer == "pythonic" else ITEMS
            line += "   " + beside(vllm, writer, parser, write(items))
        print(line, flush=True)


def beside(vllm: Any, writer: str, parser: Parser, reply: str) -> str:
    """One reply of usual length: some of vLLM's parsers are not linear, so a long text would flatter ours.

    vLLM's pythonic one reads nothing but a list of calls by itself, so it is given that.
    """
    name = "mistral_before_v11" if writer == "mistral (before v11)" else parser_name(writer)
    pieces = vllm.harmony_pieces(reply) if name == "harmony" else by(reply, STEP)
    theirs = vllm.measured(name, reply, pieces, measure)
    ours = measure(parser.parse, reply, runs=20), measure(feed, parser, pieces, runs=20)
    return f"{theirs[0] / ours[0]:6.1f} {theirs[1] / ours[1]:6.1f}"


def growth(smallest: int, largest: int) -> None:
    print(
        "\ngrowth, whole then in increments: MB/s, a character's time over that in the smallest text, how large a text"
    )
    cases = {writer: (parser_name(writer), "", write(ITEMS)) for writer, write in WRITERS.items()}
    for name, opener in VALUES.items():
        cases |= {f"{name}: {what}": (name, "", unit) for what, unit in ADVERSARIAL.items()}
        cases |= {f"{name}: in a value, {what}": (name, opener, unit) for what, unit in IN_VALUES.items()}
    for label, (name, opener, unit) in cases.items():
        parser = output_parser(name, "harmony" if name == "harmony" else "qwen3", TOOLS)
        line = f"{label:38}"
        for pieces, work in ((_whole, parser.parse), (_cut, partial(feed, parser))):
            text = _text(opener, unit, smallest)
            first = measure(work, pieces(text), runs=2) / len(text)
            size = min(largest, max(smallest, int(SECONDS / first)))  # the slow ones get smaller texts, not less often
            text = _text(opener, unit, size)
            cost = measure(work, pieces(text), runs=1) / len(text)
            line += f" {1e-6 / cost:7.2f} MB/s x{cost / first:4.1f} to {size / 1e6:4.1f} MB"
        print(line, flush=True)


def _text(opener: str, unit: str, size: int) -> str:
    return opener + unit * max(1, (size - len(opener)) // len(unit))


def _whole(text: str) -> str:
    return text


def _cut(text: str) -> list[str]:
    return by(text, STEP)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="small sizes, no vLLM")
    quick = arguments.parse_args().quick
    vllm: Any = None
    if not quick:
        logging.disable(logging.CRITICAL)
        try:
            from tests.parsers import vllm_side as vllm
        except ImportError:
            print("vLLM is not installed: not measured beside it")
    speeds(100_000 if quick else 1_000_000, vllm)
    growth(20_000 if quick else 100_000, 400_000 if quick else 10_000_000)


if __name__ == "__main__":
    main()
