"""Chat messages and Responses items of one another: harnesses log the one, and rollouts hold the other."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCallForTraining,
)
from nemo_gym.responses_converter import ResponsesConverter, VLLMConverter, split_responses_input_output_items

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2, 3], "generation_log_probs": [-0.5, -0.25]}
LOGGED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
    },
    {"role": "assistant", "content": "<think>so</think>Well", "tool_calls": [CALL], **TOKENS},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
    {"role": "assistant", "content": None},
]


def test_a_logged_conversation_as_items() -> None:
    converter = VLLMConverter(return_token_id_information=True)
    items = converter.chat_completions_messages_to_responses_items(LOGGED)
    assert [item.type for item in items] == [
        "message", "message", "reasoning", "message", "function_call", "function_call_output", "message"
    ]  # fmt: skip
    assert [part["type"] for part in items[1].content] == ["input_text", "input_image"]
    assert [part.text for part in items[2].summary] == ["so"]
    assert (items[3].content[0].text, items[3].content[0].logprobs) == ("Well", None)
    called = items[4]
    assert isinstance(called, NeMoGymResponseFunctionToolCallForTraining)
    assert (called.id, called.call_id, called.arguments, called.generation_token_ids) == ("c1", "c1", '{"a":1}', [2, 3])
    assert items[5].output == [{"type": "input_text", "text": "2"}]
    assert items[6].content[0].text == ""  # a turn that said nothing is still a turn
    assert len({item.id for item in items if getattr(item, "id", None)}) == 4
    prompt, made = split_responses_input_output_items(items)
    assert (prompt, made) == (items[:2], items[2:])


def test_without_the_two_switches_a_message_is_what_it_says() -> None:
    items = ResponsesConverter(uses_reasoning_parser=False).postprocess_assistant_message_dict(LOGGED[2])
    assert [item.type for item in items] == ["message", "function_call"]
    assert items[0].content[0].text == "<think>so</think>Well"
    assert not isinstance(items[1], NeMoGymResponseFunctionToolCallForTraining)


def test_a_split_where_there_is_nothing_to_split() -> None:
    assert split_responses_input_output_items([]) == ([], [])
    items = ResponsesConverter().chat_completions_messages_to_responses_items(LOGGED[:2])
    assert split_responses_input_output_items(items) == (items, [])


def test_a_role_that_is_none() -> None:
    with pytest.raises(NotImplementedError, match="'narrator'"):
        ResponsesConverter().chat_completions_messages_to_responses_items([{"role": "narrator", "content": "x"}])


def test_a_completion_as_the_response_to_what_was_asked() -> None:
    message = {"role": "assistant", "content": "two", "refusal": None}
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    completion = NeMoGymChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 5,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "length", "logprobs": None, "message": message}],
            "usage": usage,
        }
    )
    asked = NeMoGymResponseCreateParamsNonStreaming(input="one and one?", temperature=0.5, max_output_tokens=2)
    made = ResponsesConverter().chat_completion_to_response(asked, completion)
    assert made.output_text == "two"
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (made.temperature, made.max_output_tokens) == (0.5, 2)
    assert (made.usage.input_tokens, made.usage.input_tokens_details.cached_tokens) == (3, 1)
    assert made.id.startswith("resp_")
    kept = ResponsesConverter().chat_completion_to_response(asked, completion, preserve_envelope_id=True)
    assert kept.id == "chatcmpl-1"


def test_a_chat_request_as_one_of_responses() -> None:
    asked = NeMoGymChatCompletionCreateParamsNonStreaming(messages=LOGGED[:2], temperature=1, max_completion_tokens=9)
    made = ResponsesConverter().chat_completion_to_responses_create_params(asked)
    assert [item.role for item in made.input] == ["system", "user"]
    assert (made.temperature, made.max_output_tokens) == (1.0, 9)
