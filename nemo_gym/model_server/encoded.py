"""A request's body as it was before its client compressed it: Codex sends zstd, others gzip.

What it unpacks to is held to the same limit as a plain body, and no more than that is ever unpacked.
"""

from __future__ import annotations

import pyarrow as pa

from ..exchange.errors import ModelError

_CODECS = {"zstd": "zstd", "gzip": "gzip", "x-gzip": "gzip", "br": "brotli"}
_MOST = 4
"""Encodings upon each other."""


def plain(data: bytes, headers: list[tuple[bytes, bytes]], limit: int) -> tuple[bytes, ModelError | None]:
    """The plain body, of `limit` bytes at most; or the body as it is and the reason why it could not be unpacked."""
    named = [value.decode("latin-1") for name, value in headers if name == b"content-encoding"]
    if not named:
        return data, None
    try:
        return _decoded(data, named, limit), None
    except ModelError as error:
        return data, error


def _decoded(data: bytes, named: list[str], limit: int) -> bytes:
    encodings = [one.strip().lower() for one in ",".join(named).split(",")]
    for place, encoding in enumerate(reversed([one for one in encodings if one not in ("", "identity")])):
        codec = _CODECS.get(encoding)
        if codec is None or place >= _MOST:
            known = ", ".join(_CODECS)
            raise ModelError(415, "invalid", f"content-encoding: {encoding!r} is not known here; {known} are")
        data = _unpacked(data, codec, encoding, limit)
    return data


def _unpacked(data: bytes, codec: str, encoding: str, limit: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            whole: bytes = stream.read(limit + 1)
    except OSError:
        raise ModelError(400, "invalid", f"content-encoding: the body is not {encoding}") from None
    if len(whole) > limit:
        raise ModelError(413, "too_large", f"the body is larger than {limit} bytes (max_body_bytes)")
    return whole
