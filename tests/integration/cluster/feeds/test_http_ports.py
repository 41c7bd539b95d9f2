"""Feeds with a port of their own, in the forms of the original."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.feeds_in_process import FeedDataverse, free_port
from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import wait_until
from tocsin.wire.errors import ConflictError, InputError


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> FeedDataverse:
    made = FeedDataverse(cluster, dataverse)
    made.run("create type T as open { id: bigint }; create active dataset D(T) primary key id")
    return made


def post(port: int, body: str, path: str = "/", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body.encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def started(place: FeedDataverse, port: int, **more: Any) -> list[dict[str, Any]]:
    options = {
        "adapter-name": "http_adapter", "addresses": f"127.0.0.1:{port}", "address-type": "IP", "type-name": "T",
        "format": "adm", **more,
    }  # fmt: skip
    return place.run(f"create feed F with {json.dumps(options)}; connect feed F to dataset D; start feed F;")


def test_records_that_are_posted_to_the_port_land_and_are_counted(place: FeedDataverse) -> None:
    port = free_port()
    created, connected, _ = started(place, port, dynamic="false")
    assert created["name"] == "F"
    assert "dynamic has no effect" in created["notes"][0]
    assert "notes" not in connected
    body = '{"id" : 0, "area": "OC", "at": point("1.0,2.0")}{"id" : 1, "area": "UCI"}'
    assert post(port, body) == (200, "2")
    wait_until(lambda: len(place.rows("SELECT VALUE d FROM D d")) == 2, "both records have landed")
    assert place.rows("SELECT VALUE d.at FROM D d WHERE d.id = 0") == [[1.0, 2.0]]
    status, said = post(port, '{"id": 2}{"id": "x"}')
    assert (status, json.loads(said)["accepted"]) == (200, 1)
    assert post(port, '{"id": 3}', "/other")[0] == 404
    assert post(port, '{"id": 3}', Origin="http://evil.example")[0] == 403


def test_the_nodes_of_the_original_are_this_machine(place: FeedDataverse) -> None:
    ports = (free_port(), free_port())
    addresses = f"asterix_nc2:{ports[1]},asterix_nc1:{ports[0]}"
    created, *_ = started(place, 0, addresses=addresses, **{"address-type": "NC"})
    assert "asterix_nc2, asterix_nc1 is this machine" in created["notes"][0]
    for number, port in enumerate(ports):
        assert post(port, f'{{"id": {number}}}') == (200, "1")


def test_a_stopped_feed_has_no_port_and_a_taken_port_is_an_error(place: FeedDataverse) -> None:
    port = free_port()
    started(place, port)
    assert post(port, '{"id": 1}') == (200, "1")
    place.run("stop feed F")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", b"{}")
    started_again = place.run("start feed F")
    assert started_again == [{"name": "F"}]
    assert post(port, '{"id": 2}') == (200, "1")
    place.run("create dataset E(T) primary key id")
    place.run(
        f'create feed G with {{"adapter-name": "http_adapter", "addresses": "127.0.0.1:{port}", "type-name": "T"}}; '
        "connect feed G to dataset E"
    )
    with pytest.raises(ConflictError, match=f"addresses: cannot listen at 127.0.0.1:{port}"):
        place.run("start feed G")


def test_an_insert_feed_keeps_the_first_record_of_a_key_and_sets_the_others_aside(place: FeedDataverse) -> None:
    port = free_port()
    started(place, port, **{"insert-feed": "true"})
    place.run('insert into D {"id": 7, "said": "mine"}')
    body = '{"id": 1, "said": "a"}{"id": 1, "said": "b"}{"id": 7, "said": "c"}{"id": 2, "said": "d"}'
    assert post(port, body, "/?wait=visible") == (200, "4")
    assert place.held() == {1: "a", 2: "d", 7: "mine"}
    aside = place.rejected()
    assert [json.loads(row["record"])["said"] for row in aside] == ["b", "c"]
    assert {row["reason"] for row in aside} == {"its key exists already, and the feed only inserts (insert-feed)"}
    assert post(port, '{"id": 3, "said": "e"}', "/?wait=visible") == (200, "1")
    assert place.held()[3] == "e"


def test_a_policy_is_noted_and_an_unknown_one_is_an_error(place: FeedDataverse) -> None:
    place.run('create feed F with {"adapter-name": "http_adapter", "type-name": "T"}')
    with pytest.raises(InputError, match="there is no policy Basics") as refused:
        place.run("connect feed F to dataset D using policy Basics")
    assert "Basic" in str(refused.value.hint)
    (connected,) = place.run("connect feed F to dataset D using policy Spill")
    assert connected["notes"][0].startswith("POLICY Spill has no effect")


def test_an_unknown_option_is_an_error_that_suggests(place: FeedDataverse) -> None:
    with pytest.raises(InputError, match="unknown option adress-type") as refused:
        place.run('create feed F with {"adapter-name": "http_adapter", "type-name": "T", "adress-type": "IP"}')
    assert "address-type" in str(refused.value.hint)


def test_a_feed_of_another_bad_cluster_is_taken_and_says_what_to_do_there(place: FeedDataverse) -> None:
    (created,) = place.run(
        f"""create feed F with {{"adapter-name": "http_adapter", "addresses": "127.0.0.1:{free_port()}",
        "address-type": "IP", "type-name": "T", "format": "ADM", "bad-host": "127.0.0.1", "bad-channel": "c",
        "bad-channel-parameters": "OC", "bad-dataverse": "test"}}"""
    )
    (note,) = created["notes"]
    assert "CREATE BROKER" in note
