"""Who may do what, with which token, from where."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_cluster import FakeFeeds, FakeStatements, serving
from tests.unit.cluster.http.http_requests import ask, error_in, raw
from tocsin.cluster.http.openapi import document


async def test_without_a_token_nothing_but_health_answers_where_one_is_needed() -> None:
    fake = FakeStatements()
    async with serving(fake, auth="on") as url:
        for route in document()["paths"].items():
            for method in route[1]:
                expected = 200 if route[0] in ("/healthz", "/readyz") else 401
                status, _, headers = await ask(url, method.upper(), route[0], data="insert 1")
                assert status == expected, route
                assert ("WWW-Authenticate" in headers) == (expected == 401)
        assert (await ask(url, "GET", "/nothing"))[0] == 401
        for bad in ("", "Bearer", "Bearer ", "Basic eDp5", "Bearer nobody", "Bearer tocsin_ada tocsin_ada", "Bearer é"):
            assert (await ask(url, data="insert 1", headers={"Authorization": bad}))[0] == 401
        assert fake.scripts == []
        assert (await ask(url, data="insert 1", headers={"Authorization": "Bearer tocsin_bob"}))[0] == 200


async def test_a_reader_may_query_but_neither_write_nor_publish() -> None:
    feeds = FakeFeeds()
    cy, bob = ({"Authorization": f"Bearer tocsin_{name}"} for name in ("cy", "bob"))
    async with serving(FakeStatements(), auth="on", feeds=feeds) as url:
        assert (await ask(url, data="rows 1", headers=cy))[0] == 200
        assert (await ask(url, data="insert 1; code", headers=bob))[0] == 403
        status, said, _ = await ask(url, data="rows 1; insert 1", headers=cy)
        assert (status, said["error"]["code"], said["error"]["statement"]) == (403, "forbidden", 2)
        assert (await ask(url, path="/v1/feeds/News", data=b'{"id": 1}', headers=cy))[0] == 403
        assert feeds.taken == []
        assert (await ask(url, path="/v1/feeds/News", data=b'{"id": 1}', headers=bob))[0] == 200


async def test_a_broker_publishes_to_the_feeds_of_its_token_alone() -> None:
    feeds = FakeFeeds()
    east, west = ({"Authorization": f"Bearer tocsin_{name}"} for name in ("east", "west"))
    async with serving(FakeStatements(), auth="on", feeds=feeds) as url:
        for name in ("News", "Default.News"):
            assert (await ask(url, path=f"/v1/feeds/{name}", data=b'{"id": 1}', headers=east))[0] == 200
        assert (await ask(url, "GET", path="/v1/feeds/News", headers=east))[0] == 200
        for name, who in (("News", west), ("Other", east), ("v.News", east), ("Default..News", east)):
            status, said, _ = await ask(url, path=f"/v1/feeds/{name}", data=b'{"id": 1}', headers=who)
            assert (status, said["error"]["code"]) == (403, "forbidden"), name
            assert (await ask(url, "GET", path=f"/v1/feeds/{name}", headers=who))[0] == 403
        assert (await ask(url, data="insert 1", headers=east))[0] == 403
        assert len(feeds.taken) == 2


async def test_by_default_tokens_are_asked_for_on_anything_but_loopback() -> None:
    async with serving(FakeStatements(), host="0.0.0.0") as url:
        assert (await ask(url, "GET", "/"))[0] == 401
    async with serving(FakeStatements(), host="0.0.0.0", auth="off") as url:
        assert (await ask(url, "GET", "/"))[0] == 200
    async with serving(FakeStatements()) as url:
        assert (await ask(url, "GET", "/"))[0] == 200


async def test_a_script_is_stopped_only_with_its_own_token_or_an_admins() -> None:
    fake = FakeStatements()
    bob, dan, ada = ({"Authorization": f"Bearer tocsin_{name}"} for name in ("bob", "dan", "ada"))
    async with serving(fake, auth="on") as url:
        for stopper in (bob, ada):
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(ask(url, data="wait", headers={**bob, "Tocsin-Request-Id": "b"}))
                await fake.until(lambda it: it.waiting == 1)
                assert (await ask(url, "DELETE", "/v1/statements/b", headers=dan))[0] == 403
                assert (await ask(url, "GET", headers=dan))[1] == {"running": []}
                assert len((await ask(url, "GET", headers=ada))[1]["running"]) == 1
                assert (await ask(url, "DELETE", "/v1/statements/b", headers=stopper))[0] == 202
            assert running.result()[0] == 408


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example:8470"}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 403),
        ({"Origin": "https://page.example", "Authorization": "Bearer tocsin_bob"}, 200),
    ],
)
async def test_without_tokens_no_web_page_can_reach_a_local_cluster(headers: dict[str, str], status: int) -> None:
    async with serving(FakeStatements()) as url:
        assert (await ask(url, data="insert 1", headers={"Content-Type": "text/plain", **headers}))[0] == status


FORWARDED = [
    {"Forwarded": "for=203.0.113.9"},
    {"X-Forwarded-For": "203.0.113.9"},
    {"x-forwarded-proto": "https"},
    {"Via": "1.1 proxy"},
    {"X-Real-IP": "203.0.113.9"},
]


@pytest.mark.parametrize("headers", FORWARDED, ids=lambda headers: next(iter(headers)))
async def test_whoever_comes_through_a_proxy_to_a_local_cluster_needs_a_token(headers: dict[str, str]) -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        status, said, answered = await ask(url, data="insert 1", headers=headers)
        assert (status, answered["WWW-Authenticate"]) == (401, 'Bearer realm="tocsin"')
        assert "tocsin token create" in said["error"]["hint"]
        assert fake.scripts == []
        for path in ("/healthz", "/readyz"):
            assert (await ask(url, "GET", path, headers=headers))[0] == 200
        # A proxy that says whose name it was asked by is no page's: the token decides.
        shown = {**headers, "Authorization": "Bearer tocsin_cy", "Host": "cluster.example"}
        assert (await ask(url, data="rows 1", headers=shown))[0] == 200
        assert (await ask(url, data="insert 1", headers=shown))[0] == 403
    async with serving(fake, auth="off") as url:
        assert (await ask(url, data="insert 1", headers=headers))[0] == 200


async def test_a_request_in_the_manner_of_nginx_or_of_a_named_proxy_was_forwarded() -> None:
    async with serving(FakeStatements()) as url:
        got = await raw(url, b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1:8470\r\nConnection: close\r\n\r\n")
        assert error_in(got)[0] == 401
    async with serving(FakeStatements(), trusted_proxies="::1 127.0.0.0/8") as url:
        assert (await ask(url, data="rows 1"))[0] == 401


async def test_a_token_that_is_shown_counts_on_loopback_too() -> None:
    async with serving(FakeStatements()) as url:
        for name, script, expected in (("cy", "insert 1", 403), ("bob", "insert 1", 200), ("nobody", "rows 1", 401)):
            shown = {"Authorization": f"Bearer tocsin_{name}"}
            assert (await ask(url, data=script, headers=shown))[0] == expected, name


@pytest.mark.parametrize("mode", ["auto", "off"])
async def test_without_an_admins_token_nobody_brings_code_into_a_cluster(mode: str) -> None:
    async with serving(FakeStatements(), auth=mode) as url:
        assert (await ask(url, data="code"))[0] == 403
        assert (await ask(url, data="code", headers={"Authorization": "Bearer tocsin_bob"}))[0] == 403
        # The fake knows no such statement: an admin gets past the gate.
        assert (await ask(url, data="code", headers={"Authorization": "Bearer tocsin_ada"}))[0] == 400


async def test_a_message_of_a_broker_or_cluster_reaches_feeds_only() -> None:
    """Users choose where announcements and webhooks go: to this server, too, which trusts its own machine."""
    fake, feeds = FakeStatements(), FakeFeeds()
    headers = {"webhook-id": "notification_1", "Content-Type": "application/json"}
    async with serving(fake, feeds=feeds) as url:
        for path, methods in document()["paths"].items():
            for method in methods.keys() - {"parameters"}:
                if path != "/v1/feeds/{name}":
                    status, said, _ = await ask(
                        url, method.upper(), path, data=b'{"script": "insert 1;"}', headers=headers
                    )
                    assert (status, said["error"]["code"]) == (403, "forbidden"), path
        assert (await ask(url, path="/v1/feeds/News", data=b'{"id": 1}', headers=headers))[0] == 200
    assert fake.scripts == []
    assert len(feeds.taken) == 1
