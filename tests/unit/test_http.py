"""The cluster's HTTP face over a real server, with an executor that only pretends."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.fake_statements import (
    BATCH_ROWS,
    FakeCredentials,
    FakeFeeds,
    FakeStatements,
    fake_backup,
    idle_door,
    serving,
)
from tocsin.cluster.http import cluster_application
from tocsin.cluster.openapi import document
from tocsin.cluster.replies import StatementLimits
from tocsin.settings import ClusterSettings

PLAIN = {"Content-Type": "text/plain"}
STREAM = {"Accept": "application/x-ndjson"}


async def ask(url: str, method: str = "POST", path: str = "/v1/statements", **options: Any) -> tuple[int, Any, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url + path, **options) as response:
        body = await response.read()
        said = json.loads(body) if response.content_type == "application/json" else body
        return response.status, said, response.headers


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


async def raw(url: str, data: bytes, *, end: bool = False) -> bytes:
    """All that the server answers to these bytes, until it closes."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


def error_in(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


async def test_a_script_answers_with_one_result_per_statement() -> None:
    async with serving(FakeStatements()) as url:
        status, said, headers = await ask(url, data="insert 3; rows 2")
    assert status == 200
    assert said == {
        "results": [
            {"statement": 1, "kind": "insert", "inserted": 3},
            {"statement": 2, "kind": "query", "rows": [{"n": 0, "name": "row 0"}, {"n": 1, "name": "row 1"}]},
        ]
    }
    assert headers["Tocsin-Request-Id"]


async def test_the_first_failing_statement_ends_the_script_and_names_its_place() -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        status, said, _ = await ask(url, data="insert 1;\nfail;\ninsert 2")
    assert status == 400
    assert said["error"] | {"retry": False} == said["error"]
    wanted = {"code": "bad_statement", "statement": 2, "line": 2, "column": 1, "hint": "write another"}
    assert wanted.items() <= said["error"].items()
    assert said["results"] == [{"statement": 1, "kind": "insert", "inserted": 1}]


async def test_a_script_may_come_as_json() -> None:
    async with serving(FakeStatements()) as url:
        assert (await ask(url, json={"script": "insert 1"}))[0] == 200
        bad: Any
        for bad in ({}, [], "x", {"script": 1}, {"script": "", "more": 1}):
            assert (await ask(url, json=bad))[0] == 400
        headers = {"Content-Type": "application/json"}
        for bad_text in (b"", b"{", b'{"script": "\xff"}', b"[" * 100_000, b'{"script": "\\ud800"}'):
            status, said, _ = await ask(url, data=bad_text, headers=headers)
            assert (status, said["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain; charset=latin-1"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain", "Content-Encoding": "gzip"},
    ],
)
async def test_a_body_of_another_kind_is_refused(headers: dict[str, str]) -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        status, said, _ = await ask(url, data=b"insert 1", headers=headers)
    assert (status, said["error"]["code"]) == (415, "unsupported")
    assert fake.scripts == []


async def test_a_script_that_is_not_utf8_is_refused_with_its_place() -> None:
    async with serving(FakeStatements()) as url:
        status, said, _ = await ask(url, data="insert 1;\né".encode() + b"\xff", headers=PLAIN)
    assert (status, said["error"]["line"], said["error"]["column"]) == (400, 2, 2)


async def test_rows_are_streamed_line_by_line() -> None:
    async with serving(FakeStatements()) as url:
        status, body, headers = await ask(url, data="rows 250; insert 1", headers=STREAM)
    assert status == 200
    assert headers["Content-Type"] == "application/x-ndjson"
    said = lines(body)
    assert said[0] == {"statement": 1, "row": {"n": 0, "name": "row 0"}}
    assert [line["row"]["n"] for line in said[:250]] == list(range(250))
    assert said[250:] == [
        {"statement": 1, "kind": "query", "rows": 250},
        {"statement": 2, "kind": "insert", "inserted": 1},
    ]


async def test_an_error_before_the_stream_starts_is_a_status_and_later_the_last_line() -> None:
    async with serving(FakeStatements()) as url:
        status, said, _ = await ask(url, data="fail", headers=STREAM)
        assert (status, said["error"]["line"]) == (400, 1)
        status, body, _ = await ask(url, data="rows 1; fail", headers=STREAM)
        assert status == 200
        assert lines(body)[-1]["error"]["statement"] == 2
        status, body, _ = await ask(url, data="rows 1; boom", headers=STREAM)
        assert lines(body)[-1]["error"]["code"] == "internal"
        assert b"secret" not in body


async def test_an_answer_with_too_many_rows_is_refused_and_says_how_to_stream() -> None:
    limits = StatementLimits(30, 150, 4)
    async with serving(FakeStatements(), limits=limits) as url:
        status, said, _ = await ask(url, data="insert 1; rows 150; rows 1; insert 2")
        assert (status, said["error"]["code"], said["error"]["statement"]) == (413, "limit", 3)
        assert "application/x-ndjson" in said["error"]["hint"]
        assert len(said["results"]) == 2
        assert (await ask(url, data="rows 150"))[0] == 200
        assert len(lines((await ask(url, data="rows 151", headers=STREAM))[1])) == 152


async def test_an_answer_of_too_many_bytes_is_refused() -> None:
    async with serving(FakeStatements(), limits=StatementLimits(30, 10, 4, answer_limit_bytes=1_000)) as url:
        assert (await ask(url, data="text 2000"))[0] == 413
        assert (await ask(url, data="text 900"))[0] == 200


async def test_a_script_whose_time_is_up_is_stopped() -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        status, said, _ = await ask(url, data="insert 1; wait", params={"timeout": "0.05"})
        assert (status, said["error"]["code"], said["error"]["statement"]) == (408, "stopped", 2)
        assert said["results"] == [{"statement": 1, "kind": "insert", "inserted": 1}]
        assert (fake.waiting, fake.stopped) == (0, 1)
        for bad in ("x", "0", "-1", "nan", "inf", ""):
            assert (await ask(url, data="insert 1", params={"timeout": bad}))[0] == 400


async def test_the_settings_bound_the_timeout_a_client_asks_for() -> None:
    async with serving(FakeStatements(), limits=StatementLimits(0.05, 10, 4)) as url:
        assert (await ask(url, data="wait", params={"timeout": "1000"}))[0] == 408


async def test_a_running_script_is_listed_and_cancelled_by_its_id() -> None:
    fake = FakeStatements()
    async with serving(fake) as url, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(ask(url, data="insert 1; wait", headers={"Tocsin-Request-Id": "mine.1"}))
        await fake.until(lambda it: it.waiting == 1)
        _, said, _ = await ask(url, "GET")
        assert [(one["id"], one["state"], one["statement"]) for one in said["running"]] == [("mine.1", "running", 2)]
        again = await ask(url, data="insert 1", headers={"Tocsin-Request-Id": "mine.1"})
        assert (again[0], again[1]["error"]["code"]) == (409, "conflict")
        assert (await ask(url, "DELETE", "/v1/statements/mine.1"))[0] == 202
        status, said, headers = await running
        assert (status, said["error"]["message"], headers["Tocsin-Request-Id"]) == (
            408,
            "the script was cancelled",
            "mine.1",
        )
        assert fake.stopped == 1
        assert (await ask(url, "DELETE", "/v1/statements/mine.1"))[0] == 404
        assert (await ask(url, "GET"))[1] == {"running": []}
        assert (await ask(url, data="insert 1", headers={"Tocsin-Request-Id": "not good"}))[0] == 400


@pytest.mark.parametrize("script", ["wait", "endless"])
async def test_a_client_that_goes_away_cancels_its_script(script: str) -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        place = urlsplit(url)
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(
            b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(script), script.encode())
        )
        await fake.until(lambda it: it.waiting == 1 or it.batches_made > 0)
        writer.transport.abort()
        await fake.until(lambda it: it.stopped == 1)


