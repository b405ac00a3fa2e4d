"""Figures for Prometheus, one registry per model server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..exchange.reply import ModelReply

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Calls by dialect, status and error kind; in flight; tokens; time."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "ng_calls", "Finished calls.", ["dialect", "status", "error_kind"], registry=self.registry
        )
        self._in_flight = Gauge("ng_calls_in_flight", "Calls being answered.", registry=self.registry)
        self._queued = Gauge("ng_calls_queued", "Calls waiting for a free place.", registry=self.registry)
        self._tokens = Counter("ng_tokens", "Tokens, as the backend counts them.", ["kind"], registry=self.registry)
        self._prompt, self._completion = (self._tokens.labels(kind) for kind in ("prompt", "completion"))
        self._kinds: dict[tuple[str, str, str], Counter] = {}
        self._seconds = Histogram(
            "ng_call_seconds", "From the request's last byte to its record.", buckets=_SECONDS, registry=self.registry
        )
        self._backend_seconds = Histogram(
            "ng_backend_seconds", "From asking the backend to its answer.", buckets=_SECONDS, registry=self.registry
        )
        self._without_rollout = Counter(
            "ng_calls_without_rollout", "Calls that named no rollout.", registry=self.registry
        )

    def load(self, in_flight: int, queued: int) -> None:
        self._in_flight.set(in_flight)
        self._queued.set(queued)

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
        """Seconds are wall time."""
        kind = (dialect, status, error_kind)
        counter = self._kinds.get(kind)
        if counter is None:
            counter = self._kinds[kind] = self._calls.labels(*kind)
        counter.inc()
        self._seconds.observe(seconds)
        if backend_seconds is not None:
            self._backend_seconds.observe(backend_seconds)
        if reply is not None:
            self._prompt.inc(reply.usage.prompt or 0)
            self._completion.inc(reply.usage.completion or 0)

    def text(self) -> bytes:
        return generate_latest(self.registry)
