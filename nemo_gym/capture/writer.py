"""The one writer of a process's records: acknowledged means durable (C1, A8).

A thread writes and syncs, and nothing else; the loop builds the batches. There is no timer: the thread syncs
when it is idle, and what arrives during a sync goes into the next batch (group commit). On a slow disk
the next batch is made meanwhile (see pace.py). A batch that cannot be written fails every call in it, and the next
one begins a new shard, which stands alone again.
Receipts, which nobody waits for, gather for a batch of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from ..exchange.errors import ModelError
from .encoding import Encoder
from .pace import InFlight, Item, Job
from .receipts import WAIT_S, Receipts
from .record import CallRecord, Receipt, Seal, cleaned
from .redact import Redactor
from .rollouts import Rollouts, rollout_digest
from .schema import VERSION, Row
from .sealing import Sealer
from .shard import Durability, File, Shard
from .shards import Shards
from .upload import Uploader

log = logging.getLogger("nemo_gym.capture")

_WAIT_S = 60.0
"""A disk that takes longer to sync has failed, as far as a call is concerned."""
_HANGS = "the disk does not answer"
_RETRY_S = 1.0
_SEAL_S = 3.0
"""So long a closing server waits for its last shard to be packed; it is whole as it is."""
_PENDING = 4096
"""With durability `none`: so many unwritten records make a call wait."""


class ShardWriter:
    """Used on one event loop; `close` too.

    Args:
        directory: where the run folders lie.
        server: the model server's name; part of the files' names.
        redactor: what never comes into a record.
        binary: whether images, audio and the like are kept, or only their digest and size.
        upload: a remote folder that sealed shards are sent to, as `Uploader` takes it.
        open_file: how a shard reaches the disk.

    Raises:
        ModelError: (503, "capture") the directory cannot be written to, or `upload` is no folder.
    """

    def __init__(
        self,
        directory: str,
        server: str,
        run_id: str,
        durability: Durability,
        *,
        redactor: Redactor | None = None,
        max_shard_bytes: int = 256 << 20,
        max_shard_age_s: float = 3600,
        max_rollouts: int = 16384,
        max_records: int = 8192,
        binary: Literal["keep", "reference"] = "keep",
        upload: str | None = None,
        open_file: type[File] = File,
    ) -> None:
        for name, value in (("server", server), ("run_id", run_id)):
            if not value or "/" in value or value.startswith("."):
                raise ValueError(f"capture: {name} {value!r} cannot be part of a file's name")
        self.directory = Path(directory) / run_id
        self.server = server
        self._base: Row = {"schema_version": VERSION, "run_id": run_id, "server": server}
        self._durability: Durability = durability
        self._redactor = secrets = redactor or Redactor()
        self._failure: str | None = None
        self._retry_at = 0.0
        self._pending: list[Item] = []
        self._receipts = Receipts(self._base)
        self._alone = 0
        """So many pending items are written each in a batch of its own."""
        self._broken: Shard | None = None
        self._flying = InFlight(_WAIT_S, self._hung)
        self._scheduled = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._later: asyncio.TimerHandle | None = None
        try:
            self._sealer = Sealer(None if upload is None else Uploader(upload).put)
        except ValueError as error:
            raise ModelError(503, "capture", str(error)) from error
        self._shards = Shards(
            *(self.directory, server, durability, lambda: Encoder(secrets, binary), self._sealer),
            max_bytes=max_shard_bytes,
            max_age_s=max_shard_age_s,
            open_file=open_file,
        )
        self._rollouts = Rollouts(max_rollouts, max_records)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="capture-writer", daemon=True)
        try:
            self._shards.open()
        except OSError as error:
            raise ModelError(503, "capture", f"cannot write captures below {directory}: {error.strerror}") from error
        self._thread.start()

    # ---- for the server

    def check(self) -> None:
        """Raises ModelError(503, "capture") when a record could not be written now (C7). Never with `none`."""
        if self._durability == "none":
            return
        if not self._thread.is_alive():
            raise self._error()
        if self._failure is None:
            return
        if not self._flying and time.monotonic() >= self._retry_at:
            try:
                self._shards.open()
            except OSError as error:
                self._failed(error.strerror or type(error).__name__)
            else:
                self._failure = None
                return
        raise self._error()

    async def commit(self, record: CallRecord) -> None:
        """Returns when the record is durable. Raises ModelError(503, "capture") when it cannot be."""
        if self._durability == "none":
            if len(self._pending) < _PENDING:
                self._enqueue(Item(record))
                return
            with contextlib.suppress(ModelError):  # a disk that cannot keep up is waited for, one that fails is not
                await self._written(Item(record, asyncio.get_running_loop().create_future()))
            return
        await self._written(Item(record, asyncio.get_running_loop().create_future()))

    def receipt(self, receipt: Receipt) -> None:
        """Written in a short while, unsynced if no call is to be synced then."""
        if self._closed:
            return
        self._receipts.add(receipt)
        if self._receipts.due:
            self._schedule()
        elif self._later is None and self._loop is not None:
            self._later = self._loop.call_later(WAIT_S, self._receipts_have_waited)

    def _receipts_have_waited(self) -> None:
        self._later = None
        self._receipts.have_waited()
        self._schedule()

    async def seal(self, rollout_id: str, incomplete: str | None = None) -> Seal:
        """States the rollout's calls at this server. A later seal of the same rollout replaces it."""
        item = Item(Seal(rollout_id, (), "", incomplete), asyncio.get_running_loop().create_future())
        sealed = await self._written(item)
        assert sealed is not None
        return sealed

    def calls(self, rollout_id: str) -> list[CallRecord] | None:
        """What is recorded of a rollout by this writer; None when only the disk holds it."""
        rollout = self._rollouts.get(rollout_id)
        if rollout is None:
            return None if self._rollouts.forgot else []
        if rollout.records is None:
            return None
        return [cleaned(record, self._redactor) for record in rollout.records]

    def pending(self, rollout_id: str) -> bool:
        """Whether calls of the rollout are not written yet, though with durability `none` they were acknowledged."""
        if any(isinstance(one.value, CallRecord) and one.value.rollout_id == rollout_id for one in self._pending):
            return True
        rollout = self._rollouts.get(rollout_id)
        return rollout is not None and rollout.records is not None and len(rollout.records) < len(rollout.calls)

    def close(self) -> None:
        """Writes what is pending, seals the shard and ends the thread. What cannot be written fails."""
        if self._closed:
            return
        self._closed = True
        self._flying.stop()
        if self._later is not None:
            self._later.cancel()
        self._jobs.put(None)
        self._thread.join(_WAIT_S)
        if self._thread.is_alive():
            log.error("captures: the disk did not answer within %.0f s; the shard is left open", _WAIT_S)
            self._fail(self._pending, _HANGS)
            return
        self._receipts.have_waited()
        while self._work:
            job = self._job()
            if job is not None:
                self._after(job, self._write(job))
        if self._shards.current is not None:
            self._shards.seal(self._shards.current)
        self._sealer.close(_SEAL_S)

    # ---- on the loop

    async def _written(self, item: Item) -> Seal | None:
        assert item.done is not None
        if self._flying.hung:
            self._fail([item], _HANGS)
        else:
            self._enqueue(item)
        return await item.done

    def _enqueue(self, item: Item) -> None:
        if self._closed:
            raise ModelError(503, "capture", "the server is closing")
        self._loop = asyncio.get_running_loop()
        self._pending.append(item)
        if self._flying.fills(len(self._pending)):
            self._hand_over()  # not all of a long round at once: there is work left for while the disk takes its time
        else:
            self._schedule()

    def _schedule(self) -> None:
        """At the end of the loop's round, so that what this round brings is one batch."""
        if self._takes and not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._hand_over)

    @property
    def _takes(self) -> bool:
        return self._flying.takes(len(self._pending))

    def _hand_over(self) -> None:
        self._scheduled = False
        if self._closed or not self._takes:
            return
        if not self._thread.is_alive():
            self._fail(self._taken(), "the writer's thread has ended")
        job = None
        while self._work and job is None:
            job = self._job()
        if job is None:
            return
        self._flying.add(job, asyncio.get_running_loop())
        self._jobs.put(job)

    def _taken(self) -> list[Item]:
        if self._alone:
            self._alone -= 1
            return [self._pending.pop(0)]
        items, self._pending = self._pending, []
        return items

    @property
    def _work(self) -> bool:
        """Whether there is anything to write by now."""
        return bool(self._pending) or self._receipts.due

    def _job(self) -> Job | None:
        """What is pending as one batch. An item that cannot be said fails, and fails alone."""
        items = self._taken()
        try:
            shard = self._shards.current or self._shards.open(sync=False)
        except OSError as error:
            self._fail(items, error.strerror or type(error).__name__)
            return None
        rows: list[Row] = []
        good: list[Item] = []
        for item in items:
            try:
                rows.append(self._row(item))
            except Exception:
                log.exception("captures: a record could not be encoded")
                self._fail([item], None)
            else:
                good.append(item)
        try:
            data = shard.serialised(rows) if rows else b""
        except Exception:
            # The encoder believes that these rows are in the shard, so begin a new one; and find the culprit.
            self._shards.abandon(shard)
            self._unstate(good)
            if len(good) == 1:
                log.exception("captures: a record could not be written as a row")
                self._fail(good, None)
            else:
                self._pending, self._alone = good + self._pending, len(good)
            return None
        if self._receipts.due or any(isinstance(item.value, Seal) for item in good):
            receipts = self._receipts.taken()
            data += shard.serialised(receipts) if receipts else b""
        return Job(shard, data, good, self._shards.ends_with(shard, len(data))) if data else None

    def _row(self, item: Item) -> Row:
        value = item.value
        if isinstance(value, CallRecord):
            row = self._shards.encoder.row(value)
            self._rollouts.stated(value, row["digest"])
            return row
        rollout = self._rollouts.use(value.rollout_id)
        incomplete = value.incomplete or ("capture_error" if rollout.lost else None)
        stated = replace(
            value, call_ids=tuple(rollout.calls), digest=rollout_digest(rollout.calls.values()), incomplete=incomplete
        )
        item.value = stated
        row = {**self._base, "kind": "seal", "rollout_id": value.rollout_id, "sealed_calls": list(stated.call_ids)}
        row |= {"incomplete": incomplete, "at": time.time(), "digest": bytes.fromhex(stated.digest)}
        return row

    def _hung(self) -> None:
        self._fail([*self._flying.items, *self._taken()], _HANGS)

    def _done(self, failure: str | None) -> None:
        self._after(self._flying.landed(), failure)
        if self._work:
            self._schedule()

    def _after(self, job: Job, failure: str | None) -> None:
        if failure is not None:
            self._unstate(job.items)
            if job.shard is self._broken and not self._closed:  # it was made before that was known
                waiting = [one for one in job.items if one.done is None or not one.done.done()]
                self._pending, self._alone = waiting + self._pending, 0
                return
            self._shards.failed(job.shard)
            self._broken = job.shard
            self._fail(job.items, failure)
            return
        self._failure = None
        size = len(job.data) // max(len(job.items), 1)
        for item in job.items:
            value = item.value
            if isinstance(value, CallRecord):
                self._rollouts.durable(value, size)
            elif isinstance(value, Seal):
                self._sealed(value)
            if item.done is not None and not item.done.done():
                item.done.set_result(value if isinstance(value, Seal) else None)

    def _sealed(self, seal: Seal) -> None:
        self._rollouts.sealed(seal.rollout_id)
        for call_id in seal.call_ids:
            self._shards.encoder.forget(call_id)

    def _failed(self, reason: str) -> None:
        if self._failure is None:
            log.error("captures cannot be written: %s", reason)
        self._failure = reason
        self._retry_at = time.monotonic() + _RETRY_S

    def _fail(self, items: Iterable[Item], reason: str | None) -> None:
        """These will never be durable. `reason` is the disk's; None if it is theirs alone."""
        if reason is not None:
            self._failed(reason)
        for item in items:
            if isinstance(item.value, CallRecord):
                self._rollouts.lost(item.value)
            if item.done is not None and not item.done.done():
                item.done.set_exception(self._error())

    def _error(self) -> ModelError:
        return ModelError(503, "capture", "calls cannot be recorded at the moment", retry_after=_RETRY_S)

    def _unstate(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item.value, CallRecord):
                self._rollouts.unstated(item.value)

    # ---- on the thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            failure = self._write(job)
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._done, failure)

    def _write(self, job: Job) -> str | None:
        """Why the batch is not durable, or None."""
        began = time.perf_counter()
        try:
            job.shard.append(job.data, sync=bool(job.items))
        except Exception as error:
            with contextlib.suppress(OSError):
                job.shard.leave()
            return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        finally:
            job.took = time.perf_counter() - began
        if job.seal:
            self._shards.seal(job.shard)
        return None
