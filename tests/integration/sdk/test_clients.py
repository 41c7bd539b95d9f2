"""The clients against a real broker, with a cluster without Spark behind it: away and back, killed, behind, a gap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import page as open_page
from tests.support.commands import command
from tests.support.fake_broker import FakeBroker, listening
from tests.support.in_process_broker import PASSWORD, InProcessBroker, both
from tests.support.sparkless_cluster import SparklessCluster, world
from tests.support.waiting import WITHIN_S, until
from tocsin.cluster.catalog.catalog import Remove
from tocsin.rules.backoff import BackOff
from tocsin.rules.model import types as t
from tocsin.sdk import START, Available, Client, Ended, Gap, Manager, Result
from tocsin.sdk.sync import BlockingClient
from tocsin.serving.application import bind_socket
from tocsin.wire.errors import ConflictError, ForbiddenError, NotFoundError, UnauthorizedError

ROOT = Path(__file__).parents[3]
ADA = 1
"""The first subscriber of a new store."""


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[SparklessCluster]:
    async with world(tmp_path / "cluster") as here:
        yield here


@pytest.fixture
async def made(tmp_path: Path, here: SparklessCluster) -> AsyncIterator[InProcessBroker]:
    async with both(tmp_path / "broker", here) as made:
        yield made


def client(url: str, **options: Any) -> Client:
    return Client(url, "ada", PASSWORD, **{"pauses": BackOff(0.005, 0.05), "ack_every_s": 0.0, **options})


class Consumer:
    """Takes what comes, beside the test."""

    def __init__(self, one: Client) -> None:
        self.results: list[Any] = []
        self.others: list[Any] = []
        self._task = asyncio.create_task(self._follow(one))

    async def _follow(self, one: Client) -> None:
        async for told in one.results():
            if isinstance(told, Result):
                self.results.append(told.result)
            else:
                self.others.append(told)

    async def until(self, number: int) -> list[Any]:
        await until(lambda: len(self.results) >= number or self._task.done())
        if self._task.done():
            self._task.result()
        return self.results


async def test_everything_comes_once_and_in_order_while_away_and_back(
    here: SparklessCluster, made: InProcessBroker
) -> None:
    channel = await here.channel("c", t.BIGINT)
    async with client(made.url) as one:
        held = await one.subscribe("v.c", [1])
        consumer = Consumer(one)
        await here.execute(channel, {held.interest: [0, 1]})
        assert await consumer.until(2) == [0, 1]
    await here.execute(channel, {held.interest: [2, 3]})
    async with client(made.url) as one:
        assert (await one.subscribe("v.c", [1])).id == held.id
        consumer = Consumer(one)
        await here.execute(channel, {held.interest: [4]})
        assert await consumer.until(3) == [2, 3, 4]
        (told,) = await one.subscriptions()
        assert told.parameters == (1,)
        await one.flush()
        (told,) = await one.subscriptions()
        # Whoever waits for the next one has acknowledged all before it.
        assert told.marker is not None
        assert told.marker > held.since
    async with client(made.url) as one:
        consumer = Consumer(one)
        await here.execute(channel, {held.interest: [5]})
        assert await consumer.until(1) == [5]


async def test_a_token_that_ends_and_connections_that_break_go_unnoticed(
    here: SparklessCluster, made: InProcessBroker
) -> None:
    channel = await here.channel("c", t.BIGINT)
    async with client(made.url) as one, client(made.url) as other:
        held = await one.subscribe("v.c", [1])
        consumer = Consumer(one)
        for n in range(6):
            await here.execute(channel, {held.interest: [2 * n]})
            if n % 2:
                made.parts.fan_out.shed(ADA)
            else:
                # All tokens of the user are good no more.
                made.parts.connections.end_all(ADA)
            await here.execute(channel, {held.interest: [2 * n + 1]})
            assert await consumer.until(2 * n + 2) == list(range(2 * n + 2))
        assert one.connections > 1
        await other.subscriptions()


async def test_gaps_ends_and_limits_are_told_by_the_broker_as_the_client_tells_them(
    here: SparklessCluster, made: InProcessBroker
) -> None:
    channel = await here.channel("c", t.BIGINT, retention_bytes=60)
    async with client(made.url) as one:
        with pytest.raises(NotFoundError):
            await one.subscribe("v.nothing", [1])
        held = await one.subscribe("v.c", [1])
        for n in range(5):
            await here.execute(channel, {held.interest: [{"n": n, "pad": "x" * 30}]})
        await here.retention.look_over()
        again = await one.subscribe("v.c", [2], since=START)
        assert again.recovered is True
        await one.unsubscribe(held)
        held = await one.subscribe("v.c", [1], since=START)
        assert held.recovered is False
        consumer = Consumer(one)
        await until(lambda: consumer.results and consumer.results[-1]["n"] == 4)
        assert isinstance(consumer.others[0], Gap)
        assert len(consumer.results) < 5
        with pytest.raises(NotFoundError):
            await one.unsubscribe("sub_nothing")
        await here.catalog.apply([Remove(channel.ref)])
        await here.store.drop_channel(channel.channel_id)
        made.parts.link.note_unknown_interest(held.interest)
        await until(lambda: sum(isinstance(each, Ended) for each in consumer.others) == 2)
        assert await one.subscriptions() == []
    with pytest.raises(UnauthorizedError):
        async with Client(made.url, "ada", "wrong"):
            pass
    with pytest.raises(NotFoundError):
        async with Client(made.url, "eve", PASSWORD, application="nobody", register=True):
            pass


async def test_who_is_only_told_pulls_and_who_blocks_gets_the_same(
    here: SparklessCluster, made: InProcessBroker
) -> None:
    channel = await here.channel("c", t.BIGINT)
    async with client(made.url) as one:
        held = await one.subscribe("v.c", [1], mode="notify")
        consumer = Consumer(one)
        await here.execute(channel, {held.interest: list(range(5))})
        await until(lambda: consumer.others)
        told = consumer.others[0]
        assert isinstance(told, Available)
        assert [each.result async for each in one.pull(told, limit=2) if isinstance(each, Result)] == [*range(5)]
        assert [each async for each in one.pull(held)] == []
    loop = asyncio.get_running_loop()

    def blocking() -> list[Any]:
        with BlockingClient(made.url, "bob", PASSWORD, register=True) as bob:
            also = bob.subscribe("v.c", [7])
            found = []
            asyncio.run_coroutine_threadsafe(here.execute(channel, {also.interest: ["a", "b"]}), loop).result()
            for each in bob.results():
                found.append(each.result)
                if len(found) == 2:
                    return found
        return found

    assert await asyncio.to_thread(blocking) == ["a", "b"]


async def test_a_consumer_that_is_slow_gets_everything_and_holds_little(tmp_path: Path, here: SparklessCluster) -> None:
    async with both(tmp_path / "broker", here, delivery__buffer_bytes=4_096) as made:
        channel = await here.channel("c", t.BIGINT)
        async with client(made.url, buffer=3) as one:
            held = await one.subscribe("v.c", [1])
            stream = one.results()
            await here.execute(channel, {held.interest: [{"n": 0}]})
            await anext(stream)
            count = 1
            while not made.parts.fan_out.behind:
                await here.execute(channel, {held.interest: [{"n": count, "pad": "x" * 200_000}]})
                count += 1
            assert one.buffered <= 4
            found = [0]
            async with asyncio.timeout(WITHIN_S):
                while len(found) < count:
                    told = await anext(stream)
                    assert isinstance(told, Result)
                    found.append(told.result["n"])
            assert found == list(range(count))


async def test_pages_in_a_browser_get_what_a_real_broker_sends_from_wherever_they_came(
    tmp_path: Path, here: SparklessCluster
) -> None:
    channel = await here.channel("c", t.BIGINT)
    follow = """async ([url, password, user]) => {
      const { Client } = await import(`${url}/v1/tocsin.js`);
      window.client = await new Client({ url, user, password, register: true }).open();
      const held = await client.subscribe("v.c", [1]);
      window.taken = [];
      (async () => { for await (const told of client.results()) taken.push(told.result); })();
      return held.interest;
    }"""
    async with (
        listening(FakeBroker()) as other,
        both(tmp_path / "broker", here, http__origins=other.url) as made,
        open_page() as page,
    ):
        for user, origin in (("eve", f"{made.url}/healthz"), ("bob", f"{other.url}/page")):
            await page.goto(origin)
            interest = int(await page.evaluate(follow, [made.url, PASSWORD, user]))
            for n in range(3):
                await here.execute(channel, {interest: [n]})
                if n == 1:
                    await page.wait_for_function("taken.length >= 2")
                    # Everybody is thrown out, and comes back.
                    for subscriber in range(1, 4):
                        made.parts.fan_out.shed(subscriber)
            await page.wait_for_function("taken.length >= 3")
            assert await page.evaluate("taken") == [0, 1, 2]
            assert await page.evaluate("client.close().then(() => client.connected)") is False


async def test_the_commands_speak_to_a_real_broker(here: SparklessCluster, made: InProcessBroker) -> None:
    channel = await here.channel("c", t.BIGINT)
    where = {"TOCSIN_BROKER_URL": made.url, "TOCSIN_USER": "eve", "TOCSIN_PASSWORD": PASSWORD}
    async with command("subscribe", "v.c", "-7", "--register", "--format", "json", "--count", "2", **where) as one:
        assert (await one.said()).startswith("subscribed to v.c[-7] (sub_")
        await until(lambda: made.parts.fan_out.listeners)
        (interest,) = (held.interest for held in made.parts.subscriptions.index)
        await here.execute(channel, {interest: ["a", "b"]})
        status, out, err = await one.ended()
    assert (status, err) == (0, "")
    assert [json.loads(line)["result"] for line in out.splitlines()] == ["a", "b"]
    async with command("subscriber", "list", "--json", **where) as one:
        status, out, _ = await one.ended()
    assert [json.loads(line)["user"] for line in out.splitlines()] == ["ada", "eve"]
    async with command("subscriber", "show", "eve", **where) as one:
        status, out, _ = await one.ended()
    assert status == 0
    assert out.splitlines()[0].split() == ["user", "eve"]
    assert out.splitlines()[-1].endswith("v.c[-7]")


@asynccontextmanager
async def process(data: Path, cluster: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`tocsin broker`, once it is ready."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tocsin.cli.main", "broker", "--data", str(data), "--port", str(port),
        "--cluster", cluster, "--name", "Default.b",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            assert b"ready" in await running.stdout.readline()
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def test_a_broker_that_is_killed_under_load_loses_nothing_for_its_clients(
    tmp_path: Path, here: SparklessCluster
) -> None:
    with bind_socket("127.0.0.1", 0) as (_, url):
        port = int(url.rpartition(":")[2])
    channel = await here.channel("c", t.BIGINT)
    counts = [0, 0]

    async def publish(interests: list[int]) -> None:
        while True:
            for place, interest in enumerate(interests):
                await here.execute(channel, {interest: [counts[place], counts[place] + 1]})
                counts[place] += 2
            await asyncio.sleep(0.002)

    async with process(tmp_path / "broker", here.url, port) as running:
        one = await client(url, register=True, patience_s=30.0).__aenter__()
        held = [await one.subscribe("v.c", [each]) for each in range(2)]
        found: dict[int, list[Any]] = {each.interest: [] for each in held}

        async def follow() -> None:
            async for told in one.results():
                assert isinstance(told, Result)
                found[told.interest].append(told.result)

        following = asyncio.create_task(follow())
        publishing = asyncio.create_task(publish([each.interest for each in held]))
        await until(lambda: all(len(each) >= 20 for each in found.values()))
        running.send_signal(signal.SIGKILL)
        await running.wait()
        await until(lambda: not one.connected)
    async with process(tmp_path / "broker", here.url, port):
        reached = [len(each) for each in found.values()]
        await until(lambda: all(len(each) >= n + 20 for each, n in zip(found.values(), reached, strict=True)))
        publishing.cancel()
        await asyncio.wait([publishing])
        last = {each.interest: counts[place] for place, each in enumerate(held)}
        # One execution may have been under way when publishing was cancelled.
        await until(lambda: all(len(found[interest]) >= number for interest, number in last.items()))
        await one.close()
    await following
    for each in found.values():
        assert each == list(range(len(each)))


async def test_a_manager_and_members_do_all_that_the_broker_has_for_them(
    here: SparklessCluster, made: InProcessBroker
) -> None:
    channel = await here.channel("c", t.BIGINT)
    async with Manager(made.url) as operator:
        application = await operator.create_application("traffic", limits={"subscribers": 5})
        assert application.token is not None
        assert "tocsin_app_" not in repr(application)
        renewed = await operator.renew_application_token("traffic")
        assert [application.name for application in await operator.applications()] == ["default", "traffic"]
        async with Manager(made.url, application.token) as old:
            with pytest.raises(UnauthorizedError):
                await old.subscribers()
        async with Manager(made.url, renewed.token) as manager:
            for user in ("ann", "bob", "é/ %?#"):
                await manager.register(user, PASSWORD)
            assert [subscriber.user for subscriber in await manager.subscribers()] == ["ann", "bob", "é/ %?#"]
            await manager.create_group("the crew", ["ann", "bob"])
            await manager.add_members("the crew", ["é/ %?#"])
            assert (await manager.group("the crew")).members == ("ann", "bob", "é/ %?#")
            await manager.remove_members("the crew", ["é/ %?#", "ann"])
            await manager.add_members("the crew", ["ann"])
            with pytest.raises(ForbiddenError):
                await manager.create_application("more")
            ann = Client(made.url, "ann", PASSWORD, application="traffic")
            bob = Client(made.url, "bob", PASSWORD, application="traffic")
            async with ann, bob:
                held = await ann.subscribe("v.c", [1], group="the crew")
                assert [group.name for group in await ann.groups()] == ["the crew"]
                (shown,) = (await bob.group("the crew")).subscriptions
                assert (shown.id, shown.interest) == (held.id, held.interest)
                consumer = Consumer(bob)
                await until(lambda: bob.connected)
                await here.execute(channel, {held.interest: ["for the crew"]})
                assert await consumer.until(1) == ["for the crew"]
                (mine,) = await bob.subscriptions()
                assert await bob.subscription(mine.id) == mine
                with pytest.raises(ConflictError, match="a group holds this"):
                    await bob.unsubscribe(mine)
                seen = await manager.subscriber("bob")
                assert (seen.online, [subscription.id for subscription in seen.subscriptions]) == (True, [mine.id])
                await ann.unsubscribe(held)
                await until(lambda: consumer.others)
                assert isinstance(consumer.others[0], Ended)
                held = await ann.subscribe("v.c", [2], group="the crew")
                await manager.unsubscribe_group("the crew", held.id)
                await bob.leave_group("the crew")
                assert await bob.groups() == []
                await bob.change_password(PASSWORD, "another secret")
                assert await bob.subscriptions() == []
                await manager.set_password("bob", PASSWORD)
                with pytest.raises(UnauthorizedError):
                    await bob.subscriptions()
                await ann.remove_account()
            await manager.remove_group("the crew")
            await manager.remove_subscriber("bob")
            assert ([subscriber.user for subscriber in await manager.subscribers()], await manager.groups()) == (
                ["é/ %?#"],
                [],
            )
        changed = await operator.change_application("traffic", feeds=[])
        assert (changed.feeds, changed.channels, changed.limits) == ((), None, {"subscribers": 5})
        async with Manager(made.url, application="traffic") as meant:
            assert [subscriber.user for subscriber in await meant.subscribers()] == ["é/ %?#"]
        assert (await operator.application("traffic")).subscribers == 1
        await operator.remove_application("traffic")
        assert (await operator.choose_policies(eviction="lru"))["policy"] == "all+lru+never"
        assert "all+lsc+never" in (await operator.policies())["counters"]


async def test_a_page_sees_its_groups_and_changes_its_password(here: SparklessCluster, made: InProcessBroker) -> None:
    await here.channel("c", t.BIGINT)
    async with Manager(made.url) as operator:
        await operator.create_group("crew", ["ada"])
    async with open_page() as page:
        await page.goto(f"{made.url}/healthz")
        told = await page.evaluate(
            """async ([url, password]) => {
              const { Client } = await import(`${url}/v1/tocsin.js`);
              const client = await new Client({ url, user: "ada", password }).open();
              const held = await client.subscribe("v.c", [1], { group: "crew" });
              const group = await client.group("crew");
              await client.unsubscribe(held);
              await client.changePassword(password, "another secret");
              const left = await client.subscriptions();
              await client.leaveGroup("crew");
              const groups = await client.groups();
              await client.close();
              return [group.members, group.subscriptions[0].id === held.id, left, groups];
            }""",
            [made.url, PASSWORD],
        )
    assert told == [["ada"], True, [], []]
    async with Client(made.url, "ada", "another secret") as ada:
        assert await ada.subscriptions() == []
