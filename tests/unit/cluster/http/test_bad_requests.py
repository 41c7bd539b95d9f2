"""Whatever comes over a connection gets a clear answer, and harms nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.fake_cluster import FakeStatements, serving
from tests.support.waiting import WITHIN_S
from tests.unit.cluster.http.http_requests import PLAIN, ask, error_in, raw


async def test_unknown_addresses_and_methods_get_the_same_form_of_error() -> None:
    async with serving(FakeStatements()) as url:
        status, said, _ = await ask(url, "GET", "/nothing/%ff/here?%zz")
        assert (status, said["error"]["code"]) == (404, "not_found")
        status, said, headers = await ask(url, "PUT")
        assert (status, said["error"]["code"]) == (405, "unsupported")
        assert set(headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}
        status, said, _ = await ask(url, data="insert 1", headers={"Expect": "a miracle"})
        assert (status, said["error"]["code"]) == (417, "unsupported")
        assert (await ask(url, data="insert 1", headers={"Expect": "100-continue"}))[0] == 200


async def test_a_bug_answers_500_with_an_id_and_nothing_of_the_inside() -> None:
    async with serving(FakeStatements()) as url:
        status, said, headers = await ask(url, data="insert 1; boom")
    assert status == 500
    assert said["error"]["id"] == headers["Tocsin-Request-Id"]
    assert "secret" not in json.dumps(said)
    assert len(said["results"]) == 1


async def test_what_is_lost_behind_the_executor_is_a_fault_and_not_a_client_that_left() -> None:
    async with serving(FakeStatements()) as url:
        assert (await ask(url, data="insert 1; refused"))[0] == 500


async def test_a_body_that_says_it_is_huge_is_refused_before_it_comes() -> None:
    async with serving(FakeStatements(), body_limit_bytes=1_024) as url:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_a_body_that_grows_huge_is_refused_on_the_way() -> None:
    async def chunks() -> Any:
        for _ in range(100):
            yield b"x" * 1_000

    async with serving(FakeStatements(), body_limit_bytes=10_000) as url:
        status, said, _ = await ask(url, data=chunks(), headers=PLAIN)
    assert (status, said["error"]["limit_bytes"]) == (413, 10_000)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"POST /v1/statements HTTP/1.1\r\nHost: x", (408, "stopped")),
        (b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf", (408, "stopped")),
    ],
    ids=["head", "body"],
)
async def test_half_a_request_is_given_up(data: bytes, answer: tuple[int, str]) -> None:
    async with serving(FakeStatements(), read_timeout_s=0.1) as url:
        status, error = error_in(await raw(url, data))
    assert (status, error["code"]) == answer


async def test_a_head_that_drips_is_given_up() -> None:
    async with serving(FakeStatements(), read_timeout_s=0.2) as url:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)

        async def drip() -> None:
            while True:
                writer.write(b"X")
                await asyncio.sleep(0.01)

        writer.write(b"GET / HTTP/1.1\r\n")
        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(WITHIN_S):
            # What drips in after the end may reset the connection before the reason is read.
            with contextlib.suppress(ConnectionResetError):
                assert error_in(await reader.read())[0] == 408
        dripping.cancel()
        writer.close()


async def test_a_silent_connection_is_closed() -> None:
    async with serving(FakeStatements(), read_timeout_s=0.1) as url:
        assert await raw(url, b"") == b""


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"POST /v1/statements HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/statements HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_garbage_gets_a_clear_refusal(garbage: bytes) -> None:
    async with serving(FakeStatements(), read_timeout_s=0.5) as url:
        status, error = error_in(await raw(url, garbage))
        assert 400 <= status < 500
        assert error["message"]
        assert (await ask(url, "GET", "/healthz"))[0] == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/statements HTTP/1.1\r\nContent-Type: text/\xff\r\n",
        b"POST /v1/statements HTTP/1.1\r\nContent-Type: text/plain; charset=\xff\r\n",
        b"POST /v1/statements?timeout=\xff HTTP/1.1\r\n",
        b"POST /v1/statements?timeout=%ff&%ed%a0%80 HTTP/1.1\r\n",
        b"DELETE /v1/statements/\xff HTTP/1.1\r\n",
        b"DELETE /v1/statements/%ff%ed%a0%80%00 HTTP/1.1\r\n",
        b"GET /\xff\xed\xa0\x80 HTTP/1.1\r\n",
        b"GET //[::1 HTTP/1.1\r\n",
        b"GET http://[/ HTTP/1.1\r\n",
        b"GET * HTTP/1.1\r\n",
        b"CONNECT a:b HTTP/1.1\r\n",
        b"POST /v1/statements HTTP/1.1\r\nTocsin-Request-Id: \xff\r\n",
        b"POST /v1/statements HTTP/1.1\r\nOrigin: http://[\xff\r\n",
        b"POST /v1/statements HTTP/1.1\r\nContent-Encoding: \xff\r\n",
        b"\xff / HTTP/1.1\r\n",
    ],
)
async def test_bytes_that_are_no_text_are_refused_like_anything_else(
    request_bytes: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(FakeStatements(), read_timeout_s=0.5) as url:
        answer = await raw(url, request_bytes + b"Host: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        status, error = error_in(answer)
    assert 400 <= status < 500
    assert error["message"]
    capsys.readouterr().out.encode()  # The log is text.


async def test_a_connection_too_many_is_refused_and_the_others_live_on() -> None:
    fake = FakeStatements()
    async with serving(fake, connections_limit=2) as url:
        running = [asyncio.create_task(ask(url, data="wait")) for _ in range(2)]
        await fake.until(lambda it: it.waiting == 2)
        status, error = error_in(await raw(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (status, error["code"]) == (503, "unavailable")
        assert fake.waiting == 2
        for each in running:
            each.cancel()
        async with asyncio.timeout(WITHIN_S):
            while (await ask(url, "GET", "/healthz"))[0] != 200:
                await asyncio.sleep(0.01)
