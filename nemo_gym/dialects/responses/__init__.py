"""Responses, whole."""

from functools import partial
from types import SimpleNamespace

from .errors import read_error, write_error
from .items import NAME as name
from .reader import stream_reader
from .reply import read_reply, write_reply
from .request import read_request, write_request
from .writer import stream_writer

__all__ = [
    "name",
    "read_error",
    "read_reply",
    "read_request",
    "shaped",
    "stream_reader",
    "stream_writer",
    "write_error",
    "write_reply",
    "write_request",
]


def shaped(reasoning: str) -> SimpleNamespace:
    """The dialect as it tells of reasoning under another name; `write_reply` says which there are."""
    same = {one: globals()[one] for one in __all__ if one != "shaped"}
    told = {one: partial(same[one], reasoning=reasoning) for one in ("write_reply", "stream_writer")}
    return SimpleNamespace(**same | told)
