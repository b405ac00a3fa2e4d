"""The names that environments import, and that their objects are closed where NeMo Gym closes them."""

import pytest
from pydantic import ValidationError

from nemo_gym import openai_utils
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseUsage,
    accumulate_response_usage,
    training_variant_of,
)

TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
MESSAGE = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "t", "annotations": []}],
}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}


def response(*items):
    return NeMoGymResponse.model_validate(
        {
            "id": "r",
            "created_at": 1,
            "model": "m",
            "object": "response",
            "output": list(items),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
    )


def test_every_exported_name_is_there():
    for name in openai_utils.__all__:
        assert hasattr(openai_utils, name)


def test_items_are_read_by_their_type():
    found = response(MESSAGE, CALL, OUTPUT, {**MESSAGE, **TOKENS}, {"type": "reasoning", "id": "r", "summary": []})
    assert [type(item) for item in found.output] == [
        NeMoGymResponseOutputMessage,
        NeMoGymResponseFunctionToolCall,
        NeMoGymFunctionCallOutput,
        NeMoGymResponseOutputMessageForTraining,
        NeMoGymResponseReasoningItem,
    ]
    assert found.output[3].generation_log_probs == [-0.5]
    assert found.output_text == "tt"
    assert NeMoGymResponse.model_validate(found.model_dump()) == found
    assert NeMoGymResponse.model_validate_json(found.model_dump_json()) == found


def test_items_are_taken_as_objects_too():
    text = NeMoGymResponseOutputText(text="t", annotations=[])
    item = NeMoGymResponseOutputMessage(id="m", content=[text])
    params = NeMoGymResponseCreateParamsNonStreaming(
        input=[
            NeMoGymEasyInputMessage(role="user", content="q"),
            item,
            NeMoGymFunctionCallOutput(call_id="c", output="1"),
        ]
    )
    assert [type(entry) for entry in params.input] == [
        NeMoGymEasyInputMessage,
        NeMoGymResponseOutputMessage,
        NeMoGymFunctionCallOutput,
    ]
    again = NeMoGymResponseCreateParamsNonStreaming.model_validate(params.model_dump())
    assert again == params


def test_requests_are_closed():
    with pytest.raises(ValidationError, match="Extra inputs"):
        NeMoGymResponseCreateParamsNonStreaming(input="q", temprature=1)
    with pytest.raises(ValidationError, match="Extra inputs"):
        NeMoGymChatCompletionCreateParamsNonStreaming(messages=[], temprature=1)


def test_token_columns_come_together():
    with pytest.raises(ValidationError, match="generation_log_probs"):
        response({**MESSAGE, "prompt_token_ids": [1], "generation_token_ids": [2]})


def test_an_untyped_output_item_is_refused():
    with pytest.raises(ValidationError):
        response({key: value for key, value in MESSAGE.items() if key != "type"})


def test_training_variants():
    assert training_variant_of(NeMoGymResponseOutputMessage) is NeMoGymResponseOutputMessageForTraining
    with pytest.raises(NotImplementedError, match="NeMoGymFunctionCallOutput"):
        training_variant_of(NeMoGymFunctionCallOutput)


def test_usage_adds_up_and_unknown_stays_unknown():
    def usage(cached):
        return NeMoGymResponseUsage.model_validate(
            {
                "input_tokens": 3,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 1},
                "total_tokens": 5,
            }
        )

    total = accumulate_response_usage(usage(1), usage(2))
    assert (total.total_tokens, total.input_tokens_details.cached_tokens) == (10, 3)
    assert accumulate_response_usage(usage(1), usage(None)).input_tokens_details.cached_tokens is None
    assert NeMoGymResponseUsage.sum_from_list([usage(1), usage(1)]).output_tokens == 4
    assert accumulate_response_usage(None, None) is None


def test_chat_objects():
    completion = NeMoGymChatCompletion.model_validate(
        {
            "id": "i",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "x", **TOKENS},
                }
            ],
        }
    )
    assert completion.choices[0].message.generation_token_ids == [2]
