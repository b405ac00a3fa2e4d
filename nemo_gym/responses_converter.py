"""Chat Completions and Responses made of one another, as environments and agents import it; names only."""

from nemo_gym.environment.converter import ResponsesConverter, VLLMConverter, split_responses_input_output_items

__all__ = ["ResponsesConverter", "VLLMConverter", "split_responses_input_output_items"]
