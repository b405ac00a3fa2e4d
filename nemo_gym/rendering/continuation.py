"""The next turn's prompt begins with this turn's tokens, or the record says why not.

A family of models that is known bridges to the next turn. For any other template a stand-in with a sentinel takes the
place of the model's turn; what the template puts behind it, from the end token on, is the new turn's text. Its ids must
be the end of the full render's ids: that proves that nothing behind the turn depends on what the turn held, and that no
token spans the seam.
"""

from __future__ import annotations

from array import array
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..exchange.call import Prior
from ..exchange.errors import InvalidRequest
from ..exchange.parts import Message, Reasoning, Text, ToolCall
from ..exchange.request import ModelRequest
from ..lineage import prefix
from .renderer import Renderer

_SENTINEL = "x7qSentinelK3v"
_LEFT_OUT = "-"
"""In the place of a turn that is put back: a template may leave one out that is empty."""


class Rendered(Struct, frozen=True):
    ids: array
    """array('i')"""
    history: Literal["exact", "template"]
    """`exact`: begins with the earlier call's tokens as they were."""
    prefix_break: tuple[int, str] | None = None
    """Where the ids leave the earlier call's, and the cause; None when they do not, or there was none."""


def render(renderer: Renderer, request: ModelRequest, prior: Prior | None, *, exact: bool = True) -> Rendered:
    """The prompt of a request that continues `prior`, if there is one."""
    full = renderer.ids(request)
    if prior is None:
        return Rendered(full, "template")
    shared = prefix.shared(prior.tokens, full)
    if shared == len(prior.tokens) and (not exact or _turn_ends(renderer, prior.tokens, full)):
        return Rendered(full, "exact")
    ids = _gone_on(renderer, request, prior, full) if exact else None
    if ids is not None:
        return Rendered(ids, "exact")
    if shared == len(prior.tokens):
        return Rendered(full, "exact")
    return Rendered(full, "template", (shared, _cause(renderer, request, prior, shared, full)))


def _gone_on(renderer: Renderer, request: ModelRequest, prior: Prior, full: array) -> array | None:
    if prior.left_out:
        request, prior = _put_back(request, prior)
        try:
            full = renderer.ids(request)
        except InvalidRequest:
            return None
    return _bridged(renderer, request, prior) or _continued(renderer, request, prior, full)


def _put_back(request: ModelRequest, prior: Prior) -> tuple[ModelRequest, Prior]:
    """The conversation with a turn of the model's where the client left one out; what it said is in its tokens."""
    before, after = request.messages[: prior.messages], request.messages[prior.messages :]
    if prior.parts and after:
        joined, *rest = after
        before = (*before, replace(joined, parts=joined.parts[: prior.parts], origin=None))
        after = (replace(joined, parts=joined.parts[prior.parts :], origin=None), *rest)
    messages = (*before, Message("assistant", (Text(_LEFT_OUT),)), *after)
    return replace(request, messages=messages), replace(prior, messages=len(before) + 1, left_out=False, parts=0)


def _turn_ends(renderer: Renderer, tokens: array, full: array) -> bool:
    """Whether the earlier turn ends where its tokens do: the client may have made a cut one longer."""
    return tokens[-1] in renderer.end_ids or (len(full) > len(tokens) and full[len(tokens)] in renderer.end_ids)


def _bridged(renderer: Renderer, request: ModelRequest, prior: Prior) -> array | None:
    later = request.messages[prior.messages :]
    if not later or any(message.role == "assistant" for message in later):
        return None
    return renderer.bridge(request, prior) if _answered(request, prior) else None


def _answered(request: ModelRequest, prior: Prior) -> bool:
    """Whether the request still has a turn of the model's where the earlier call's was."""
    turn = prior.messages - 1
    return 0 <= turn < len(request.messages) and request.messages[turn].role == "assistant"


def _continued(renderer: Renderer, request: ModelRequest, prior: Prior, full: array) -> array | None:
    turn = prior.messages - 1
    if not _answered(request, prior):
        return None
    stand_in = Message("assistant", (Text(_SENTINEL),))
    messages = (*request.messages[:turn], stand_in, *request.messages[turn + 1 :])
    try:
        text = renderer.text(replace(request, messages=messages))
    except InvalidRequest:
        return None
    _, sentinel, behind = text.rpartition(_SENTINEL)
    tail = renderer.encode(behind)
    if not sentinel or not tail or tail[0] not in renderer.end_ids or full[-len(tail) :] != tail:
        return None
    last = prior.tokens[-1] if prior.tokens else None
    if last == tail[0]:
        return prior.tokens + tail[1:]
    # A turn that was cut has no end token yet; one that ended otherwise is not continued in the template's way.
    return None if last in renderer.end_ids else prior.tokens + tail


def _cause(renderer: Renderer, request: ModelRequest, prior: Prior, shared: int, full: array) -> str:
    turn = prior.messages - 1
    if (cause := prefix.displaced(prior)) is not None:
        return cause
    if not _answered(request, prior):
        return "foreign_history"
    if renderer.decode(full).startswith(renderer.decode(prior.tokens)):
        return "neighbouring_tokens"
    ours = renderer.decode(prior.tokens[shared : shared + 16]).lstrip()
    parts = request.messages[turn].parts
    if "<think>" in ours and not any(isinstance(part, Reasoning) for part in parts):
        return "reasoning_dropped"
    if any(isinstance(part, ToolCall) for part in parts):
        return "arguments_reserialised"
    return "template_boundary"
