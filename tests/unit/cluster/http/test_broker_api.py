"""The cluster's door for brokers: subscriptions and results, over the real server and the real store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from tests.support.sparkless_cluster import SparklessCluster, fake_broker, world
from tests.support.waiting import WITHIN_S
from tocsin.cluster.catalog.catalog import Put
from tocsin.cluster.catalog.entries import BrokerEntry
from tocsin.cluster.http.result_routes import FetchLimits
from tocsin.rules.model import types as t
from tocsin.rules.model.cursors import START, Cursor, Range
from tocsin.store.channels.rows import BrokerName
from tocsin.wire.cursors import parse_position
from tocsin.wire.results import fetch_request, list_remaining_ranges


@pytest.fixture
async def here(tmp_path: Path) -> Any:
    async with world(tmp_path) as made:
        yield made


def values(parts: list[Any]) -> list[tuple[int, list[Any]]]:
    return [(part.range, [orjson.loads(result.payload) for result in part.results]) for part in parts]


# --- results


async def test_results_of_many_interests_come_in_one_answer(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    await here.register("v.b")
    one, two, three = await here.subscribe("v.c", "v.b", [1], [2], [3])
    await here.execute(channel, {one: ["a", "b"], two: [{"deep": [1.5, None]}]}, at_us=1_000)
    await here.execute(channel, {one: ["c"], three: ["é\n"]})
    parts, more = await here.fetch(*(Range(each, START) for each in (three, one, two)))
    assert values(parts) == [(0, ["é\n"]), (1, ["a", "b", "c"]), (2, [{"deep": [1.5, None]}])]
    assert more is None
    assert [result.cursor[1:] for result in parts[1].results] == [(1, 0), (1, 1), (2, 0)]
    assert parts[1].results[0].executed_us == 1_000


async def test_a_range_ends_where_it_says_and_an_unknown_interest_is_told(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    await here.register("v.b")
    (one,) = await here.subscribe("v.c", "v.b", [1])
    for number in range(5):
        await here.execute(channel, {one: [number]})
    epoch = here.store.epoch
    parts, _ = await here.fetch(
        Range(one, Cursor(epoch, 1, 0), to=Cursor(epoch, 4, 0)),
        Range(one, START, limit=2),
        Range(987_654_321_987, START),
    )
    assert values(parts) == [(0, [1, 2, 3]), (1, [0, 1]), (2, [])]
    assert [part.known for part in parts] == [True, True, False]


async def test_one_interest_is_asked_for_by_get(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    await here.register("v.b")
    (one,) = await here.subscribe("v.c", "v.b", [1])
    await here.execute(channel, {one: [{"n": 1}, {"n": 2}, {"n": 3}]})
    status, said = await here.ask("GET", f"/v1/results/{one}?after=0-0-0&limit=2")
    assert status == 200
    assert [each["result"] for each in said["results"]] == [{"n": 1}, {"n": 2}]
    assert (said["more"], said["gap"], said["known"]) == (True, None, True)
    last = said["results"][-1]["cursor"]
    status, said = await here.ask("GET", f"/v1/results/{one}?after={last}")
    assert ([each["result"] for each in said["results"]], said["more"]) == ([{"n": 3}], False)
    assert (await here.ask("GET", "/v1/results/99999?after=0-0-0"))[1]["known"] is False


async def test_an_answer_that_grows_too_large_says_where_to_go_on(tmp_path: Path) -> None:
    async with world(tmp_path, limits=FetchLimits(answer_bytes=2_000, chunk_bytes=500)) as here:
        channel = await here.channel("c")
        await here.register("v.b")
        interests = await here.subscribe("v.c", "v.b", *([number] for number in range(7)))
        expected = {each: [f"{each} {n} " + "x" * 100 for n in range(9)] for each in interests}
        await here.execute(channel, expected)
        asked = [Range(each, START, limit=8) for each in interests[:4]]
        # A result counts with a hundred bytes besides its own.
        asked += [Range(each, START, limit_bytes=7 * 208 + 1) for each in interests[4:]]
        found: dict[int, list[Any]] = {}
        answers = 0
        while True:
            parts, stopped = await here.fetch(*asked)
            answers += 1
            for part in parts:
                found.setdefault(asked[part.range].interest, []).extend(orjson.loads(x.payload) for x in part.results)
            if stopped is None:
                break
            asked = list_remaining_ranges(asked, stopped)
        assert answers > 2
        assert found == {each: texts[:8] for each, texts in expected.items()}


async def test_a_fetch_below_retention_is_told_of_the_gap(here: SparklessCluster) -> None:
    channel = await here.channel("c", retention_s=0.001)
    await here.register("v.b")
    (one,) = await here.subscribe("v.c", "v.b", [1])
    await here.execute(channel, {one: ["old"]}, at_us=1)
    await here.execute(channel, {one: ["new"]}, at_us=time.time_ns() // 1_000 + 10**9)
    await here.retention.look_over()
    epoch = here.store.epoch
    parts, _ = await here.fetch(Range(one, START), Range(one, Cursor(epoch, 1, 0)))
    assert values(parts) == [(0, ["new"]), (1, ["new"])]
    assert [part.gap for part in parts] == [Cursor(epoch, 1, 0), None]
    status, said = await here.ask("GET", f"/v1/results/{one}?after=0-0-0")
    assert (status, said["gap"]) == (200, f"{epoch}-1-0")


async def test_history_before_a_subscription_is_there_when_it_is_asked_for(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    await here.register("v.b")
    (one,) = await here.subscribe("v.c", "v.b", [1])
    await here.execute(channel, {one: ["before"]})
    status, said = await here.ask(
        "POST", "/v1/channels/v.c/subscriptions", {"broker": "v.b", "subscriptions": [{"parameters": [1]}]}
    )
    assert status == 200
    (late,) = said["subscriptions"]
    await here.execute(channel, {one: ["after"]})
    status, said = await here.ask("GET", f"/v1/results/{late['interest']}?after={late['since']}")
    assert [each["result"] for each in said["results"]] == ["after"]
    status, said = await here.ask("GET", f"/v1/results/{late['interest']}?after=0-0-0")
    assert [each["result"] for each in said["results"]] == ["before", "after"]


BAD_FETCHES: list[Any] = [
    {}, [], None, "x", {"ranges": 1}, {"ranges": [1]}, {"ranges": [{}]}, {"ranges": [], "more": 1},
    {"ranges": [{"interest": 1}]}, {"ranges": [{"interest": "1", "after": "0-0-0"}]},
    {"ranges": [{"interest": True, "after": "0-0-0"}]}, {"ranges": [{"interest": 1.5, "after": "0-0-0"}]},
    {"ranges": [{"interest": 1, "after": "0-0"}]}, {"ranges": [{"interest": 1, "after": "0-0-0\n"}]},
    {"ranges": [{"interest": 1, "after": "-1-0-0"}]}, {"ranges": [{"interest": 1, "after": "٣-0-0"}]},
    {"ranges": [{"interest": 1, "after": [0, 0, 0]}]}, {"ranges": [{"interest": 1, "after": "0-0-0", "to": 1}]},
    {"ranges": [{"interest": 1, "after": "0-0-0", "limit": 0}]},
    {"ranges": [{"interest": 1, "after": "0-0-0", "limit": "1"}]},
    {"ranges": [{"interest": 1, "after": "0-0-0", "limit": 10**19}]},
    {"ranges": [{"interest": 1, "after": "0-0-0", "limits": 1}]},
]  # fmt: skip


@pytest.mark.parametrize("said", BAD_FETCHES, ids=str)
async def test_a_fetch_that_cannot_be_understood_is_refused(here: SparklessCluster, said: Any) -> None:
    status, answer = await here.ask("POST", "/v1/results:fetch", data=orjson.dumps(said))
    assert (status, answer["error"]["code"]) == (400, "bad_request")


async def test_too_many_ranges_and_bodies_that_are_no_json_are_refused(here: SparklessCluster) -> None:
    many = {"ranges": [{"interest": 1, "after": "0-0-0"}] * 10_001}
    assert (await here.ask("POST", "/v1/results:fetch", many))[0] == 413
    for bad in (b"", b"{", b"\xff", b"[" * 100_000):
        assert (await here.ask("POST", "/v1/results:fetch", data=bad))[0] == 400
    for path in ("/v1/results/x?after=0-0-0", "/v1/results/1", "/v1/results/1?after=x", "/v1/results/-1?after=0-0-0",
                 "/v1/results/1?after=0-0-0&limit=0", "/v1/results/1?after=0-0-0&to=1"):  # fmt: skip
        assert (await here.ask("GET", path))[0] == 400


async def test_numbers_beyond_all_bounds_are_not_found_and_do_no_harm(here: SparklessCluster) -> None:
    huge = "99999999999999999999"
    status, said = await here.ask("GET", f"/v1/results/{huge}?after={huge}-{huge}-{huge}")
    assert (status, said["known"]) == (200, False)
    parts, _ = await here.fetch(Range(2**64 - 1, Cursor(10**19, 10**19, 10**19)))
    assert parts[0].known is False


# --- subscriptions


async def test_ten_thousand_subscriptions_take_one_call_and_seconds(here: SparklessCluster) -> None:
    await here.channel("c", t.BIGINT, t.STRING)
    await here.register("v.b")
    wanted = [{"id": f"s{n:05}", "parameters": [n // 2, "flood"]} for n in range(10_000)]
    began_s = time.process_time()
    body = {"broker": "v.b", "subscriptions": wanted}
    status, said = await here.ask("POST", "/v1/channels/v.c/subscriptions", body)
    assert time.process_time() - began_s < 5
    assert (status, said["made"], len({subscription["interest"] for subscription in said["subscriptions"]})) == (
        200,
        10_000,
        5_000,
    )
    # Sent again, as after a lost answer, it is the same.
    assert await here.ask("POST", "/v1/channels/v.c/subscriptions", body) == (200, {**said, "made": 0})
    listed, after = [], ""
    while after is not None:
        status, page = await here.ask("GET", f"/v1/channels/v.c/subscriptions?after={after}&limit=4000")
        listed += page["subscriptions"]
        after = page["next"]
    assert [item["id"] for item in listed] == [item["id"] for item in wanted]
    assert listed[-1]["parameters"] == [4_999, "flood"]
    assert {item["broker"] for item in listed} == {"v.b"}
    status, gone = await here.ask(
        "POST", "/v1/channels/v.c/subscriptions:remove", {"ids": [item["id"] for item in wanted[1:]] + ["nobody"]}
    )
    assert (status, len(gone["removed"])) == (200, 9_999)
    status, page = await here.ask("GET", "/v1/channels/v.c/subscriptions")
    assert [subscription["id"] for subscription in page["subscriptions"]] == ["s00000"]


async def test_values_that_are_equal_are_one_interest(here: SparklessCluster) -> None:
    await here.channel("c", t.DOUBLE, t.POINT)
    await here.register("v.b")
    interests = await here.subscribe("v.c", "v.b", [1, [0, 2]], [1.0, [-0.0, 2.0]], [1, "0,2"], [2, [0, 2]])
    assert interests[0] == interests[1] == interests[2] != interests[3]


async def test_a_whole_number_of_64_bits_stays_what_it_is(here: SparklessCluster) -> None:
    await here.channel("c")
    await here.register("v.b")
    assert len(set(await here.subscribe("v.c", "v.b", [2**63 - 1], [2**63 - 2], [-(2**63)]))) == 3
    _, page = await here.ask("GET", "/v1/channels/v.c/subscriptions")
    assert {subscription["parameters"][0] for subscription in page["subscriptions"]} == {2**63 - 1, 2**63 - 2, -(2**63)}


async def test_one_subscription_that_does_not_fit_keeps_all_from_being_made(here: SparklessCluster) -> None:
    await here.channel("c")
    await here.register("v.b")
    wanted = [{"parameters": [1]}, {"parameters": ["x"]}]
    status, said = await here.ask("POST", "/v1/channels/v.c/subscriptions", {"broker": "v.b", "subscriptions": wanted})
    assert status == 400
    assert said["error"]["message"].startswith("subscription 1: p0: ")
    assert (await here.ask("GET", "/v1/channels/v.c/subscriptions"))[1]["subscriptions"] == []


async def test_a_subscription_is_looked_at_moved_and_ended_by_its_id(here: SparklessCluster) -> None:
    await here.channel("c")
    for name in ("v.b", "v.other"):
        await here.register(name)
    one = {"id": "a/b c", "parameters": [1]}
    path = "/v1/channels/v.c/subscriptions/a%2Fb%20c"
    body = {"broker": "v.b", "subscriptions": [one]}
    assert (await here.ask("POST", "/v1/channels/v.c/subscriptions", body))[0] == 200
    assert (await here.ask("GET", path))[1]["broker"] == "v.b"
    status, said = await here.ask("PATCH", path, {"broker": "v.other"})
    assert (status, said["broker"], said["id"]) == (200, "v.other", "a/b c")
    status, said = await here.ask("GET", "/v1/brokers/v.other/subscriptions")
    assert [(each["channel"], each["id"]) for each in said["subscriptions"]] == [("v.c", "a/b c")]
    assert (await here.ask("GET", "/v1/brokers/v.b/subscriptions"))[1]["subscriptions"] == []
    # The same id for something else is refused.
    assert (await here.ask("POST", "/v1/channels/v.c/subscriptions", body))[0] == 409
    assert (await here.ask("DELETE", path))[1] == {"removed": ["a/b c"]}
    assert (await here.ask("DELETE", path))[0] == 404
    assert (await here.ask("GET", path))[0] == 404
    assert (await here.ask("PATCH", path, {"broker": "v.b"}))[0] == 404


async def test_pages_of_a_brokers_subscriptions_span_its_channels(here: SparklessCluster) -> None:
    await here.register("v.b") if await here.channel("c") else None
    await here.channel("d")
    for channel in ("v.c", "v.d"):
        await here.subscribe(channel, "v.b", *([n] for n in range(5)))
    found: list[tuple[str, str]] = []
    after: str | None = "0%20"
    while after is not None:
        status, page = await here.ask("GET", f"/v1/brokers/v.b/subscriptions?limit=3&after={after}")
        assert status == 200
        found += [(subscription["channel"], subscription["id"]) for subscription in page["subscriptions"]]
        after = None if page["next"] is None else page["next"].replace(" ", "%20")
    assert len(set(found)) == len(found) == 10


BAD_SUBSCRIPTIONS: list[Any] = [
    {}, [], 1, {"broker": "v.b"}, {"broker": 1, "subscriptions": []}, {"broker": "v.b", "subscriptions": {}},
    {"broker": "v.b", "subscriptions": [1]}, {"broker": "v.b", "subscriptions": [{}]},
    {"broker": "v.b", "subscriptions": [{"parameters": 1}]}, {"broker": "v.b", "subscriptions": [{"parameters": []}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [None]}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [1, 2]}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [1.5]}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [1 << 63]}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [1], "id": ""}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [1], "id": 7}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [1], "id": "x" * 201}]},
    {"broker": "v.b", "subscriptions": [{"parameters": [1], "name": "x"}]},
]  # fmt: skip


@pytest.mark.parametrize("said", BAD_SUBSCRIPTIONS, ids=str)
async def test_a_subscription_that_cannot_be_understood_is_refused(here: SparklessCluster, said: Any) -> None:
    await here.channel("c")
    await here.register("v.b")
    status, answer = await here.ask("POST", "/v1/channels/v.c/subscriptions", said)
    assert status == 400
    assert answer["error"]["code"] in ("bad_request", "limit")


async def test_what_is_not_there_is_said_not_to_be(here: SparklessCluster) -> None:
    await here.channel("c")
    await here.register("v.b")
    body = {"broker": "v.b", "subscriptions": [{"parameters": [1]}]}
    assert (await here.ask("POST", "/v1/channels/v.nowhere/subscriptions", body))[0] == 404
    assert (await here.ask("POST", "/v1/channels/c/subscriptions", body))[0] == 404
    assert (await here.ask("POST", "/v1/channels/v.c/subscriptions", {**body, "broker": "v.nobody"}))[0] == 404
    for path in ("/v1/channels/v.x/subscriptions", "/v1/brokers/v.x/announcements", "/v1/brokers/v.x", "/v1/brokers/x"):
        assert (await here.ask("GET", path))[0] == 404
    assert (await here.ask("POST", "/v1/brokers/v.x/secret"))[0] == 404
    assert (await here.ask("POST", "/v1/brokers/v.x/acks", {}))[0] == 404
    assert (await here.ask("PUT", "/v1/brokers/nowhere.x", {"url": None}))[0] == 404
    assert await here.store.registration(("nowhere", "x")) is None  # type: ignore[arg-type]


async def test_names_and_ids_of_strange_characters_are_not_found(here: SparklessCluster) -> None:
    await here.channel("c")
    await here.register("v.b")
    for strange in ("%ED%A0%80", "%FF", "%00", "%F0%9F%94%A5", "..%2F..", "%25", "'%20OR%20''='"):
        for path in (
            f"/v1/channels/v.c/subscriptions/{strange}", f"/v1/channels/{strange}/subscriptions",
            f"/v1/channels/v.{strange}/subscriptions", f"/v1/brokers/{strange}",
            f"/v1/brokers/v.{strange}/announcements",
        ):  # fmt: skip
            assert (await here.ask("GET", path))[0] in (400, 404), path
        status, _ = await here.ask("GET", f"/v1/channels/v.c/subscriptions?after={strange}")
        assert status in (200, 400), strange
        status, _ = await here.ask("GET", f"/v1/brokers/v.b/subscriptions?after=0%20{strange}")
        assert status in (200, 400), strange
        assert (await here.ask("DELETE", f"/v1/channels/v.c/subscriptions/{strange}"))[0] in (400, 404)
        assert (await here.ask("PUT", f"/v1/brokers/v.{strange}", {"url": None}))[0] in (201, 400)


# --- who may


async def test_each_role_may_do_its_part(tmp_path: Path) -> None:
    async with world(tmp_path, auth="on") as here:
        await here.channel("c")
        here.token = None
        assert (await here.ask("POST", "/v1/results:fetch", {"ranges": []}))[0] == 401
        here.token = "tocsin_cy"  # a reader
        assert (await here.ask("POST", "/v1/results:fetch", {"ranges": []}))[0] == 200
        assert (await here.ask("GET", "/v1/channels/v.c/subscriptions"))[0] == 200
        assert (await here.ask("PUT", "/v1/brokers/v.b", {"url": None}))[0] == 403
        here.token = "tocsin_east"  # a broker
        await here.register("v.east")
        await here.subscribe("v.c", "v.east", [1])
        here.token = "tocsin_west"  # another broker
        await here.register("v.west")
        body = {"broker": "v.east", "subscriptions": [{"parameters": [1]}]}
        assert (await here.ask("POST", "/v1/channels/v.c/subscriptions", body))[0] == 403
        for method, path, said in (
            ("PUT", "/v1/brokers/v.east", {"url": "http://evil.example/"}),
            ("GET", "/v1/brokers/v.east/announcements", None),
            ("POST", "/v1/brokers/v.east/secret", None), ("POST", "/v1/brokers/v.east/acks", {}),
            ("DELETE", "/v1/brokers/v.east", None), ("GET", "/v1/brokers/v.east/subscriptions", None),
        ):  # fmt: skip
            assert (await here.ask(method, path, said))[0] == 403, path
        listed = (await here.ask("GET", "/v1/channels/v.c/subscriptions"))[1]["subscriptions"]
        ids = [item["id"] for item in listed]
        assert (await here.ask("POST", "/v1/channels/v.c/subscriptions:remove", {"ids": ids}))[0] == 403
        assert (await here.ask("DELETE", f"/v1/channels/v.c/subscriptions/{ids[0]}"))[0] == 403
        assert (await here.ask("PATCH", f"/v1/channels/v.c/subscriptions/{ids[0]}", {"broker": "v.west"}))[0] == 403
        # One that was made by statement belongs to the first that registers as it, while nobody subscribed.
        await here.store.register(BrokerName("v", "north"), "s", owner=None)
        await here.catalog.apply([Put(BrokerEntry("v", "north", None))])
        assert (await here.ask("POST", "/v1/brokers/v.north/secret"))[0] == 403
        assert (await here.ask("PUT", "/v1/brokers/v.north", {"url": None}))[0] == 200
        assert (await here.ask("POST", "/v1/brokers/v.north/secret"))[0] == 200
        here.token = "tocsin_bob"  # a writer
        assert (await here.ask("PATCH", f"/v1/channels/v.c/subscriptions/{ids[0]}", {"broker": "v.west"}))[0] == 200
        assert (await here.ask("POST", "/v1/brokers/v.east/secret"))[0] == 200


async def test_a_broker_that_a_writer_has_registered_is_no_other_brokers(tmp_path: Path) -> None:
    async with world(tmp_path, auth="on") as here:
        await here.channel("c")
        here.token = "tocsin_bob"  # a writer
        await here.register("v.b", "http://127.0.0.1:1/")
        here.token = "tocsin_east"
        for method, path, said in (
            ("PUT", "/v1/brokers/v.b", {"url": "http://evil.example/"}), ("POST", "/v1/brokers/v.b/secret", None),
            ("DELETE", "/v1/brokers/v.b", None),
        ):  # fmt: skip
            assert (await here.ask(method, path, said))[0] == 403, path
        assert here.brokers.find("v", "b").url == "http://127.0.0.1:1/"
        here.token = "tocsin_dan"  # Another writer may do by a statement what it does here.
        assert (await here.ask("PUT", "/v1/brokers/v.b", {"url": None}))[0] == 200
        kept = await here.store.registration(BrokerName("v", "b"))
        assert kept is not None
        assert kept.owner == "bob"


async def test_a_broker_that_a_statement_made_is_not_claimed_with_its_subscriptions(tmp_path: Path) -> None:
    async with world(tmp_path, auth="on") as here:
        await here.channel("c")
        await here.store.register(BrokerName("v", "north"), "s", owner=None)
        await here.catalog.apply([Put(BrokerEntry("v", "north", None))])
        here.token = "tocsin_bob"  # a writer
        await here.subscribe("v.c", "v.north", [1])
        here.token = "tocsin_west"  # a broker
        for said in ({"url": "http://evil.example/"}, {"url": None, "store": "x", "generation": None, "starts": True}):
            status, refused = await here.ask("PUT", "/v1/brokers/v.north", said)
            assert status == 403
            assert "role writer" in refused["error"]["hint"]
        assert here.brokers.find("v", "north").url is None
        kept = await here.store.registration(BrokerName("v", "north"))
        assert kept is not None
        assert (kept.owner, kept.secret) == (None, "s")
        here.token = "tocsin_bob"
        assert (await here.ask("PUT", "/v1/brokers/v.north", {"url": None}))[0] == 200


# --- which of several


async def claimed(
    here: SparklessCluster, store: str, generation: str | None = None, *, starts: bool = True
) -> tuple[int, Any]:
    said = {"url": None, "store": store, "generation": generation, "starts": starts}
    return await here.ask("PUT", "/v1/brokers/v.b", said)


async def test_whatever_an_older_broker_of_the_name_asks_for_is_refused(here: SparklessCluster) -> None:
    await here.channel("c")
    first = (await claimed(here, "one"))[1]
    subscription = {"broker": "v.b", "subscriptions": [{"parameters": [1], "id": "broker:x"}]}
    old = {"Tocsin-Broker": f"v.b {first['generation']}"}
    assert (await here.ask("POST", "/v1/channels/v.c/subscriptions", subscription, headers=old))[0] == 200
    second = (await claimed(here, "two"))[1]
    assert parse_position(second["generation"]) > parse_position(first["generation"])
    assert second["secret"] != first["secret"], "the older one could still read and forge what the newer is told"
    for method, path, said in (
        ("GET", "/v1/brokers/v.b", None), ("GET", "/v1/brokers/v.b/announcements", None),
        ("POST", "/v1/brokers/v.b/acks", {}),
        ("POST", "/v1/brokers/v.b/secret", None), ("GET", "/v1/brokers/v.b/subscriptions", None),
        ("DELETE", "/v1/brokers/v.b", None), ("POST", "/v1/results:fetch", {"ranges": []}),
        ("POST", "/v1/channels/v.c/subscriptions", subscription),
        ("POST", "/v1/channels/v.c/subscriptions:remove", {"ids": ["broker:x"]}),
        ("DELETE", "/v1/channels/v.c/subscriptions/broker:x", None),
    ):  # fmt: skip
        status, answered = await here.ask(method, path, said, headers=old)
        assert (status, answered["error"]["code"]) == (409, "fenced"), path
    # Neither going on nor starting again gives it the name back; the newer one keeps it, and may start again.
    for starts in (True, False):
        assert (await claimed(here, "one", first["generation"], starts=starts))[1]["error"]["code"] == "fenced"
    kept = (await claimed(here, "two", second["generation"], starts=False))[1]
    assert (kept["generation"], "secret" in kept) == (second["generation"], False)
    again = (await claimed(here, "two", second["generation"]))[1]
    new = {"Tocsin-Broker": f"v.b {again['generation']}"}
    assert (await here.ask("GET", "/v1/brokers/v.b/announcements", headers=new))[0] == 200
    held = (await here.ask("GET", "/v1/brokers/v.b/subscriptions", headers=new))[1]["subscriptions"]
    assert [holding["id"] for holding in held] == ["broker:x"]


@pytest.mark.parametrize("said", ["", "v.b", "v.b x", "%ff 1-1", "v.b 1-1-1"])
async def test_a_generation_that_cannot_be_read_is_refused(here: SparklessCluster, said: str) -> None:
    status, answered = await here.ask("GET", "/v1/brokers/v.b", headers={"Tocsin-Broker": said})
    assert (status, "Tocsin-Broker" in answered["error"]["message"]) == (400, True)
    for body in ({"store": 1}, {"store": ""}, {"store": "s", "generation": said}, {"store": "s", "starts": 1}):
        assert (await here.ask("PUT", "/v1/brokers/v.b", {"url": None, **body}))[0] == 400


# --- many at once


@asynccontextmanager
async def unread(here: SparklessCluster, asked: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A client that sends this and reads nothing of the answer, but what its reader is asked for."""
    place = urlsplit(here.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1)
    writer.write(asked)
    try:
        yield reader
    finally:
        writer.transport.abort()


