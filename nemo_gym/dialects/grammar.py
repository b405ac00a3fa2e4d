"""A custom tool's grammar, in words: a model behind a backend that takes none sees only the description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_grammar(tool: Mapping[str, Any]) -> str:
    """The description, and the grammar that the input must follow, as Chat Completions or Responses declares it."""
    description, form = tool.get("description") or "", tool.get("format") or {}
    grammar = form.get("grammar") or form
    if form.get("type") != "grammar" or not grammar.get("definition"):
        return description
    return (
        f"{description}\n\nThe input follows this {grammar.get('syntax', '')} grammar:\n{grammar['definition']}".strip()
    )
