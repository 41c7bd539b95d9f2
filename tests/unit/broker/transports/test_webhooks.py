"""Webhooks: what a receiver is posted, and what its answers do."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.support.in_process_broker import PASSWORD, InProcessBroker, Listener, both, broker, values
from tests.support.waiting import WITHIN_S, until
from tocsin.broker.accounts.sessions import SessionTokens
from tocsin.broker.transports.webhooks import WebhookConnections
from tocsin.clock import now_us
from tocsin.serving.name_resolver import NameResolver
from tocsin.settings.broker import WebhookSettings
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.signatures import verify


@asynccontextmanager
async def receiver(take: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """Listens for messages; its address."""
    app = web.Application()
    app.add_routes([web.post("/hook", take)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    finally:
        await runner.cleanup()


async def test_webhooks_are_signed_tried_again_and_acknowledged(cluster: Any, tmp_path: Path) -> None:
    got: list[tuple[dict[str, str], bytes]] = []
    answers = [500, 200, 200, 410]

    async def take(request: web.Request) -> web.Response:
        got.append((dict(request.headers), await request.read()))
        return web.Response(status=answers.pop(0))

    quick = {"webhooks__first_retry_s": 0.01}
    async with receiver(take) as url, cluster as here, both(tmp_path / "broker", here, **quick) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        status, said = await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada")
        assert (status, said["url"]) == (200, url)
        for n in range(2):
            await here.execute(channel, {int(held["interest"]): [n]})
            await until(lambda n=n: len(got) == n + 2)
        ids = [verify(said["secret"], {k.lower(): v for k, v in h.items()}, b, now_s=time.time()) for h, b in got]
        assert ids[0] == ids[1] != ids[2]
        assert values([orjson.loads(body) for _, body in got[1:]]) == [0, 1]
        subscription = made.parts.subscriptions.subscription_of(1, int(held["interest"]))
        assert subscription is not None
        await until(lambda: made.parts.runtime.core.marker(subscription).execution == 2)
        await here.execute(channel, {int(held["interest"]): ["last"]})
        await until(lambda: made.parts.counters.webhooks.get("gone"))
        await until(lambda: not made.parts.fan_out.listeners)
        async with asyncio.timeout(WITHIN_S):
            while (await made.ask("GET", "/v1/webhook", user="ada"))[0] != 404:
                await asyncio.sleep(0.01)
        bad = await made.ask("PUT", "/v1/webhook", {"url": "ftp://x"}, user="ada")
        assert bad[0] == 400


async def test_every_event_has_an_id_of_its_own_and_one_that_is_told_again_the_same(
    cluster: Any, tmp_path: Path
) -> None:
    got: list[tuple[str, str]] = []
    answers = [500]

    async def take(request: web.Request) -> web.Response:
        got.append((orjson.loads(await request.read())["type"], request.headers["webhook-id"]))
        return web.Response(status=answers.pop() if answers else 200)

    quick = {"webhooks__first_retry_s": 0.01}
    async with receiver(take) as url, cluster as here, both(tmp_path / "broker", here, **quick) as made:
        channel = await here.channel("c")
        await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada")
        for round_ in range(2):
            held = await made.subscribe("ada", "v.c", 1, mode="notify")
            # The very first is refused once, and told again.
            before = len(got) + (round_ == 0)
            for n in range(2):
                await here.execute(channel, {int(held["interest"]): [n]})
                await until(lambda wanted=before + n + 1: len(got) == wanted)
            for channels in ([], None):
                assert (await made.ask("PATCH", "/v1/applications/default", {"channels": channels}))[0] == 200
            await until(lambda wanted=before + 3: len(got) == wanted)
    kinds = ["tocsin.available", "tocsin.available", "tocsin.ended"]
    assert [kind for kind, _ in got] == [kinds[0], *kinds, *kinds]
    ids = [item for _, item in got]
    assert ids[0] == ids[1]
    assert len(set(ids[1:])) == 6
    assert not any("." in identity for identity in ids), "a dot ends the id in what is signed"


async def test_a_webhook_that_is_put_while_another_ends_stays(cluster: Any, tmp_path: Path) -> None:
    got: list[int] = []
    removing, put = asyncio.Event(), asyncio.Event()

    class LateRemovals(SqliteBrokerStore):
        async def remove_webhook(self, subscriber: int, **more: Any) -> bool:  # type: ignore[override]
            remove = super().remove_webhook

            async def work() -> bool:
                removing.set()
                await put.wait()
                return await remove(subscriber, **more)

            # The store completes a write, even if its caller no longer waits for it.
            done.append(asyncio.ensure_future(work()))
            return await asyncio.shield(done[0])

    async def take(request: web.Request) -> web.Response:
        said = orjson.loads(await request.read())
        got.append(said["data"]["results"][0]["result"])
        return web.Response(status=410 if len(got) == 1 else 200)

    done: list[asyncio.Future[bool]] = []
    late = {"store_type": LateRemovals}
    async with receiver(take) as url, cluster as here, both(tmp_path / "broker", here, **late) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada")
        await here.execute(channel, {int(held["interest"]): [1]})
        await removing.wait()
        assert (await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada"))[0] == 200
        put.set()
        assert await done[0] is False
        assert (await made.ask("GET", "/v1/webhook", user="ada")) == (200, {"url": url})
        await here.execute(channel, {int(held["interest"]): [2]})
        await until(lambda: got[-1] == 2)
        assert got == [1, 1, 2], "what was not taken comes to the new one"


async def test_behind_a_proxy_receivers_are_public_although_the_broker_is_on_loopback(
    cluster: Any, tmp_path: Path
) -> None:
    chosen = {"http__trusted_proxies": "127.0.0.1", "accounts__registration": "open"}
    async with cluster as here, broker(tmp_path / "broker", here.url, **chosen) as made:
        assert (await made.ask("POST", "/v1/register", {"user": "ada", "password": PASSWORD}))[0] == 201
        await made.login("ada")
        for url in ("http://169.254.169.254/latest/", "http://10.0.0.1/", "http://127.0.0.1:1/"):
            status, answer = await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada")
            assert (status, "broker.webhooks.private" in answer["error"]["hint"]) == (400, True)


async def test_a_webhook_from_when_private_networks_were_allowed_is_looked_at_again(
    cluster: Any, tmp_path: Path
) -> None:
    got: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.Response()

    async with receiver(take) as url, cluster as here:
        async with both(tmp_path / "broker", here) as made:
            assert (await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada"))[0] == 200
            channel = await here.channel("c")
            held = await made.subscribe("ada", "v.c", 1)
        with capture_logs() as logs:
            async with broker(tmp_path / "broker", here.url, webhooks__private="refused") as made:
                await made.idle()
                await made.login("ada")
                await here.execute(channel, {int(held["interest"]): [1]})
                async with Listener(made.url, made.tokens["ada"]) as ada:
                    assert await ada.values_until(1) == [1]
                for there in (url, "http://127.1:1/", "http://2130706433/", "http://[::ffff:127.0.0.1]/"):
                    status, said = await made.ask("PUT", "/v1/webhook", {"url": there}, user="ada")
                    assert (status, "broker.webhooks.private" in said["error"]["hint"]) == (400, True)
        assert any("broker.webhooks.private" in str(log) for log in logs)
    assert got == []


@asynccontextmanager
async def silent_receiver() -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Accepts connections and answers none. Yields its address, and the connections it has had."""
    connections: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", connections
    finally:
        server.close()
        for writer in connections:
            writer.transport.abort()


