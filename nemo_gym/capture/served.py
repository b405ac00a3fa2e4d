"""The calls of one rollout at one server, whole: what its process holds, and what those before it left on the disk.

Memory answers as long as it holds the rollout. What was recorded under the server's name before this process began is
read once a rollout is asked for; its shards are known from the start, so a server that was never restarted reads none.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .record import CallRecord
from .sealing import is_written
from .shard import SEALED, SUFFIX

if TYPE_CHECKING:
    from .store import CaptureStore
    from .writer import ShardWriter

_SETTLED_S = 5.0


class ServedCalls:
    """Made when the writer is, before its first call."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer
        self._ours = re.compile(re.escape(f"{writer.server}-{os.getpid()}-") + r"\d+")
        of_server = re.compile(re.escape(writer.server) + r"-\d+-\d+")
        shards = [one for suffix in (SUFFIX, SEALED) for one in writer.directory.glob(f"*{suffix}")]
        self._earlier = frozenset(
            one.with_suffix("") for one in shards if of_server.fullmatch(one.stem) and not _living(one)
        )

    async def records(self, rollout_id: str) -> list[CallRecord]:
        """In the order in which they were received."""
        await self._settled(rollout_id)
        held = self._writer.calls(rollout_id)
        if held is not None and not self._earlier:
            return held
        return await asyncio.to_thread(lambda: list(self._store().calls(rollout_id)))

    async def arrow(self, rollout_id: str) -> bytes:
        """The same as an Arrow stream, with the columns of `CaptureStore.table`."""
        await self._settled(rollout_id)
        return await asyncio.to_thread(self._written, rollout_id)

    def _written(self, rollout_id: str) -> bytes:
        import pyarrow as pa

        table = (
            self._store().table(rollout_id=rollout_id).sort_by([("received_at", "ascending"), ("call_id", "ascending")])
        )
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def _store(self) -> CaptureStore:
        from .store import CaptureStore

        return CaptureStore(
            self._writer.directory, lambda path: path in self._earlier or self._ours.fullmatch(path.name) is not None
        )

    async def _settled(self, rollout_id: str) -> None:
        """What was said to be recorded is on the disk; with durability `none` that may take a moment."""
        for _ in range(int(_SETTLED_S / 0.005)):
            if not self._writer.pending(rollout_id):
                return
            await asyncio.sleep(0.005)


def _living(path: Path) -> bool:
    """Whether another process of the same server writes it: a worker's, which has its own rollouts."""
    try:
        return is_written(path)
    except OSError:
        return False
