"""Chat Completions and Responses made of one another, as environments and agents import it; names only."""

from nemo_gym.environment.converter import (
    ResponsesConverter,
    VLLMConverter,
    VLLMConverterResponsesToChatCompletionsState,
    split_responses_input_output_items,
)
from nemo_gym.environment.converter import usage_detail as _usage_detail

__all__ = [
    "ResponsesConverter",
    "VLLMConverter",
    "VLLMConverterResponsesToChatCompletionsState",
    "_usage_detail",
    "split_responses_input_output_items",
]