async def told_by_webhook(made: InProcessBroker, prefix: str, count: int, url: str) -> None:
    """Makes `count` further subscribers of v.c(1). No password is checked: that would take longer than all the rest."""
    tokens = SessionTokens(made.parts.store, 3_600.0, 3_600.0, now_us)
    await tokens.open()
    (application,) = await made.parts.store.applications()
    for n in range(count):
        one = await made.parts.store.add_subscriber(application.id, f"{prefix}{n}", password="#", created_us=1)
        made.tokens[one.user], _ = tokens.issue(one.id, now_us())
        await made.subscribe(one.user, "v.c", 1)
        assert (await made.ask("PUT", "/v1/webhook", {"url": url}, user=one.user))[0] == 200


async def test_silent_receivers_of_200_accounts_delay_nobody_else(cluster: Any, tmp_path: Path) -> None:
    """The timeout of a receiver is an hour: a message that waited for a silent one would wait for ever."""
    got: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        got.append(orjson.loads(await request.read())["data"]["results"][0]["result"])
        return web.Response()

    patient = {"webhooks__timeout_s": 3_600.0}
    async with (
        receiver(take) as url,
        silent_receiver() as (silent, connections),
        cluster as here,
        both(tmp_path / "broker", here, **patient) as made,
    ):
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await told_by_webhook(made, "silent", 200, silent)
        await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada")
        for n in range(3):
            await here.execute(channel, {interest: [n]})
            await until(lambda n=n: got == list(range(n + 1)))
        await until(lambda: len(connections) == made.parts.settings.webhooks.host_connections)
        counters = made.parts.counters
        await until(lambda: counters.webhooks_waiting == 200 - len(connections) and counters.webhooks.get("taken") == 3)
        assert "failed" not in counters.webhooks, "nobody has failed for want of a connection"


async def test_waiting_for_a_connection_is_not_the_receivers_time(cluster: Any, tmp_path: Path) -> None:
    release, got = asyncio.Event(), 0

    async def take(_request: web.Request) -> web.Response:
        nonlocal got
        got += 1
        await release.wait()
        return web.Response()

    one_by_one = {"webhooks__host_connections": 1, "webhooks__timeout_s": 30.0}
    async with receiver(take) as url, cluster as here, both(tmp_path / "broker", here, **one_by_one) as made:
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await told_by_webhook(made, "slow", 5, url)
        await here.execute(channel, {interest: ["x"]})
        await until(lambda: made.parts.counters.webhooks_waiting == 4 and got == 1)
        release.set()
        await until(lambda: made.parts.counters.webhooks.get("taken") == 5)
        assert "failed" not in made.parts.counters.webhooks


