"""Chat Completions, whole."""

from .errors import read_error, write_error
from .messages import NAME as name
from .reader import stream_reader
from .reply import read_reply, write_reply
from .request import read_request, write_encoded, write_request
from .writer import stream_writer

__all__ = [
    "name",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "write_encoded",
    "write_error",
    "write_reply",
    "write_request",
]
