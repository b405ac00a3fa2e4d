"""Token columns are read from every place they come in, and left out where they are not what they should be."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.dialects import chat
from nemo_gym.dialects.chat.columns import completed
from nemo_gym.exchange.reply import ModelReply
from tests.scripted import chat_reply

TOKENS = [[-0.5, 11, "Hel"], [-1.25, 12, None]]


def read(reply: dict[str, Any]) -> ModelReply:
    return completed(chat.read_reply(reply))


def columns(reply: ModelReply) -> tuple[Any, ...]:
    tokens = reply.choices[0].tokens
    assert tokens is not None
    prompt, ids, logprobs = (
        None if one is None else list(one) for one in (reply.prompt_ids, tokens.ids, tokens.logprobs)
    )
    return prompt, ids, logprobs, tokens.versions


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (
            chat_reply(choice={"prompt_token_ids": [1, 2], "meta_info": {"output_token_logprobs": TOKENS}}),
            ([1, 2], [11, 12], [-0.5, -1.25], ()),
        ),
        (
            chat_reply(choice={"meta_info": {"output_token_logprobs": TOKENS, "weight_version": "7"}}),
            (None, [11, 12], [-0.5, -1.25], ((0, 7),)),
        ),
        (
            chat_reply(
                message={
                    "prompt_token_ids": [3],
                    "generation_token_ids": [4, 5],
                    "generation_log_probs": [-0.25, -1],
                }
            ),
            ([3], [4, 5], [-0.25, -1.0], ()),
        ),
        (
            chat_reply(choice={"token_ids": [8, 9], "weight_versions": [{"start": 0, "end": 1, "version": "3"}]})
            | {"prompt_token_ids": [1]},
            ([1], [8, 9], None, ((0, 3),)),
        ),
        (
            chat_reply(
                choice={
                    "token_ids": [8, 9, 9],
                    "weight_versions": [{"start": 0, "version": 3}, {"start": 2, "version": 4}],
                }
            ),
            (None, [8, 9, 9], None, ((0, 3), (2, 4))),
        ),
        (chat_reply(choice={"token_ids": [8]}) | {"metadata": {"weight_version": "12"}}, (None, [8], None, ((0, 12),))),
        (chat_reply(choice={"token_ids": [8]}) | {"weight_version": 5}, (None, [8], None, ((0, 5),))),
    ],
)
def test_each_place(reply: dict[str, Any], found: tuple[Any, ...]) -> None:
    assert columns(read(reply)) == found


@pytest.mark.parametrize(
    "choice",
    [
        {"meta_info": 7},
        {"meta_info": {"output_token_logprobs": "no"}},
        {"meta_info": {"output_token_logprobs": [[-0.5]]}},
        {"meta_info": {"output_token_logprobs": [[-0.5, "11", None]]}},
        {"meta_info": {"output_token_logprobs": [[-0.5, -1, None]]}},
        {"meta_info": {"output_token_logprobs": []}},
        {"prompt_token_ids": {"a": 1}},
    ],
)
def test_what_is_no_column_is_left_out(choice: dict[str, Any]) -> None:
    reply = read(chat_reply(choice=choice))
    assert (reply.prompt_ids, reply.choices[0].tokens) == (None, None)


@pytest.mark.parametrize("version", ["default", "", None, True, -1, 2**31, [], {"a": 1}, "\u0667", "9" * 5000])
def test_a_version_that_is_no_number_is_unknown(version: Any) -> None:
    assert columns(read(chat_reply(choice={"token_ids": [8]}) | {"weight_version": version}))[3] == ()


def test_spans_that_do_not_cover_the_reply_are_unknown() -> None:
    for spans in ([{"start": 1, "version": 3}], [{"start": 0, "version": 3}, {"start": 0, "version": 4}], [7], [{}]):
        assert columns(read(chat_reply(choice={"token_ids": [8, 9], "weight_versions": spans})))[3] == ()


def test_log_probs_that_do_not_line_up_are_left_out() -> None:
    message = {"generation_token_ids": [4, 5], "generation_log_probs": [-0.25], "prompt_token_ids": [3]}
    assert columns(read(chat_reply(message=message))) == ([3], [4, 5], None, ())


def test_a_reply_that_has_all_of_it_stays_the_same_object() -> None:
    reply = chat.read_reply(chat_reply(choice={"token_ids": [8]}) | {"prompt_token_ids": [1]})
    assert completed(reply) is reply