def posted(interest: int) -> bytes:
    body = fetch_request([Range(interest, START)])
    return b"POST /v1/results:fetch HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def got(interest: int) -> bytes:
    return b"GET /v1/results/%d?after=0-0-0 HTTP/1.1\r\nHost: localhost\r\n\r\n" % interest


async def large(here: SparklessCluster) -> int:
    """An interest with 30 MB of results: more than the buffers between two programs hold."""
    channel = await here.channel("c")
    await here.register("v.b")
    (one,) = await here.subscribe("v.c", "v.b", [1])
    await here.execute(channel, {one: ["x" * (1 << 20)] * 30})
    return one


@pytest.mark.parametrize("request_of", [posted, got])
async def test_clients_that_do_not_read_keep_nobody_from_fetching(
    tmp_path: Path, request_of: Callable[[int], bytes]
) -> None:
    limits = FetchLimits(concurrent=1, waiting=8, write_timeout_s=3_600.0)
    async with world(tmp_path, limits=limits) as here:
        one = await large(here)
        async with unread(here, request_of(one)) as first, unread(here, request_of(one)) as second:
            # Both have begun, and are in nobody's way.
            assert [await each.readexactly(12) for each in (first, second)] == [b"HTTP/1.1 200"] * 2
            async with asyncio.timeout(WITHIN_S):
                status, said = await here.ask("GET", f"/v1/results/{one}?after=0-0-0&limit=1")
                assert (status, said["more"]) == (200, True)
                parts, _ = await here.fetch(Range(one, START))
            assert sum(len(part.results) for part in parts) == 30


