"""The shards of one writer, one after the other: opened when there is something to write, ended by size or age.

An encoder goes with each shard, since a row refers only to what the same shard holds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from .encoding import Encoder
from .sealing import Sealer
from .shard import SEALED, SUFFIX, Durability, File, Shard, sync_directory

log = logging.getLogger("nemo_gym.capture")


class Shards:
    """`open` and what reads `current` belong to the loop; `seal` to whoever writes, once a shard is no longer current.

    Args:
        directory: the run's.
        server: the beginning of the files' names.
        new_encoder: for each shard.
        sealer: packs what was closed.
    """

    def __init__(
        self,
        directory: Path,
        server: str,
        durability: Durability,
        new_encoder: Callable[[], Encoder],
        sealer: Sealer,
        *,
        max_bytes: int,
        max_age_s: float,
        open_file: type[File],
    ) -> None:
        self._directory = directory
        self._server = server
        self._durability: Durability = durability
        self._new_encoder = new_encoder
        self._sealer = sealer
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._open_file = open_file
        self._number = 0
        self._opened = 0.0
        self.current: Shard | None = None
        self.encoder = new_encoder()

    def open(self, *, sync: bool = True) -> Shard:
        """The current shard from now on. With `sync` the disk was asked whether it takes one. Raises OSError."""
        self._make_directory()
        while True:
            path = self._directory / f"{self._server}-{os.getpid()}-{self._number}{SUFFIX}"
            self._number += 1
            if path.with_suffix(SEALED).exists():  # of a process that had our number: a reader takes it for ours
                continue
            with contextlib.suppress(FileExistsError):
                shard = Shard(path, self._durability, self._open_file, sync=sync)
                break
        self.current, self.encoder, self._opened = shard, self._new_encoder(), time.monotonic()
        return shard

    def _make_directory(self) -> None:
        """A folder is as durable as its name in the one above."""
        missing = [one for one in (self._directory, *self._directory.parents) if not one.exists()]
        self._directory.mkdir(parents=True, exist_ok=True)
        for one in missing if self._durability == "fsync" else ():
            with contextlib.suppress(PermissionError):  # one that may not be listed was not made by us
                sync_directory(one.parent)

    def ends_with(self, shard: Shard, size: int) -> bool:
        """Whether a batch of this size is the last one of the current shard; then it is current no more."""
        full = shard.size + size >= self._max_bytes
        if not full and time.monotonic() - self._opened < self._max_age_s:
            return False
        self.current = None
        return True

    def failed(self, shard: Shard) -> None:
        """It takes no more batches."""
        if self.current is shard:
            self.current = None

    def abandon(self, shard: Shard) -> None:
        """No more is written to it; what it holds is whole."""
        self.current = None
        with contextlib.suppress(OSError):
            shard.leave()

    def seal(self, shard: Shard) -> None:
        """Its end is written, and it goes on to be packed."""
        try:
            shard.seal()
        except OSError as error:  # its batches are durable all the same
            log.warning("captures: %s could not be sealed: %s", shard.path.name, error.strerror)
        else:
            if shard.holds_any:
                self._sealer.put(shard.path)
