"""OpenAI and Azure as backends: one reply is the same in every view, whichever dialect the client speaks. # V0"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from responses_api_models.azure_openai_model.app import AzureOpenAIModel
from responses_api_models.openai_model.app import OpenAIModel
from tests.bench import bench
from tests.dialects import wires
from tests.dialects.wires import DIALECTS
from tests.scripted import Answer, Request

pytestmark = pytest.mark.ci

DATED = {"kind": AzureOpenAIModel, "root": True, "api_version": "2025-04-01-preview"}
SERVERS: dict[str, dict[str, Any]] = {
    "openai": {"kind": OpenAIModel},
    "openai-chat": {"kind": OpenAIModel, "api": "chat"},
    "azure": {"kind": AzureOpenAIModel, "root": True, "api": "auto"},
    "azure-dated": DATED,
    "azure-dated-responses": DATED | {"api": "responses"},
}


def provider(request: Request) -> Answer:
    if not request.asks:
        return Answer({"object": "list", "data": []})
    return Answer(wires.reply("chat" if "/chat/" in request.path else "responses"))


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("server", SERVERS)
async def test_a_reply_is_the_same_in_every_view(tmp_path: Path, server: str, client: str) -> None:
    async with bench(tmp_path, provider, api_key="k", **SERVERS[server]) as at:
        views = [await wires.ask(at, client, wires.request(client), streamed) for streamed in (False, True)]
        records = at.records()
    for form, _ in views:
        assert form == [
            ("reasoning", "Hm."),
            ("text", "Both."),
            ("call", "call_1", "get_weather", {"city": "Oslo"}),
            ("call", "call_2", "get_weather", {"city": "Rome"}),
            ("usage", 11, 3, 4),
        ]
    assert views[0][1] == views[1][1]
    for record in records:
        thought, text, *calls = record.reply.choices[0].parts
        assert (thought.text, text.text) == ("Hm.", "Both.")
        assert [call.call_id for call in calls] == ["call_1", "call_2"]
