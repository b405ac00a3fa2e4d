"""What one HTTP endpoint can do, asked by routes of its own where it has them; {} or None where it cannot be told.

`probe` asks of any backend what a generation shows; this asks what decides how requests are written: token ids, the
context, which roles the template renders, whether images are taken, and whether log-probs have the temperature in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..dialects import codec
from ..dialects.chat import columns
from ..exchange.errors import ModelError
from ..exchange.reply import ModelReply
from .link import Link
from .logprobs import mode_of

_LIST_S = 10.0
_GENERATE_S = 60.0
_PROBE_WORDS = 16
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAS0lEQVR42u3PQQkAAAgAsetfWiP4FgYr"
    "sKZeS0BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEDgsqnc8OJg6Ln3AAAAAElFTkSuQmCC"
)
"""A red square."""
_ROLES = {
    "developer": ["PROBE", "user"],
    "several_systems": ["system", "PROBE", "user"],
    "late_system": ["user", "assistant", "PROBE", "user"],
}
"""A capability's probe: the message in question among others."""


async def served(link: Link, url: str, model: str) -> Mapping[str, Any]:
    """The served model's entry, {} where the endpoint lists none under that name."""
    status, headers, data = await link.send("GET", url + "/models", seconds=_LIST_S)
    if status in (404, 405):
        return {}
    if status != 200:
        raise link.failure(status, headers, data)
    try:
        entries = codec.decode(data)["data"]
        return next((entry for entry in entries if entry.get("id") == model), {})
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


async def gives_ids(link: Link, url: str, model: str) -> Mapping[str, Any] | None:
    """The fields by which Chat Completions gives the token ids of prompt and reply; None where none does."""
    for asked in columns.ASKED:
        reply = await _generated(link, url, {"model": model, **asked})
        if reply is None or not reply.choices:
            continue
        reply = columns.completed(reply)
        if reply.prompt_ids is not None and all(one.tokens is not None and one.tokens.ids for one in reply.choices):
            return asked
    return None


async def logprobs_mode(link: Link, url: str, model: str) -> str | None:
    """`processed` or `raw`, measured."""
    tops: list[Mapping[str, float]] = []
    for temperature in (1.0, 2.0):
        asked = {"model": model, "temperature": temperature, "logprobs": True, "top_logprobs": 5}
        reply = await _generated(link, url, asked)
        tokens = reply.choices[0].tokens if reply is not None and reply.choices else None
        if tokens is None or not tokens.top:
            return None
        tops.append(tokens.top[0])
    return mode_of(*tops)[0]


async def _generated(link: Link, url: str, asked: Mapping[str, Any]) -> ModelReply | None:
    """One token; None where the endpoint does not take the request."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **asked}
    status, headers, data = await link.send("POST", url + link.path, codec.encode(body), seconds=_GENERATE_S)
    if status in (400, 404, 422):
        return None
    if status != 200:
        raise link.failure(status, headers, data)
    try:
        reply: ModelReply = link.dialect.read_reply(codec.decode(data))
    except (ModelError, ValueError):
        return None
    return reply


async def renders(link: Link, url: str, model: str) -> dict[str, bool]:
    """Which system messages the template renders, by counting a probe's tokens (vLLM's tokenize route)."""
    found: dict[str, bool] = {}
    for name, roles in _ROLES.items():
        without = await _tokens(link, url, model, [role for role in roles if role != "PROBE"])
        if without is None:
            return {}
        role = "developer" if name == "developer" else "system"
        told = [role if one == "PROBE" else one for one in roles]
        probed = await _tokens(link, url, model, told, roles.index("PROBE"))
        found[name] = probed is not None and probed - without >= _PROBE_WORDS
    return found


async def sees(link: Link, url: str, model: str) -> bool | None:
    """Whether the endpoint takes an image, by rendering one (vLLM's tokenize route): nothing is generated for it."""
    text = {"type": "text", "text": "What is this?"}
    if await _rendered(link, url, model, [text]) != 200:
        return None
    status = await _rendered(link, url, model, [text, {"type": "image_url", "image_url": {"url": PICTURE}}])
    return True if status == 200 else False if status in (400, 415, 422, 501) else None


async def _rendered(link: Link, url: str, model: str, content: list[dict[str, Any]]) -> int:
    body = codec.encode({"model": model, "messages": [{"role": "user", "content": content}]})
    status, _, _ = await link.send("POST", _tokenize(url), body, seconds=_LIST_S)
    return status


def _tokenize(url: str) -> str:
    return url.removesuffix("/v1") + "/tokenize"


async def _tokens(link: Link, url: str, model: str, roles: list[str], probe: int | None = None) -> int | None:
    """The tokens of a conversation of one-word messages; None when it cannot be rendered."""
    texts = [" ".join(["probe"] * _PROBE_WORDS) if place == probe else "a" for place in range(len(roles))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    body = codec.encode({"model": model, "messages": messages})
    status, _, data = await link.send("POST", _tokenize(url), body, seconds=_LIST_S)
    try:
        count = codec.decode(data)["count"] if status == 200 else None
    except (ValueError, LookupError, TypeError):
        return None
    return count if isinstance(count, int) else None
