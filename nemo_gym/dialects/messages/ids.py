"""Ids of tool calls as this API allows them, and back to what they were (M5).

What is not letters, digits, `_` and `-` is spelled in hex behind a mark, so the mapping needs no memory: it holds on
any worker and after a restart.
"""

from __future__ import annotations

import re

_SAFE = re.compile(r"[a-zA-Z0-9_-]+\Z")
_UNSAFE = re.compile(rb"[^a-zA-Z0-9-]")
_SPELLED = re.compile(rb"_([0-9a-f]{2})")
_MARK = "toolu_ng_"


def safe(call_id: str) -> str:
    """The id for this API. An id that begins with the mark is spelled too, so that no two share a spelling."""
    if _SAFE.match(call_id) and not call_id.startswith(_MARK):
        return call_id
    spelled = _UNSAFE.sub(lambda found: b"_%02x" % found[0][0], call_id.encode("utf-8", "replace"))
    return _MARK + spelled.decode()


def original(call_id: str) -> str:
    """The id that `safe` was given; an id that it did not make stays."""
    if not call_id.startswith(_MARK):
        return call_id
    plain = _SPELLED.sub(lambda found: bytes([int(found[1], 16)]), call_id[len(_MARK) :].encode("utf-8", "replace"))
    found = plain.decode("utf-8", "replace")
    return found if safe(found) == call_id else call_id
