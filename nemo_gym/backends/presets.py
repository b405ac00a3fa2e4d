"""The table of well-known providers (`providers.yaml`), read once and checked as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from .provider import Provider

TABLE = Path(__file__).with_name("providers.yaml")


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    base_url: str
    key_env: str | None = None
    api: Literal["chat", "responses", "messages"] = "chat"
    renamed: dict[str, str] = {}
    refused: frozenset[str] = frozenset()
    reasoning_back: bool = True
    own_routes: bool = True

    def provider(self, name: str = "") -> Provider:
        return Provider(
            name=name,
            renamed=self.renamed,
            refused=self.refused,
            reasoning_back=self.reasoning_back,
            own_routes=self.own_routes,
        )


@cache
def presets() -> dict[str, Preset]:
    """Name -> what is known of it."""
    return msgspec.convert(yaml.safe_load(TABLE.read_text(encoding="utf-8")), dict[str, Preset])


_NOT_OF_RESPONSES = frozenset({"seed", "presence_penalty", "frequency_penalty"})
"""Fields that only Chat Completions has there."""


def openai(dialect: str, headers: Mapping[str, str]) -> Provider:
    """OpenAI's own API in one of its two dialects; Azure's is the same in what it refuses."""
    provider = replace(presets()["openai"].provider("OpenAI"), headers=headers)
    if dialect == "responses":
        return replace(provider, renamed={}, refused=provider.refused | _NOT_OF_RESPONSES)
    return provider
