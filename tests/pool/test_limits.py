"""Limits a minute: exact over every window, and those of all processes that were forked after they were made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.pool.limits import WINDOW_S, Limits

calls = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 400)), max_size=60)


@given(calls, st.integers(1, 8))
def test_no_window_has_more_requests_and_no_less_is_allowed(steps: list[tuple[float, int]], most: int) -> None:
    limits, now, begun = Limits(requests=most), 0.0, list[float]()
    for pause, tokens in steps:
        now += pause
        wait = limits.wait(now)
        spent = limits.begin(now)
        inside = [at for at in begun if now - at < WINDOW_S]
        assert (spent is not None) == (wait == 0) == (len(inside) < most)
        if spent is not None:
            begun.append(now)
            limits.ended(spent, tokens)
        else:
            assert wait == pytest.approx(sorted(inside)[len(inside) - most] + WINDOW_S - now)


@given(calls, st.integers(1, 1000))
def test_tokens_that_were_told_stay_under_the_limit_but_for_the_last_call(
    steps: list[tuple[float, int]], most: int
) -> None:
    limits, now, spent_at = Limits(tokens=most), 0.0, list[tuple[float, int]]()
    for pause, tokens in steps:
        now += pause
        spent = limits.begin(now)
        if spent is None:
            assert 0 < limits.wait(now) <= WINDOW_S + 1e-6
            continue
        assert sum(used for at, used in spent_at if now - at < WINDOW_S) <= most
        limits.ended(spent, tokens)
        spent_at.append((now, tokens))


def test_a_limit_holds_for_a_call_that_is_larger_than_it() -> None:
    limits = Limits(tokens=100)
    first = limits.begin(0.0)
    assert first is not None
    limits.ended(first, 5000)
    assert limits.begin(59.9) is None
    assert limits.begin(60.0) is not None


def test_the_end_of_a_call_that_left_the_window_is_no_fault() -> None:
    limits = Limits(requests=2, tokens=10_000)
    long = limits.begin(0.0)
    assert long is not None
    for at in (60.0, 120.0, 180.0, 181.0):
        assert limits.begin(at) is not None  # its place was taken by others
    limits.ended(long, 999)
    assert limits.wait(241.0) == 0.0


def in_processes(count: int, work: Callable[[], int]) -> int:
    """What the work of so many forked processes gives together."""
    pids, ends = [], []
    for _ in range(count):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writing, str(work()).encode())
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writing)
        pids.append(pid)
        ends.append(reading)
    total = 0
    for pid, end in zip(pids, ends, strict=True):
        with os.fdopen(end) as pipe:
            total += int(pipe.read() or 0)
        assert os.waitpid(pid, 0)[1] == 0
    return total


def test_processes_share_them() -> None:
    limits = Limits(requests=1000)

    def work() -> int:
        return sum(limits.begin(5.0) is not None for _ in range(700))

    assert in_processes(4, work) == 1000
    assert limits.wait(5.0) == WINDOW_S
    assert limits.wait(65.0) == 0.0


def test_tokens_that_another_process_used_count() -> None:
    limits = Limits(tokens=3000)

    def work() -> int:
        spent = limits.begin(0.0)
        assert spent is not None
        limits.ended(spent, 1400)
        return 1

    assert in_processes(1, work) == 1
    assert limits.begin(1.0) is not None  # 1,400 and a guess of 1,040 fit
    assert limits.begin(1.0) is None


def test_a_process_that_ends_while_it_holds_them_lets_go() -> None:
    limits = Limits(requests=5)

    def work() -> int:
        with limits._locked():
            os._exit(0)

    assert in_processes(1, work) == 0
    assert limits.begin(time.monotonic()) is not None
