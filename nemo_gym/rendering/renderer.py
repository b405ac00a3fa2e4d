"""A renderer: the prompt's text, its ids, and what belongs to both.

Chosen by the model folder: a family of the `renderers` package where one gives the ids of the folder's own template,
else that template alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..exchange.call import Prior
from ..exchange.request import ModelRequest
from .families import check_name, named, of_folder
from .template import ChatTemplate
from .tokenizer import Tokenizer


class Renderer(Protocol):
    """`end_ids` end a turn; `added_tokens` are one token each by decree."""

    end_ids: frozenset[int]
    added_tokens: Mapping[str, int]

    def ids(self, request: ModelRequest) -> array:
        """The prompt. Raises InvalidRequest when these messages cannot be rendered."""
        ...

    def text(self, request: ModelRequest) -> str:
        """The same as text."""
        ...

    def bridge(self, request: ModelRequest, prior: Prior) -> array | None:
        """The prompt as it goes on from an earlier call's tokens; None where that is not known."""
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
        self.tokenizer = Tokenizer(folder)
        self.template = ChatTemplate.load(folder, self.tokenizer, template_kwargs)
        self.end_ids = self.tokenizer.end_ids
        self.added_tokens: Mapping[str, int] = self.tokenizer.added

    def ids(self, request: ModelRequest) -> array:
        return self.encode(self.text(request))

    def text(self, request: ModelRequest) -> str:
        return self.template.render(request)

    def bridge(self, request: ModelRequest, prior: Prior) -> array | None:
        return None  # found out from what the template renders

    def generation_prompt(self, effort: str | None = None) -> str:
        return self.template.generation_prompt(effort)

    def encode(self, text: str) -> array:
        return self.tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(ids)


def check_family(name: str) -> None:
    """Raises ValueError for what `renderer` does not take as a family."""
    if name not in ("auto", "template"):
        check_name(name)


def renderer(folder: str | Path, template_kwargs: Mapping[str, Any] | None = None, family: str = "auto") -> Renderer:
    """The renderer of a model folder. Raises ValueError when it cannot be rendered for.

    Args:
        family: of the `renderers` package by its name, which then renders all; `auto`: the one that renders as the
            folder's template does, if there is one; `template` leaves it at the template.
    """
    folder = Path(folder)
    if family not in ("auto", "template"):
        return named(family, folder, Tokenizer(folder), template_kwargs)
    plain = TemplateRenderer(folder, template_kwargs)
    known = of_folder(folder, plain.tokenizer, plain.template, template_kwargs) if family == "auto" else None
    return known or plain
