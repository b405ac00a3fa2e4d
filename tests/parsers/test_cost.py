"""Parsers are light to import, and linear in the output's length."""

from __future__ import annotations

import subprocess
import sys
import time
import timeit

import pytest

from nemo_gym.parsers import Parsed, output_parser
from tests.parsers.cutting import by
from tests.parsers.writers import TOOLS

HEAVY = [
    "torch",
    "vllm",
    "transformers",
    "tokenizers",
    "numpy",
    "pyarrow",
    "ray",
    "pydantic",
    "fastapi",
    "openai_harmony",
]


def test_importing_brings_in_nothing_heavy():
    code = f"import sys, nemo_gym.parsers; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


UNITS = {
    "hermes": [
        "<",
        "<tool_call>",
        '<tool_call>{"a":',
        '<tool_call>{"name": "f", "arguments": {"a": "',
        "<think></think>",
    ],
    "qwen3_coder": ["<tool_call>\n<function=f>\n<parameter=a>\n", "</parameter>", "<function=f>", "</parameter>\n"],
    "glm47": ["<tool_call>f<arg_key>a</arg_key><arg_value>", "<tool_call>f", "</arg_value>", "<arg_key>"],
    "harmony": ["<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>", "<|end|>", " to=f"],
    "deepseek_v3": ["<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>", "`"],
    "kimi_k2": ["<|tool_calls_section_begin|>", "<|tool_call_begin|>f<|tool_call_argument_begin|>{"],
    "mistral": ["[TOOL_CALLS]", '[TOOL_CALLS] [{"a":', "["],
    "minimax_m2": ['<invoke name="f"><parameter name="a">', "<minimax:tool_call>"],
    "llama3_json": ['\n{"name": "f", "parameters": {', "{", ";", '{"name":', '{"name":\n', '{"name": [\n'],
    "pythonic": ["\n[f(a=", "[", "'", "\n[f(a='", "\\", "[f(a=[\n", "[f(a='''\n"],
}
PREFIXES = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": "',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n",
    "glm47": "<tool_call>f<arg_key>a</arg_key><arg_value>",
    "pythonic": "[f(a='",
    "llama3_json": '{"name": "f", "parameters": {"a": "',
}


def _seconds(parser, text):
    def read():
        stream = parser.stream()
        parts = [part for piece in by(text, 4) for part in stream.feed(piece)]
        Parsed.fold([*parts, *stream.finish()])
        parser.parse(text)

    # Of processor time, the garbage of other tests left alone (timeit stops the collector).
    return timeit.timeit(read, timer=time.process_time, number=1)


@pytest.mark.parametrize(("name", "unit"), [(name, unit) for name, units in UNITS.items() for unit in units])
def test_time_is_linear_in_the_length(name, unit):  # P8
    reasoning = "harmony" if name == "harmony" else "qwen3"
    parser = output_parser(name, reasoning, TOOLS)
    for prefix in {"", PREFIXES.get(name, "")}:
        short, long = (prefix + unit * (size // len(unit)) for size in (2_000, 16_000))
        fewer = min(_seconds(parser, short) for _ in range(2))
        assert _seconds(parser, long) < 8 * 3 * fewer + 0.05  # eight times as long; quadratic takes 64 times as long
