"""A feed's own port: what it takes, and that it has the walls of the cluster's server."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from tests.support.fake_cluster import FakeCredentials
from tests.support.feeds_in_process import free_port
from tests.support.waiting import WITHIN_S
from tocsin.cluster.feeds.adapters.http_port import HttpPort, PortAccess
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.feeds.running_feed import AcceptedRecords, RunningFeed
from tocsin.cluster.http.routes import port_authentication, server_limits
from tocsin.serving.application import body_budget
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import ConflictError, TocsinError


class FakeFeed:
    """Accepts a line as a record; a line `bad` is rejected."""

    def __init__(self) -> None:
        self.entry = SimpleNamespace(dataverse="Default", name="News")
        self.counts = FeedCounts()
        self.taken: list[tuple[bytes, str | None]] = []
        self.landed: list[int] = []
        self.error: TocsinError | None = None

    async def accept(self, body: bytes, key: str | None = None) -> AcceptedRecords:
        if self.error is not None:
            raise self.error
        self.taken.append((body, key))
        lines = body.split()
        rejected = [{"index": i, "field": "", "reason": "it is bad"} for i, line in enumerate(lines) if line == b"bad"]
        accepted = len(lines) - len(rejected)
        return AcceptedRecords(200 if accepted else 422, {"accepted": accepted, "rejected": rejected}, len(self.taken))

    async def until_landed(self, position: int) -> None:
        self.landed.append(position)


def access(**sections: Any) -> PortAccess:
    settings = ClusterSettings(**sections)
    limits, plain = server_limits(settings), PortAccess()
    return replace(
        plain, authentication=lambda loopback: port_authentication(settings, FakeCredentials(), loopback),
        limits=limits, budget=body_budget(limits, plain.metrics),
    )  # fmt: skip


@asynccontextmanager
async def listening(
    feed: FakeFeed, *, path: str = "/", host: str = "127.0.0.1", walls: PortAccess | None = None
) -> AsyncIterator[str]:
    port = free_port()
    server = HttpPort(cast("RunningFeed", feed), path, walls or access())
    await server.listen([(host, port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.close()


async def post(url: str, data: bytes = b"a b", *, method: str = "POST", **headers: str) -> tuple[int, str]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.request(method, url, data=data, headers=given) as answer:
        return answer.status, await answer.text()


async def test_it_answers_the_number_of_records_as_the_original_does() -> None:
    feed = FakeFeed()
    async with listening(feed) as url:
        assert await post(url) == (200, "2")
        assert await post(url, gzip.compress(b"a b c"), Content_Encoding="gzip", Idempotency_Key="k") == (200, "3")
        assert await post(f"{url}?wait=visible", b"a") == (200, "1")
    assert feed.taken == [(b"a b", None), (b"a b c", "k"), (b"a", None)]
    assert feed.landed == [3]


async def test_what_was_rejected_is_told_with_its_reason() -> None:
    async with listening(FakeFeed()) as url:
        status, said = await post(url, b"a bad")
        assert status == 200
        assert said == '{"accepted":1,"rejected":[{"index":1,"field":"","reason":"it is bad"}]}'
        assert (await post(url, b"bad"))[0] == 422
        assert await post(url, b"a", Accept="application/json") == (200, '{"accepted":1,"rejected":[]}')


async def test_it_takes_the_messages_of_another_cluster() -> None:
    async with listening(FakeFeed(), path="/in/tweets") as url:
        assert await post(f"{url}/in/tweets", **{"webhook-id": "notification_1"}) == (200, "2")


async def test_only_its_path_and_post_are_answered() -> None:
    feed = FakeFeed()
    async with listening(feed, path="/in/tweets") as url:
        assert (await post(f"{url}/in/tweets"))[0] == 200
        for path in ("/", "/in", "/in/tweets/", "/v1/statements", "/v1/feeds/News", "/query/service", "/metrics"):
            status, said = await post(url + path)
            assert (status, "the feed's option addresses" in said) == (404, True)
        assert (await post(f"{url}/in/tweets", method="GET"))[0] == 405
    assert len(feed.taken) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"X_Forwarded_For": "192.0.2.7"}, 401),
        ({"Authorization": "Bearer tocsin_nobody"}, 401),
        ({"Authorization": "Bearer tocsin_cy"}, 403),
        ({"Authorization": "Bearer tocsin_west"}, 403),
    ],
)
async def test_web_pages_proxies_and_other_tokens_cannot_post(headers: dict[str, str], status: int) -> None:
    feed = FakeFeed()
    async with listening(feed) as url:
        assert (await post(url, **headers))[0] == status
        assert (await post(url, Authorization="Bearer tocsin_east"))[0] == 200  # a token for this feed
    assert len(feed.taken) == 1


async def test_a_port_that_others_can_reach_needs_a_token() -> None:
    feed = FakeFeed()
    async with listening(feed, host="0.0.0.0") as url:
        assert (await post(url))[0] == 401
        assert (await post(url, Authorization="Bearer tocsin_bob"))[0] == 200
    async with listening(feed, host="0.0.0.0", walls=access(auth={"mode": "off"})) as url:
        assert (await post(url))[0] == 200
    async with listening(feed, walls=access(auth={"mode": "on"})) as url:
        assert (await post(url))[0] == 401
    async with listening(feed, walls=access(http={"trusted_proxies": "127.0.0.1"})) as url:
        assert (await post(url))[0] == 401


async def test_a_port_without_tokens_opens_on_loopback_only() -> None:
    feed = FakeFeed()
    async with listening(feed, walls=PortAccess()) as url:
        assert (await post(url))[0] == 200
    async with listening(feed, host="0.0.0.0", walls=PortAccess()) as url:
        assert (await post(url))[0] == 401


async def test_a_body_has_the_limit_of_the_server_packed_or_not() -> None:
    feed = FakeFeed()
    async with listening(feed, walls=access(http={"body_limit_bytes": 2_000})) as url:
        assert (await post(url, b"a" * 3_000))[0] == 413
        assert (await post(url, gzip.compress(b"a" * 100_000), Content_Encoding="gzip"))[0] == 413
        assert (await post(url, b"a", Content_Encoding="br"))[0] == 415
    assert feed.taken == []


async def test_bodies_at_all_ports_share_one_budget() -> None:
    walls = access(http={"body_limit_bytes": 200_000, "bodies_limit_bytes": 400_000})
    assert walls.budget is not None
    with walls.budget.share() as grow:
        grow(walls.budget.charged_bytes(400_000))
        async with listening(FakeFeed(), walls=walls) as url:
            assert (await post(url, b"a" * 200_000))[0] == 429


async def test_connections_beyond_the_limit_give_way_or_are_refused() -> None:
    walls = access()
    async with listening(FakeFeed(), walls=replace(walls, limits=replace(walls.limits, connections_limit=2))) as url:
        port = int(url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        async with asyncio.timeout(WITHIN_S):
            assert (await post(url))[0] in (200, 503)
        for _, writer in silent:
            writer.close()


async def test_a_feed_that_cannot_take_records_says_so_and_is_counted() -> None:
    feed = FakeFeed()
    feed.error = ConflictError("the feed News is stopping", hint="try again in a moment")
    async with listening(feed) as url:
        assert (await post(url))[0] == 409
    assert feed.counts.refused == {409: 1}


async def test_a_port_in_use_is_an_error_that_names_it() -> None:
    async with listening(FakeFeed()) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConflictError, match=rf"addresses: cannot listen at 127.0.0.1:{port}"):
            await HttpPort(cast("RunningFeed", FakeFeed()), "/", access()).listen([("127.0.0.1", port)])


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 300, "192.0.2.1"])
async def test_a_host_of_no_or_another_machine_is_an_error(host: str) -> None:
    with pytest.raises(ConflictError, match="addresses: cannot listen at"):
        await HttpPort(cast("RunningFeed", FakeFeed()), "/", access()).listen([(host, free_port())])


async def test_it_listens_at_several_addresses_and_closes_all_of_them() -> None:
    feed = FakeFeed()
    ports = [free_port(), free_port()]
    server = HttpPort(cast("RunningFeed", feed), "/", access())
    await server.listen([("127.0.0.1", port) for port in ports])
    for port in ports:
        assert (await post(f"http://127.0.0.1:{port}"))[0] == 200
    await server.close()
    for port in ports:
        with pytest.raises(aiohttp.ClientConnectionError):
            await post(f"http://127.0.0.1:{port}")
