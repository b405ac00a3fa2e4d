"""A server's log: a line a record, with the call and the rollout that it is about, and no secret.

`bind` says what the current task works on; every line that is written below it bears that, whoever writes it. What is
secret is taken out of the finished line, so no message, field or traceback can let it through.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

Format = Literal["text", "json"]

HIDDEN = "[redacted]"
_SHORTEST = 8
"""A shorter value ("none", say) is no secret that could be told from ordinary text."""
_LONGEST = 4096
"""Of a message: strangers' words may be in it."""
_CREDENTIALS = (
    re.compile(r"(\bbearer\s+|\bng-rollout:[A-Za-z0-9._-]{1,128}:)[^\s\"',}]+", re.IGNORECASE),
    re.compile(r"(://)[^/@\s]+(?=@)"),
)
_bound: ContextVar[dict[str, Any]] = ContextVar("log fields", default={})  # noqa: B039 - never changed in place
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def bind(**fields: Any) -> None:
    """Lines of this task, and of those that it starts, bear these fields too; None takes one away."""
    _bound.set(_bound.get() | fields)


def setup(secrets: Iterable[str] = (), form: Format = "text") -> None:
    """All of this process's log on standard error, in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(secrets, form))
    root = logging.getLogger()
    for other in list(root.handlers):
        if isinstance(other.formatter, Lines):
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.INFO)


class Lines(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE  name=value …`, or one JSON object with the same.

    Args:
        secrets: values that are in no line.
    """

    def __init__(self, secrets: Iterable[str] = (), form: Format = "text") -> None:
        super().__init__()
        self._secrets = sorted({one for one in secrets if len(one) >= _SHORTEST}, key=len, reverse=True)
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in _bound.get().items() if value is not None}
        fields |= {
            name: value
            for name, value in record.__dict__.items()
            # What begins with _ is a library's own (Ray marks every record so).
            if name not in _STANDARD and value is not None and not name.startswith("_")
        }
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        message = record.getMessage()
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}… ({len(message) - _LONGEST} more characters)"
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] is not None else ""
        if self._json:
            about = {"time": time, "level": record.levelname, "logger": record.name, "message": message}
            return self._clean(
                json.dumps(about | fields | ({"traceback": trace} if trace else {}), ensure_ascii=False, default=str)
            )
        told = "".join(f" {name}={_value(value)}" for name, value in fields.items())
        line = f"{time} {record.levelname} {record.name}: {_one_line(message)}" + (" " + told if told else "")
        return self._clean(line + ("\n" + trace if trace else ""))

    def _clean(self, line: str) -> str:
        for secret in self._secrets:
            line = line.replace(secret, HIDDEN)
        for credentials in _CREDENTIALS:
            line = credentials.sub(rf"\1{HIDDEN}", line)
        return line


def _value(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r'[\s"=]', text) else text


def _one_line(message: str) -> str:
    """A line is one record's: nobody writes a second one into his message."""
    return message.replace("\r", "\\r").replace("\n", "\\n")
