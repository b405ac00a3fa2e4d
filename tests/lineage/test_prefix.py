"""Where a prompt leaves the tokens of the call that it continues, and why."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.exchange.call import Prior
from nemo_gym.exchange.parts import Message, Text, ToolCall
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.lineage.prefix import broken, shared
from tests.bench import HELLO, bench
from tests.scripted import Answer, chat_reply

SAID = Message("assistant", (Text("a"),))
CALLED = Message("assistant", (ToolCall("f", "{}"),))
USER = Message("user", (Text("u"),))


def ids(*values: int) -> array:
    return array("i", values)


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (ids(), ids(), 0),
        (ids(1, 2), ids(1, 2, 3), 2),
        (ids(1, 2, 3), ids(1, 2), 2),
        (ids(1, 2, 3), ids(1, 5, 3), 1),
        (ids(4), ids(5), 0),
    ],
)
def test_what_both_begin_with(first: array, second: array, count: int) -> None:
    assert shared(first, second) == count


@pytest.mark.parametrize(
    ("messages", "prompt", "relation", "reasoned", "found"),
    [
        ((USER, SAID, USER), ids(1, 2, 3, 4), "turn", False, None),
        ((USER, SAID, USER), ids(1, 2, 9), "turn", False, (2, "template_boundary")),
        ((USER, SAID, USER), ids(1, 2), "turn", False, (2, "template_boundary")),
        ((USER, SAID, USER), ids(1, 9), "turn", True, (1, "reasoning_dropped")),
        ((USER, CALLED, USER), ids(1, 2, 9), "turn", False, (2, "arguments_reserialised")),
        ((USER, USER), ids(7), "turn", False, (0, "foreign_history")),
        ((USER, SAID, USER), ids(7), "retry", False, (0, "retry")),
        ((USER, SAID, USER), ids(7), "compaction", True, (0, "compaction")),
    ],
)
def test_causes(messages: Any, prompt: array, relation: str, reasoned: bool, found: Any) -> None:  # C2
    prior = Prior("c", ids(1, 2, 3), 2, reasoned)
    assert broken(prior, prompt, ModelRequest(messages), relation) == found


@pytest.mark.parametrize(
    ("prior", "cause"),
    [
        (Prior("c", ids(1, 2, 3), 0), "compaction"),  # context that moved
        (Prior("c", ids(1, 2, 3), 1, reasoned=True, left_out=True), "reasoning_dropped"),
        (Prior("c", ids(1, 2, 3), 1, left_out=True), "template_boundary"),
    ],
)
def test_a_turn_that_is_not_where_it_was_is_still_ours(prior: Prior, cause: str) -> None:
    assert broken(prior, ids(1, 9), ModelRequest((USER, USER)), "turn") == (1, cause)


async def test_a_break_at_a_server_that_renders_is_recorded(tmp_path: Path) -> None:
    """Ids of a vLLM over HTTP: the second prompt goes on from the first call, the third does not."""
    prompts = iter([[1, 2], [1, 2, 10, 11, 3], [1, 2, 10, 11, 3, 20, 99, 4]])

    def answer(request: Any) -> Answer:
        if not request.asks or request.json().get("max_tokens") == 1:
            return Answer({"data": []})
        prompt = next(prompts)
        said = [10, 11] if len(prompt) == 2 else [20, 21]
        logprobs = {"content": [{"token": "x", "logprob": -0.5, "top_logprobs": []} for _ in said]}
        choice = {"token_ids": said, "logprobs": logprobs}
        return Answer(chat_reply(f"said {said[0]}", choice=choice, prompt_token_ids=prompt))

    messages = list(HELLO)
    async with (
        bench(tmp_path, answer, return_token_ids=True) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        for _ in range(3):
            made = await client.post("/ng-rollout/r1/v1/chat/completions", json={"messages": messages})
            messages += [{"role": "assistant", "content": made.json()["choices"][0]["message"]["content"]}]
            messages += [{"role": "user", "content": "more"}]
        records = at.records()
    assert [one.relation for one in records] == ["first", "turn", "turn"]
    assert [one.prefix_break for one in records] == [None, None, (6, "template_boundary")]
