"""Why the servers of a run are not up."""

from __future__ import annotations

import json
import re

_COULD_NOT = " could not start: "
_LINE = re.compile(r"^\S+ CRITICAL \S+: (\S+ could not start: .*?)(?:  \w+=.*)?$")


class LaunchError(Exception):
    """`server` is the culprit, `last_words` the end of its log."""

    def __init__(self, message: str, server: str = "", last_words: str = "") -> None:
        super().__init__(message)
        self.server = server
        self.last_words = last_words


def own_reason(log: str) -> str:
    """Why a server says in its log that it did not start, in its own lines; nothing where it says nothing of it."""
    for line in reversed(log.splitlines()):
        said = _message(line).partition(_COULD_NOT)[2]
        if said:
            return said.replace("\\n", "\n")
    return ""


def _message(line: str) -> str:
    if line.startswith("{"):
        try:
            found = json.loads(line)
        except ValueError:
            return ""
        return str(found.get("message", "")) if found.get("level") == "CRITICAL" else ""
    match = _LINE.match(line)
    return match[1] if match else ""