async def test_back_off_is_kept_whatever_webhook_is_put(cluster: Any, tmp_path: Path) -> None:
    got = 0

    async def take(_request: web.Request) -> web.Response:
        nonlocal got
        got += 1
        return web.Response(status=500)

    patient = {"webhooks__first_retry_s": 3_600.0, "webhooks__last_retry_s": 3_600.0}
    async with receiver(take) as url, cluster as here, both(tmp_path / "broker", here, **patient) as made:
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada")
        await here.execute(channel, {interest: ["x"]})
        await until(lambda: made.parts.counters.webhooks.get("failed") == 1)
        for method, said in (("PUT", {"url": f"{url}?2"}), ("DELETE", None), ("PUT", {"url": url})):
            assert (await made.ask(method, "/v1/webhook", said, user="ada"))[0] == 200
        await here.execute(channel, {interest: ["y"]})
        await until(lambda: made.parts.runtime.core.caches[interest].head[1] == 2)
        await asyncio.sleep(0.05)  # in which it would have been tried
        assert got == 1


async def test_places_are_shared_out_by_application_and_host() -> None:
    settings = WebhookSettings(connections=10, application_connections=4, host_connections=2)
    waiting = Counter[str]()
    count_waiting = lambda change: waiting.update(webhooks=change)  # noqa: E731
    connections, stop = WebhookConnections(settings, count_waiting), asyncio.Event()
    running: Counter[Any] = Counter()

    async def post(application: int, host: str, *, failing: bool = False) -> None:
        async with connections.slot(application, host, failing=failing):
            running[application, host, failing] += 1
            await stop.wait()

    posts = [asyncio.create_task(post(1, "silent")) for _ in range(100)]
    posts += [asyncio.create_task(post(1, f"host{n}", failing=True)) for n in range(100)]
    await until(lambda: waiting["webhooks"] == 200 - 3)
    assert running == {(1, "silent", False): 2, (1, "host0", True): 1}
    posts += [asyncio.create_task(post(of, host)) for of in (1, 2) for host in ("silent", "other")]
    await until(lambda: sum(running.values()) == 6)
    assert running[2, "silent", False] == running[2, "other", False] == running[1, "other", False] == 1
    stop.set()
    await asyncio.gather(*posts)
    assert (waiting["webhooks"], connections.applications) == (0, 0)


class SlowNames:
    """A name server: it says of every name that it is this machine, but of `slow` ones only when it is let to."""

    def __init__(self) -> None:
        self.let, self.asked = threading.Event(), Counter[str]()

    def look_up(self, host: str, port: int, **_options: Any) -> list[Any]:
        self.asked[host] += 1
        if host.startswith("slow"):
            self.let.wait(WITHIN_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


@pytest.fixture
def slow_names() -> Iterator[SlowNames]:
    names = SlowNames()
    try:
        yield names
    finally:
        names.let.set()


async def test_a_name_server_that_does_not_answer_delays_no_other_receiver(
    cluster: Any, tmp_path: Path, slow_names: SlowNames
) -> None:
    got: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        got.append(request.url.host)
        return web.Response()

    resolver = NameResolver(slow_names.look_up)
    async with receiver(take) as url, cluster as here, both(tmp_path / "broker", here, resolver=resolver) as made:
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        for number in range(40):
            await told_by_webhook(made, f"slow{number}-", 1, url.replace("127.0.0.1", f"slow{number}.test"))
        await made.ask("PUT", "/v1/webhook", {"url": url.replace("127.0.0.1", "quick.test")}, user="ada")
        await here.execute(channel, {interest: ["x"]})
        await until(lambda: got == ["quick.test"] and len(slow_names.asked) == 41)
        slow_names.let.set()
        await until(lambda: made.parts.counters.webhooks.get("taken") == 41)
        assert "failed" not in made.parts.counters.webhooks


async def test_looking_up_a_name_is_not_the_receivers_time(cluster: Any, tmp_path: Path, slow_names: SlowNames) -> None:
    """The receiver takes nearly all of its time, after a name server that did the same."""
    looked_up = asyncio.Event()

    async def take(_request: web.Request) -> web.Response:
        looked_up.set()
        await asyncio.sleep(0.6 * timeout_s)
        return web.Response()

    timeout_s, resolver = 6.0, NameResolver(slow_names.look_up)
    async with (
        receiver(take) as url,
        cluster as here,
        both(tmp_path / "broker", here, webhooks__timeout_s=timeout_s, resolver=resolver) as made,
    ):
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await made.ask("PUT", "/v1/webhook", {"url": url.replace("127.0.0.1", "slow.test")}, user="ada")
        await here.execute(channel, {interest: ["x"]})
        await until(lambda: slow_names.asked["slow.test"])
        await asyncio.sleep(0.6 * timeout_s)
        slow_names.let.set()
        await until(lambda: made.parts.counters.webhooks.get("taken") == 1)
        assert looked_up.is_set()
        assert "failed" not in made.parts.counters.webhooks
