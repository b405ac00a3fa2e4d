"""Warnings that are said once per process, so that a busy server's log stays readable."""

from __future__ import annotations

import logging

log = logging.getLogger("nemo_gym.model_server")
_said: set[str] = set()


def say_once(message: str) -> None:
    """A warning, once per process."""
    if message not in _said and len(_said) < 1000:
        _said.add(message)
        log.warning(message)
