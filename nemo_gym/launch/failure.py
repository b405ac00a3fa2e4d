"""Why the servers of a run are not up."""

from __future__ import annotations


class LaunchError(Exception):
    """`server` is the culprit, `last_words` the end of its log."""

    def __init__(self, message: str, server: str = "", last_words: str = "") -> None:
        super().__init__(message)
        self.server = server
        self.last_words = last_words
