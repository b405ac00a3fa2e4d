"""The endpoints behind a server, for Prometheus: who is asked, who is let alone, who waits for a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..pool.pool import Pool


class ReplicaMetrics(Collector):
    """Args:
    pools: those that are in use; none while there is none.
    """

    def __init__(self, pools: Callable[[], Sequence[Pool[Any]]]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        pools = self._pools()
        waiting = GaugeMetricFamily("ng_replica_queue", "Calls that wait for a place at an endpoint.")
        waiting.add_metric([], sum(pool.queued for pool in pools))
        yield waiting
        in_flight = GaugeMetricFamily("ng_replica_in_flight", "Calls in flight at an endpoint.", labels=["replica"])
        shut = GaugeMetricFamily(
            "ng_replica_shut", "1 while an endpoint is let alone after failures.", labels=["replica"]
        )
        asked = CounterMetricFamily("ng_replica_tries", "Tries at an endpoint.", labels=["replica"])
        opened = CounterMetricFamily(
            "ng_replica_opened", "How often it was let alone after failures.", labels=["replica"]
        )
        for one in (one for pool in pools for one in pool.describe()):
            name = [one["replica"]]
            in_flight.add_metric(name, one["in_flight"])
            shut.add_metric(name, one["state"] != "closed")
            asked.add_metric(name, one["given"])
            opened.add_metric(name, one["opened"])
        yield from (in_flight, shut, asked, opened)
