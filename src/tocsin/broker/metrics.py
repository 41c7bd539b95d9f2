"""A broker's counters and its metrics for Prometheus. Cache metrics carry the policy under which they were counted as a
label.

Policies can change while a broker runs, and figures of two policies must not be added up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tocsin.rules.caching.caches import CacheCounters

if TYPE_CHECKING:
    from tocsin.broker.service import BrokerParts

_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_CACHING = {
    "arrived": "Results that arrived from the cluster.",
    "admitted": "Results that the admission policy let into a cache.",
    "hits": "Deliveries of results that were in the cache when a subscriber pulled or caught up.",
    "hit_bytes": "Bytes of the results that were delivered from the cache.",
    "misses": "Deliveries of results that were fetched because a subscriber pulled or caught up.",
    "miss_bytes": "Bytes of the delivered results that were fetched for a subscriber.",
    "pushed": "Deliveries of results at the moment they arrived; these are neither hits nor misses.",
    "pushed_bytes": "Bytes of the results that were delivered at the moment they arrived.",
    "fetched": "Results fetched from the cluster: new ones, and those missing in the cache.",
    "fetched_bytes": "Bytes of the results fetched from the cluster.",
    "consumed": "Results that left the cache because all their subscribers had them.",
    "evicted": "Results that left the cache to make room for others.",
    "expired": "Results that left the cache because their time to live was over.",
}


class BrokerCounters:
    """Plain counters, read by the metrics. `latencies` is a histogram of deliveries by the time since the execution,
    one bucket more than _BUCKETS_S."""

    def __init__(self) -> None:
        self.delivered = 0
        self.latencies = [0] * (len(_BUCKETS_S) + 1)
        self.latency_sum_s = 0.0
        self.announcements: Counter[str] = Counter()
        self.acknowledged = 0
        self.shed = 0
        self.fetches = 0
        self.fetch_failures = 0
        self.webhooks: Counter[str] = Counter()
        self.webhooks_waiting = 0
        self.published: Counter[str] = Counter()

    def count_deliveries(self, executed_us: Sequence[int], listeners: int, now_us: int) -> None:
        """Counts results that were written to `listeners` subscribers as soon as they arrived."""
        self.delivered += len(executed_us) * listeners
        for made_us in executed_us:
            took_s = (now_us - made_us) / 1e6
            self.latencies[bisect_left(_BUCKETS_S, took_s)] += listeners
            self.latency_sum_s += took_s * listeners


class BrokerCollector(Collector):
    """Reads the broker's counters and gauges when Prometheus scrapes it."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        yield from self._caches()
        yield from self._gauges()
        yield from self._counters()
        counters, buckets = self._parts.counters, []
        total = 0
        for bound, count in zip([*_BUCKETS_S, None], counters.latencies, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound), float(total)))
        yield HistogramMetricFamily(
            "tocsin_broker_delivery_seconds",
            "Time from the execution that made a result to its write to an online subscriber, in seconds.",
            buckets=buckets,
            sum_value=counters.latency_sum_s,
        )

    def _caches(self) -> Iterator[Metric]:
        caches = self._parts.runtime.core.caches
        ratio = GaugeMetricFamily(
            "tocsin_broker_hit_ratio",
            "Share of hits among hits and misses under this policy, from 0 to 1.",
            labels=["policy"],
        )
        policies: Iterable[tuple[str, CacheCounters]] = list(caches.counters_by_policy.items())
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
        parts = self._parts
        caches = parts.runtime.core.caches
        for name, description, value in (
            ("cache_bytes", "Bytes of results in the caches.", caches.resident_bytes),
            ("cache_limit_bytes", "The most bytes of results that the caches may hold.", caches.limit_bytes),
            ("interests", "Interests that have a cache.", len(caches)),
            ("subscriptions", "Subscriptions of all subscribers.", parts.subscriptions.count),
            ("listeners", "Subscribers that are online.", parts.fan_out.listeners),
            ("connections", "Open connections of subscribers.", parts.connections.count),
            (
                "behind",
                "Slow consumers: online subscribers that take results more slowly than they arrive.",
                parts.fan_out.behind,
            ),
            (
                "webhook_messages_waiting",
                "Webhook messages that wait for a free connection.",
                parts.counters.webhooks_waiting,
            ),
            ("cluster_connected", "1 while the cluster answers, otherwise 0.", int(parts.link.connected)),
        ):
            yield GaugeMetricFamily(f"tocsin_broker_{name}", description, value=float(value))

    def _counters(self) -> Iterator[Metric]:
        counters = self._parts.counters
        for name, description, value in (
            ("delivered", "Results written to subscribers.", counters.delivered),
            ("acknowledged", "Acknowledgements that subscribers sent.", counters.acknowledged),
            ("shed", "Connections closed because another connection of the same subscriber was faster.", counters.shed),
            ("fetches", "Requests for results that the broker sent to the cluster.", counters.fetches),
            ("fetch_failures", "Requests for results at the cluster that failed.", counters.fetch_failures),
        ):
            yield CounterMetricFamily(f"tocsin_broker_{name}", description, value=float(value))
        for name, description, counts in (
            ("announcements", "Announcements that arrived from the cluster, by outcome.", counters.announcements),
            ("webhook_messages", "Messages posted to webhooks, by outcome.", counters.webhooks),
            ("published", "Requests of subscribers to publish to feeds, by the cluster's answer.", counters.published),
        ):
            family = CounterMetricFamily(f"tocsin_broker_{name}", description, labels=["outcome"])
            for outcome, count in counts.items():
                family.add_metric([outcome], float(count))
            yield family
