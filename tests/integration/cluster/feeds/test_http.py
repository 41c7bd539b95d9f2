"""Feeds over HTTP: what is answered to good and bad requests, and that a bad one changes nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.real_processes import HttpAnswer
from tests.support.served_cluster import ServedCluster

SETUP = """
CREATE TYPE T AS { id: int, said: string };
CREATE DATASET D(T) PRIMARY KEY id;
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T"};
CREATE FEED Stopped WITH {"adapter-name": "http_adapter", "type-name": "T"};
CONNECT FEED F TO DATASET D; START FEED F;
"""


class Fed(ServedCluster):
    """With a started feed F and a stopped one in the dataverse Default."""

    def send(self, body: bytes | str, path: str = "F?wait=visible", **headers: str) -> HttpAnswer:
        sent = body.encode() if isinstance(body, str) else body
        return self.client.ask("POST", f"/v1/feeds/{path}", sent, **headers)

    def held(self) -> dict[int, str]:
        return {row["id"]: row["said"] for row in self.rows("SELECT VALUE d FROM D d")}


@pytest.fixture(scope="module")
def served(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fed]:
    started = Fed(spark, tmp_path_factory.mktemp("served"))
    try:
        started.run(SETUP)
        yield started
    finally:
        started.close()


@pytest.fixture
def fed(served: Fed) -> Fed:
    served.run("DELETE FROM D")
    return served


@pytest.mark.parametrize(
    "body",
    [
        '{"id": 1, "said": "a"}\n{"id": 2, "said": "b"}\n',
        '[{"id": 1, "said": "a"}, {"id": 2, "said": "b"}]',
        '{"id": 1,\n "said": "a"}\n{"id": 2,\n "said": "b"}',
    ],
)
def test_records_come_as_lines_as_an_array_or_one_after_the_other(fed: Fed, body: str) -> None:
    answer = fed.send(body)
    assert (answer.status, answer.json) == (200, {"accepted": 2, "rejected": []})
    assert fed.held() == {1: "a", 2: "b"}


def test_a_zipped_body_is_unpacked(fed: Fed) -> None:
    answer = fed.send(gzip.compress(b'{"id": 1, "said": "a"}'), **{"Content-Encoding": "gzip"})
    assert answer.status == 200
    assert fed.held() == {1: "a"}


def test_a_feed_is_also_found_by_its_whole_name(fed: Fed) -> None:
    assert fed.send('{"id": 1, "said": "a"}', "Default.F?wait=visible").status == 200
    assert fed.held() == {1: "a"}


def test_when_nothing_was_accepted_the_status_says_so(fed: Fed) -> None:
    answer = fed.send('{"id": 1}\n{"id": "x", "said": "b"}')
    assert answer.status == 422
    assert [(rejection["index"], rejection["field"]) for rejection in answer.json["rejected"]] == [
        (0, "said"),
        (1, "id"),
    ]
    assert fed.held() == {}


def test_a_retry_with_the_same_key_gets_the_first_answer(fed: Fed) -> None:
    first = fed.send('{"id": 1, "said": "a"}\n{"id": 2}', **{"Idempotency-Key": "once"})
    fed.send('{"id": 1, "said": "b"}')
    again = fed.send('{"id": 1, "said": "a"}\n{"id": 2}', **{"Idempotency-Key": "once"})
    assert (again.status, again.body) == (first.status, first.body)
    assert fed.held() == {1: "b"}


def test_a_key_with_another_body_is_refused(fed: Fed) -> None:
    fed.send('{"id": 1, "said": "a"}', **{"Idempotency-Key": "twice"})
    other = fed.send('{"id": 2, "said": "b"}', **{"Idempotency-Key": "twice"})
    assert (other.status, other.json["error"]["code"]) == (422, "reused_key")
    assert fed.held() == {1: "a"}


def test_a_feed_tells_how_its_records_are_written(fed: Fed) -> None:
    rows = '"adapter-name": "http_adapter", "type-name": "T", "format": "csv"'
    fed.run(f'CREATE FEED Rows WITH {{{rows}, "header": "false", "quote": ""}}')
    told = {name: fed.client.ask("GET", f"/v1/feeds/{name}") for name in ("F", "Rows", "G")}
    fed.run("DROP FEED Rows")
    assert told["F"].json == {"feed": "Default.F", "adapter": "http_adapter", "format": "json"}
    assert told["Rows"].json["format"] == "csv"
    assert (told["Rows"].json["header"], told["Rows"].json["quote"]) == (False, "")
    assert told["G"].status == 404


def test_a_coding_that_is_not_taken_is_told_with_one_that_is(fed: Fed) -> None:
    answer = fed.send(b"x", **{"Content-Encoding": "br"})
    assert answer.status == 415
    assert "use gzip" in answer.json["error"]["hint"]


BAD = {
    "nothing": (b"", "F", {}, 400),
    "no JSON": (b"nonsense", "F", {}, 400),
    "half a record": (b'{"id": 1, "said": "a', "F", {}, 400),
    "half an array": (b'[{"id": 1, "said": "a"}, {"id"', "F", {}, 400),
    "no UTF-8": (b'{"id": 1, "said": "\xff"}', "F", {}, 400),
    "deep": (b'{"id": 1, "said": ' + b"[" * 100_000, "F", {}, 400),
    "an empty array": (b" [ ]", "F", {}, 422),
    "unknown parameter": (b'{"id": 1, "said": "a"}', "F?format=csv", {}, 400),
    "wrong type": (b'{"id": "x", "said": "a"}', "F", {}, 422),
    "a number": (b"7", "F", {}, 422),
    "huge record": (json.dumps({"id": 1, "said": "a" * (1 << 20)}).encode(), "F", {}, 422),
    "broken gzip": (b"\x1f\x8bnonsense", "F", {"Content-Encoding": "gzip"}, 400),
    "gzip bomb": (gzip.compress(b" " * (1 << 28), 9), "F", {"Content-Encoding": "gzip"}, 413),
    "unknown coding": (b"{}", "F", {"Content-Encoding": "lzw"}, 415),
    "unknown feed": (b'{"id": 1, "said": "a"}', "G", {}, 404),
    "unknown dataverse": (b'{"id": 1, "said": "a"}', "v.F", {}, 404),
    "stopped feed": (b'{"id": 1, "said": "a"}', "Stopped", {}, 409),
    "unknown wait": (b'{"id": 1, "said": "a"}', "F?wait=long", {}, 400),
    "long key": (b'{"id": 1, "said": "a"}', "F", {"Idempotency-Key": "k" * 2_000}, 413),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_and_changes_nothing(fed: Fed, name: str) -> None:
    body, path, headers, status = BAD[name]
    answer = fed.send(body, path, **headers)
    assert answer.status == status, answer.body[:300]
    # The feed is well, and nothing of the bad one is before this.
    assert fed.send('{"id": 9, "said": "well"}').status == 200
    assert fed.held() == {9: "well"}
