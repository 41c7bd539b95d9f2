"""Scripts over HTTP: their answers, their bounds, and their ends."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.fake_cluster import BATCH_ROWS, FakeStatements, serving
from tests.support.waiting import WITHIN_S
from tests.unit.cluster.http.http_requests import PLAIN, STREAM, ask, lines
from tocsin.cluster.http.script_responses import StatementLimits
from tocsin.settings import StatementSettings


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
        assert [(script["id"], script["state"], script["statement"]) for script in said["running"]] == [
            ("mine.1", "running", 2)
        ]
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
            async with asyncio.timeout(WITHIN_S):
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
    limits = StatementLimits(30, 10, 4, spool_limit_bytes=8 << 20)
    async with serving(fake, limits=limits) as url:
        place = urlsplit(url)
        _, writer = await asyncio.open_connection(place.hostname, place.port, limit=1)
        writer.write(
            b"POST /v1/statements?timeout=0.5 HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
            b"Content-Length: 7\r\n\r\nendless"
        )
        await fake.until(lambda it: it.stopped == 1)
        assert fake.batches_made * BATCH_ROWS * 1_000 < 32 * 1024 * 1024
        async with asyncio.timeout(WITHIN_S):
            while (await ask(url, "GET"))[1]["running"]:
                await asyncio.sleep(0)
        writer.close()


@pytest.mark.parametrize("path", ["/v1/statements", "/query/service"])
async def test_a_script_is_shorter_than_other_bodies(path: str) -> None:
    limits = StatementLimits(30, 10, 4, script_limit_bytes=2_048)
    async with serving(FakeStatements(), limits=limits) as url:
        status, said, _ = await ask(url, "POST", path, data="insert 1" + " " * 2_048)
        assert status == 413, said
        assert "2048 bytes" in str(said)


@pytest.mark.parametrize(("cores", "given", "granted"), [(1, 0, 2), (2, 0, 2), (4, 0, 4), (64, 0, 6), (2, 7, 7)])
def test_one_token_has_as_many_places_as_there_are_cores(cores: int, given: int, granted: int) -> None:
    settings = StatementSettings(concurrent=8, token_concurrent=given)
    assert StatementLimits.of(settings, cores).own_concurrent == granted
