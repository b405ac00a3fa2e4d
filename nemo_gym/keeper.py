"""Runs one server and outlives whoever asked for it by a moment, to leave nothing behind.

Started as `python -I -S keeper.py PIPE_FD GRACE_S COMMAND…`; standard library only, so that it is up in a few
milliseconds and small. It holds true: when it has ended, no descendant of the command is alive, whatever sessions
and parents they had. With `--forked PID REPORT_FD` before COMMAND the command is its child already (preloaded.py), and
its end is reported besides, since whoever asked is not the keeper's parent.

How: it is the child subreaper, so each orphan below it becomes its child. It watches a pipe whose write end only the
launcher holds: end of file means that the launcher is gone, however it went. A line `stop SECONDS` asks for an end;
SIGTERM to the keeper does the same. The command gets SIGTERM and a grace, then every descendant gets SIGKILL until
`waitpid` says that there is none. Should the keeper itself be killed, the command's parent-death signal ends it.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ORPHANED_GRACE_S = 2.0
KILLING_S = 30.0
LINUX = sys.platform == "linux"
FORKED = "--forked"


def prctl(option, value):
    if LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def own_session(keeper):
    """In the command's process: a session of its own, that dies with the keeper."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)  # the keeper was gone before the signal was asked for
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def start(command, keeper):
    """Fork and become the command."""
    pid = os.fork()
    if pid:
        return pid
    try:
        own_session(keeper)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def descendants(root):
    """The pids below `root`, by the parent that /proc names."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # ended while we looked
            children.setdefault(parent, []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def send(pid, number):
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def reap(main, status):
    """Collect what has ended: (the main process's status once known, whether any child is left)."""
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if pid == 0:
            return status, True
        if pid == main:
            status = ended


def shared_memory(pid):
    """The shared memory of Python's multiprocessing that a process has mapped; it outlives whoever is killed."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "/dev/shm/" in line}
    except OSError:
        return set()
    return {path for path in paths if path.startswith(("/dev/shm/psm_", "/dev/shm/sem.mp-")) and os.path.exists(path)}


def kill_all(main, status):
    """SIGKILL to every descendant, again and again until there is none; then what they would have freed is freed."""
    until = time.monotonic() + KILLING_S
    orphaned: set[str] = set()
    while True:
        status, left = reap(main, status)
        if not left or time.monotonic() > until:
            break
        if LINUX:
            for pid in descendants(os.getpid()):
                orphaned |= shared_memory(pid)
                send(pid, signal.SIGKILL)
        else:
            with contextlib.suppress(OSError):
                os.killpg(main, signal.SIGKILL)
        time.sleep(0.01)
    for path in orphaned:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return status


def keep(pipe, grace, begin, kept=()):
    """Begin what has a pid, and keep it until it ends; its exit status."""
    keeper = os.getpid()
    os.set_inheritable(pipe, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    main = begin(keeper)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the command's document is the command's alone
    close_others({0, 1, 2, pipe, wake, woken, *kept})
    status, deadline, watched = None, None, [wake, pipe]
    while True:
        status, left = reap(main, status)
        if status is not None or not left or (deadline is not None and time.monotonic() >= deadline):
            break
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout)
        asked = None
        if wake in ready and any(number != signal.SIGCHLD for number in os.read(wake, 4096)):
            asked = grace
        if pipe in ready:
            line = os.read(pipe, 4096)
            asked = float(line.split()[-1]) if line else min(grace, ORPHANED_GRACE_S)
            if not line:
                watched = [wake]
        if asked is not None:
            send(main, signal.SIGTERM)
            end = time.monotonic() + asked
            deadline = end if deadline is None else min(deadline, end)
    status = kill_all(main, status)
    if status is None:
        return 137
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def close_others(kept):
    """Close what was only passed through, above all the listening socket: a dead server must not seem to listen."""
    folder = "/proc/self/fd" if LINUX else "/dev/fd"
    for entry in os.listdir(folder):
        if int(entry) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(entry))


def main(pipe, grace, *command):
    if command[0] != FORKED:
        return keep(int(pipe), float(grace), lambda keeper: start(command, keeper))
    pid, report = map(int, command[1:3])
    status = keep(int(pipe), float(grace), lambda _: pid, kept=(report,))
    os.write(report, b"%d" % status)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
