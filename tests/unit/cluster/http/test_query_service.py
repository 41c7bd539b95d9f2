"""AsterixDB's query service, spoken as its clients speak it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.fake_cluster import FakeStatements, serving
from tests.unit.cluster.http.http_requests import ask
from tocsin.cluster.http.script_responses import StatementLimits
from tocsin.settings import StatementSettings

PATH = "/query/service"


async def post(url: str, **options: Any) -> tuple[int, Any]:
    status, said, _ = await ask(url, path=PATH, **options)
    return status, said


async def test_a_form_is_answered_as_the_original_answers() -> None:
    async with serving(FakeStatements()) as url:
        status, said = await post(url, data={"statement": "rows 2;", "client_context_id": "notebook 7"})
    assert status == 200
    metrics = said.pop("metrics")
    request_id = said.pop("requestID")
    assert request_id
    assert said == {
        "clientContextID": "notebook 7",
        "signature": {"*": "*"},
        "results": [{"n": 0, "name": "row 0"}, {"n": 1, "name": "row 1"}],
        "plans": {},
        "status": "success",
    }
    assert metrics.keys() == {"elapsedTime", "executionTime", "resultCount", "resultSize", "processedObjects"}
    assert metrics["resultCount"] == 2
    assert metrics["elapsedTime"].endswith("s")


async def test_the_standard_library_is_client_enough() -> None:
    def client(url: str) -> Any:
        body = urlencode({"statement": "rows 1;", "pretty": "true"}).encode()
        with urllib.request.urlopen(url + PATH, body) as answer:
            return json.load(answer)

    async with serving(FakeStatements()) as url:
        said = await asyncio.to_thread(client, url)
    assert (said["status"], said["results"]) == ("success", [{"n": 0, "name": "row 0"}])


async def test_json_and_the_address_of_a_get_may_carry_the_request_too() -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        assert (await post(url, json={"statement": "rows 1;"}))[1]["status"] == "success"
        status, said, _ = await ask(url, "GET", f"{PATH}?{urlencode({'statement': 'rows 1;'})}")
        assert (status, said["status"]) == (200, "success")
    assert [options.is_read_only for options in fake.options] == [False, True]


@pytest.mark.parametrize(
    "body", [{}, {"data": {"client_context_id": "c"}}, {"json": {"dataverseName": "v"}}, {"json": {"statement": "x;"}}]
)
async def test_the_address_of_a_post_carries_no_statement(body: dict[str, Any]) -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        status, said, _ = await ask(url, path=f"{PATH}?{urlencode({'statement': 'insert 1;'})}", **body)
    assert (status, said["status"]) == (400, "fatal")
    assert "a POST has no parameters in its address" in said["errors"][0]["msg"]
    assert fake.scripts == []


async def test_each_query_of_a_script_has_results_of_its_own() -> None:
    async with serving(FakeStatements()) as url:
        _, said = await post(url, json={"statement": "rows 1; insert 3; rows 0; rows 2;"})
    assert (len(said["results"]), said["results-0"], len(said["results-1"])) == (1, [], 2)
    assert said["metrics"]["resultCount"] == 3


async def test_a_script_without_a_query_has_no_results() -> None:
    async with serving(FakeStatements()) as url:
        _, said = await post(url, json={"statement": "insert 3;"})
    assert said.keys() == {"requestID", "plans", "status", "metrics"}


async def test_a_subscription_answers_its_id() -> None:
    async with serving(FakeStatements()) as url:
        _, said = await post(url, json={"statement": "subscribe s-17;"})
    assert said["results"] == ["s-17"]


async def test_notes_of_statements_are_warnings() -> None:
    async with serving(FakeStatements()) as url:
        _, said = await post(url, json={"statement": "note a; note b;", "max-warnings": 1})
        assert said["warnings"] == [{"code": 1, "msg": "a"}]
        assert said["metrics"]["warningCount"] == 2
        _, said = await post(url, json={"statement": "note a;"})
        assert "warnings" not in said


@pytest.mark.parametrize(
    "form",
    ["application/json", "application/json;charset=utf-8", "application/json; lossless=true", "JSON", "clean_json"],
)
async def test_json_may_be_asked_for_as_a_media_type(form: str) -> None:
    async with serving(FakeStatements()) as url:
        status, said = await post(url, data={"statement": "rows 1;", "format": form})
    assert (status, said["status"]) == (200, "success")


async def test_another_format_is_refused() -> None:
    async with serving(FakeStatements()) as url:
        status, said = await post(url, data={"statement": "rows 1;", "format": "application/x-adm"})
    assert (status, said["errors"][0]["msg"].startswith("format: must be json")) == (400, True)


async def test_the_note_of_set_is_a_warning() -> None:
    async with serving(FakeStatements()) as url:
        _, said = await post(url, json={"statement": "set a; note b;", "max-warnings": 5})
    assert said["warnings"] == [{"code": 1, "msg": "a"}, {"code": 1, "msg": "b"}]


async def test_the_signature_can_be_left_out() -> None:
    async with serving(FakeStatements()) as url:
        _, said = await post(url, data={"statement": "rows 1;", "signature": "false"})
    assert "signature" not in said


async def test_a_failed_script_says_so_in_errors_and_status() -> None:
    async with serving(FakeStatements()) as url:
        status, said = await post(url, json={"statement": "rows 1;\nfail;", "client_context_id": "c"})
    assert (status, said["status"], said["clientContextID"]) == (400, "fatal", "c")
    assert said["errors"] == [{"code": 1, "msg": "line 2, column 1: fail is not a statement (write another)"}]
    assert said["results"] == [{"n": 0, "name": "row 0"}]  # what the script had answered before
    assert said["metrics"]["errorCount"] == 1


async def test_a_bug_reveals_only_an_id() -> None:
    async with serving(FakeStatements()) as url:
        status, said = await post(url, json={"statement": "boom;"})
    assert (status, said["status"]) == (500, "fatal")
    assert "secret" not in json.dumps(said)
    assert said["requestID"] in said["errors"][0]["msg"]


async def test_time_that_is_up_is_a_timeout_with_status_200() -> None:
    async with serving(FakeStatements()) as url:
        status, said = await post(url, json={"statement": "wait;", "timeout": "50ms"})
    assert (status, said["status"]) == (200, "timeout")


async def test_a_cancelled_script_has_failed() -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        headers = {"Tocsin-Request-Id": "mine"}
        running = asyncio.create_task(post(url, json={"statement": "wait;"}, headers=headers))
        await fake.until(lambda statements: statements.waiting == 1)
        assert (await ask(url, "DELETE", "/v1/statements/mine"))[0] == 202
        status, said = await running
    assert (status, said["status"], said["requestID"]) == (500, "failed", "mine")


@pytest.mark.parametrize("rows", [0, 1, 250])
async def test_a_stream_is_the_same_object(rows: int) -> None:
    async with serving(FakeStatements()) as url:
        request = {"statement": f"rows {rows}; insert 1; rows 1;", "stream": True, "client_context_id": "c"}
        status, said = await post(url, json=request)
    assert (status, said["status"], said["clientContextID"]) == (200, "success", "c")
    assert (len(said["results"]), len(said["results-0"])) == (rows, 1)
    assert said["metrics"]["resultCount"] == rows + 1


async def test_a_stream_that_fails_in_the_middle_is_valid_json_with_the_error() -> None:
    async with serving(FakeStatements()) as url:
        status, said = await post(url, json={"statement": "rows 250; fail;", "stream": "true"})
        assert (status, said["status"], len(said["results"])) == (200, "fatal", 250)
        assert "fail is not a statement" in said["errors"][0]["msg"]
        status, said = await post(url, json={"statement": "fail;", "stream": "true"})
        assert (status, said["status"]) == (400, "fatal")  # nothing was sent before: the error has its own status


async def test_an_answer_above_the_limit_names_the_stream() -> None:
    limits = StatementLimits.of(StatementSettings(rows_limit=100))
    async with serving(FakeStatements(), limits=limits) as url:
        status, said = await post(url, json={"statement": "rows 101;"})
        assert (status, said["status"]) == (413, "fatal")
        assert '"stream": true' in said["errors"][0]["msg"]
        assert (await post(url, json={"statement": "rows 101;", "stream": True}))[1]["status"] == "success"


async def test_parameters_are_values_never_text() -> None:
    fake = FakeStatements()
    wanted = {"$name": 'x"; DROP DATAVERSE v; --', "$list": [1, {"a": None}], "$1": 7, "$2": "t"}
    async with serving(fake) as url:
        given = {"$name": wanted["$name"], "$list": wanted["$list"], "args": [7, "t"]}
        await post(url, json={"statement": "rows 1;", **given})
        await post(url, data={"statement": "rows 1;", **{name: json.dumps(value) for name, value in given.items()}})
    assert fake.scripts == ["rows 1;"] * 2
    assert [dict(options.values) for options in fake.options] == [wanted] * 2


async def test_the_dataverse_and_the_number_of_statements_are_passed_on() -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        await post(url, data={"statement": "rows 1;", "dataverse": "v", "multi-statement": "false", "readonly": "true"})
    (options,) = fake.options
    assert (options.dataverse, options.is_single, options.is_read_only) == ("v", True, True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "no statement"),
        ({"statement": "  "}, "no statement"),
        ({"statement": ["x"]}, "statement: must be a text"),
        ({"statement": "rows 1", "mode": "async"}, "mode: must be immediate"),
        ({"statement": "rows 1", "mode": "deferred"}, "mode: must be immediate"),
        ({"statement": "rows 1", "format": "csv"}, "format: must be json"),
        ({"statement": "rows 1", "parse-only": True}, "EXPLAIN"),
        ({"statement": "rows 1", "timeout": "5"}, "timeout: must be a duration"),
        ({"statement": "rows 1", "timeout": "0s"}, "timeout: must be a duration"),
        ({"statement": "rows 1", "timeout": "5s or so"}, "timeout: must be a duration"),
        ({"statement": "rows 1", "pretty": "yes", "signature": "yes"}, "signature: must be true or false"),
        ({"statement": "rows 1", "args": {"a": 1}}, "args: must be an array"),
        ({"statement": "rows 1", "max-warnings": "-1"}, "max-warnings: must be a whole number"),
        ({"statement": "rows 1", "$x": json.loads("[" * 70 + "]" * 70)}, "$x: is nested deeper"),
    ],
)
async def test_a_bad_parameter_is_named(given: dict[str, Any], named: str) -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        status, said = await post(url, json=given)
    assert (status, said["status"]) == (400, "fatal")
    assert named in said["errors"][0]["msg"]
    assert fake.scripts == []


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"rows 1;", {"Content-Type": "text/plain"}, 415),
        (b"{", {"Content-Type": "application/json"}, 400),
        (b"[1]", {"Content-Type": "application/json"}, 400),
        (b"statement=%ff", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"statement=\xff", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"a=1&" * 2_000, {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"statement=a&statement=b", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"statement=rows+1&$x=nojson", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"statement=rows+1", {"Content-Type": "application/x-www-form-urlencoded", "Content-Encoding": "gzip"}, 415),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(body: bytes, headers: dict[str, str], status: int) -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        assert (await post(url, data=body, headers=headers))[0] == status
    assert fake.scripts == []


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_web_page_cannot_post_a_form_or_ask(method: str, headers: dict[str, str]) -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        path = f"{PATH}?{urlencode({'statement': 'insert 1;'})}"
        status, said, _ = await ask(url, method, path, headers=headers)
        assert (status, said["error"]["code"]) == (403, "forbidden")
    assert fake.scripts == []


async def test_a_forwarded_request_and_a_strange_host_are_not_the_operator() -> None:
    fake = FakeStatements()
    async with serving(fake) as url:
        data = {"statement": "insert 1;"}
        assert (await post(url, data=data, headers={"X-Forwarded-For": "192.0.2.7"}))[0] == 401
        assert (await post(url, data=data, headers={"Host": "evil.example"}))[0] == 403
        assert (await post(url, data=data, headers={"Authorization": "Bearer tocsin_nobody"}))[0] == 401
    assert fake.scripts == []


async def test_a_reader_may_only_read() -> None:
    async with serving(FakeStatements()) as url:
        headers = {"Authorization": "Bearer tocsin_cy"}
        assert (await post(url, data={"statement": "rows 1;"}, headers=headers))[0] == 200
        status, said = await post(url, data={"statement": "insert 1;"}, headers=headers)
        assert (status, said["status"]) == (403, "fatal")


async def test_it_waits_in_the_same_line_as_other_scripts() -> None:
    fake = FakeStatements()
    limits = StatementLimits(timeout_s=60, rows_limit=10, concurrent=1, waiting=0)
    async with serving(fake, limits=limits) as url:
        running = asyncio.create_task(ask(url, data="wait", headers={"Tocsin-Request-Id": "first"}))
        await fake.until(lambda statements: statements.waiting == 1)
        status, said, headers = await ask(url, path=PATH, data={"statement": "rows 1;"})
        assert (status, said["status"], headers["Retry-After"]) == (429, "fatal", "1")
        assert said["errors"][0]["retriable"] is True
        await ask(url, "DELETE", "/v1/statements/first")
        await running
