"""What operators and their tools ask: readiness, figures, the way to everything, and the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.fake_cluster import FakeCredentials, FakeFeeds, FakeStatements, fake_backup, idle_door, serving
from tests.unit.cluster.http.http_requests import ask
from tocsin.cluster.data_folder.clock_guard import ClockGuard, machine_clocks
from tocsin.cluster.http.openapi import document
from tocsin.cluster.http.routes import cluster_application
from tocsin.cluster.http.script_responses import StatementLimits
from tocsin.settings import ClusterSettings


async def test_ready_is_said_only_when_scripts_can_be_run() -> None:
    ready = False
    async with serving(FakeStatements(), ready=lambda: ready) as url:
        assert (await ask(url, "GET", "/healthz"))[:2] == (200, {"status": "alive"})
        status, said, headers = await ask(url, "GET", "/readyz")
        assert (status, said["error"]["code"], said["error"]["retry"]) == (503, "unavailable", True)
        assert "the engine is being replaced: it has ended" in said["error"]["message"]
        assert headers["Retry-After"] == "5"
        assert (await ask(url, data="insert 1"))[0] == 503
        ready = True
        assert (await ask(url, "GET", "/readyz"))[:2] == (200, {"status": "ready"})


async def test_a_process_is_healthy_while_its_engine_is_replaced_and_not_when_nobody_would() -> None:
    watching = True
    async with serving(FakeStatements(), ready=lambda: False, watching=lambda: watching) as url:
        assert (await ask(url, "GET", "/healthz"))[0] == 200
        watching = False
        status, said, _ = await ask(url, "GET", "/healthz")
        assert (status, said["error"]["hint"]) == (503, "restart the cluster")


async def test_metrics_count_requests_statements_and_rows() -> None:
    async with serving(FakeStatements()) as url:
        await ask(url, data="rows 7; insert 1")
        await ask(url, data="fail")
        await ask(url, "PROPFIND", "/nothing/at/all")
        _, body, headers = await ask(url, "GET", "/metrics")
    assert headers["Content-Type"].startswith("text/plain")
    for line in (
        'tocsin_http_requests_total{method="POST",route="/v1/statements",status="200"} 1.0',
        'tocsin_http_requests_total{method="POST",route="/v1/statements",status="400"} 1.0',
        'tocsin_http_requests_total{method="OTHER",route="unknown",status="404"} 1.0',
        'tocsin_statement_seconds_count{kind="query"} 1.0',
        'tocsin_scripts_failed_total{code="bad_statement"} 1.0',
        "tocsin_rows_out_total 7.0",
        "tocsin_scripts_running 0.0",
        "tocsin_engine_up 1.0",
        "tocsin_engine_replacements_total 2.0",
        "tocsin_engine_ping_age_seconds 0.5",
        "tocsin_engine_unstoppable 0.0",
        "process_resident_memory_bytes",
    ):
        assert line in body.decode(), line


async def test_stopping_lets_scripts_finish_and_then_stops_them() -> None:
    fake = FakeStatements()
    async with asyncio.TaskGroup() as tasks:
        async with serving(fake, limits=StatementLimits(30, 10, 4, grace_s=0.05)) as url:
            running = tasks.create_task(ask(url, data="insert 1; wait"))
            await fake.until(lambda it: it.waiting == 1)
        status, said, _ = await running
    assert (status, said["error"]["code"], len(said["results"])) == (503, "unavailable", 1)
    assert fake.stopped == 1


async def test_the_index_says_where_everything_is() -> None:
    async with serving(FakeStatements()) as url:
        _, said, _ = await ask(url, "GET", "/")
    paths = set(said.values()) - {"tocsin cluster"}
    documented = set(document()["paths"]) - {"/"}
    assert paths <= documented
    # What is not listed is something of what is.
    assert [path for path in documented - paths if not path.startswith(tuple(f"{path}/" for path in paths))] == []


def test_the_openapi_document_has_exactly_the_routes(tmp_path: Path) -> None:
    async def routes() -> set[tuple[str, str]]:
        app = cluster_application(
            ClusterSettings(),
            FakeStatements(),
            FakeCredentials(),
            backup=fake_backup,
            feeds=FakeFeeds().as_feeds(),
            guard=ClockGuard(tmp_path, machine_clocks()),
            brokers=idle_door(),
        )
        return {
            (route.resource.canonical, route.method.lower())
            for route in app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }

    documented = {(path, method) for path, operations in document()["paths"].items() for method in operations}
    assert documented == asyncio.run(routes())
