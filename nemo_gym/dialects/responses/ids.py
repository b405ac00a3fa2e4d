"""Item ids: unique over a conversation, the same in every event and in the snapshot (R26)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

from ...exchange.parts import Part, Reasoning, ToolCall
from .hosted import Hosted

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,44}\Z")


def item_id(part: Part, reply_id: str, place: int, tools: Mapping[str, Hosted]) -> str:
    """The part's own id, else one made of the reply's id and the part's place: a place is never another's."""
    own = getattr(part, "id", "")
    if own:
        return own
    if isinstance(part, ToolCall):
        prefix = "ctc" if part.custom else tools[part.name].prefix if part.name in tools else "fc"
    else:
        prefix = "rs" if isinstance(part, Reasoning) else "msg"
    name = reply_id if _PLAIN.match(reply_id) else blake2b(reply_id.encode(), digest_size=16).hexdigest()
    return f"{prefix}_{name}_{place}"
