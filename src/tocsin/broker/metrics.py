"""A broker's counters and its metrics for Prometheus. Cache metrics carry the policy under which they were counted as a
label."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tocsin.rules.caching.counters import CacheCounters

if TYPE_CHECKING:
    from tocsin.broker.service import BrokerService

BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_CACHING = {
    "arrived": "Results that came from the cluster.",
    "admitted": "Results that were let into the cache.",
    "hits": "Deliveries of results that were in the cache when somebody asked or caught up.",
    "hit_bytes": "Their bytes.",
    "misses": "Deliveries of results that had to be fetched when somebody asked or caught up.",
    "miss_bytes": "Their bytes.",
    "pushed": "Deliveries of results the moment they came; no hits, for nobody had to look for them.",
    "pushed_bytes": "Their bytes.",
    "fetched": "Results that were fetched: news, and what was missing.",
    "fetched_bytes": "Their bytes.",
    "consumed": "Results that left the cache because everybody had them.",
    "evicted": "Results that left the cache because there was no room.",
    "expired": "Results that left the cache because their time was up.",
}


class BrokerCounters:
    """Plain counters, read by the metrics. `latencies` is a histogram of deliveries by the time since the execution,
    one bucket more than BUCKETS_S."""

    def __init__(self) -> None:
        self.delivered = 0
        self.latencies = [0] * (len(BUCKETS_S) + 1)
        self.latency_sum_s = 0.0
        self.announcements: dict[str, int] = {}
        self.acknowledged = 0
        self.shed = 0
        self.fetches = 0
        self.fetch_failures = 0
        self.webhooks: dict[str, int] = {}
        self.webhooks_waiting = 0
        self.published: dict[str, int] = {}

    def reached(self, executed_us: Sequence[int], listeners: int, now_us: int) -> None:
        """Counts results that were written to `listeners` subscribers as soon as they arrived."""
        self.delivered += len(executed_us) * listeners
        for made_us in executed_us:
            took_s = (now_us - made_us) / 1e6
            self.latencies[bisect_left(BUCKETS_S, took_s)] += listeners
            self.latency_sum_s += took_s * listeners

    def announced(self, how: str) -> None:
        self.announcements[how] = self.announcements.get(how, 0) + 1


class BrokerCollector(Collector):
    """Reads the broker's counters and gauges when Prometheus scrapes it."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._caches()
        yield from self._gauges()
        yield from self._counters()
        counters, buckets = self._service.counters, []
        total = 0
        for bound, count in zip([*BUCKETS_S, None], counters.latencies, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound), float(total)))
        yield HistogramMetricFamily(
            "tocsin_broker_delivery_seconds",
            "From the execution that made a result to writing it to a subscriber who was there.",
            buckets=buckets,
            sum_value=counters.latency_sum_s,
        )

    def _caches(self) -> Iterator[Metric]:
        caches = self._service.runtime.core.caches
        ratio = GaugeMetricFamily(
            "tocsin_broker_hit_ratio", "Hits among hits and misses, under each policy.", labels=["policy"]
        )
        policies: Iterable[tuple[str, CacheCounters]] = list(caches.figures_of.items())
        for policy, counters in policies:
            ratio.add_metric([policy], counters.hit_ratio)
        yield ratio
        assert _CACHING.keys() <= {field.name for field in fields(CacheCounters)}
        for name, description in _CACHING.items():
            family = CounterMetricFamily(f"tocsin_broker_{name}", description, labels=["policy"])
            for policy, counters in policies:
                family.add_metric([policy], float(getattr(counters, name)))
            yield family

    def _gauges(self) -> Iterator[Metric]:
        service = self._service
        caches = service.runtime.core.caches
        for name, description, value in (
            ("cache_bytes", "Bytes of results in the caches.", caches.resident_bytes),
            ("cache_limit_bytes", "How many there may be.", caches.limit_bytes),
            ("interests", "Interests with a cache.", len(caches)),
            ("subscriptions", "Subscriptions of subscribers.", service.subscription_service.subscriptions),
            ("listeners", "Subscribers who are there.", service.fan_out.listeners),
            ("connections", "Connections of subscribers.", service.sessions.connections),
            ("behind", "Subscribers who take less than there is for them.", service.fan_out.behind),
            (
                "webhook_messages_waiting",
                "Messages to webhooks that wait until a connection is free.",
                service.counters.webhooks_waiting,
            ),
            ("cluster_connected", "1 while the cluster answers.", int(service.link.connected)),
        ):
            yield GaugeMetricFamily(f"tocsin_broker_{name}", description, value=float(value))

    def _counters(self) -> Iterator[Metric]:
        counters = self._service.counters
        for name, description, value in (
            ("delivered", "Results written to subscribers.", counters.delivered),
            ("acknowledged", "Acknowledgements of subscribers.", counters.acknowledged),
            ("shed", "Connections that were ended because another of the same subscriber was faster.", counters.shed),
            ("fetches", "Requests for results at the cluster.", counters.fetches),
            ("fetch_failures", "Those that failed.", counters.fetch_failures),
        ):
            yield CounterMetricFamily(f"tocsin_broker_{name}", description, value=float(value))
        for name, description, counts in (
            ("announcements", "Announcements of the cluster.", counters.announcements),
            ("webhook_messages", "Messages posted to webhooks.", counters.webhooks),
            ("published", "Requests of subscribers to feeds, by the cluster's answer.", counters.published),
        ):
            family = CounterMetricFamily(f"tocsin_broker_{name}", description, labels=["outcome"])
            for outcome, count in counts.items():
                family.add_metric([outcome], float(count))
            yield family