async def test_scripts_beyond_the_limit_wait_and_beyond_the_queue_are_refused() -> None:
    fake = FakeStatements()
    async with serving(fake, limits=StatementLimits(30, 10, concurrent=1, waiting=1)) as url:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(ask(url, data="wait", headers={"Tocsin-Request-Id": "first"}))
            await fake.until(lambda it: it.waiting == 1)
            second = tasks.create_task(ask(url, data="insert 1", headers={"Tocsin-Request-Id": "second"}))
            async with asyncio.timeout(10):
                while len((await ask(url, "GET"))[1]["running"]) < 2:
                    await asyncio.sleep(0)
            status, said, headers = await ask(url, data="insert 1")
            assert (status, said["error"]["code"], headers["Retry-After"]) == (429, "limit", "1")
            await ask(url, "DELETE", "/v1/statements/first")
        assert first.result()[0] == 408
        assert second.result()[0] == 200


async def test_a_script_cancelled_while_it_waits_leaves_the_queue() -> None:
    fake = FakeStatements()
    async with serving(fake, limits=StatementLimits(30, 10, concurrent=1, waiting=1)) as url:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(url, data="wait", headers={"Tocsin-Request-Id": "first"}))
            await fake.until(lambda it: it.waiting == 1)
            status, said, _ = await ask(url, data="insert 1", params={"timeout": "0.05"})
            assert (status, said["error"]["statement"]) == (408, None)
            await ask(url, "DELETE", "/v1/statements/first")
        assert (await ask(url, data="insert 1"))[0] == 200


