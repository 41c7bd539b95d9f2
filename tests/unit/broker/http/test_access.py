"""Who may do what, for how long, and how much of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.in_process_broker import PASSWORD, Listener, both, broker
from tests.support.waiting import WITHIN_S, until
from tocsin.serving.addresses import address_key, is_loopback
from tocsin.serving.rate_limit import TokenBucket


async def test_an_application_reaches_nothing_of_another(cluster: Any, tmp_path: Path) -> None:
    admin = "an operator's token"
    async with cluster as here, broker(tmp_path / "b", here.url, accounts__admin_token=admin) as made:
        await made.idle()
        await here.channel("c")
        await here.channel("d")
        tokens = {}
        for name in ("shop", "bank"):
            asked = {"name": name, "channels": ["v.c", "e"], "limits": {"subscriptions": 2}}
            status, said = await made.ask("POST", "/v1/applications", asked, token=admin)
            assert status == 201, said
            tokens[name] = said["token"]
        await made.user("ann", "shop", tokens["shop"])
        await made.user("ben", "bank", tokens["bank"])
        assert (await made.ask("GET", "/v1/subscribers/ann", token=tokens["shop"]))[1]["user"] == "ann"
        assert (await made.ask("GET", "/v1/subscribers/ann", token=tokens["bank"]))[0] == 404
        assert (await made.ask("GET", "/v1/subscribers?application=shop", token=tokens["bank"]))[0] == 403
        assert (await made.ask("GET", "/v1/subscribers", user="ann"))[0] == 403
        for place in ("/v1/applications", "/v1/policies", "/metrics"):
            assert (await made.ask("GET", place))[0] == 401
        assert (await made.ask("GET", "/v1/policies", token=tokens["shop"]))[0] == 403
        refused = await made.ask("POST", "/v1/subscriptions", {"channel": "v.d", "parameters": [1]}, user="ann")
        assert refused[0] == 403
        assert [channel["name"] for channel in (await made.ask("GET", "/v1/channels", user="ann"))[1]["channels"]] == [
            "v.c"
        ]
        for n in range(2):
            await made.subscribe("ann", "v.c", n)
        many = await made.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [9]}, user="ann")
        assert (many[0], many[1]["error"]["code"]) == (429, "limit")
        assert len(made.parts.subscriptions.index) == 2, "the cluster was not asked for it"
        assert (await made.subscribe("ann", "v.c", 1))["parameters"] == [1]
        changed = {"limits": {"subscriptions": 3}}
        assert (await made.ask("PATCH", "/v1/applications/shop", changed, token=admin))[1]["channels"] == [
            "v.c",
            "Default.e",
        ]
        await made.subscribe("ann", "v.c", 9)
        assert (await made.ask("DELETE", "/v1/applications/shop", token=admin))[0] == 200
        assert (await made.ask("GET", "/v1/subscriptions", user="ann"))[0] == 401
        assert made.parts.subscriptions.count == 0


async def test_the_operator_on_loopback_registers_into_any_application(cluster: Any, tmp_path: Path) -> None:
    ann = {"user": "ann", "password": PASSWORD, "application": "shop"}
    async with cluster as here, broker(tmp_path / "b", here.url) as made:
        await made.ask("POST", "/v1/applications", {"name": "shop"})
        assert await made.ask("POST", "/v1/register", ann) == (201, {"user": "ann", "application": "shop"})
        # A token that is not good is not taken for none.
        assert (await made.ask("POST", "/v1/register", {**ann, "user": "ben"}, token="x"))[0] == 401
        await made.login("ann", "shop")
        assert (await made.ask("POST", "/v1/register", {**ann, "user": "ben"}, user="ann"))[0] == 403
    async with broker(tmp_path / "b", here.url, accounts__admin_token="an operator's") as made:
        assert (await made.ask("POST", "/v1/register", {**ann, "user": "ben"}))[0] == 403
        assert (await made.ask("POST", "/v1/register", {**ann, "user": "ben"}, token="an operator's"))[0] == 201


async def test_no_web_page_operates_a_broker_by_a_name_that_leads_to_this_machine(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, broker(tmp_path / "b", here.url) as made:
        port = made.url.rpartition(":")[2]
        for host, origin, expected in (
            (f"evil.example:{port}", f"http://evil.example:{port}", 403),
            (f"evil.example:{port}", None, 403),
            (f"localhost:{port}", f"http://evil.example:{port}", 403),
            (f"localhost:{port}", f"http://localhost:{port}", 401),
            (f"[::1]:{port}", None, 201),
        ):
            headers = {"Host": host} if origin is None else {"Host": host, "Origin": origin}
            asked = {"name": f"{host} {origin}"}
            status, said = await made.ask("POST", "/v1/applications", asked, headers=headers)
            assert status == expected, said
            assert expected == 201 or host.startswith("localhost") or "admin_token" in said["error"]["hint"]
    async with broker(tmp_path / "b", here.url, accounts__admin_token="an operator's") as made:
        # Behind a proxy it may be called anything: nobody operates it without the token.
        assert (await made.ask("GET", "/healthz", headers={"Host": "broker.example"}))[0] == 200
        assert (await made.ask("GET", "/v1/applications", headers={"Host": "broker.example"}))[0] == 401


async def test_nobody_operates_a_broker_through_a_proxy_without_its_token(cluster: Any, tmp_path: Path) -> None:
    credentials = {"user": "ann", "password": PASSWORD}
    async with cluster as here, both(tmp_path / "b", here) as made:
        for headers in ({"Via": "1.1 x"}, {"X-Forwarded-Proto": "https"}, {"Forwarded": "for=x"}, {"X-Real-IP": "::1"}):
            for place in ("/v1/applications", "/v1/policies", "/metrics", "/v1/subscribers/ada"):
                status, said = await made.ask("GET", place, headers=headers)
                assert (status, "admin_token" in said["error"]["hint"]) == (401, True), place
            stolen = await made.ask("PUT", "/v1/subscribers/ada/password", {"password": "mallory's"}, headers=headers)
            assert stolen[0] == 401
            # Registration is open to programs of this machine, and through a proxy only where that was said.
            assert (await made.ask("POST", "/v1/register", credentials, headers=headers))[0] == 403
            # By its own name, too: what a subscriber may do it may do from everywhere.
            named = {**headers, "Host": "broker.example"}
            assert (await made.ask("GET", "/v1/subscriptions", user="ada", headers=named))[0] == 200
            assert (await made.ask("GET", "/healthz", headers=named))[0] == 200
    async with broker(tmp_path / "b", here.url, accounts__registration="open") as made:
        assert (await made.ask("POST", "/v1/register", credentials, headers={"Via": "1.1 x"}))[0] == 201


async def test_pages_that_may_use_a_broker_do_not_operate_it(cluster: Any, tmp_path: Path) -> None:
    page = {"Origin": "https://page.example"}
    async with cluster as here, both(tmp_path / "b", here, http__origins="*") as made:
        assert (await made.ask("GET", "/v1/subscriptions", user="ada", headers=page))[0] == 200
        for method, place, said in (
            ("GET", "/metrics", None),
            ("GET", "/v1/applications", None),
            ("POST", "/v1/applications", {"name": "evil"}),
            ("PUT", "/v1/subscribers/ada/password", {"password": "mallory's own"}),
            ("DELETE", "/v1/subscribers/ada", None),
        ):
            assert (await made.ask(method, place, said, headers=page))[0] == 401, place
        # Registering is open to everybody here: no more than that, though, not into other applications.
        ann = {"user": "ann", "password": PASSWORD}
        await made.ask("POST", "/v1/applications", {"name": "shop"})
        assert (await made.ask("POST", "/v1/register", {**ann, "application": "shop"}, headers=page))[0] == 403
        assert (await made.ask("POST", "/v1/register", ann, headers=page))[0] == 201


async def test_logins_are_limited_for_each_client_of_a_trusted_proxy(cluster: Any, tmp_path: Path) -> None:
    limits = {"limits__logins_burst": 1, "limits__logins_per_s": 1, "http__trusted_proxies": "127.0.0.1"}
    wrong = {"user": "ada", "password": "wrong password"}
    async with cluster as here, broker(tmp_path / "b", here.url, **limits) as made:
        for expected in (401, 429):
            for client in ("198.51.100.1", "198.51.100.2"):
                headers = {"X-Forwarded-For": f"203.0.113.7, {client}"}
                assert (await made.ask("POST", "/v1/login", wrong, headers=headers))[0] == expected


async def test_a_subscriber_changes_its_password_who_knows_the_old_one(cluster: Any, tmp_path: Path) -> None:
    admin = "an operator's token"
    async with cluster as here, broker(tmp_path / "b", here.url, accounts__admin_token=admin) as made:
        _, shop = await made.ask("POST", "/v1/applications", {"name": "shop"}, token=admin)
        ann = {"user": "ann", "password": "first secret"}
        assert await made.ask("POST", "/v1/register", ann, token=shop["token"]) == (
            201, {"user": "ann", "application": "shop"},
        )  # fmt: skip
        _, said = await made.ask("POST", "/v1/login", {**ann, "application": "shop"})
        place = "/v1/subscribers/ann/password"
        for wrong in ({}, {"old": "wrong secret"}):
            changed = await made.ask("PUT", place, {"password": "second secret", **wrong}, token=said["token"])
            assert changed[0] == 401
        changed = await made.ask(
            "PUT", place, {"password": "second secret", "old": "first secret"}, token=said["token"]
        )
        assert changed == (200, {})
        assert (await made.ask("POST", "/v1/login", {**ann, "application": "shop"}))[0] == 401
        again = {"user": "ann", "password": "second secret", "application": "shop"}
        assert (await made.ask("POST", "/v1/login", again))[0] == 200


async def test_logging_out_ends_the_connections_of_that_session(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        old = made.tokens["ada"]
        renewed = (await made.ask("POST", "/v1/token", user="ada"))[1]["token"]
        other = await made.login("ada")
        async with (
            Listener(made.url, old) as first,
            Listener(made.url, renewed) as second,
            Listener(made.url, other) as third,
        ):
            await until(lambda: made.parts.connections.count == 3)
            assert (await made.ask("POST", "/v1/logout", token=old))[0] == 200
            for ended in (first, second):
                await ended.until(lambda ended=ended: ended.close_code == 4401)
            assert third.close_code is None
            for token, expected in ((old, 401), (renewed, 401), (other, 200)):
                assert (await made.ask("GET", "/v1/subscriptions", token=token))[0] == expected


async def test_another_password_ends_every_connection(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        place, new = "/v1/subscribers/ada/password", {"password": "another good one"}
        assert (await made.ask("PUT", place, new, user="ada"))[0] == 401
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.parts.connections.count == 1)
            assert (await made.ask("PUT", place, {**new, "old": PASSWORD}, user="ada"))[0] == 200
            await ada.until(lambda: ada.close_code == 4401)
        assert (await made.ask("GET", "/v1/subscriptions", user="ada"))[0] == 401


async def test_limits_are_told_clearly(cluster: Any, tmp_path: Path) -> None:
    limits = {"limits__connections": 1, "limits__requests_burst": 5, "limits__requests_per_s": 1}
    async with cluster as here, both(tmp_path / "broker", here, **limits) as made:
        async with Listener(made.url, made.tokens["ada"]) as ada, Listener(made.url, made.tokens["ada"]) as more:
            await more.until(lambda: more.close_code == 4429)
            assert more.errors[0]["code"] == "limit"
            for _ in range(25):
                await ada.socket.send_str("garbage")
            await ada.until(lambda: ada.close_code == 1008)
            assert {error["code"] for error in ada.errors} == {"bad_request"}
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {made.tokens['ada']}"}) as session:
            statuses = []
            for _ in range(7):
                async with session.get(f"{made.url}/v1/subscriptions") as answer:
                    statuses.append((answer.status, answer.headers.get("Retry-After")))
        assert (429, "1") in statuses
        assert statuses[0] == (200, None)


async def test_a_message_that_is_too_large_ends_the_connection_with_the_reason(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, limits__message_bytes=300) as made:
        headers = {"Authorization": f"Bearer {made.tokens['ada']}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(f"{made.url}/v1/stream", autoclose=False) as socket,
        ):
            await socket.send_str("x" * 301)
            closed = await socket.receive()
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1009)
    assert closed.extra == "a message was larger than broker.limits.message_bytes"


async def test_connections_of_one_address_are_limited(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, http__address_connections_limit=3) as made:
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in range(4)]
            answers = [await stack.enter_async_context(session.get(f"{made.url}/healthz")) for session in sessions]
            # The cluster may have one of the three.
            assert {answer.status for answer in answers} == {200, 429}
            refused = answers[-1]
            assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
            error = (await refused.json())["error"]
            assert (error["code"], error["message"]) == ("limit", "127.0.0.1 has 3 connections already")
        async with asyncio.timeout(WITHIN_S):
            while (await made.ask("GET", "/healthz"))[0] != 200:
                await asyncio.sleep(0)


def test_an_address_is_one_whatever_it_is_called() -> None:
    assert address_key("10.0.0.7") == address_key("::ffff:10.0.0.7") == "10.0.0.7"
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:0:0:9%eth0") != address_key("2001:db8:0:1::1")
    assert address_key(None) == address_key("") == "unknown"
    assert [is_loopback(text) for text in ("127.0.0.1", "::1", "::ffff:127.0.0.2", "10.0.0.7", None)] == [True] * 3 + [
        False
    ] * 2


async def test_a_connection_ends_with_its_token(cluster: Any, tmp_path: Path) -> None:
    async with (
        cluster as here,
        both(tmp_path / "broker", here, accounts__token_s=3.0) as made,
        Listener(made.url, made.tokens["ada"]) as ada,
    ):
        await ada.until(lambda: ada.close_code == 4401)


def test_asking_for_much_counts_for_more() -> None:
    bucket = TokenBucket(per_s=10, burst=5, now_s=0.0)
    # More than there ever are at once is taken when all are there, and owed.
    assert [bucket.try_take(0.0, 8.0), bucket.try_take(0.0)] == [0.0, pytest.approx(0.4)]
    assert bucket.try_take(0.4) == 0.0


async def test_a_webhook_that_is_aimed_at_a_broker_does_nothing(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "b", here) as made, aiohttp.ClientSession() as session:
        given = {"user": "mallory", "password": PASSWORD}
        for path in ("/v1/register", "/v1/login", "/v1/subscriptions", "/v1/feeds/News", "/v1/nothing"):
            async with session.post(made.url + path, json=given, headers={"webhook-id": "x"}) as answer:
                assert (answer.status, "webhook-id" in await answer.text()) == (403, True), path
        assert (await made.ask("POST", "/v1/register", given))[0] == 201
