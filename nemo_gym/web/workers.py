"""One server in several processes, on one listening socket; each rollout belongs to one of them.

What a rollout needs in memory (lineage, repeats, its seal) is then in one place, and nothing has to be shared. Whoever
accepts a connection reads the head of each request; one of a rollout that is another's is handed over, socket and
bytes, over a Unix socket (SCM_RIGHTS). There is no front that every byte passes through: a client that keeps to one
rollout costs at most one hand-over, and no process is more than a worker.

The process that forks only waits. A worker that ends takes the others with it, as one process would have ended whole;
when the waiting process is killed, the kernel ends the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import socket
import sys
import tempfile
import zlib
from collections import deque
from collections.abc import Callable
from hmac import compare_digest
from typing import NoReturn

from ..process import die_with

GRACE_S = 20
"""So long workers have to end by themselves."""
WORKER_HEADER = b"x-ng-worker"
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM}
_INLINE = 32 * 1024
"""Larger heads travel in a file, since a datagram has a limit."""
_AT_ONCE = 64
_ASK_S = 40.0

Adopt = Callable[[bytes], asyncio.Protocol]


class Workers:
    """This process among its like.

    Args:
        index: which of them this is.
        boxes: of each worker, the end that it receives from and the end that the others send to.
        secret: what tells a worker's question from a stranger's.
    """

    def __init__(self, index: int, boxes: list[tuple[socket.socket, socket.socket]], secret: str) -> None:
        self.index = index
        self.count = len(boxes)
        self._inbox = boxes[index][0]
        self._outboxes = [outbox for _, outbox in boxes]
        self._secret = secret.encode()
        self._waiting: list[deque[tuple[bytes, list[int]]]] = [deque() for _ in boxes]
        self._adopt: Adopt | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        for other, (inbox, outbox) in enumerate(boxes):
            outbox.setblocking(False)
            if other != index:
                inbox.close()
        self._inbox.setblocking(False)

    def owner(self, rollout_id: str) -> int:
        """The worker that a rollout belongs to."""
        return zlib.crc32(rollout_id.encode()) % self.count

    @property
    def others(self) -> list[int]:
        return [index for index in range(self.count) if index != self.index]

    def is_worker(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether a request comes from another worker."""
        return any(name == WORKER_HEADER and compare_digest(value, self._secret) for name, value in headers)

    # ---- connections

    def open(self, adopt: Adopt) -> None:
        """From now on takes what is handed over; `adopt` makes the protocol that begins with these bytes."""
        self._adopt = adopt
        asyncio.get_running_loop().add_reader(self._inbox.fileno(), self._received)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())

    def hand_over(self, to: int, fd: int, data: bytes) -> None:
        """Another worker goes on with this connection, from these bytes. The caller's own descriptor stays its own."""
        fds = [os.dup(fd)]
        if len(data) > _INLINE:
            fds.append(_filed(data))
            data = b""
        waiting = self._waiting[to]
        waiting.append((b"." + data, fds))
        if len(waiting) == 1:
            self._flush(to)

    def _flush(self, to: int) -> None:
        outbox, waiting = self._outboxes[to], self._waiting[to]
        loop = asyncio.get_running_loop()
        while waiting:
            data, fds = waiting[0]
            try:
                socket.send_fds(outbox, [data], fds)
            except (BlockingIOError, InterruptedError):
                loop.add_writer(outbox.fileno(), self._flush, to)
                return
            except OSError:
                pass  # it is gone, and so is this server in a moment
            waiting.popleft()
            for fd in fds:
                os.close(fd)
        loop.remove_writer(outbox.fileno())

    def _received(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, fds, _, _ = socket.recv_fds(self._inbox, _INLINE + 1, 2)
            except (BlockingIOError, InterruptedError):
                return
            if not fds:
                continue
            data = data[1:] if len(fds) == 1 else _unfiled(fds[1])
            task = asyncio.ensure_future(self._take(socket.socket(fileno=fds[0]), data))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _take(self, sock: socket.socket, data: bytes) -> None:
        assert self._adopt is not None
        adopt = self._adopt
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # the client is gone already
            await asyncio.get_running_loop().connect_accepted_socket(lambda: adopt(data), sock)

    # ---- questions

    async def ask(self, path: str) -> list[tuple[int, bytes]]:
        """Status and body of each other worker's answer to a GET. Raises OSError or TimeoutError."""
        return await asyncio.gather(*(self._ask(index, path) for index in self.others))

    async def _ask(self, index: int, path: str) -> tuple[int, bytes]:
        ours, theirs = socket.socketpair()
        with theirs:
            asked = f"GET {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n"
            self.hand_over(index, theirs.fileno(), asked.encode() + WORKER_HEADER + b": " + self._secret + b"\r\n\r\n")
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(_ASK_S):
                answer = await reader.read()
        finally:
            writer.close()
        head, end, body = answer.partition(b"\r\n\r\n")
        if not end:
            raise OSError(f"worker {index} did not answer")
        return int(head.split(b" ", 2)[1]), body


_current: Workers | None = None


def current() -> Workers | None:
    """This process's place among the workers; None where one process is the whole server."""
    return _current


def fork(count: int, sock: socket.socket) -> None:
    """Returns in each of `count` new processes; the calling one waits, ends with them and as they do.

    Args:
        sock: the listening socket, which only the workers keep.
    """
    global _current
    boxes = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
    secret = secrets.token_hex(16)
    gc.collect()
    gc.freeze()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent = os.getpid()
    pids: set[int] = set()
    for index in range(count):
        pid = os.fork()
        if pid == 0:
            die_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            _current = Workers(index, boxes, secret)
            return
        pids.add(pid)
    sock.close()
    for inbox, outbox in boxes:
        inbox.close()
        outbox.close()
    _wait(pids)


def _wait(pids: set[int]) -> NoReturn:
    status, ending = 0, False
    while pids:
        number = signal.sigwait(_SIGNALS)
        if number == signal.SIGALRM:
            _send(pids, signal.SIGKILL)
            continue
        if number == signal.SIGCHLD:
            ended = _reaped(pids)
            if not ended or ending:
                continue
            status = ended[0]
        if not ending:
            ending = True
            _send(pids, signal.SIGTERM)
            signal.alarm(GRACE_S)
    sys.exit(status)


def _reaped(pids: set[int]) -> list[int]:
    """How those that have ended did."""
    found = []
    for pid in list(pids):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            pids.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            found.append(code if code >= 0 else 128 - code)
    return found


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _filed(data: bytes) -> int:
    """A descriptor of an unnamed file that holds this."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("request")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    return fd


def _unfiled(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()
