"""What a backend gets of a request. # A6 A10 A11 A17"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.backends.backend import Capabilities
from nemo_gym.dialects import chat, codec, messages, responses
from nemo_gym.dialects.elements import Elements
from nemo_gym.model_server import said
from nemo_gym.model_server.adapt import NO_IMAGE, Adapter
from nemo_gym.web.peers import ServerClient
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, Request, chat_reply


def adapter(**settings: Any) -> Adapter:
    config = VLLMModelConfig(name="m", base_url="http://x/v1", model="m", **settings)
    return Adapter(VLLMModel(config=config, server_client=ServerClient({})))


def sent(adapter: Adapter, request: Any, capabilities: Capabilities | None = None) -> dict[str, Any]:
    return chat.write_request(adapter.adapt(request, capabilities))


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_said", set())


def test_unknown_fields_are_forwarded_where_the_server_says_so(caplog: pytest.LogCaptureFixture) -> None:  # A6
    request = chat.read_request({"messages": HELLO, "repetition_penalty": 1.1, "metadata": {"a": "b"}})
    assert sent(adapter(), request)["repetition_penalty"] == 1.1
    assert caplog.messages == []
    body = sent(adapter(forward_unknown=False), request)
    assert "repetition_penalty" not in body
    assert body["metadata"] == {"a": "b"}  # of the published API
    sent(adapter(forward_unknown=False), request)
    assert caplog.messages == ["the field 'repetition_penalty' of chat requests is not passed on to this backend"]


def test_fields_of_another_dialect_are_dropped_and_named_once(caplog: pytest.LogCaptureFixture) -> None:  # A6
    request = responses.read_request({"input": "Hi", "truncation": "auto", "user": "u", "my_field": 1, "nothing": None})
    for _ in range(2):
        assert not {"truncation", "user", "my_field"} & sent(adapter(), request).keys()
    assert [message.split("'")[1] for message in caplog.messages] == ["my_field", "truncation"]


async def test_strict_refuses_unknown_fields(tmp_path: Path) -> None:  # A6
    async with (
        bench(tmp_path, [Answer(chat_reply())], strict=True) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        wrong = await client.post("/v1/chat/completions", json={"messages": HELLO, "temprature": 1})
        assert wrong.status_code == 422
        assert wrong.json()["detail"] == [
            {
                "type": "extra_forbidden",
                "msg": "Extra inputs are not permitted",
                "loc": ["body", "temprature"],
                "input": 1,
            }
        ]
        other = await client.post("/v1/responses", json={"input": "x", "temprature": 1})
        assert (other.status_code, other.json()["error"]["param"]) == (400, "temprature")
        good = {"messages": HELLO, "user": "u", "chat_template_kwargs": {}, "stream_options": None}
        assert (await client.post("/v1/chat/completions", json=good)).status_code == 200
        assert [record.status for record in at.records()] == ["rejected", "rejected", "answered"]


async def test_a_client_never_overrides_what_capture_asks_for(tmp_path: Path) -> None:  # A6
    async with bench(tmp_path, [Answer(chat_reply())], return_token_ids=True) as at:
        client = at.client()
        extra = {"return_token_ids": False, "logprobs": False}
        await client.chat.completions.create(model="m", messages=HELLO, extra_body=extra)
        body = at.backend.calls[0].json()
        assert (body["return_token_ids"], body["logprobs"]) == (True, True)


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_images_become_text_in_all_three_places() -> None:  # A11
    parts = [{"type": "text", "text": "see"}, IMAGE]
    request = chat.read_request(
        {
            "messages": [
                {"role": "user", "content": parts},
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": TOOL_CALL}]},
                {"role": "tool", "tool_call_id": "c", "content": parts},
            ]
        }
    )
    for fitted in (adapter(vision=False), adapter()):
        capabilities = Capabilities(vision=False)
        messages = sent(fitted, request, capabilities)["messages"]
        expected = [{"type": "text", "text": "see"}, {"type": "text", "text": NO_IMAGE}]
        assert messages[0]["content"] == expected
        assert messages[2]["content"] == expected
    assert sent(adapter(vision=True), request, Capabilities(vision=False))["messages"][0]["content"] == parts
    assert sent(adapter(), request)["messages"][0]["content"] == parts
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    bare = responses.read_request({"input": [image, {"role": "user", "content": [image]}]})
    assert str(sent(adapter(vision=False), bare)).count(NO_IMAGE) == 2
    assert "base64" not in str(sent(adapter(vision=False), bare))


TOOL_CALL = {"name": "get_weather", "arguments": "{}"}


def test_what_the_backend_cannot_force_is_said_once(caplog: pytest.LogCaptureFixture) -> None:  # A10
    cannot = Capabilities(forced_tools=False, single_call=False)
    plain = chat.read_request({"messages": HELLO, "tools": [TOOL]})
    forced = chat.read_request(
        {"messages": HELLO, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    )
    fitted = adapter()
    fitted.adapt(plain, cannot)
    fitted.adapt(forced, Capabilities())
    assert caplog.messages == []
    for _ in range(2):
        body = sent(fitted, forced, cannot)
        assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    assert [message.split(":")[0] for message in caplog.messages] == ["tool_choice", "parallel_tool_calls"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    once = messages.read_request(
        {
            "model": "m",
            "max_tokens": 9,
            "messages": HELLO,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        }
    )
    fitted.adapt(once, cannot)
    assert caplog.messages[-1].startswith("tool_choice.disable_parallel_tool_use: this backend cannot")


SYSTEMS = [
    {"role": "system", "content": "one"},
    {"role": "developer", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "system", "content": "four"},
    {"role": "user", "content": "five"},
]


def test_system_messages_are_fitted_to_the_template_and_none_is_dropped() -> None:  # A17 R9
    request = chat.read_request({"messages": SYSTEMS})
    poor = Capabilities(developer=False, several_systems=False, late_system=False)
    assert sent(adapter(), request, poor)["messages"] == [
        {"role": "system", "content": "one\n\ntwo"},
        {"role": "user", "content": "three"},
        {"role": "user", "content": "[system]\nfour"},
        {"role": "user", "content": "five"},
    ]
    rich = Capabilities(developer=True, several_systems=True, late_system=True)
    assert sent(adapter(), request, rich)["messages"] == SYSTEMS
    assert [m["role"] for m in sent(adapter(), request)["messages"]] == ["system", "system", "user", "system", "user"]


async def test_a_vllm_is_asked_which_roles_it_renders(tmp_path: Path) -> None:  # A17 R9
    def decide(request: Request) -> Answer:
        if request.path == "/tokenize":
            messages = request.json()["messages"]
            roles = [message["role"] for message in messages]
            if any(isinstance(message["content"], list) for message in messages):
                return Answer({"error": "this model takes no images"}, 400)
            if "system" in roles[1:]:
                return Answer({"error": "the system message must be first"}, 400)
            shown = [one["content"] for one in messages if one["role"] != "developer"]  # dropped in silence
            return Answer({"count": len(" ".join(shown).split()), "tokens": []})
        return Answer(chat_reply()) if request.asks else Answer({"data": []})

    async with bench(tmp_path, decide) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        ready = (await client.get("/ready")).json()
        assert {name: ready[name] for name in ("developer", "several_systems", "late_system")} == {
            "developer": False,
            "several_systems": False,
            "late_system": False,
        }
        await client.post("/v1/chat/completions", json={"messages": SYSTEMS})
        assert [m["role"] for m in at.backend.calls[0].json()["messages"]] == ["system", "user", "user", "user"]
        (record,) = at.records()
    assert [message.role for message in record.received.messages] == ["system", "developer", "user", "system", "user"]


PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 20
CALL = {"id": "c" * 70, "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = {
    "messages": [
        {"role": "developer", "content": "Be kind."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c" * 70, "content": "2 é"},
        {"role": "system", "content": "Go on."},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
}
RESPONSES = {
    "input": [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]},
        {"type": "function_call", "name": "f", "namespace": "m", "call_id": "c" * 70, "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c" * 70, "output": "2 é"},
        {"role": "system", "content": "Go on."},
    ],
    "tools": [{"type": "namespace", "name": "m", "tools": [{"type": "function", "name": "f", "parameters": {}}]}],
}
MESSAGES = {
    "max_tokens": 9,
    "system": "Be kind.",
    "messages": [
        {
            "role": "user",
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]},
                }
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c" * 70, "name": "f", "input": {"q": "é"}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c" * 70, "content": "2", "is_error": True}],
        },
        {"role": "system", "content": "Go on."},
    ],
    "tools": [{"name": "f", "input_schema": {}}],
}


@pytest.mark.parametrize(
    "unable", [{}, {"vision": False}, {"several_systems": False}, {"late_system": False}, {"developer": False}]
)
@pytest.mark.parametrize(
    ("dialect", "body"),
    [(chat, CHAT), (responses, RESPONSES), (messages, MESSAGES)],
    ids=["chat", "responses", "messages"],
)
def test_what_bodies_share_goes_on_as_what_is_sent_alone(dialect: Any, body: Any, unable: dict[str, bool]) -> None:
    """A11 A17 R15: nor does it matter what the server could take when it was written first."""
    elements, data = Elements(), codec.encode(body | {"model": "m"})
    for known in (Capabilities(), Capabilities(**unable), Capabilities()):
        alone = adapter().adapt(dialect.read_request(codec.decode(data)), known)
        shared = adapter().adapt(dialect.read_request(elements.decode(data)), known)
        assert codec.encode(chat.write_encoded(shared)) == codec.encode(chat.write_request(alone))
