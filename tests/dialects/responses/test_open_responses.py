"""Replies and every event of a stream against the OpenAPI document of the Open Responses specification. # R21 R32"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.dialects import responses
from nemo_gym.dialects.dialect import Head, replay
from nemo_gym.dialects.sse import Decoder
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.parts import Reasoning, Refusal, Text, ToolCall
from nemo_gym.exchange.reply import Choice, Finish, ModelReply, Usage

llm_comply = pytest.importorskip("llm_comply")
schema = pytest.importorskip("llm_comply.schema")

TOOL = {"type": "function", "name": "f", "description": "F.", "parameters": {"type": "object"}, "strict": True}
ASKED: list[dict[str, Any]] = [
    {},
    {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}, "temperature": 0, "metadata": {"a": "b"}},
    {
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low", "format": {"type": "json_object"}},
    },
    {"instructions": "i", "max_output_tokens": 16, "store": False, "service_tier": "auto", "truncation": "auto"},
]
PARTS = (Reasoning("think"), Reasoning("", payload="sealed"), Text("hello"), Refusal("no"), ToolCall("f", "{}", "c1"))


def problems(spec: Any, names: dict[str, str], stream: bytes) -> list[Any]:
    found = []
    for event in Decoder().feed(stream):
        body = json.loads(event.data)
        assert body["type"] in names, body["type"]
        found += [(body["type"], problem) for problem in spec.validate(body, names[body["type"]])]
    return found


@pytest.mark.ci
def test_all_that_is_written_is_of_the_specification() -> None:  # R21 R32
    document = Path(llm_comply.__file__).parent / "specs" / "openresponses.json"
    spec = schema.SpecLoader(str(document))
    names: dict[str, str] = {}
    for name in spec.schema_names:
        if name.endswith("StreamingEvent"):
            names.update((kind, name) for kind in spec.get_schema(name)["properties"]["type"]["enum"])
    finishes: list[Finish] = ["stop", "tool_calls", "length", "content_filter"]
    for asked in ASKED:
        request = responses.read_request({"input": "q"} | asked)
        for finish in finishes:
            reply = ModelReply("resp_1", "m", 17, (Choice(0, PARTS, finish),), Usage(3, 4, 1))
            assert spec.validate(responses.write_reply(reply, request), "ResponseResource") == []
            stream = b"".join(replay(responses.stream_writer(request, Head.of(reply)), reply))
            assert problems(spec, names, stream) == []
        writer = responses.stream_writer(request, Head("resp_1", "m", 17))
        failed = writer.open() + writer.keep_alive() + writer.fail(ModelError(502, "backend", "gone"))
        assert problems(spec, names, failed) == []