async def test_a_client_that_does_not_read_holds_the_executor_back_and_is_dropped_when_its_time_is_up() -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        place = urlsplit(url)
        _, writer = await asyncio.open_connection(place.hostname, place.port, limit=1)
        writer.write(
            b"POST /v1/statements?timeout=0.5 HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
            b"Content-Length: 7\r\n\r\nendless"
        )
        await fake.until(lambda it: it.stopped == 1)
        assert fake.batches_made * BATCH_ROWS * 1_000 < 32 * 1024 * 1024
        async with asyncio.timeout(10):
            while (await ask(url, "GET"))[1]["running"]:
                await asyncio.sleep(0)
        writer.close()


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
        async with asyncio.timeout(5):
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
        async with asyncio.timeout(5):
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
        async with aiohttp.ClientSession() as session, session.get(url + "/healthz") as first:
            assert first.status == 200
            async with aiohttp.ClientSession() as other, other.get(url + "/healthz"):
                status, error = error_in(await raw(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
                assert (status, error["code"]) == (503, "unavailable")
                async with session.get(url + "/healthz") as again:
                    assert again.status == 200
        async with asyncio.timeout(10):
            while (await ask(url, "GET", "/healthz"))[0] != 200:
                await asyncio.sleep(0)


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


async def test_records_are_judged_one_by_one_and_the_answer_says_how() -> None:
    feeds = FakeFeeds()
    async with serving(FakeStatements(), feeds=feeds) as url:
        status, said, _ = await ask(
            url, path="/v1/feeds/News?wait=visible", data=b'{"id": 1}\n{"id": "x"}', headers={"Idempotency-Key": "k1"}
        )
        assert (status, said["accepted"]) == (200, 1)
        assert [(one["index"], one["field"]) for one in said["rejected"]] == [(1, "id")]
        assert feeds.taken == [("News", b'{"id": 1}\n{"id": "x"}', "k1", True)]
        status, said, _ = await ask(url, path="/v1/feeds/News", data=b'{"id": "x"}')
        assert (status, said["accepted"], len(said["rejected"])) == (422, 0, 1)


async def test_records_may_come_compressed() -> None:
    feeds = FakeFeeds()
    packed = gzip.compress(b'[{"id": 1}, {"id": 2}]')
    headers = {"Content-Encoding": "gzip"}
    async with serving(FakeStatements(), feeds=feeds, body_limit_bytes=10_000) as url:
        status, said, _ = await ask(url, path="/v1/feeds/News", data=packed, headers=headers)
        assert (status, said) == (200, {"accepted": 2, "rejected": []})
        for body, expected in ((packed[:-3], 400), (b"no gzip", 400), (gzip.compress(b" " * 1_000_000), 413)):
            assert (await ask(url, path="/v1/feeds/News", data=body, headers=headers))[0] == expected
    assert len(feeds.taken) == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/feeds/Nowhere", b'{"id": 1}', 404),
        ("/v1/feeds/Stopped", b'{"id": 1}', 409),
        ("/v1/feeds/News?wait=forever", b'{"id": 1}', 400),
        ("/v1/feeds/News?wait=visible&format=csv", b'{"id": 1}', 400),
        ("/v1/feeds/News", b"", 400),
        ("/v1/feeds/News", b"{", 400),
        ("/v1/feeds/News", b"\xff", 400),
        ("/v1/feeds/News", b"[" * 100_000, 400),
    ],
)
async def test_what_a_feed_cannot_take_is_refused_and_taken_by_none(path: str, body: bytes, status: int) -> None:
    feeds = FakeFeeds()
    async with serving(FakeStatements(), feeds=feeds) as url:
        assert (await ask(url, path=path, data=body))[0] == status
    assert feeds.taken == []


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
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
    ],
)
async def test_without_tokens_no_web_page_can_reach_a_local_cluster(headers: dict[str, str], status: int) -> None:
    async with serving(FakeStatements()) as url:
        assert (await ask(url, data="insert 1", headers={"Content-Type": "text/plain", **headers}))[0] == status


async def test_ready_is_said_only_when_scripts_can_be_run() -> None:
    ready = False
    async with serving(FakeStatements(), ready=lambda: ready) as url:
        assert (await ask(url, "GET", "/healthz"))[:2] == (200, {"status": "alive"})
        status, said, _ = await ask(url, "GET", "/readyz")
        assert (status, said["error"]["code"], said["error"]["retry"]) == (503, "unavailable", True)
        assert (await ask(url, data="insert 1"))[0] == 503
        ready = True
        assert (await ask(url, "GET", "/readyz"))[:2] == (200, {"status": "ready"})


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
    assert [path for path in documented - paths if not path.startswith(tuple(f"{one}/" for one in paths))] == []


def test_the_openapi_document_has_exactly_the_routes() -> None:
    async def routes() -> set[tuple[str, str]]:
        app = cluster_application(
            ClusterSettings(),
            FakeStatements(),
            FakeCredentials(),
            backup=fake_backup,
            feeds=FakeFeeds().as_feeds(),
            brokers=idle_door(),
        )
        return {
            (route.resource.canonical, route.method.lower())
            for route in app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }

    documented = {(path, method) for path, operations in document()["paths"].items() for method in operations}
    assert documented == asyncio.run(routes())
