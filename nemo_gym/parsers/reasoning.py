"""Where reasoning starts and ends (P7): one table of markers, and what each of them means where it stands.

An opening tag counts only before any content. A call inside the block ends it; what only looks like one does not. A
closing tag outside a block is dropped before any content and directly before the first call, else it is text.
"""

from __future__ import annotations

from msgspec import Struct


class Block(Struct, frozen=True):
    """The markers around a model's reasoning."""

    open: str
    close: str
    opened_by_prompt: bool
    """Whether the format's templates open the block in the prompt, so that the output begins inside it."""


_THINK = Block("<think>", "</think>", False)
_THOUGHT = Block("<think>", "</think>", True)

BLOCKS: dict[str, Block] = {
    "qwen3": _THINK,
    "deepseek_r1": _THOUGHT,
    "glm45": _THINK,
    "glm47": _THOUGHT,
    "glm": _THOUGHT,
    "glm_moe_dsa": _THOUGHT,
    "kimi_k2": _THOUGHT,
    "nemotron_v3": _THOUGHT,
}
