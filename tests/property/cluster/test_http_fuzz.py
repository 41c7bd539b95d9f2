"""Whatever is sent to the cluster, it answers as its OpenAPI document says, and never with a fault of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.examples import examples
from tests.support.fake_cluster import serving_beside
from tests.support.sparkless_cluster import furnished
from tests.support.waiting import WITHIN_S
from tocsin.cluster.data_folder.clock_guard import ClockGuard, machine_clocks
from tocsin.cluster.http.openapi import document
from tocsin.cluster.http.script_responses import StatementLimits

schema = schemathesis.openapi.from_dict(document())
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("brokers")
    guard = ClockGuard(folder, machine_clocks())
    with serving_beside(
        limits=StatementLimits(0.2, 100, 4), read_timeout_s=0.2, door=lambda: furnished(folder), guard=guard
    ) as address:
        yield address


OPERATIONS = [(path, method) for path, methods in document()["paths"].items() for method in methods]


# Each under a name of its own: workers that share the tests tell them apart by that.
@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda one: one)
def test_every_operation_answers_as_documented(path: str, method: str, url: str) -> None:
    @given(case=schema[path][method].as_strategy())
    @settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
    def answers(case: schemathesis.Case[Any]) -> None:
        response = case.call(base_url=url)
        # Methods that no operation has are refused by the server in general, not by one operation.
        case.validate_response(response, checks=CHECKS if response.status_code != 405 else [not_a_server_error])

    answers()


words = st.sampled_from(["rows 3", "insert 1", "fail", "use x", "text 10", "json [1]", "wait", "rows x"])
scripts = st.one_of(st.text(), st.lists(words, max_size=5).map(";\n".join))


@given(script=scripts.filter(lambda it: "boom" not in it), stream=st.booleans())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_taken_as_a_script_and_answered_in_one_form(script: str, stream: bool, url: str) -> None:
    body = script.encode("utf-8", "surrogatepass")
    accept = "application/x-ndjson" if stream else "application/json"
    response = requests.post(
        f"{url}/v1/statements", data=body, headers={"Content-Type": "text/plain", "Accept": accept}, timeout=WITHIN_S
    )
    if response.status_code == 200:
        for line in response.content.split(b"\n") if stream else [response.content]:
            assert not line or isinstance(json.loads(line), dict)
    else:
        assert 400 <= response.status_code < 500
        assert response.json()["error"].keys() >= {"code", "message", "statement", "line", "column", "hint"}


head = st.one_of(
    st.sampled_from(
        [b"GET / HTTP/1.1\r\n", b"POST /v1/statements HTTP/1.1\r\n", b"Host: x\r\n", b"Content-Length: 5\r\n",
         b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n", b"\r\n",
         b"5\r\nhello\r\n",
         b"Connection: upgrade\r\n", b"Authorization: \xff\r\n", b"Content-Type: ;;;=\r\n", b"Origin: //[\r\n"]
    ),
    st.binary(max_size=50),
)  # fmt: skip


@given(parts=st.lists(head, max_size=8))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes_on_the_wire_are_survived_without_a_fault(parts: list[bytes], url: str) -> None:
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=WITHIN_S) as connection:
        answer = b""
        try:
            connection.sendall(b"".join(parts))
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65_536):
                answer += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert b"HTTP/1.1 5" not in answer
    assert b"HTTP/1.0 5" not in answer
    assert b"Traceback" not in answer
    assert requests.get(f"{url}/healthz", timeout=WITHIN_S).status_code == 200