async def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    limits = FetchLimits(write_timeout_s=0.2, unread_bytes=6 << 20)
    async with world(tmp_path, limits=limits) as here:
        one = await large(here)
        async with unread(here, posted(one)) as first, unread(here, posted(one)) as second:
            assert [await each.readexactly(12) for each in (first, second)] == [b"HTTP/1.1 200"] * 2
            # What the two hold leaves no room for a third, until they are gone.
            async with asyncio.timeout(WITHIN_S):
                while (await here.ask("POST", "/v1/results:fetch", data=fetch_request([Range(one, START)])))[0] != 200:
                    await asyncio.sleep(0.01)


async def test_what_clients_have_not_read_is_bounded_in_bytes(tmp_path: Path) -> None:
    limits = FetchLimits(write_timeout_s=3_600.0, unread_bytes=5 << 20)
    async with world(tmp_path, limits=limits) as here:
        one = await large(here)
        async with unread(here, posted(one)) as first, unread(here, posted(one)) as second:
            assert [await each.readexactly(12) for each in (first, second)] == [b"HTTP/1.1 200"] * 2
            status, said = await here.ask("POST", "/v1/results:fetch", data=fetch_request([Range(one, START)]))
            assert (status, said["error"]["code"]) == (429, "limit")
            assert "that are not read yet may take" in said["error"]["message"]
            little = fetch_request([Range(one + 1, START)])
            assert (await here.ask("POST", "/v1/results:fetch", data=little))[0] == 200


