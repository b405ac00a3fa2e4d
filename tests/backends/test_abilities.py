"""What an endpoint's own routes tell: whether it takes images, without a token generated for it. # A11"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.model_server.adapt import NO_IMAGE
from tests.bench import bench
from tests.scripted import Answer, Request, chat_reply

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
LOOK: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}]


def endpoint(images: int | None) -> Any:
    """`images`: the status with which its tokenize route answers one; None has no such route."""

    def decide(request: Request) -> Answer:
        if request.method == "GET":
            return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
        if request.path == "/tokenize" and images is not None:
            seen = "image_url" in str(request.json()["messages"])
            return Answer({"error": {"message": "no multimodal model"}}, images) if seen else Answer({"count": 99})
        return Answer(chat_reply()) if request.asks else Answer({"detail": "Not Found"}, 404)

    return decide


@pytest.mark.parametrize(
    ("images", "vision", "passed_on"),
    [
        (400, None, False),
        (200, None, True),
        (500, None, True),  # it does not say
        (None, None, True),
        (400, True, True),  # what is configured holds
        (200, False, False),
    ],
)
async def test_an_image_goes_to_who_takes_it(
    tmp_path: Path, images: int | None, vision: bool | None, passed_on: bool
) -> None:
    async with bench(tmp_path, endpoint(images), vision=vision) as at, httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{at.url}/ready")).status_code == 200  # it has asked
        reply = await at.client().chat.completions.create(model="m", messages=LOOK)
        assert reply.choices[0].message.content == "Hello!"
        (call,) = at.backend.calls
        content = call.json()["messages"][0]["content"]
        assert ("image_url" in str(content)) == passed_on
        assert (NO_IMAGE in str(content)) == (not passed_on)
        assert at.apps[0].readiness.capabilities.vision == {400: False, 200: True}.get(images or 0)
