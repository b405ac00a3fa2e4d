"""Imported by the process that vLLM's processes are forked from; see forked.py."""

from .forked import preload

preload()