async def test_more_fetches_than_there_is_room_for_are_told_to_come_again(tmp_path: Path) -> None:
    async with world(tmp_path, limits=FetchLimits(concurrent=1, waiting=0)) as here:
        channel = await here.channel("c")
        await here.register("v.b")
        (one,) = await here.subscribe("v.c", "v.b", [1])
        await here.execute(channel, {one: list(range(2_000))})
        asked = [here.ask("GET", f"/v1/results/{one}?after=0-0-0") for _ in range(30)]
        statuses = {status for status, _ in await asyncio.gather(*asked)}
        assert statuses == {200, 429}


async def test_what_brokers_are_told_and_fetch_is_counted(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with fake_broker() as east:
        east.secret = await here.register("v.east", east.url)
        (one,) = await here.subscribe("v.c", "v.east", [1])
        east.answers = [500]
        await here.execute(channel, {one: ["a", "b"]})
        await east.until(lambda: one in east.told)
        await here.fetch(Range(one, START))
        async with asyncio.timeout(WITHIN_S):
            while here.announcer.figures()[0].lag:
                await asyncio.sleep(0.01)
        _, body = await here.ask("GET", "/metrics")
    lines = body.decode().splitlines()
    for line in (
        'tocsin_cluster_announcements_total{broker="v.east"} 1.0',
        'tocsin_cluster_announcements_failed_total{broker="v.east"} 1.0',
        'tocsin_cluster_broker_lag_results{broker="v.east"} 0.0',
        "tocsin_results_fetched_total 2.0",
    ):
        assert line in lines
