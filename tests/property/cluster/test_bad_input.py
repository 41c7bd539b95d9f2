"""Bad input of every kind is refused with the one form of error, never a fault of ours, and changes nothing."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bad_scripts import MUTABLE, SCRIPTS, SETUP, WORDS, deep, long, tokens
from tests.support.examples import examples
from tests.support.real_processes import ClusterHttpClient, HttpAnswer
from tests.support.waiting import WITHIN_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.served_cluster import ServedCluster

BODY_LIMIT_BYTES = 3 << 20
READ_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def served(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    from tests.support.served_cluster import ServedCluster

    limits = {"cluster.http.body_limit_bytes": BODY_LIMIT_BYTES, "cluster.http.read_timeout_s": READ_TIMEOUT_S}
    cluster = ServedCluster(spark, tmp_path_factory.mktemp("bad") / "data", **limits)
    assert cluster.client.run(SETUP).status == 200
    yield cluster
    cluster.close()


def world(served: ServedCluster) -> Any:
    """All that a statement could change: the catalog, the folders, and the commit number and size of each dataset."""
    parts = served.cluster
    catalog = parts.catalog.catalog
    tables = {entry.folder: parts.tables.table(entry) for entry in catalog.datasets}
    folders = {path.name for path in (served.settings.data / "datasets").iterdir()}
    numbers = {folder: (table.number, table.past.state.rows) for folder, table in tables.items()}
    return dict(catalog.entries), folders, numbers


def check_refused(answer: HttpAnswer, what: Any) -> dict[str, Any]:
    assert 400 <= answer.status < 500, (what, answer)
    error = answer.error
    assert error.keys() >= {"code", "message", "statement", "line", "column", "hint", "retry"}
    assert error["message"], what
    assert error["code"] not in ("error", "internal", "stopped"), (what, answer)
    assert b"Traceback" not in answer.body
    return error


@pytest.mark.parametrize("kind", list(SCRIPTS))
def test_a_bad_statement_is_refused_at_its_place_and_changes_nothing(served: ServedCluster, kind: str) -> None:
    before = world(served)
    for script in SCRIPTS[kind]:
        error = check_refused(served.client.run(script), script)
        assert error["statement"] == 1, script
        assert error["line"] >= 1, script
        assert error["column"] >= 1, script
    assert world(served) == before


def test_nested_deeply_it_is_answered_or_refused_but_never_breaks(served: ServedCluster) -> None:
    before = world(served)
    for depth in (10, 50, 101, 500, 5_000):
        for script in deep(depth):
            answer = served.client.run(script)
            if answer.status != 200:
                check_refused(answer, script[:100])
            assert answer.status == 200 or depth > 10, script[:100]
    assert world(served) == before


def test_very_long_it_is_answered_or_refused_but_never_breaks(served: ServedCluster) -> None:
    before = world(served)
    for script, refused in long():
        answer = served.client.run(script)
        assert (answer.status != 200) == refused, (script[:100], answer.body[:300])
        if refused:
            check_refused(answer, script[:100])
    assert world(served) == before


def test_the_statements_before_a_bad_one_are_done_and_those_after_it_are_not(served: ServedCluster) -> None:
    client = served.client
    answer = client.run("CREATE DATAVERSE one;\nCREATE DATAVERSE\n  one;\nCREATE DATAVERSE two;")
    error = check_refused(answer, "a script")
    assert (error["code"], error["statement"], error["line"], error["column"]) == ("conflict", 2, 2, 1)
    assert [result["kind"] for result in answer.json["results"]] == ["create_dataverse"]
    assert client.run("DROP DATAVERSE one;").status == 200
    assert client.run("DROP DATAVERSE two;").status == 404


# ---------------------------------------------------------------- statements that were once valid


@st.composite
def mutated(draw: st.DrawFn) -> str:
    parts = tokens(draw(st.sampled_from(MUTABLE)))
    for _ in range(draw(st.integers(1, 3))):
        at, other = draw(st.integers(0, len(parts) - 1)), draw(st.integers(0, len(parts) - 1))
        match draw(st.sampled_from(["delete", "double", "swap", "replace", "insert"])):
            case "delete" if len(parts) > 1:
                del parts[at]
            case "double":
                parts.insert(at, parts[at])
            case "swap":
                parts[at], parts[other] = parts[other], parts[at]
            case "replace":
                parts[at] = draw(st.sampled_from(WORDS))
            case _:
                parts.insert(at, draw(st.sampled_from(WORDS)))
    return " ".join(parts)


@given(script=mutated())
@settings(max_examples=examples(150))
def test_a_statement_with_its_words_mixed_up_is_answered_or_refused(served: ServedCluster, script: str) -> None:
    before = world(served)
    answer = served.client.run(script)
    if answer.status == 200:
        if world(served) != before:
            served.client.run("DROP DATAVERSE v IF EXISTS;")
            assert served.client.run(SETUP).status == 200
    else:
        check_refused(answer, script)
        assert world(served) == before


@given(script=st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join))
@settings(max_examples=examples(60))
def test_words_in_any_order_are_answered_or_refused(served: ServedCluster, script: str) -> None:
    before = world(served)
    answer = served.client.run(script)
    if answer.status != 200:
        check_refused(answer, script)
    assert world(served) == before


@given(script=st.text(max_size=40))
@settings(max_examples=examples(60))
def test_any_text_is_answered_or_refused(served: ServedCluster, script: str) -> None:
    answer = served.client.run(json.dumps({"script": script}), **{"Content-Type": "application/json"})
    if answer.status != 200:
        check_refused(answer, script)


# ---------------------------------------------------------------- what LOAD reads


def test_a_file_that_cannot_be_loaded_is_refused_whole(served: ServedCluster, tmp_path: Path) -> None:
    good = b'{"id": 100}\n'
    files: dict[str, tuple[bytes, str]] = {
        "not.json": (good + b"{", "json"),
        "words.json": (b"id 100", "json"),
        "list.json": (good + b"[1, 2]", "json"),
        "types.json": (good + b'{"id": "x"}\n', "json"),
        "missing.json": (good + b'{"said": "x"}\n', "json"),
        "twice.json": (good + good, "json"),
        "there.json": (good + b'{"id": 1}\n', "json"),
        "bytes.json": (good + b'{"id": 101, "said": "\xff"}\n', "json"),
        "deep.json": (good + b'{"id": 101, "a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}\n", "json"),
        "huge.json": (good + b'{"id": 1' + b"0" * 10_000 + b"}\n", "json"),
        "half.json": (gzip.compress(good * 1_000)[:40], "json"),
        "empty.parquet": (b"", "parquet"),
        "not.parquet": (good, "parquet"),
        "half.parquet": (b"PAR1" + good + b"PAR1", "parquet"),
        "no_id.csv": (b"said\nx\n", "csv"),
        "short.csv": (b"id,said\n100\n", "csv"),
        "types.csv": (b"id,said\nx,y\n", "csv"),
        "quote.csv": (b'id,said\n100,"x\n', "csv"),
    }
    before = world(served)
    for name, (content, form) in files.items():
        (tmp_path / name).write_bytes(content)
        check_refused(load(served.client, tmp_path / name, form), name)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place in ("nothing", "folder", "pipe", "not.json/below", "*.nothing", "x" * 300):
        check_refused(load(served.client, tmp_path / place, "json"), place)
    check_refused(load(served.client, Path("/dev/zero"), "json"), "/dev/zero")
    for options in ("()", '(("path"="x"))', '(("path"="x"),("format"="nope"))', '(("path"="x"),("path"="y"))'):
        check_refused(served.client.run(f"LOAD DATASET v.D USING localfs {options};"), options)
    check_refused(served.client.run('LOAD DATASET v.D USING hdfs (("path"="x"),("format"="json"));'), "hdfs")
    assert world(served) == before


def load(client: ClusterHttpClient, path: Path, form: str) -> HttpAnswer:
    return client.run(f'LOAD DATASET v.D USING localfs (("path"="{path}"),("format"="{form}"));')


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"script": 1}',
        b'{"script": "SELECT VALUE 1;", "more": 1}',
        b'{"script": "\\ud800"}',
        b'{"script": "\xff"}',
        b'{"script": "a\x00b"}',
        b"[" * 100_000,
        b'{"script": "' + b"x" * 100,
    ],
)
def test_a_body_that_is_no_script_in_json_is_refused(served: ServedCluster, body: bytes) -> None:
    answer = served.client.run(body, **{"Content-Type": "application/json"})
    assert check_refused(answer, body[:50])["code"] == "bad_request"


@pytest.mark.parametrize("body", [b"SELECT VALUE '\xff';", b"\xed\xa0\x80", b"\xff\xfeS\x00", b"\x80" * 1_000])
def test_a_script_that_is_not_utf_8_is_refused_at_its_place(served: ServedCluster, body: bytes) -> None:
    error = check_refused(served.client.run(body), body[:50])
    assert (error["line"], error["column"]) == (1, 15 if body.startswith(b"SELECT") else 1)


def test_a_huge_body_is_refused_before_it_is_read(served: ServedCluster) -> None:
    answer = served.client.run(b"-" * (BODY_LIMIT_BYTES + 1))
    assert (answer.status, check_refused(answer, "huge")["code"]) == (413, "limit")
    head = b"POST /v1/statements HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000000\r\n\r\n"
    assert b" 413 " in sent(served.client, head, end=False)


def test_half_a_request_is_refused_and_not_run(served: ServedCluster) -> None:
    before = world(served)
    body = b"DELETE FROM v.D;"
    head = b"POST /v1/statements HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: 900\r\n\r\n"
    chunked = b"POST /v1/statements HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n" + body
    for request in (head + body, chunked, head[:40], chunked + b"\r\nnonsense\r\n"):
        for end in (True, False):
            answer = sent(served.client, request, end=end)
            assert not answer.startswith(b"HTTP/1.1 2"), answer
            assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert world(served) == before


def sent(client: ClusterHttpClient, request: bytes, *, end: bool) -> bytes:
    """All that comes back for these bytes, whether the client then says that it has no more, or keeps silent."""
    with socket.create_connection((client.host, client.port), timeout=WITHIN_S) as connection:
        connection.sendall(request)
        if end:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while chunk := connection.recv(65_536):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize("query", ["?timeout=0", "?timeout=-1", "?timeout=x", "?timeout=nan", "?timeout=inf"])
def test_a_bad_timeout_is_refused(served: ServedCluster, query: str) -> None:
    check_refused(served.client.run("SELECT VALUE 1;", query), query)


def test_a_bad_token_is_refused_whatever_it_looks_like(spark: SparkSession, tmp_path: Path) -> None:
    from tests.support.served_cluster import ServedCluster

    guarded = ServedCluster(spark, tmp_path / "data", **{"cluster.auth.mode": "on"})
    try:
        for value in ("", "Bearer", "Bearer ", "Bearer x", "Basic eDp5", "Bearer tocsin_", "x" * 5_000, "Bearer \xff"):
            client = ClusterHttpClient(guarded.client.url)
            answer = client.run("SELECT VALUE 1;", Authorization=value)
            assert (answer.status, check_refused(answer, value)["code"]) == (401, "unauthorized"), value
    finally:
        guarded.close()
