"""A prompt with its question's picture."""

from __future__ import annotations

from typing import Any

from ..rollouts.prompts import PromptConfig, fill_prompt


def build_image_input(prompt_config: PromptConfig, question: str, image: str) -> list[dict[str, Any]]:
    """A row's `input`: the prompt, and the picture beside the first user message's words.

    Args:
        image: a data URI, or a PNG in base64; empty for a question without one.
    """
    messages: list[dict[str, Any]] = fill_prompt(prompt_config, {"question": question})
    asked = next((message for message in messages if message["role"] == "user"), None)
    if image and asked is not None:
        url = image if image.startswith("data:") else f"data:image/png;base64,{image}"
        asked["content"] = [
            {"type": "input_text", "text": asked["content"]},
            {"type": "input_image", "image_url": url, "detail": "high"},
        ]
    return messages
