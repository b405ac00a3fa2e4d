"""Figures for Prometheus, one registry per process; those of several workers are added up."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from ..exchange.reply import ModelReply
from .admission import Admission

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OWN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
_TOKENS = ("prompt", "completion", "reasoning", "cached")
_CREATED = "_created"
"""When a series began: of several, the first."""


class _Seconds:
    """A histogram for one thread: three of `prometheus_client`'s, which lock, are a tenth of a small call's cost."""

    def __init__(self, name: str, says: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._says = says
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._says, buckets, self._sum)


class _Counts:
    """A counter for one thread, likewise."""

    def __init__(self, name: str, says: str, labels: tuple[str, ...]) -> None:
        self._name = name
        self._says = says
        self._labels = labels
        self._counts: dict[tuple[str, ...], float] = {}
        self._created = time.time()

    def add(self, kind: tuple[str, ...], count: float = 1) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + count

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._says, labels=self._labels)
        for kind, count in self._counts.items():
            family.add_metric(kind, count, self._created)
        yield family


class Metrics:
    """Calls by dialect, status and error kind; in flight; queue; tokens; own and backend time."""

    def __init__(self, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        self._calls = _Counts("ng_calls", "Finished calls.", ("dialect", "status", "error_kind"))
        in_flight = Gauge("ng_calls_in_flight", "Calls that the backend is asked for.", registry=self.registry)
        in_flight.set_function(lambda: admission.in_flight)
        queued = Gauge("ng_calls_queued", "Calls that wait for a free place.", registry=self.registry)
        queued.set_function(lambda: admission.queued)
        self._tokens = _Counts("ng_tokens", "Tokens, as the backend counts them.", ("kind",))
        for kind in _TOKENS:
            self._tokens.add((kind,), 0)
        self._seconds = _Seconds("ng_call_seconds", "From the request's last byte to its record.", _SECONDS)
        self._backend_seconds = _Seconds("ng_backend_seconds", "From asking the backend to its answer.", _SECONDS)
        self._own_seconds = _Seconds(
            "ng_own_seconds",
            "Of a call's time what was not the backend's: reading, the queue, the record.",
            _OWN_SECONDS,
        )
        for own in (self._calls, self._tokens, self._seconds, self._backend_seconds, self._own_seconds):
            self.registry.register(own)
        self._without_rollout = Counter(
            "ng_calls_without_rollout", "Calls that named no rollout.", registry=self.registry
        )

    def without_rollout(self) -> None:
        self._without_rollout.inc()

    def finished(
        self,
        dialect: str,
        status: str,
        error_kind: str,
        seconds: float,
        backend_seconds: float | None,
        reply: ModelReply | None,
    ) -> None:
        """Seconds are wall time; `backend_seconds` None where the backend was not asked."""
        self._calls.add((dialect, status, error_kind))
        self._seconds.observe(seconds)
        if backend_seconds is not None:
            self._backend_seconds.observe(backend_seconds)
        self._own_seconds.observe(seconds - (backend_seconds or 0.0))
        if reply is not None:
            for kind in _TOKENS:
                count = getattr(reply.usage, kind)
                if count:
                    self._tokens.add((kind,), count)

    def text(self) -> bytes:
        return generate_latest(self.registry)


def merged(texts: Iterable[bytes]) -> bytes:
    """The texts of several processes of one server as one: what all of them count, added up."""
    heads: dict[str, list[str]] = {}
    series: dict[str, dict[str, float]] = {}
    for text in texts:
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
                continue
            name, _, value = line.rpartition(" ")
            values = series.setdefault(family, {})
            if name not in values:
                values[name] = float(value)
            elif name.partition("{")[0].endswith(_CREATED):
                values[name] = min(values[name], float(value))
            else:
                values[name] += float(value)
    lines = []
    for family, head in heads.items():
        lines += head
        lines += (f"{name} {value}" for name, value in series.get(family, {}).items())
    return ("\n".join(lines) + "\n").encode()
