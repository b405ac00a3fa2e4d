"""The signature on thinking that no provider signed: proof that a text came from here unchanged.

A thinking block must bear one. One of ours is known again when a client gives the block back; any other stays with its
text as what its own provider may read. None is ever a reason to refuse a request.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from hashlib import blake2b
from hmac import compare_digest

from ..exchange.parts import Reasoning

_PREFIX = "ng1."
_key = secrets.token_bytes(32)


def use_secret(secret: str) -> None:
    """Servers that share a secret know each other's signatures; without one each process has its own."""
    global _key
    _key = blake2b(secret.encode(), digest_size=32, person=b"thinking").digest()


def sign(text: str) -> str:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, key=_key).digest()
    return _PREFIX + b64encode(digest).decode()


def is_ours(text: str, signature: str) -> bool:
    return signature.startswith(_PREFIX) and compare_digest(signature.encode("utf-8", "replace"), sign(text).encode())


def payload_of(text: str, signature: str) -> str | None:
    """What the signature is to a text that came back: one of ours says only that, what another made stays opaque."""
    return None if not signature or is_ours(text, signature) else signature


def is_redacted(part: Reasoning) -> bool:
    """A payload without a text: thinking that a provider hid, unless it was told as thinking with its text left out."""
    told = None if part.text or part.origin is None else part.origin.body.get("type")
    return not part.text and told not in ("thinking", "reasoning.text")
