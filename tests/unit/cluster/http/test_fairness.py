"""One client cannot keep the others from what they want: bodies, places, connections and answers have limits each."""

from __future__ import annotations

import asyncio
import gzip
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.fake_cluster import FakeStatements, serving
from tests.support.waiting import WITHIN_S
from tests.unit.cluster.http.http_requests import ask, error_in, raw
from tocsin.cluster.engine.work_threads import WorkThreads
from tocsin.cluster.http.script_responses import StatementLimits
from tocsin.cluster.statements.outcomes import StatementOutcome
from tocsin.serving.limits import GZIP_MEMBERS_LIMIT, GzipReader, MemoryBudget, WaitingLine
from tocsin.settings import StatementSettings
from tocsin.wire.errors import InputError, LimitError

EMPTY_MEMBER = gzip.compress(b"")


def holder(name: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer tocsin_{name}", **more}


@asynccontextmanager
async def unread(url: str, script: str, *, local: str = "127.0.0.1", **headers: str) -> AsyncIterator[None]:
    """A client that asks for a stream and never reads any of it."""
    place = urlsplit(url)
    said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    _, writer = await asyncio.open_connection(place.hostname, place.port, limit=1, local_addr=(local, 0))
    writer.write(
        f"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n{said}"
        f"Content-Length: {len(script)}\r\n\r\n{script}".encode()
    )
    try:
        yield
    finally:
        writer.transport.abort()


async def until_none_runs(url: str, **headers: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while (await ask(url, "GET", headers=headers))[1]["running"]:
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- gzip


def unpacked(body: bytes, step: int = 1_000) -> bytes:
    reader, made = GzipReader(body), b""
    while not reader.is_done:
        made += reader.read(step)
    return made


@pytest.mark.parametrize("step", [1, 999, 1 << 20])
@pytest.mark.parametrize("text", [b"", b"a", b"some words " * 300])
def test_a_body_of_one_or_some_members_unpacks_to_what_was_packed(text: bytes, step: int) -> None:
    assert unpacked(gzip.compress(text), step) == text
    assert unpacked(gzip.compress(text) + EMPTY_MEMBER + gzip.compress(b"more"), step) == text + b"more"


@pytest.mark.parametrize("cut", [1, 9, 12, 40, -1])
def test_half_of_a_gzip_file_is_refused(cut: int) -> None:
    with pytest.raises(InputError, match="half of a gzip file"):
        unpacked(gzip.compress(bytes(range(256)))[:cut])
    with pytest.raises(InputError, match="half of a gzip file"):
        unpacked(EMPTY_MEMBER + gzip.compress(bytes(range(256)))[:cut])


def test_a_body_has_only_so_many_members() -> None:
    assert unpacked(EMPTY_MEMBER * GZIP_MEMBERS_LIMIT) == b""
    with pytest.raises(LimitError, match=f"more than {GZIP_MEMBERS_LIMIT} gzip files"):
        unpacked(EMPTY_MEMBER * (GZIP_MEMBERS_LIMIT + 1))


async def test_a_body_is_unpacked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def read(self: GzipReader, most_bytes: int) -> bytes:
        threads.add(threading.get_ident())
        return plain(self, most_bytes)

    plain = GzipReader.read
    monkeypatch.setattr(GzipReader, "read", read)
    async with serving(FakeStatements()) as url:
        packed = gzip.compress(b'{"id": 1}')
        status, said, _ = await ask(url, path="/v1/feeds/F", data=packed, headers={"Content-Encoding": "gzip"})
        assert (status, said["accepted"]) == (200, 1)
        status, said, _ = await ask(
            url, path="/v1/feeds/F", data=EMPTY_MEMBER * 100_000, headers={"Content-Encoding": "gzip"}
        )
        assert (status, said["error"]["code"]) == (413, "limit")
    assert threads
    assert threading.get_ident() not in threads


# ---------------------------------------------------------------- bytes


def test_one_caller_has_only_its_share_of_a_room_and_gives_it_back() -> None:
    refused: list[str] = []
    room = MemoryBudget(100, free_bytes=10, own_limit_bytes=50, refused=refused.append)
    with room.share("ann") as first, room.share("ann") as second, room.share("bob") as other:
        first(40)
        with pytest.raises(LimitError, match="of ann may take 50 bytes") as caught:
            second(50)
        assert (caught.value.status, caught.value.details["retry_after_s"]) == (429, 1)
        second(30)
        other(60)
        assert room.taken_bytes == 100
        first(20)
        assert room.taken_bytes == 80
        with pytest.raises(LimitError, match="the bodies on their way may take 100 bytes"), room.share("eve") as third:
            third(40)
    assert room.taken_bytes == 0
    assert refused == ["body bytes of one caller", "body bytes"]
    with room.share("ann") as again:
        again(60)


async def test_bodies_of_scripts_that_wait_are_bounded_in_bytes_for_each_token() -> None:
    fake = FakeStatements()
    large = "wait;" + " " * 1_000_000
    async with (
        serving(fake, auth="on", body_limit_bytes=1 << 20, bodies_limit_bytes=4 << 20) as url,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(2):
            headers = holder("cy", **{"Tocsin-Request-Id": f"large{number}"})
            tasks.create_task(ask(url, data=large, headers=headers))
        await fake.until(lambda it: it.waiting == 2)
        status, said, headers = await ask(url, data=large, headers=holder("cy"))
        assert (status, headers["Retry-After"]) == (429, "1")
        assert "of the token cy may take" in said["error"]["message"]
        assert (await ask(url, data="insert 1; " + " " * 1_000_000, headers=holder("bob")))[0] == 200
        assert (await ask(url, data="rows 1", headers=holder("cy")))[0] == 200
        exposed = (await ask(url, "GET", "/metrics", headers=holder("ada")))[1].decode()
        assert 'tocsin_http_refused_total{limit="body bytes of one caller"} 1.0' in exposed
        for number in range(2):
            await ask(url, "DELETE", f"/v1/statements/large{number}", headers=holder("cy"))


async def test_a_request_in_json_holds_only_so_many_values() -> None:
    async with serving(FakeStatements()) as url:
        many = b"[" + b",".join([b"[]"] * 1_100_000) + b"]"
        status, said, _ = await ask(url, path="/v1/results:fetch", data=many)
        assert (status, said["error"]["code"]) == (413, "limit")
        assert "values" in said["error"]["message"]


# ---------------------------------------------------------------- places


async def test_a_line_lets_one_caller_have_only_its_slots_and_others_pass_it_by() -> None:
    refused: list[str] = []
    gate = WaitingLine(2, 3, own_inside=1, own_waiting=1, refused=refused.append)
    order: list[str] = []
    leave = asyncio.Event()

    async def pass_as(who: str) -> None:
        async with gate.hold_slot(who):
            order.append(who)
            await leave.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pass_as("ann"))
        tasks.create_task(pass_as("ann"))
        tasks.create_task(pass_as("bob"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (order, gate.inside, gate.waiting) == (["ann", "bob"], 2, 1)
        with pytest.raises(LimitError, match="1 scripts of ann are running and 1 are waiting") as caught:
            await pass_as("ann")
        assert caught.value.status == 429
        tasks.create_task(pass_as("eve"))
        leave.set()
    assert sorted(order) == ["ann", "ann", "bob", "eve"]
    assert (gate.inside, gate.waiting) == (0, 0)
    assert refused == ["scripts of one caller"]


async def test_who_is_back_for_the_rest_of_a_request_waits_though_the_queue_is_full() -> None:
    gate, order = WaitingLine(1, 0), []

    async def come_back() -> None:
        async with gate.hold_slot(is_back=True):
            order.append("back")

    async with asyncio.TaskGroup() as tasks, gate.hold_slot():
        tasks.create_task(come_back())
        await asyncio.sleep(0)
        with pytest.raises(LimitError):
            await gate.hold_slot().__aenter__()
        order.append("first")
    assert order == ["first", "back"]


async def test_one_token_cannot_take_all_places() -> None:
    fake = FakeStatements()
    limits = StatementLimits(30, 10, concurrent=4, waiting=4)
    async with serving(fake, limits=limits, auth="on") as url, asyncio.TaskGroup() as tasks:
        asking: list[Any] = []
        for number in range(6):
            headers = holder("cy", **{"Tocsin-Request-Id": f"cy{number}"})
            asking.append(tasks.create_task(ask(url, data="wait", headers=headers)))
        await fake.until(lambda it: it.waiting == 3)
        assert (await ask(url, data="insert 1", headers=holder("bob")))[0] == 200
        for number in range(6):
            await ask(url, "DELETE", f"/v1/statements/cy{number}", headers=holder("cy"))


async def test_scripts_of_one_token_wait_for_each_other_and_for_nobody_else() -> None:
    fake = FakeStatements()
    limits = StatementLimits.of(StatementSettings(), 2)
    async with serving(fake, limits=limits, auth="on") as url, asyncio.TaskGroup() as tasks:
        for number in range(16):
            headers = holder("cy", **{"Tocsin-Request-Id": f"cy{number}"})
            tasks.create_task(ask(url, data="wait", headers=headers))
        async with asyncio.timeout(WITHIN_S):
            while len((await ask(url, "GET", headers=holder("cy")))[1]["running"]) < 16:
                await asyncio.sleep(0.01)
        await fake.until(lambda it: it.waiting == 2)
        assert len(fake.scripts) == 2
        assert (await ask(url, data="insert 1", headers=holder("bob")))[0] == 200
        for number in reversed(range(16)):
            await ask(url, "DELETE", f"/v1/statements/cy{number}", headers=holder("cy"))


class DeafStatements(FakeStatements):
    """Of its statements `deaf` does not end before it is let to."""

    def __init__(self, threads: WorkThreads, pool: ThreadPoolExecutor) -> None:
        super().__init__()
        self.threads, self.pool, self.let = threads, pool, threading.Event()
        self.begun: set[int] = set()

    def _deaf(self) -> None:
        self.begun.add(threading.get_ident())
        self.let.wait()

    async def run(self, script: str, **options: Any) -> AsyncIterator[StatementOutcome]:
        if script == "deaf":
            await self.threads.carry_out(self.pool, self._deaf, stop=lambda: True)
        async for outcome in super().run(script, **options):
            yield outcome


async def test_a_token_whose_statement_cannot_be_stopped_runs_no_other_until_it_ends() -> None:
    threads, limits = WorkThreads(give_up_s=0.0), StatementLimits(30, 10, concurrent=4, own_concurrent=2, waiting=8)
    with ThreadPoolExecutor(8) as pool:
        fake = DeafStatements(threads, pool)
        try:
            async with serving(fake, limits=limits, auth="on", threads=threads) as url:
                burst = [asyncio.create_task(ask(url, data="deaf", headers=holder("cy"))) for _ in range(4)]
                running: list[Any] = []
                async with asyncio.timeout(WITHIN_S):
                    while len(fake.begun) < 2 or len(running) < 4:
                        running = (await ask(url, "GET", headers=holder("cy")))[1]["running"]
                for script in running:
                    if script["state"] == "running":
                        await ask(url, "DELETE", f"/v1/statements/{script['id']}", headers=holder("cy"))
                assert sorted([status for status, _, _ in await asyncio.gather(*burst)]) == [408, 408, 429, 429]
                assert (threads.lost, threads.lost_askers) == (2, 1), "those that waited did not begin"
                status, said, headers = await ask(url, data="rows 1", headers=holder("cy"))
                assert (status, said["error"]["code"], headers["Retry-After"]) == (429, "limit", "30")
                assert "the token cy could not be stopped and still runs" in said["error"]["message"]
                assert (await ask(url, data="rows 1", headers=holder("bob")))[0] == 200
                fake.let.set()
                async with asyncio.timeout(WITHIN_S):
                    while threads.lost:
                        await asyncio.sleep(0)
                assert (await ask(url, data="rows 1", headers=holder("cy")))[0] == 200
        finally:
            fake.let.set()


async def test_a_statement_whose_time_ends_while_the_engine_is_in_trouble_may_be_tried_again() -> None:
    fake, ready = FakeStatements(), True
    async with serving(fake, ready=lambda: ready) as url, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask(url, data="insert 1; wait", params={"timeout": "0.3"}))
        await fake.until(lambda it: it.waiting == 1)
        ready = False
        status, said, headers = await asking
        assert (status, said["error"]["code"], said["error"]["statement"]) == (503, "unavailable", 2)
        assert headers["Retry-After"] == "5"


async def test_streams_that_another_address_does_not_read_hold_up_nobody() -> None:
    """From another address of this machine, while all its connections are such streams and half requests."""
    fake = FakeStatements()
    limits = StatementLimits(30, 10, concurrent=2)
    large = ";".join(["text 4000000"] * 3)
    async with (
        serving(fake, limits=limits, connections_limit=24) as url,
        unread(url, large, local="127.0.0.2"),
        unread(url, large, local="127.0.0.2"),
        sent(url, b"GET / HTTP/1.1\r\n", 22, local="127.0.0.2"),
    ):
        async with asyncio.timeout(WITHIN_S):
            while len(fake.scripts) < 2:
                await asyncio.sleep(0.01)
        await until_none_runs(url)
        assert (await ask(url, data="insert 1"))[0] == 200


async def test_streams_that_nobody_reads_hold_no_place() -> None:
    fake = FakeStatements()
    limits = StatementLimits(30, 10, concurrent=1)
    large = ";".join(["text 4000000"] * 5)
    async with serving(fake, limits=limits) as url, unread(url, large), unread(url, large):
        async with asyncio.timeout(WITHIN_S):
            while len(fake.scripts) < 2:
                await asyncio.sleep(0.01)
        await until_none_runs(url)
        assert (await ask(url, data="insert 1"))[0] == 200


async def test_a_stream_larger_than_the_spool_ends_when_its_client_does_not_read() -> None:
    fake = FakeStatements()
    limits = StatementLimits(30, 10, concurrent=1, spool_limit_bytes=1 << 20, write_timeout_s=0.2)
    async with serving(fake, limits=limits) as url, unread(url, "endless"):
        await fake.until(lambda it: it.stopped == 1)
        await until_none_runs(url)
        assert (await ask(url, data="insert 1"))[0] == 200


async def test_a_stream_that_is_read_late_is_whole() -> None:
    fake = FakeStatements()
    async with serving(fake, limits=StatementLimits(30, 10, concurrent=1)) as url:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1)
        writer.write(
            b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
            b"Connection: close\r\nContent-Length: 10\r\n\r\nrows 50000"
        )
        async with asyncio.timeout(WITHIN_S):
            while not fake.scripts:
                await asyncio.sleep(0.01)
        await until_none_runs(url)
        async with asyncio.timeout(WITHIN_S):
            answer = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", await reader.read())  # without the borders of its chunks
        assert answer.count(b'"row":') == 50_000
        assert b'"rows":50000' in answer
        writer.close()


# ---------------------------------------------------------------- connections


async def test_one_address_has_only_its_connections() -> None:
    async with serving(FakeStatements(), address_connections_limit=2) as url:
        place = urlsplit(url)
        writers = [(await asyncio.open_connection(place.hostname, place.port))[1] for _ in range(2)]
        status, said = error_in(await raw(url, b""))
        assert (status, said["code"]) == (429, "limit")
        assert "127.0.0.1 has 2 connections" in said["message"]
        for writer in writers:
            writer.close()


@asynccontextmanager
async def sent(
    url: str, some: bytes, count: int, local: str = "127.0.0.1"
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many connections over which this was sent, and nothing more."""
    place = urlsplit(url)
    opened = [await asyncio.open_connection(place.hostname, place.port, local_addr=(local, 0)) for _ in range(count)]
    for _, writer in opened:
        writer.write(some)
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def refused_connections(url: str) -> float:
    exposed = (await ask(url, "GET", "/metrics"))[1].decode()
    found = re.search(r'tocsin_http_refused_total\{limit="connections"\} (\S+)', exposed)
    return 0.0 if found is None else float(found[1])


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf of it",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_half_requests_keep_out_nobody_who_sends_a_whole_one(half: bytes) -> None:
    async with serving(FakeStatements(), connections_limit=8) as url, sent(url, half, 8) as readers:
        for _ in range(20):
            assert (await ask(url, "GET", "/healthz"))[0] == 200
        # Who had waited for longest gave way, and was told why.
        async with asyncio.timeout(WITHIN_S):
            status, said = error_in(await readers[0].read())
        assert (status, said["code"]) == (503, "unavailable")
        assert "all 8 connections are taken" in said["message"]
        assert await refused_connections(url) >= 1


async def test_only_what_serves_nothing_gives_way_and_half_requests_first() -> None:
    fake = FakeStatements()
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    wait = b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nwait"
    async with (
        serving(fake, connections_limit=3) as url,
        sent(url, wait, 1) as (running,),
        sent(url, whole, 1) as (idle,),
    ):
        await fake.until(lambda it: it.waiting == 1)
        assert (await idle.readuntil(b"alive")).startswith(b"HTTP/1.1 200")
        async with sent(url, b"GET", 1) as (half,):
            async with asyncio.timeout(WITHIN_S):
                async with sent(url, whole, 1) as (first,):
                    assert b" 503 " in await half.readline()
                    assert (await first.readuntil(b"alive")).startswith(b"HTTP/1.1 200")
                    async with sent(url, whole, 1) as (second,):
                        assert (await second.readuntil(b"alive")).startswith(b"HTTP/1.1 200")
                        assert await idle.read() == b'"}', "it was closed, without an answer that nobody waits for"
        assert (fake.waiting, fake.stopped, running.at_eof()) == (1, 0, False)
