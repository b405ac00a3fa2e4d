"""The version of the policy's weights, as a trainer that owns the engines says it, and the tokens that bear it.

It holds for all workers of a server at once: it is in memory that they share. A call bears the version that held when
the backend was asked, the older one where it changed meanwhile, unless the backend itself said of its tokens which
weights sampled them.
"""

from __future__ import annotations

import mmap
import struct

from msgspec.structs import replace

from ..exchange.reply import ModelReply

_UNKNOWN = -1
_LAYOUT = struct.Struct("=q")


class PolicyVersion:
    """Made before a server's workers are, and theirs together."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _LAYOUT.size)
        _LAYOUT.pack_into(self._shared, 0, _UNKNOWN)

    @property
    def value(self) -> int | None:
        (version,) = _LAYOUT.unpack_from(self._shared, 0)
        return None if version == _UNKNOWN else version

    @value.setter
    def value(self, version: int) -> None:
        _LAYOUT.pack_into(self._shared, 0, version)


def stamped(reply: ModelReply, version: int | None) -> ModelReply:
    """The reply with the version on tokens that have none."""
    if version is None or all(choice.tokens is None or choice.tokens.versions for choice in reply.choices):
        return reply
    choices = tuple(
        choice
        if choice.tokens is None or choice.tokens.versions
        else replace(choice, tokens=replace(choice.tokens, versions=((0, version),)))
        for choice in reply.choices
    )
    return replace(reply, choices=choices)
