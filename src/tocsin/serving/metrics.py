"""Prometheus metrics of a server, in a registry of its own, so that two servers in one process do not mix.

Routes are labelled by their pattern and never by the path, because clients could otherwise create series without bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tocsin.serving.answers import RequestHandler

_T = TypeVar("_T")
SeriesTable: TypeAlias = Mapping[str, tuple[str, Callable[[_T], float | dict[Any, int] | None]]]

_METHODS: Final = frozenset(hdrs.METH_ALL)


class ServerMetrics:
    """The metrics of every server; a server adds its own to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = Counter(
            "tocsin_http_requests",
            "Requests answered, by method, route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tocsin_http_request_seconds", "Time from a request's head to the end of its answer, in seconds.",
            ["route"], registry=self.registry,
        )  # fmt: skip
        self.refused = Counter(
            "tocsin_http_refused", "Connections, bodies, scripts, fetches and answers refused at this limit.",
            ["limit"], registry=self.registry,
        )  # fmt: skip

    def count_refused(self, limit: str) -> None:
        """Counts a refusal by the limit of that name."""
        self.refused.labels(limit).inc()

    @property
    def count_requests(self) -> Middleware:
        """The middleware that counts requests. It must be outermost, to count the status that the client sees."""

        @web.middleware
        async def count(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
            began_s = time.perf_counter()
            route = _route(request)
            status = "aborted"
            try:
                response = await handler(request)
                status = str(response.status)
                return response
            finally:
                # Labels come from fixed sets only, so that clients cannot create new time series.
                method = request.method if request.method in _METHODS else "OTHER"
                self.requests.labels(method, route, status).inc()
                self.seconds.labels(route).observe(time.perf_counter() - began_s)

        return count

    async def expose(self, _request: web.Request) -> web.Response:
        # In a thread, because collectors may read from disk.
        exposed = await asyncio.to_thread(generate_latest, self.registry)
        return web.Response(body=exposed, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})


class SeriesCollector(Collector, Generic[_T]):
    """Exports metrics that have one series for each subject, such as a feed. The subjects are asked for at each scrape,
    so the series of a dropped subject disappear.

    `subjects` may be called from any thread, and `name_of` returns the value of the label. A metric is a help text and
    a function of the subject: None means no series; a mapping has one series for each value of a second label."""

    def __init__(
        self,
        label: str,
        subjects: Callable[[], Iterable[_T]],
        name_of: Callable[[_T], str],
        counts: SeriesTable[_T],
        gauges: SeriesTable[_T],
        *,
        second_labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._label = label
        self._subjects = subjects
        self._name_of = name_of
        self._tables = ((CounterMetricFamily, counts), (GaugeMetricFamily, gauges))
        self._second_labels = second_labels

    def describe(self) -> Iterator[Metric]:
        return self._collect(())

    def collect(self) -> Iterator[Metric]:
        return self._collect(tuple(self._subjects()))

    def _collect(self, subjects: Sequence[_T]) -> Iterator[Metric]:
        for family_of, table in self._tables:
            for name, (help_text, value_of) in table.items():
                second_label = self._second_labels.get(name)
                family: Any = family_of(name, help_text, labels=[self._label, *filter(None, [second_label])])
                for subject in subjects:
                    name_label, value = self._name_of(subject), value_of(subject)
                    if isinstance(value, dict):
                        for second, number in sorted(value.copy().items()):
                            family.add_metric([name_label, str(second)], number)
                    elif value is not None:
                        family.add_metric([name_label], value)
                yield family


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
