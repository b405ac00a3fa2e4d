"""A prompt beyond the context, and what is not one. # A12"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.backends.failures import is_overflow
from tests.bench import HELLO, bench
from tests.scripted import Answer

WORDS = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5120 tokens."
OVERFLOW = Answer({"error": {"message": WORDS, "type": "BadRequestError", "code": 400}}, 400)


async def test_chat_gets_an_empty_reply_that_stopped_for_length(tmp_path: Path) -> None:  # A12
    async with bench(tmp_path, [OVERFLOW]) as at:
        client = at.client()
        completion = await client.chat.completions.create(model="m", messages=HELLO, n=2)
        assert [choice.finish_reason for choice in completion.choices] == ["length", "length"]
        assert [choice.message.content for choice in completion.choices] == ["", ""]
        chunks = [c async for c in await client.chat.completions.create(model="m", messages=HELLO, stream=True)]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
        records = at.records()
    assert [record.status for record in records] == ["failed", "failed"]  # never a training row
    assert records[0].error.status == 400
    assert records[1].reply.id == chunks[0].id


async def test_responses_gets_an_error_of_its_own_code(tmp_path: Path) -> None:  # A12
    async with bench(tmp_path, [OVERFLOW]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        answer = await client.post("/v1/responses", json={"input": "x", "stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert [record.status for record in at.records()] == ["failed"]


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (400, "context_length_exceeded", "", True),
        (400, None, WORDS, True),
        (400, None, "prompt is too long: 250000 tokens > 200000 maximum", True),
        (500, None, WORDS, False),
        (400, None, "This model's maximum context length is 4096 tokens.", False),  # one number only
        (400, None, "max_tokens must be at least 1, got 0", False),
        (
            400,
            None,
            "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is "
            "4096 tokens and your request has 120 input tokens (9000 > 4096 - 120).",
            False,
        ),
    ],
)
def test_what_is_an_overflow(status: int, code: Any, message: str, expected: bool) -> None:  # A12
    assert is_overflow(status, code, message) is expected


async def test_any_other_400_stays_itself(tmp_path: Path) -> None:  # A12 A5
    error = Answer({"error": {"message": "max_tokens must be at least 1, got 0", "type": "BadRequestError"}}, 400)
    async with bench(tmp_path, [error]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 0})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "max_tokens must be at least 1, got 0")
