"""System messages in roles and places that a model's format renders; nothing is dropped (R9, A17).

What a format does with a role is asked of it by rendering a probe, never read from its source; the answers are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ..exchange.parts import Message, Text, plain_text

PROBE = "q7Zk"
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

Shown = Callable[[tuple[Message, ...], Sequence[dict[str, Any]]], str]
"""Messages and tools as the prompt's text; may raise anything for what cannot be rendered."""


class Roles:
    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def fitted(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if not any(message.role in ("system", "developer") for message in messages[1:]) and (
            not messages or messages[0].role != "developer"
        ):
            return messages
        if not self.renders_developer:
            messages = tuple(_as(message, "system") if message.role == "developer" else message for message in messages)
        lead = 0
        while lead < len(messages) and messages[lead].role == "system":
            lead += 1
        head, rest = messages[:lead], messages[lead:]
        if lead > 1 and not self.renders_two_systems:
            whole = "\n\n".join(plain_text(message.parts) for message in head)
            head = (Message("system", (Text(whole),)),)
        if not self.renders_late_system:
            rest = tuple(_marked(message) if message.role == "system" else message for message in rest)
        return head + rest

    @cached_property
    def renders_developer(self) -> bool:
        return self._shows("developer", "user")

    @cached_property
    def renders_two_systems(self) -> bool:
        return self._shows("system", "system", "user")

    @cached_property
    def renders_late_system(self) -> bool:
        return self._shows("user", "assistant", "system", "user")

    def _shows(self, *roles: Any) -> bool:
        """Whether each message of a probe conversation is rendered, once."""
        texts = [f"{PROBE}{number}" for number in range(len(roles))]
        messages = tuple(Message(role, (Text(text),)) for role, text in zip(roles, texts, strict=True))
        try:
            shown = [self._shown(messages, tools) for tools in ([], [_TOOL])]
        except Exception:
            return False
        return all(prompt.count(text) == 1 for prompt in shown for text in texts)


def _as(message: Message, role: Any) -> Message:
    return Message(role, message.parts)


def _marked(message: Message) -> Message:
    return Message("user", (Text("[system]\n"), *message.parts))
