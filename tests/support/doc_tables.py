"""Generates the tables of the docs that repeat the code: settings, crash points, metrics, errors, statements.

`./dev docs` writes them; a test fails if a page is older than the code.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector, CollectorRegistry

from tests.support.commands import ROOT
from tests.support.fake_cluster import FakeFeeds, FakeStatements, FakeWatch, fake_backup, idle_door
from tests.support.in_process_broker import both
from tests.support.sparkless_cluster import world
from tocsin import faults
from tocsin.broker.metrics import BrokerCollector
from tocsin.cluster.data_folder.clock_guard import ClockGuard, machine_clocks
from tocsin.cluster.http.routes import cluster_application
from tocsin.language.syntax import statements
from tocsin.serving.metrics import ServerMetrics
from tocsin.settings import ClusterSettings, known_settings
from tocsin.wire import errors

Rows = Iterator[tuple[str, ...]]


def settings_rows() -> Rows:
    for path, field in known_settings().items():
        yield f"`{path}`", f"`{field.default}`", str(field.description)


def crash_point_rows() -> Rows:
    for point, description in faults.POINTS.items():
        yield f"`{point}`", description


class NobodysCredentials:
    async def check(self, secret: str) -> Any:
        raise AssertionError(secret)


def complete_application(metrics: ServerMetrics) -> Any:
    """Returns the cluster's application with every part that has routes or metrics."""
    return cluster_application(
        ClusterSettings(),
        FakeStatements(),
        NobodysCredentials(),
        engine=FakeWatch().as_watch(),
        metrics=metrics,
        backup=fake_backup,
        feeds=FakeFeeds().as_feeds(),
        channel_figures=list,
        kept_for_readers=lambda: (0, 0, 0),
        guard=ClockGuard(Path(mkdtemp(prefix="tocsin-docs-")), machine_clocks()),
        brokers=idle_door(),
    )


def cluster_metric_rows() -> Rows:
    metrics = ServerMetrics()
    complete_application(metrics)
    yield from _metric_rows(metrics.registry)


def broker_metric_rows() -> Rows:
    async def read(folder: Path) -> list[tuple[str, ...]]:
        async with world(folder / "cluster") as cluster, both(folder / "broker", cluster) as broker:
            return list(_metric_rows([BrokerCollector(broker.parts)]))

    with TemporaryDirectory(prefix="tocsin-docs-") as folder:
        yield from asyncio.run(read(Path(folder)))


def _metric_rows(collectors: CollectorRegistry | list[Collector]) -> Rows:
    """One row for each of our metrics: its name as Prometheus shows it, its labels and its HELP text."""
    if isinstance(collectors, CollectorRegistry):
        collectors = list(collectors._collector_to_names)
    for collector in collectors:
        labels = collector._labelnames if isinstance(collector, MetricWrapperBase) else None
        for family in collector.collect():
            if family.name.startswith("tocsin_"):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                names = labels if labels is not None else getattr(family, "_labelnames", ())
                yield f"`{name}`", ", ".join(f"`{label}`" for label in names), family.documentation


def error_rows() -> Rows:
    """The errors that have a code of their own, by status; a bug has no class."""

    def tree(top: type[errors.TocsinError]) -> Iterator[type[errors.TocsinError]]:
        for below in top.__subclasses__():
            if below.__module__ == errors.__name__:
                yield below
                yield from tree(below)

    rows = []
    for error in tree(errors.TocsinError):
        if "code" in vars(error):
            assert error.__doc__
            meaning, remedy = (" ".join(part.split()) for part in error.__doc__.split("\n\n"))
            rows.append((sorted((error.status, *error.other_statuses)), error.code, meaning, remedy))
    rows.append(([500], "internal", "A bug.", "Report it, with the lines of the server's log that have its `id`."))
    for statuses, code, meaning, remedy in sorted(rows):
        yield ", ".join(map(str, statuses)), f"`{code}`", meaning, remedy


def statement_rows() -> Rows:
    """The form of a statement and what it does, from the first paragraph of its class; a keyword begins a form."""
    for name, statement in vars(statements).items():
        if not (isinstance(statement, type) and issubclass(statement, statements.Statement)) or name == "Statement":
            continue
        paragraph = str(statement.__doc__).split("\n\n")[0].strip()
        for line in re.sub(r"\n\s++(?!`[A-Z]+ )", " ", paragraph).splitlines():
            form, _, effect = line.strip().partition("`: ")
            yield f"{form}`".replace("|", r"\|"), effect.removesuffix(".")


TABLES: Final[Mapping[tuple[str, str], Callable[[], Rows]]] = {
    ("docs/operations.md", "## Settings"): settings_rows,
    ("docs/operations.md", "## Crash points"): crash_point_rows,
    ("docs/operations.md", "## Metrics"): cluster_metric_rows,
    ("docs/broker.md", "## Metrics"): broker_metric_rows,
    ("docs/http.md", "## Errors"): error_rows,
    ("docs/language.md", "## Statements"): statement_rows,
}
"""The first table below the heading of the page has these rows."""


def with_generated_tables(page: str, text: str) -> str:
    """Returns the page with its tables as the code has them; heads of tables and all else stay."""
    for (path, heading), rows in TABLES.items():
        if path == page:
            body = "".join(f"| {' | '.join(cells)} |\n" for cells in rows())
            pattern = re.compile(
                rf"(^{re.escape(heading)}\n.*?^\| ---[^\n]*\n)(?:\|[^\n]*\n)+", re.DOTALL | re.MULTILINE
            )
            text, count = pattern.subn(lambda found, body=body: found[1] + body, text, count=1)
            if not count:
                raise ValueError(f"{page} has no table below {heading}")
    return text


def main() -> None:
    for page in sorted({path for path, _ in TABLES}):
        file = Path(ROOT, page)
        before = file.read_text("utf-8")
        after = with_generated_tables(page, before)
        if after != before:
            file.write_text(after, "utf-8")
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
