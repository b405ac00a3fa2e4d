"""The endpoints behind a server, for Prometheus: who is asked, who is let alone, who waits for a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..pool.pool import Pool


class ReplicaMetrics(Collector):
    """Args:
    pool: the one that is in use; None while there is none.
    """

    def __init__(self, pool: Callable[[], Pool[Any] | None]) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        pool = self._pool()
        waiting = GaugeMetricFamily("ng_replica_queue", "Calls that wait for a place at an endpoint.")
        waiting.add_metric([], 0 if pool is None else pool.queued)
        yield waiting
        in_flight = GaugeMetricFamily("ng_replica_in_flight", "Calls in flight at an endpoint.", labels=["replica"])
        shut = GaugeMetricFamily(
            "ng_replica_shut", "1 while an endpoint is let alone after failures.", labels=["replica"]
        )
        asked = CounterMetricFamily("ng_replica_tries", "Tries at an endpoint.", labels=["replica"])
        opened = CounterMetricFamily(
            "ng_replica_opened", "How often it was let alone after failures.", labels=["replica"]
        )
        for one in pool.describe() if pool is not None else ():
            name = [one["replica"]]
            in_flight.add_metric(name, one["in_flight"])
            shut.add_metric(name, one["state"] != "closed")
            asked.add_metric(name, one["given"])
            opened.add_metric(name, one["opened"])
        yield from (in_flight, shut, asked, opened)
