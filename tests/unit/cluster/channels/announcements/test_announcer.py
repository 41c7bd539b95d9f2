"""Brokers get announcements: signed, in order, at least once, also while other brokers are away."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from tests.support.sparkless_cluster import AnnouncementReceiver, SparklessCluster, fake_broker, world
from tests.support.waiting import WITHIN_S, until
from tocsin.cluster.catalog.catalog import Remove
from tocsin.cluster.catalog.refs import broker_ref
from tocsin.cluster.channels.announcements.broker_notifier import AnnouncerTiming
from tocsin.cluster.data_folder.removals import BROKER
from tocsin.rules.model.cursors import BEGINNING, Position
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.addresses import NO_NETWORKS
from tocsin.store.channels.rows import BrokerName
from tocsin.wire.announcements import Announcement, parse_announcement
from tocsin.wire.cursors import parse_position, position_text

EAST = BrokerName("v", "east")


@pytest.fixture
async def here(tmp_path: Path) -> Any:
    async with world(tmp_path) as made:
        yield made


async def joined(here: SparklessCluster, name: str, broker: AnnouncementReceiver) -> None:
    broker.secret = await here.register(name, broker.url)


async def announcement(here: SparklessCluster, name: str, after: Position, **query: object) -> Announcement:
    more = "".join(f"&{key}={value}" for key, value in query.items())
    status, body = await here.ask("GET", f"/v1/brokers/{name}/announcements?after={position_text(after)}{more}")
    assert status == 200, body
    return parse_announcement(body)


async def test_a_broker_is_told_which_of_its_interests_have_new_results(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with fake_broker() as east, fake_broker() as west:
        await joined(here, "v.east", east)
        await joined(here, "v.west", west)
        one, two = await here.subscribe("v.c", "v.east", [1], [2])
        (three,) = await here.subscribe("v.c", "v.west", [3])
        await here.execute(channel, {one: ["a", "b"], three: ["c"]})
        await east.until(lambda: east.told == {one: "1-1"})
        await west.until(lambda: west.told == {three: "1-0"})
        await here.execute(channel, {two: ["d"]})
        await east.until(lambda: two in east.told)
    assert [list(each.heads) for each in east.got] == [["v.c"], ["v.c"]]
    assert east.got[0].broker == "v.east"
    # Each goes on where the one before ended.
    assert east.got[1].after == east.got[0].position
    assert len(west.got) == 1


async def test_results_of_a_push_channel_are_inside_and_what_does_not_fit_is_told(tmp_path: Path) -> None:
    async with world(tmp_path, announced={"pushed_bytes": 1_000}) as here, fake_broker() as east:
        pushed, pulled = await here.channel("p", push=True), await here.channel("c")
        await joined(here, "v.east", east)
        small, large, last = await here.subscribe("v.p", "v.east", [1], [2], [3])
        (other,) = await here.subscribe("v.c", "v.east", [1])
        await here.execute(pushed, {small: [{"n": 1}, {"n": 2}]})
        await east.until(lambda: east.told == {small: "1-1"})
        ((inside,), told) = east.got[0].pushed, east.got[0].heads
        assert (inside.channel, inside.interest, told) == ("v.p", small, {})
        assert [orjson.loads(result.payload) for result in inside.results] == [{"n": 1}, {"n": 2}]
        # Only what is new comes, also of an interest that was told before.
        await here.execute(pushed, {small: [{"n": 3}], large: ["x" * 2_000], last: ["y"]})
        await east.until(lambda: last in east.told)
        ((inside,), told) = east.got[1].pushed, east.got[1].heads
        assert [orjson.loads(result.payload) for result in inside.results] == [{"n": 3}]
        assert [interest for interest, _ in told["v.p"]] == [large, last]
        await here.execute(pulled, {other: ["z"]})
        await east.until(lambda: other in east.told)
        assert east.got[2].pushed == []


async def test_a_broker_that_fails_is_told_again_until_it_takes_it(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with fake_broker() as east:
        await joined(here, "v.east", east)
        (one,) = await here.subscribe("v.c", "v.east", [1])
        east.answers = [500, 503, 302, 404, 429]
        await here.execute(channel, {one: ["a"]})
        await east.until(lambda: east.told == {one: "1-0"})
        assert east.asked == 6
        (figures,) = here.announcer.figures()
        assert figures.counts.failed == 5
        await here.execute(channel, {one: ["b"]})
        await east.until(lambda: east.told == {one: "2-0"})


async def test_one_broker_that_is_dead_or_hangs_delays_nobody_else(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with fake_broker() as slow, fake_broker() as well:
        await joined(here, "v.slow", slow)
        await joined(here, "v.well", well)
        await here.register("v.dead", "http://127.0.0.1:1/")
        slow.hold = asyncio.Event()
        for name in ("v.slow", "v.well", "v.dead"):
            (one,) = await here.subscribe("v.c", name, [1])
        for number in range(1, 11):
            await here.execute(channel, {one: ["x"]})
            expected = {one: f"{number}-0"}
            await well.until(lambda expected=expected: well.told == expected)
        assert slow.asked == 1, "nobody has waited until the slow one was given up"
        # It has missed nine, and is told of them together.
        slow.hold.set()
        await slow.until(lambda: slow.told == {one: "10-0"})
        assert len(slow.got) == 2
        figures = {figure.broker: figure for figure in here.announcer.figures()}
        assert figures["v.dead"].counts.sent == 0
        assert figures["v.dead"].behind_s is not None
        assert figures["v.dead"].lag == 10
        assert figures["v.well"].behind_s is None


async def test_a_broker_that_was_away_is_told_everything_after_a_restart_of_both(tmp_path: Path) -> None:
    async with fake_broker() as east, world(tmp_path / "data") as here:
        channel = await here.channel("c")
        await joined(here, "v.east", east)
        one, two = await here.subscribe("v.c", "v.east", [1], [2])
        await here.execute(channel, {one: ["a"]})
        await east.until(lambda: east.told == {one: "1-0"})
        await here.until_kept(BrokerName("v", "east"))
        secret, port = east.secret, int(east.url.rpartition(":")[2].removesuffix("/announcements"))
    async with world(tmp_path / "data") as here:
        (channel,) = here.catalog.catalog.channels
        await here.execute(channel, {one: ["b"], two: ["c"]})
        await here.execute(channel, {two: ["d"]})
        async with fake_broker(port) as back:
            back.secret = secret
            await back.until(lambda: back.told == {one: "2-0", two: "3-0"})
            assert back.got[0].after == east.got[-1].position
            await here.until_kept(BrokerName("v", "east"))
    # What it has taken it is not told again.
    async with fake_broker(port) as back, world(tmp_path / "data") as here:
        back.secret = secret
        (channel,) = here.catalog.catalog.channels
        await here.execute(channel, {one: ["e"]})
        await back.until(lambda: back.told == {one: "4-0"})


async def test_a_broker_that_shows_up_again_is_not_waited_for_any_longer(tmp_path: Path) -> None:
    async with world(tmp_path, timing=AnnouncerTiming(5.0, 600.0, 600.0)) as here, fake_broker() as east:
        channel = await here.channel("c")
        east.secret = await here.register("v.east", "http://127.0.0.1:1/")
        (one,) = await here.subscribe("v.c", "v.east", [1])
        await here.execute(channel, {one: ["a"]})
        while not here.announcer.figures()[0].counts.failed:
            await asyncio.sleep(0.01)
        status, said = await here.ask("PUT", "/v1/brokers/v.east", {"url": east.url})
        assert (status, "secret" in said) == (200, False)
        await east.until(lambda: east.told == {one: "1-0"})


async def test_many_news_come_in_bounded_announcements_in_order(tmp_path: Path) -> None:
    async with world(tmp_path, announced={"items": 10}) as here, fake_broker() as east:
        channel = await here.channel("c")
        await joined(here, "v.east", east)
        interests = await here.subscribe("v.c", "v.east", *([n] for n in range(95)))
        await here.execute(channel, {interest: ["x"] for interest in interests})
        await east.until(lambda: len(east.told) == 95)
        assert max(len(item.heads["v.c"]) for item in east.got) == 10
        assert [item.after for item in east.got[1:]] == [item.position for item in east.got[:-1]]
        assert [item.more for item in east.got] == [True] * (len(east.got) - 1) + [False]
        assert len(set(east.ids)) == len(east.ids)


async def test_an_announcement_signed_with_another_secret_is_refused_by_the_broker(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with fake_broker() as east:
        await joined(here, "v.east", east)
        (one,) = await here.subscribe("v.c", "v.east", [1])
        right, east.secret = east.secret, "whsec_" + "A" * 44
        await here.execute(channel, {one: ["a"]})
        await east.until(lambda: len(east.refused) >= 2)
        assert east.got == []
        east.secret = right
        await east.until(lambda: east.told == {one: "1-0"})


async def test_a_secret_is_told_once_and_renewed_on_request(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with fake_broker() as east:
        await joined(here, "v.east", east)
        status, said = await here.ask("GET", "/v1/brokers/v.east")
        assert (status, set(said)) == (200, {"broker", "url", "position", "generation", "dropped"})
        first = east.secret
        east.secret = (await here.ask("POST", "/v1/brokers/v.east/secret"))[1]["secret"]
        assert east.secret != first
        (one,) = await here.subscribe("v.c", "v.east", [1])
        await here.execute(channel, {one: ["a"]})
        await east.until(lambda: east.told == {one: "1-0"})
        assert east.refused == []
        kept = await here.store.registration(EAST)
        assert kept is not None
        assert east.secret not in repr(kept)


async def test_news_are_asked_for_in_one_call_from_any_position(here: SparklessCluster) -> None:
    channel, pushed = await here.channel("c"), await here.channel("p", push=True)
    await here.register("v.east")
    one, two = await here.subscribe("v.c", "v.east", [1], [2])
    (three,) = await here.subscribe("v.p", "v.east", [1])
    start = await here.store.position()
    for number in range(3):
        await here.execute(channel, {one: [number]})
    between = await here.store.position()
    await here.execute(channel, {two: ["x"]})
    await here.execute(pushed, {three: ["y"]})
    epoch = here.store.epoch
    found = await announcement(here, "v.east", start)
    assert found.heads == {"v.c": [(one, (epoch, 3, 0)), (two, (epoch, 4, 0))]}
    assert [each.interest for each in found.pushed] == [three]
    assert (found.after, found.position, found.more) == (start, await here.store.position(), False)
    assert (await announcement(here, "v.east", between)).heads == {"v.c": [(two, (epoch, 4, 0))]}
    assert (await announcement(here, "v.east", BEGINNING)).heads == found.heads
    assert (await announcement(here, "v.east", found.position)).is_empty
    # Without a position: from where the cluster knows it to be.
    status, body = await here.ask("GET", "/v1/brokers/v.east/announcements")
    assert parse_announcement(body).heads == found.heads
    acked = {"position": position_text(between)}
    assert (await here.ask("POST", "/v1/brokers/v.east/acks", acked))[0] == 200
    status, body = await here.ask("GET", "/v1/brokers/v.east/announcements")
    assert status == 200
    assert parse_announcement(body).after == between


async def test_a_broker_may_wait_for_news(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    await here.register("v.east")
    await here.register("v.west")
    (one,) = await here.subscribe("v.c", "v.east", [1])
    (other,) = await here.subscribe("v.c", "v.west", [2])
    start = await here.store.position()
    assert (await announcement(here, "v.east", start, wait=0.05)).is_empty
    waiting = asyncio.create_task(announcement(here, "v.east", start, wait=50))
    await here.execute(channel, {other: ["not its own"]})
    await asyncio.sleep(0)
    assert not waiting.done()
    await here.execute(channel, {one: ["a"]})
    found = await asyncio.wait_for(waiting, WITHIN_S)
    assert found.heads == {"v.c": [(one, (here.store.epoch, 2, 0))]}
    assert found.after == start


async def test_whoever_waits_is_answered_when_the_cluster_stops(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.channel("c")
        await here.register("v.east")
        waiting = asyncio.create_task(announcement(here, "v.east", BEGINNING, wait=50))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        began_s = time.perf_counter()
    assert (await waiting).is_empty
    assert time.perf_counter() - began_s < 40, "it has waited for the 50 s that it had asked for"


async def test_news_removed_by_retention_are_told_as_a_gap(here: SparklessCluster) -> None:
    channel = await here.channel("c", retention_bytes=1)
    await here.register("v.east")
    (one,) = await here.subscribe("v.c", "v.east", [1])
    start = await here.store.position()
    await here.execute(channel, {one: ["old"]})
    await here.execute(channel, {one: ["new"]})
    await here.retention.look_over()
    found = await announcement(here, "v.east", start)
    assert found.gaps == ["v.c"]
    assert found.heads == {"v.c": [(one, (here.store.epoch, 2, 0))]}


async def test_what_all_brokers_have_acknowledged_goes_on_request(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    for name in ("v.east", "v.west"):
        await here.register(name)
        (one,) = await here.subscribe("v.c", name, [1])
    for number in range(4):
        await here.execute(channel, {one: [number]})
    epoch = here.store.epoch

    async def acked(name: str, execution: int) -> int:
        said = {"cursors": {str(one): f"{epoch}-{execution}-0", "999": "0-0-0"}, "trim": True}
        assert await here.ask("POST", f"/v1/brokers/{name}/acks", said) == (200, {"acknowledged": 2})
        await here.retention.look_over()
        return (await here.store.state(channel.channel_id)).results

    assert await acked("v.east", 3) == 4
    assert await acked("v.west", 2) == 2
    assert await acked("v.west", 1) == 2
    status, said = await here.ask("GET", f"/v1/results/{one}?after=0-0-0")
    assert (status, said["gap"], [each["result"] for each in said["results"]]) == (200, f"{epoch}-2-0", [2, 3])


async def test_old_results_go_by_themselves(tmp_path: Path) -> None:
    async with world(tmp_path, upkeep_s=0.01, retention_s=0.05) as here:
        channel = await here.channel("c")
        await here.register("v.east")
        (one,) = await here.subscribe("v.c", "v.east", [1])
        await here.execute(channel, {one: ["x"]}, at_us=time.time_ns() // 1_000)
        async with asyncio.timeout(WITHIN_S):
            while (await here.store.state(channel.channel_id)).results:
                await asyncio.sleep(0.01)


async def test_a_broker_that_goes_takes_its_subscriptions_along(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with fake_broker() as east:
        await joined(here, "v.east", east)
        await here.register("v.west")
        await here.subscribe("v.c", "v.east", [1], [2])
        await here.subscribe("v.c", "v.west", [2])
        assert (await here.ask("DELETE", "/v1/brokers/v.east"))[0] == 200
        state = await here.store.state(channel.channel_id)
        assert (state.interests, state.subscriptions) == (1, 1)
        assert await here.store.registration(EAST) is None
        assert (await here.ask("GET", "/v1/brokers/v.east"))[0] == 404
        assert (await here.ask("DELETE", "/v1/brokers/v.east"))[0] == 404
        # One of the same name is another one.
        before = east.secret
        await joined(here, "v.east", east)
        assert east.secret != before
        assert [figure.broker for figure in here.announcer.figures()] == ["v.west", "v.east"]


async def test_a_broker_that_an_older_catalog_does_not_know_keeps_its_subscriptions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with world(data) as here:
        channel = await here.channel("c")
    older = (data / "catalog.db").read_bytes()
    async with world(data) as here:
        await here.register("v.east")
        await here.register("v.west")
        await here.subscribe("v.c", "v.east", [1], [2])
    for path in data.glob("catalog.db*"):
        path.unlink()
    (data / "catalog.db").write_bytes(older)
    with capture_logs() as logs:
        async with world(data) as here:
            assert (await here.store.state(channel.channel_id)).subscriptions == 2
            assert await here.store.registration(EAST) is not None
            # Nothing is lost with a broker that has none.
            assert await here.store.registration(BrokerName("v", "west")) is None
            assert (await here.ask("GET", "/v1/brokers/v.east"))[0] == 404
            # It continues when it registers again, and goes when it is told to.
            status, _ = await here.ask("PUT", "/v1/brokers/v.east", {"url": None})
            assert status == 201
            assert (await here.store.state(channel.channel_id)).subscriptions == 2
            assert (await here.ask("DELETE", "/v1/brokers/v.east"))[0] == 200
            assert (await here.store.state(channel.channel_id)).subscriptions == 0
            assert await here.catalog.removals.list_for(BROKER) == []
    assert [entry["broker"] for entry in logs if "keeps its subscriptions" in entry["event"]] == ["v.east"]


async def test_a_start_finishes_the_removal_of_a_broker_that_a_crash_interrupted(tmp_path: Path) -> None:
    async with world(tmp_path / "data") as here:
        channel = await here.channel("c")
        await here.register("v.east")
        await here.subscribe("v.c", "v.east", [1])
        await here.catalog.apply([Remove(broker_ref(*EAST))])
    async with world(tmp_path / "data") as here:
        assert await here.store.registration(EAST) is None
        assert (await here.store.state(channel.channel_id)).subscriptions == 0
        assert await here.catalog.removals.list_for(BROKER) == []


async def test_what_is_no_address_position_or_acknowledgement_is_refused(here: SparklessCluster) -> None:
    await here.channel("c")
    await here.register("v.b")
    bad: Any
    for bad in ({}, [], {"url": 1}, {"url": "ftp://x/"}, {"url": "http://a:b@c/"}, {"url": "x"}, {"url": None, "x": 1}):
        assert (await here.ask("PUT", "/v1/brokers/v.b", bad))[0] == 400, bad
    for path in ("announcements?after=x", "announcements?after=1", "announcements?after=1-2-3", "announcements?wait=x",
                 "announcements?wait=-1", "announcements?wait=nan",
                 "subscriptions?after=x", "subscriptions?limit=0"):  # fmt: skip
        assert (await here.ask("GET", f"/v1/brokers/v.b/{path}"))[0] == 400, path
    for bad in ([], {"x": 1}, {"cursors": []}, {"cursors": {"x": "0-0-0"}}, {"cursors": {"1": 1}}, {"position": "x"},
                {"trim": 1}, {"cursors": {"-1": "0-0-0"}}):  # fmt: skip
        assert (await here.ask("POST", "/v1/brokers/v.b/acks", bad))[0] == 400, bad
    assert (await here.ask("PUT", "/v1/brokers/Metadata.b", {"url": None}))[0] == 409
    assert (await here.ask("PUT", "/v1/brokers/v.", {"url": None}))[0] == 400


async def test_a_position_from_the_future_is_not_believed(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    await here.register("v.b")
    (one,) = await here.subscribe("v.c", "v.b", [1])
    said = {"position": f"{here.store.epoch + 5}-999999"}
    assert (await here.ask("POST", "/v1/brokers/v.b/acks", said))[0] == 200
    await here.execute(channel, {one: ["a"]})
    status, body = await here.ask("GET", "/v1/brokers/v.b/announcements")
    assert (status, len(parse_announcement(body).heads["v.c"])) == (200, 1)
    assert parse_position(f"{here.store.epoch}-0") <= parse_announcement(body).after


async def test_a_broker_is_told_now_and_then_that_there_was_nothing_for_it(tmp_path: Path) -> None:
    timing = AnnouncerTiming(5.0, 0.01, 0.05, passed_over=10)
    async with world(tmp_path, timing=timing) as here, fake_broker() as east:
        channel = await here.channel("c")
        await joined(here, "v.east", east)
        await here.register("v.west")
        (one,) = await here.subscribe("v.c", "v.east", [1])
        (other,) = await here.subscribe("v.c", "v.west", [2])
        start = await here.store.position()
        await here.execute(channel, {other: list(range(8))})
        await here.execute(channel, {one: ["its own"]})
        await east.until(lambda: one in east.told)
        assert east.got[0].after == start
        await here.execute(channel, {other: list(range(11))})
        await east.until(lambda: len(east.got) == 2)
        assert east.got[1].is_empty
        assert (east.got[1].after, east.got[1].position) == (east.got[0].position, await here.store.position())


async def test_no_broker_is_told_in_a_private_network_that_is_not_allowed(tmp_path: Path) -> None:
    guard = AddressGuard("cluster.channels.private", NO_NETWORKS)
    async with fake_broker() as east:
        async with world(tmp_path) as here:
            channel = await here.channel("c")
            await joined(here, "v.east", east)
            (one,) = await here.subscribe("v.c", "v.east", [1])
        # It was registered while that was allowed, and is looked at again at every start.
        with capture_logs() as logs:
            async with world(tmp_path, guard=guard) as here:
                (warned,) = [line for line in logs if line["event"] == "the broker's address is refused"]
                assert (warned["log_level"], warned["name"]) == ("warning", "v.east")
                assert 'cluster.channels.private = "127.0.0.1"' in warned["hint"]
                before = len(logs)
                await here.execute(channel, {one: ["a"]})
                await until(lambda: any("cluster.channels.private" in str(line) for line in logs[before:]))
                for url in (east.url, "http://localhost/", "http://2130706433/", "http://[::ffff:10.0.0.1]:80/x"):
                    status, said = await here.ask("PUT", "/v1/brokers/v.east", {"url": url})
                    assert (status, "cluster.channels.private" in said["error"]["hint"]) == (400, True)
                    assert said["error"]["message"].startswith("the broker's address ")
                assert (await here.ask("PUT", "/v1/brokers/v.east", {"url": None}))[0] == 200
    assert east.asked == 0
