"""Bodies that are sent to harm a broker: they cost nobody else anything, and the cluster least of all."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from tests.support.in_process_broker import InProcessBroker, Listener, both
from tests.support.sparkless_cluster import SparklessCluster
from tests.support.waiting import WITHIN_S, until
from tests.unit.cluster.http.http_requests import error_in
from tocsin.broker.http import announcement_route, subscriber_routes
from tocsin.broker.http.subscriber_routes import with_user
from tocsin.wire.errors import InputError, LimitError


def forged(**more: str) -> dict[str, str]:
    signed = {"webhook-id": "x", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1,AAAA"}
    return {**signed, **more}


def head_of(headers: dict[str, str], length: int) -> bytes:
    said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/announcements HTTP/1.1\r\nHost: localhost\r\n{said}Content-Length: {length}\r\n\r\n".encode()


@asynccontextmanager
async def sending(
    made: InProcessBroker, data: bytes, address: str = "127.0.0.1"
) -> AsyncIterator[asyncio.StreamReader]:
    """Sends this much, and no more."""
    place = urlsplit(made.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, local_addr=(address, 0))
    try:
        writer.write(data)
        await writer.drain()
        yield reader
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("headers", [{}, forged(**{"webhook-timestamp": "1000000000"}), forged(**{"webhook-id": ""})])
async def test_what_is_not_signed_now_is_refused_before_its_body_is_read(
    cluster: Any, tmp_path: Path, headers: dict[str, str]
) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        async with sending(made, head_of(headers, 1_000_000)) as reader, asyncio.timeout(WITHIN_S):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.split()[1] == b"401"


async def test_announcements_are_neither_packed_nor_large(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        many = gzip.compress(b"") * 50_000
        packed = await made.ask("POST", "/v1/announcements", data=many, headers=forged(**{"Content-Encoding": "gzip"}))
        assert packed[0] == 415
        async with (
            sending(made, head_of(forged(), announcement_route.LIMIT_BYTES + 1)) as reader,
            asyncio.timeout(WITHIN_S),
        ):
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"413"


async def test_messages_that_are_not_the_clusters_do_not_make_the_broker_ask_it(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        before = await asked_for_announcements(here)
        for _ in range(50):
            assert (await made.ask("POST", "/v1/announcements", data=b"{}", headers=forged()))[0] == 401
        assert await asked_for_announcements(here) - before <= 2


async def asked_for_announcements(here: SparklessCluster) -> float:
    _, exposed = await here.ask("GET", "/metrics")
    return sum(
        float(line.split()[-1])
        for line in exposed.decode().splitlines()
        if line.startswith("tocsin_http_requests_total") and "/announcements" in line
    )


async def test_one_address_that_is_not_known_sends_only_so_often(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        answers = [
            await made.ask("POST", "/v1/announcements", data=b"{}", headers=forged())
            for _ in range(announcement_route.STRANGERS_BURST + 50)
        ]
        assert {status for status, _ in answers} == {401, 429}


async def test_strangers_who_send_slowly_fill_their_own_room_and_not_the_clusters(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c", push=True)
        held = await made.subscribe("ada", "v.c", 1)
        size = announcement_route.LIMIT_BYTES - 1
        slow = head_of(forged(), size + 1) + b"x" * size
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.parts.fan_out.listeners)
            await here.execute(channel, {int(held["interest"]): ["first"]})  # the cluster's address is known from now
            assert await ada.values_until(1) == ["first"]
            async with sending(made, slow, "127.0.0.2"), sending(made, slow, "127.0.0.3"):
                async with sending(made, slow, "127.0.0.2") as reader, asyncio.timeout(WITHIN_S):
                    status, said = error_in(await read_answer(reader))
                assert (status, said["code"]) == (429, "limit")
                await here.execute(channel, {int(held["interest"]): ["second", "x" * 500_000]})
                assert (await ada.values_until(3))[1] == "second"


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-length")]
    return head + await reader.readexactly(int(length))


# ---------------------------------------------------------------- publishing


@pytest.mark.parametrize(
    "body",
    [
        b'[{"at": 1, "user": "eve"}, {"at": 2}]',
        b'{"at": 1}\n\n{"at": 2, "user": "eve"}',
        b' [\n{"at": 1},\n{"at":\n2}]\n',
    ],
)
def test_the_user_is_written_into_every_record(body: bytes) -> None:
    records = [orjson.loads(line) for line in with_user(body, "user", "ada").splitlines()]
    assert records == [{"at": 1, "user": "ada"}, {"at": 2, "user": "ada"}]


def test_one_record_may_be_over_several_lines() -> None:
    assert orjson.loads(with_user(b'{\n"at":\n1}', "user", "ada")) == {"at": 1, "user": "ada"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'[{"at": 1}, 7]', "record 2: expected a JSON object"),
        (b'{"at": 1}\n{"at": }', "record 2:"),
        (b'[{"at": 1}, {"at": ', "record 2:"),
        (b'[{"at": 1}] x', "behind the array"),
    ],
)
def test_what_is_no_record_is_named(body: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_user(body, "user", "ada")


@pytest.mark.parametrize("body", [b"[" + b",".join([b"{}"] * 100_001) + b"]", b"{}\n" * 100_001])
def test_a_body_of_too_many_records_goes_no_further(body: bytes) -> None:
    with pytest.raises(LimitError, match="more than 100000 records"):
        with_user(body, "user", "ada")


async def test_records_are_read_beside_the_event_loop(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(body: bytes, field: str, user: str) -> bytes:
        threads.append(threading.get_ident())
        return with_user(body, field, user)

    monkeypatch.setattr(subscriber_routes, "with_user", noted)
    async with cluster as here, both(tmp_path / "broker", here, publish__user_field="user") as made:
        await made.ask("POST", "/v1/feeds/v.Nowhere", data=b"{}", user="ada")
    assert threads
    assert threading.get_ident() not in threads


def test_a_record_that_is_read_but_too_deep_to_be_written_is_refused() -> None:
    with pytest.raises(InputError, match="record 2"):
        with_user(b'{"a": 1}\n{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "user", "ada")
