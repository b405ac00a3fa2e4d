"""Chat Completions and Responses made of one another, as environments and agents import it; names only. It is the
module itself, since tests of agents replace names in it."""

import sys

from nemo_gym.environment import converter
from nemo_gym.environment.converter import (
    ResponsesConverter,
    VLLMConverter,
    VLLMConverterResponsesToChatCompletionsState,
    split_responses_input_output_items,
)

__all__ = [
    "ResponsesConverter",
    "VLLMConverter",
    "VLLMConverterResponsesToChatCompletionsState",
    "split_responses_input_output_items",
]

sys.modules[__name__] = converter
