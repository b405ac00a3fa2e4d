"""The files that an export writes, one module a kind."""

from __future__ import annotations

from .atif import Atif
from .format import Format
from .messages import OpenAIMessages, Prompts, Sft
from .preferences import Preferences
from .token_rows import TokenRows
from .trainers import NemoRl, Verl

FORMATS: dict[str, type[Format]] = {
    one.name: one for one in (TokenRows, NemoRl, Verl, Sft, Preferences, Prompts, OpenAIMessages, Atif)
}
