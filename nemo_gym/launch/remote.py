"""One server on a node of the cluster, as the launcher has it: what `Child` is for a process of this machine.

Its end comes by itself, with the last words that its actor gives: nothing is polled over the network. An actor or a
node that is gone is the server's end too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from pathlib import Path
from typing import Any

from ..process import tail
from .host import Place, Start
from .mirror import Mirror

log = logging.getLogger("nemo_gym.launch")

LOST = 137
_MARGIN_S = 15.0


class Remote:
    """Args:
    host: the actor.
    log_path: where its log is, or is brought to.
    captures: the folder that what it records is brought to; None where nothing is.
    """

    def __init__(self, name: str, host: Any, place: Place, log_path: Path, captures: Path | None) -> None:
        self.name = name
        self.place = place
        self.log_path = log_path
        self.pid = 0
        self.lost = ""
        """Why nothing can be asked of it any more."""
        self._host = host
        self._status: int | None = None
        self._words = ""
        self._watch: asyncio.Task[None] | None = None
        self._log = Mirror(log_path.parent)
        self._captures = None if captures is None else Mirror(captures / f"{place.node[:12]}-{name}")
        self._bringing = asyncio.Lock()
        self._told = False
        self._released = False

    @property
    def node(self) -> str:
        return self.place.node

    @property
    def brings(self) -> bool:
        return self.place.own_folder is not None

    async def start(self, what: Start) -> None:
        """Raises what the actor does."""
        self.pid = await self._host.start.remote(what)
        self._watch = asyncio.create_task(self._until_ended())

    async def _until_ended(self) -> None:
        from ray.exceptions import RayError

        try:
            status, self._words = await self._host.ended.remote()
        except RayError as error:
            self.lost, status = _why_lost(error, self.place), LOST
            self._words = tail(self.log_path)
        self._status = status

    def poll(self) -> int | None:
        return self._status

    def last_words(self, lines: int = 20) -> str:
        """As the actor gave them; of a server that lives, what is here of its log."""
        words = self._words or tail(self.log_path)
        return "\n".join(words.splitlines()[-lines:])

    def ask_to_stop(self, grace_s: float) -> None:
        if self._status is None and not self._released:
            self._host.ask_to_stop.remote(grace_s)

    def stop(self, grace_s: float) -> int | None:
        """Waits, on whatever thread, until the server is gone; one whose node does not answer is left to Ray."""
        import ray

        if not self.lost and not self._released:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._host.stop.remote(grace_s), timeout=grace_s + _MARGIN_S)
        return self._status

    # ---- its files

    async def bring(self, *, last: bool = False) -> bool:
        """What has grown there is here; False where it cannot be, which is told once.

        Args:
            last: the server has ended: what was brought need not stay there.
        """
        from ray.exceptions import RayError

        if not self.brings or self.lost:
            return not self.brings
        try:
            async with self._bringing:
                while await self._one_round():
                    pass
                if last:
                    if self._captures is not None:
                        self._captures.only(set(await self._host.shards.remote()))
                    await self._host.forget.remote()
            return True
        except (RayError, OSError) as error:
            if not self._told:
                self._told = True
                words = str(error).splitlines()[0] if str(error) else type(error).__name__
                log.warning("%s: its files are not all here: %s", self.name, words)
            return False

    async def _one_round(self) -> bool:
        captures = self._captures
        logs, shards = await self._host.pieces.remote(self._log.have, {} if captures is None else captures.have)
        for piece in logs:
            await asyncio.to_thread(self._log.put, piece)
        if captures is None:
            return bool(logs)
        for piece in shards:
            await asyncio.to_thread(captures.put, piece)
        return bool(logs or shards)

    def release(self) -> None:
        """The actor is about to be ended; nothing of the server lives by then."""
        self._released = True
        if self._watch is not None:
            self._watch.cancel()


def _why_lost(error: Exception, place: Place) -> str:
    """For a person: Ray's own words go over many lines."""
    text = str(error)
    where = f"{place.node[:12]} ({place.address})"
    if re.search(r"node (has )?died|node (was|is) (terminated|dead)|node failure", text):
        return f"was lost with its node {where}"
    return f"was lost: its actor on node {where} has ended"
