"""A renderer: the prompt's text, its ids, and what belongs to both.

Chosen by the model folder; today that is always the folder's own template.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..exchange.request import ModelRequest
from .template import ChatTemplate
from .tokenizer import Tokenizer


class Renderer(Protocol):
    """`end_ids` end a turn; `added_tokens` are one token each by decree."""

    end_ids: frozenset[int]
    added_tokens: Mapping[str, int]

    def text(self, request: ModelRequest) -> str:
        """The prompt. Raises InvalidRequest when these messages cannot be rendered."""
        ...

    def generation_prompt(self, effort: str | None = None) -> str:
        """What begins the model's turn."""
        ...

    def encode(self, text: str) -> array: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class TemplateRenderer:
    """A model folder's chat template and tokenizer.

    Args:
        folder: the model folder.
        template_kwargs: further variables of the template (`enable_thinking`, ...).
    """

    def __init__(self, folder: str | Path, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = Tokenizer(folder)
        self._template = ChatTemplate.load(folder, self._tokenizer, template_kwargs)
        self.end_ids = self._tokenizer.end_ids
        self.added_tokens: Mapping[str, int] = self._tokenizer.added

    def text(self, request: ModelRequest) -> str:
        return self._template.render(request)

    def generation_prompt(self, effort: str | None = None) -> str:
        return self._template.generation_prompt(effort)

    def encode(self, text: str) -> array:
        return self._tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(ids)


def renderer(folder: str | Path, template_kwargs: Mapping[str, Any] | None = None) -> Renderer:
    """The renderer of a model folder. Raises ValueError when it cannot be rendered for."""
    return TemplateRenderer(folder, template_kwargs)
