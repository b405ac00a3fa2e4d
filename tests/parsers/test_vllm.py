"""Held against the parsers of the installed vLLM: the same on well-formed output, and each difference has a reason."""

from __future__ import annotations

import json

import pytest

from nemo_gym.parsers import output_parser
from tests.parsers.test_shapes import SHAPES
from tests.parsers.writers import TOOLS, WRITERS, parser_name

pytestmark = pytest.mark.ci  # importing vLLM takes a quarter of a minute on a good day

TAGS = {"qwen3_coder", "glm45", "glm47", "minimax_m2"}
SPECIAL = TAGS | {"kimi_k2", "mistral"}
LLAMA = {"llama3_json", "llama3_json (tagged)"}
ALL = {*WRITERS}
KNOWN = [
    # writers, shapes, what differs, and why ours is right
    (ALL - {"hermes", "harmony"}, {"text between", "text after", "text all around"}, "text",
     "text after a call is part of what the model said (P3)"),
    ({"harmony"}, {"text all around"}, "text", "what was said stays as it is; vLLM puts a newline between messages"),
    (LLAMA, {"text before", "angle brackets"}, "text", "text before a call is part of what the model said"),
    ({"pythonic"}, {"text before", "text between", "text after", "text all around", "angle brackets"}, "both",
     "a list of calls on a line of its own is a call whether or not text surrounds it"),
    ({"mistral (before v11)"}, {"text between", "text all around"}, "calls", "a second list of calls is one too"),
    (TAGS, {"falsy arguments", "nested"}, "calls", "a $ref in the schema is followed (P4); vLLM gives text"),
    ({"qwen3_coder"}, {"an unknown tool"}, "calls", "what nothing is declared for is read as strict JSON (P4)"),
    (TAGS - {"qwen3_coder"}, {"an unknown tool"}, "calls", "an unknown tool is kept and marked, not dropped (P6)"),
    (SPECIAL, {"quoted markup", "quoted opener"}, "calls", "markup quoted in a value is the value's (P4)"),
    ({"hermes", "mistral (before v11)"}, {"quoted markup"}, "both", "a JSON string may quote the closing tag"),
]  # fmt: skip


def differs(writer: str, shape: str, what: str) -> str | None:
    """The reason for a difference that is known."""
    for writers, shapes, part, why in KNOWN:
        if writer in writers and shape in shapes and part in (what, "both"):
            return why
    return None


@pytest.fixture(scope="module")
def vllm():
    pytest.importorskip("vllm")
    from tests.parsers import vllm_side

    return vllm_side


def _values(calls):
    """Calls with their arguments read; what is no JSON stays text."""
    read = []
    for name, arguments in calls:
        try:
            read.append((name, json.loads(arguments)))
        except ValueError:
            read.append((name, arguments))
    return read


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("writer", sorted(ALL))
def test_agrees_or_is_known_to_differ(vllm, writer, shape):
    text = WRITERS[writer](SHAPES[shape])
    ours = output_parser(parser_name(writer), tools=TOOLS).parse(text)
    name = "mistral_before_v11" if writer == "mistral (before v11)" else parser_name(writer)
    content, calls = vllm.whole(name, text)
    assert (_values(calls) == _values(ours.calls)) == (differs(writer, shape, "calls") is None)
    assert (content == ours.text) == (differs(writer, shape, "text") is None)


STRIPPED = "vLLM drops white space at the end of the reasoning; what was generated is never stripped (A13)"
STRAY = "a closing tag amid the text is text, not dropped (P7)"
OPENED = "the model writes the opening tag itself: an output without it has no reasoning (P7)"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("<think>why</think>so", {}),
        ("<think>why</think>\n\nso", {}),
        ("why</think>so", {"qwen3": OPENED, "glm45": OPENED}),
        ("plain", {"qwen3": OPENED, "glm45": OPENED}),
        ("<think>why", {}),
        ("<think>\nwhy\n</think>so", dict.fromkeys(["glm45", "glm47", "kimi_k2", "nemotron_v3"], STRIPPED)),
        ("why</think>so</think>x", {"qwen3": OPENED, "glm45": OPENED,
                                    **dict.fromkeys(["glm47", "kimi_k2", "nemotron_v3"], STRAY)}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3", "glm45", "glm47", "kimi_k2", "nemotron_v3"])
def test_reasoning_agrees_or_is_known_to_differ(vllm, name, text, known):
    parsed = output_parser(reasoning=name).parse(text)
    assert ((parsed.reasoning, parsed.text) == vllm.reasoning(name, text)) == (not known.get(name))
