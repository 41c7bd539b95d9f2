"""Webhooks: what a receiver is posted, and what its answers do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.broker_shell import Listener, both, broker, values
from tests.waiting import until
from tocsin.store.sqlite_broker import SqliteBrokerStore
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
        subscription = made.service.desk.subscription_of(1, int(held["interest"]))
        assert subscription is not None
        await until(lambda: made.service.machine.core.marker(subscription).execution == 2)
        await here.execute(channel, {int(held["interest"]): ["last"]})
        await until(lambda: made.service.figures.webhooks.get("gone"))
        await until(lambda: not made.service.presence.listeners)
        async with asyncio.timeout(20):
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
    ids = [one for _, one in got]
    assert ids[0] == ids[1]
    assert len(set(ids[1:])) == 6
    assert not any("." in one for one in ids), "a dot ends the id in what is signed"


async def test_a_webhook_that_is_put_while_another_ends_stays(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []
    removing, put = asyncio.Event(), asyncio.Event()
    remove = SqliteBrokerStore.remove_webhook

    async def late(self: SqliteBrokerStore, subscriber: int, **more: Any) -> bool:
        async def work() -> bool:
            removing.set()
            await put.wait()
            return await remove(self, subscriber, **more)

        # What the store has begun it does, whether or not somebody still waits for it.
        done.append(asyncio.ensure_future(work()))
        return await asyncio.shield(done[0])

    async def take(request: web.Request) -> web.Response:
        said = orjson.loads(await request.read())
        got.append(said["data"]["results"][0]["result"])
        return web.Response(status=410 if len(got) == 1 else 200)

    done: list[asyncio.Future[bool]] = []
    monkeypatch.setattr(SqliteBrokerStore, "remove_webhook", late)
    async with receiver(take) as url, cluster as here, both(tmp_path / "broker", here) as made:
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
        assert any("broker.webhooks.private" in str(one) for one in logs)
    assert got == []
