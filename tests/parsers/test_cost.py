"""Parsers are light to import, and linear in the output's length."""

from __future__ import annotations

import subprocess
import sys
import time
import timeit
import tracemalloc

import pytest

from nemo_gym.parsers import Parsed, output_parser, scanner
from nemo_gym.parsers.scanner import Source
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


GAP = " " * 200
SECTION = "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>"
UNITS = {
    "hermes": [
        "<",
        "<tool_ca",
        "<tool_call>",
        "<tool_call>" + GAP,
        '<tool_call>{"a":',
        '<tool_call>{"name": "',
        '<tool_call>{"name": "f", "arguments": {"a": "',
        '<tool_call>{"name": "f"}</tool_call',
        "<think></think>",
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=f>\n<parameter=a>\n",
        "<tool_call><function=f></function>",
        "</parameter>",
        "<function=f>",
        "</parameter>\n",
        "</parameter>\n</function>",
    ],
    "glm47": [
        "<tool_call>f<arg_key>a</arg_key><arg_value>",
        "<tool_call>f",
        "<tool_call>f<arg_key>" + "k" * 200,
        "</arg_value>",
        "<arg_key>",
    ],
    "harmony": [
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|channel|>commentary to=f code<|message|>",
        "<|channel|>commentary to=f<|message|>{}",
        '<|channel|>commentary to=f<|message|>{"a": "',
        "<|channel|>",
        "<|end|>",
        " to=f",
    ],
    "deepseek_v3": [SECTION, SECTION + GAP, SECTION + 'function<\uff5ctool▁sep\uff5c>f\n```json\n{"a": "', "`"],
    "deepseek_v31": [SECTION + "f" + GAP, SECTION + 'f<\uff5ctool▁sep\uff5c>{"a": "'],
    "kimi_k2": [
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>f<|tool_call_argument_begin|>{",
        '<|tool_call_begin|>f<|tool_call_argument_begin|>{"a": "',
        "<|tool_call_begin|>" + "f" * 200,
    ],
    "mistral": ["[TOOL_CALLS]", '[TOOL_CALLS] [{"a":', '[TOOL_CALLS] [{"name": "f"}, ', '[TOOL_CALLS]f{"a": "', "["],
    "minimax_m2": [
        '<invoke name="f"><parameter name="a">',
        '<invoke name="f"><parameter name=' + GAP,
        "<minimax:tool_call>",
        "</parameter></invoke>",
    ],
    "llama3_json": [
        '\n{"name": "f", "parameters": {',
        '\n{"name": "',
        "{",
        ";",
        '{"name":',
        '{"name":\n',
        '{"name": [\n',
        '\n{"name": [{}, ',
    ],
    "pythonic": [
        "\n[f(a=",
        "[",
        "'",
        "\n[f(a='",
        "\n[f(a=\\'",
        "\n[f(a='\\",
        "\n[f(a='\"",
        "\n[f(a=1), ",
        "\n[f" + GAP[:20] + "(a=",
        "\\",
        "[f(a=[\n",
        "[f(a='''\n",
    ],
}
COMMON = ['"', "\\", "[[", '{"a":', '{"a":{"b":[', "1", " "]
"""What stands in a value, or in what a format takes for the beginning of one."""
PREFIXES = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": "',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n",
    "glm47": "<tool_call>f<arg_key>a</arg_key><arg_value>",
    "harmony": '<|channel|>commentary to=f<|message|>{"a": "',
    "pythonic": "[f(a='",
    "llama3_json": '{"name": "f", "parameters": {"a": "',
}
NESTED = {
    "hermes": ('<tool_call>{"name": "f", "arguments": {"a": ', "}}</tool_call>"),
    "qwen3_coder": ("<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "glm47": ("<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"),
    "minimax_m2": ('<invoke name="f"><parameter name="a">', "</parameter></invoke>"),
    "mistral": ('[TOOL_CALLS]f{"a":', "}"),
    "pythonic": ("\n[f(a=[", "])]"),
    "llama3_json": ('\n{"name": "f", "parameters": {"a":', "}}"),
}
"""What opens calls in one another, and what closes them."""


def _seconds(parser, text):
    def read():
        stream = parser.stream()
        parts = [part for piece in by(text, 4) for part in stream.feed(piece)]
        Parsed.fold([*parts, *stream.finish()])
        parser.parse(text)

    # Of processor time, the garbage of other tests left alone (timeit stops the collector).
    return timeit.timeit(read, timer=time.process_time, number=1)


def _per_character(parser, text):
    return _seconds(parser, text) / len(text)


def _grows_in_step(name, write, short, long):
    """Of several tries one is enough: what is quadratic takes too long each time, whatever else the machine does."""
    parser = output_parser(name, "harmony" if name == "harmony" else "qwen3", TOOLS)
    least = min(_per_character(parser, write(short)) for _ in range(2))
    return any(_per_character(parser, write(long)) < 3 * least for _ in range(5))


def _cases():
    for name, units in UNITS.items():
        yield from ((name, "", unit) for unit in units)
        if name in PREFIXES:
            yield from ((name, PREFIXES[name], unit) for unit in units)
            yield from (pytest.param(name, PREFIXES[name], unit, marks=pytest.mark.nightly) for unit in COMMON)


SIZES = [
    pytest.param(1_000, 8_000, id="short"),
    pytest.param(16_000, 256_000, marks=pytest.mark.nightly, id="long"),
]
"""Copies and counts of a text show only in a long one: C's are a thousand times quicker than a step of ours."""


@pytest.mark.parametrize(("short", "long"), SIZES)
@pytest.mark.parametrize(("name", "prefix", "unit"), list(_cases()))
def test_time_is_linear_in_the_length(name, prefix, unit, short, long):  # P8
    assert _grows_in_step(name, lambda size: prefix + unit * (size // len(unit)), short, long)


@pytest.mark.parametrize(("short", "long"), SIZES)
@pytest.mark.parametrize("name", NESTED)
def test_time_is_linear_in_the_depth(name, short, long):  # P8
    opening, closing = NESTED[name]

    def write(size):
        depth = size // (len(opening) + len(closing))
        return opening * depth + closing * depth

    assert _grows_in_step(name, write, short, long)


@pytest.mark.parametrize("opener", ['<invoke name="f"><parameter name=', "<invoke name=", "<minimax:tool_call>"])
def test_a_gap_costs_its_length(opener):  # P8
    assert _grows_in_step("minimax_m2", lambda gap: (opener + " " * gap) * 8, 32, 512)


def test_a_decoder_that_counts_lines_when_it_fails_fails_once(monkeypatch):  # P8
    asked = []
    monkeypatch.setattr(scanner, "json_end", lambda text, at: asked.append(at))
    text = '<tool_call>{"name": "' * 500
    assert output_parser("hermes", None, TOOLS).parse(text).text == text
    assert len(asked) == 1


def test_an_end_that_no_message_has_is_looked_for_once(monkeypatch):  # P8
    asked = []
    search = Source.search
    monkeypatch.setattr(Source, "search", lambda self, *given: asked.append(given) or search(self, *given))
    text = "<|channel|>commentary to=f code<|message|>" * 500
    assert output_parser("harmony", "harmony", TOOLS).parse(text).text == text
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "minimax_m2"])
def test_calls_in_calls_hold_no_copies_of_their_values(name):  # P8
    opening, closing = NESTED[name]
    text = opening * 1_500 + closing * 1_500
    parser = output_parser(name, None, None)
    tracemalloc.start()
    try:
        (call,) = parser.parse(text).calls
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert call[0] == "f" and len(call[1]) > 1_499 * len(opening)
    assert held < 100 * len(text)  # a copy a call would be 750 times the text
