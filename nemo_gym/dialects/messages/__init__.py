"""Messages, whole."""

from .blocks import NAME as name
from .errors import read_error, write_error
from .reader import stream_reader
from .reply import read_reply, write_reply
from .request import read_count, read_request, write_request
from .writer import stream_writer

__all__ = [
    "name",
    "read_count",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "write_error",
    "write_reply",
    "write_request",
]
