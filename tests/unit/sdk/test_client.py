"""The client against a broker in memory that breaks connections, repeats itself and forgets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_broker import EPOCH, FakeBroker, listening, port_of, too_many
from tests.support.waiting import WITHIN_S, until
from tocsin.rules.backoff import BackOff
from tocsin.sdk import Available, Client, Ended, Gap, NoBrokerError, PublishAnswer, Result, Webhook
from tocsin.sdk.inbox import AckTracker, Inbox
from tocsin.wire.cursors import Cursor, cursor_text
from tocsin.wire.envelopes import ResultItem, ResultsEvent
from tocsin.wire.errors import ForbiddenError, InputError, NotFoundError, UnauthorizedError, UnavailableError

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with listening(FakeBroker(passwords={"ann": "secret"})) as broker:
        yield broker


def client(broker: FakeBroker, **options: Any) -> Client:
    options = {"ack_every_s": 0.0, "pauses": BackOff(0.001, 0.01), **options}
    return Client(broker.url, "ann", "secret", **options)


@asynccontextmanager
async def subscribed(broker: FakeBroker, **options: Any) -> AsyncIterator[Client]:
    async with client(broker, **options) as one:
        await one.subscribe("v.c", [1])
        yield one


async def taken(one: Client, number: int) -> list[Any]:
    """Returns the values of the next `count` results; other events as they are."""
    found: list[Any] = []
    async with asyncio.timeout(WITHIN_S):
        async for told in one.results():
            found.append(told.result if isinstance(told, Result) else told)
            if len(found) == number:
                return found
    return found


async def connected(broker: FakeBroker, one: Client, number: int = 1) -> asyncio.Task[Any]:
    """Somebody waits for the next results, and the broker knows."""
    waiting = asyncio.create_task(taken(one, number))
    await until(lambda: bool(broker.sockets))
    return waiting


# --- who it is


async def test_somebody_who_is_not_there_yet_registers_and_next_time_only_logs_in(broker: FakeBroker) -> None:
    for _ in range(2):
        async with Client(broker.url, "eve", "hush", register=True) as one:
            assert one.who is not None
            assert one.who.user == "eve"
    assert broker.passwords["eve"] == "hush"


async def test_a_wrong_password_is_told_at_once(broker: FakeBroker) -> None:
    with pytest.raises(UnauthorizedError, match="do not fit"):
        async with Client(broker.url, "ann", "wrong"):
            pass


async def test_where_no_broker_is_that_is_told_at_once(unused_tcp_port: int) -> None:
    with pytest.raises(NoBrokerError, match="no broker answers"):
        async with Client(f"http://127.0.0.1:{unused_tcp_port}", "ann", "secret"):
            pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: Client("http://x"),
        lambda: Client("http://x", "ann"),
        lambda: Client("ftp://x", "ann", "secret"),
        lambda: Client("http://x:99999", "ann", "secret"),
        lambda: Client("http://x", token="a\nb"),
        lambda: Client("http://x", "ann", "secret", ack="later"),  # type: ignore[arg-type]
        lambda: Client("http://x", "ann", "secret", buffer=0),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(make: Any) -> None:
    with pytest.raises(InputError):
        make()


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(InputError, match="not open"):
        await Client("http://127.0.0.1:1", "ann", "secret").subscriptions()


async def test_a_token_is_renewed_before_it_ends(broker: FakeBroker) -> None:
    broker.token_s = -1.0
    now_s = 0.0
    async with client(broker, clock=lambda: now_s) as one:
        first = one.who
        now_s = 7.5
        await one.subscriptions()
        assert one.who != first
    assert broker.asked.count("POST /v1/login") == 1
    assert broker.asked.count("POST /v1/token") >= 1


async def test_a_token_alone_is_enough_and_kept_fresh(broker: FakeBroker) -> None:
    broker.tokens["given"] = "ann"
    async with Client(broker.url, token="given") as one:
        assert await one.subscriptions() == []
        assert one.who is not None
        assert one.who.token != "given"


async def test_a_token_that_is_taken_away_is_replaced_by_a_new_login(broker: FakeBroker) -> None:
    async with client(broker) as one:
        broker.tokens.clear()
        assert await one.subscriptions() == []
        assert broker.asked.count("POST /v1/login") == 2


async def test_a_token_that_is_taken_away_from_who_has_nothing_else_is_told(broker: FakeBroker) -> None:
    broker.tokens["given"] = "ann"
    async with Client(broker.url, token="given", pauses=BackOff(0.001, 0.01)) as one:
        broker.tokens.clear()
        with pytest.raises(UnauthorizedError):
            await taken(one, 1)


async def test_logging_out_ends_the_token(broker: FakeBroker) -> None:
    async with client(broker) as one:
        await one.logout()
        assert broker.tokens == {}


# --- requests


async def test_subscriptions_are_made_listed_in_pages_and_ended(broker: FakeBroker) -> None:
    broker.page = 1
    async with client(broker) as one:
        made = [await one.subscribe("v.c", [each], mode="notify") for each in range(3)]
        assert await one.subscribe("v.c", [0]) == made[0]
        since = await one.subscribe("v.d", since=cursor_text(Cursor(EPOCH, 7, 0)))
        assert since.since == Cursor(EPOCH, 7, 0)
        assert await one.subscriptions() == [*made, since]
        await one.unsubscribe(made[0])
        await one.unsubscribe(made[1].id)
        assert await one.subscriptions() == [made[2], since]
        with pytest.raises(NotFoundError):
            await one.unsubscribe("sub_none")
        with pytest.raises(InputError, match="sequence of values"):
            await one.subscribe("v.c", "text")
        assert await one.channels() == [{"name": "v.c", "parameters": ["x"]}]


async def test_a_request_waits_for_a_broker_that_is_away_for_a_while(broker: FakeBroker) -> None:
    async with client(broker) as one:
        broker.refusals = [too_many(), UnavailableError("starting", retry_after_s=0.01)]
        assert await one.subscriptions() == []
        broker.refusals = [ForbiddenError("no")]
        with pytest.raises(ForbiddenError):
            await one.subscriptions()
    async with client(broker, patience_s=0.0) as one:
        broker.refusals = [too_many()]
        with pytest.raises(InputError, match="too many"):
            await one.subscriptions()


async def test_records_are_published_with_one_key_however_often_they_are_sent(broker: FakeBroker) -> None:
    async with client(broker) as one:
        broker.refusals = [UnavailableError("starting", retry_after_s=0.01)]
        assert await one.publish("v.f", [{"a": 1}, {"a": 2}]) == PublishAnswer(2, ())
        assert await one.publish("v.f", {"a": "bad"}) == PublishAnswer(0, ({"index": 0, "field": "", "reason": "no"},))
        assert await one.publish("v.f", b'{"a": 3}', key="mine", visible=True) == PublishAnswer(1, ())
    assert [body for _, _, body in broker.published] == [b'{"a":1}\n{"a":2}', b'{"a":"bad"}', b'{"a": 3}']
    assert broker.published[2][:2] == ("v.f", "mine")
    assert broker.published[0][1] != broker.published[1][1]


async def test_webhooks_are_set_shown_and_removed(broker: FakeBroker) -> None:
    async with client(broker) as one:
        assert await one.set_webhook("http://there/") == Webhook("http://there/", "whsec_x")
        assert await one.webhook() == Webhook("http://there/")
        await one.remove_webhook()


# --- results


async def test_results_come_in_order_and_are_acknowledged_when_the_next_is_asked_for(broker: FakeBroker) -> None:
    async with subscribed(broker) as one:
        waiting = await connected(broker, one, 3)
        broker.make(17, "a", "b")
        broker.make(17, "c")
        assert await waiting == ["a", "b", "c"]
        await until(lambda: broker.interests[17].marker == broker.interests[17].results[1][0])
    # The one that the consumer held when it left comes again.
    async with client(broker) as one:
        waiting = await connected(broker, one, 2)
        broker.make(17, "d")
        assert await waiting == ["c", "d"]


async def test_what_was_taken_last_can_be_acknowledged_before_leaving(broker: FakeBroker) -> None:
    async with subscribed(broker, ack="manual") as one:
        broker.make(17, "a", "b")
        stream = one.results()
        first, second = await anext(stream), await anext(stream)
        assert isinstance(first, Result)
        assert isinstance(second, Result)
        await one.ack(first)
        await one.flush()
        assert broker.interests[17].marker == first.cursor
        await one.ack(second)
    assert broker.interests[17].marker == second.cursor


async def test_whatever_breaks_everything_comes_once_and_in_order(broker: FakeBroker) -> None:
    found: list[Any] = []

    async def follow(one: Client) -> None:
        async for told in one.results():
            found.append(told.result if isinstance(told, Result) else told)  # noqa: PERF401 - as it comes

    async with subscribed(broker) as one:
        following = asyncio.create_task(follow(one))
        await until(lambda: bool(broker.sockets))
        for each in range(10):
            broker.deaf = each % 4 < 2
            broker.make(17, 3 * each)
            if each % 2:
                broker.cut()
            broker.make(17, 3 * each + 1, 3 * each + 2)
            if each == 5:
                broker.tokens.clear()
                broker.refusals = [too_many()]
            await until(lambda: len(found) >= 3 * each + 3)  # noqa: B023 - awaited at once
        assert one.connections >= 5
    await following
    assert found == list(range(30))


async def test_a_broker_that_is_started_again_is_found_again() -> None:
    broker = FakeBroker(passwords={"ann": "secret"})
    async with listening(broker):
        port = port_of(broker)
        one = await client(broker).__aenter__()
        await one.subscribe("v.c", [1])
        waiting = await connected(broker, one, 2)
        broker.make(17, "a")
        await until(lambda: broker.interests[17].marker > Cursor(EPOCH, 0, 0))
    broker.make(17, "b")
    await until(lambda: not one.connected)
    async with listening(broker, port):
        assert await waiting == ["a", "b"]
        await one.close()


async def test_acknowledgements_that_were_lost_are_said_again(broker: FakeBroker) -> None:
    async with subscribed(broker) as one:
        broker.deaf = True
        waiting = await connected(broker, one, 2)
        broker.make(17, "a")
        await until(lambda: broker.ignored)
        broker.deaf = False
        broker.cut()
        await until(lambda: broker.interests[17].marker == broker.interests[17].results[0][0])
        broker.make(17, "b")
        assert await waiting == ["a", "b"]


async def test_a_gap_is_told_before_what_comes_after_it(broker: FakeBroker) -> None:
    async with subscribed(broker) as one:
        broker.make(17, "gone", "there")
        broker.interests[17].lost = lost = broker.interests[17].results[0][0]
        assert await taken(one, 2) == [Gap("v.c", 17, lost), "there"]
    assert "gone" in str(Gap("v.c", 17, lost))


async def test_a_gap_with_nothing_after_it_is_told_and_acknowledged(broker: FakeBroker) -> None:
    async with subscribed(broker) as one:
        broker.make(17, "gone")
        broker.interests[17].lost = lost = broker.interests[17].results[0][0]
        waiting = await connected(broker, one, 2)
        await until(lambda: broker.interests[17].marker == lost)
        broker.make(17, "there")
        assert await waiting == [Gap("v.c", 17, lost), "there"]


async def test_a_subscription_that_ended_is_told_and_can_be_made_again(broker: FakeBroker) -> None:
    async with subscribed(broker) as one:
        waiting = await connected(broker, one, 2)
        broker.make(17, "a")
        broker.end(17, "the channel is gone")
        assert await waiting == ["a", Ended("v.c", 17, "the channel is gone")]
        assert one.known == {}
        await one.subscribe("v.c", [1])
        broker.make(17, "b")
        assert await taken(one, 1) == ["b"]


async def test_what_waited_for_the_consumer_goes_with_its_subscription(broker: FakeBroker) -> None:
    async with subscribed(broker, buffer=2) as one:
        other = await one.subscribe("v.c", [2])
        waiting = await connected(broker, one, 1)
        broker.make(17, *range(5))
        assert await waiting == [0]
        await one.unsubscribe("sub_17")
        broker.make(other.interest, "other")
        assert await taken(one, 1) == ["other"]


async def test_who_only_wants_to_be_told_pulls_and_acknowledges_page_by_page(broker: FakeBroker) -> None:
    async with client(broker) as one:
        made = await one.subscribe("v.c", [1], mode="notify")
        broker.make(17, *range(5))
        (told,) = await taken(one, 1)
        assert told == Available("v.c", 17, broker.interests[17].head)
        assert [each.result async for each in one.pull(told, limit=2) if isinstance(each, Result)] == [*range(5)]
        assert broker.interests[17].marker == broker.interests[17].head
        assert [each async for each in one.pull(made)] == []
        after = broker.interests[17].results[2][0]
        assert [each.result async for each in one.pull(made, after=after) if isinstance(each, Result)] == [3, 4]
        with pytest.raises(InputError, match="no subscription with the interest 99"):
            _ = [each async for each in one.pull(Available("v.c", 99, after))]


async def test_a_consumer_that_is_slow_fills_no_more_than_its_buffer(broker: FakeBroker) -> None:
    async with subscribed(broker, buffer=5) as one:
        waiting = await connected(broker, one, 1)
        for each in range(500):
            broker.make(17, [each, "x" * 1000])
        await waiting
        await until(lambda: one.buffered >= 5)
        # Requests go on although nothing more is read.
        assert len(await one.subscriptions()) == 1
        assert one.buffered <= 6
        found = [each[0] for each in await taken(one, 499)]
        assert found == list(range(1, 500))


async def test_a_broker_that_is_silent_is_left(broker: FakeBroker) -> None:
    async with subscribed(broker, heartbeat_s=0.05) as one:
        waiting = await connected(broker, one, 1)
        # It reads nothing any more, so that no pong comes.
        (socket,) = broker.sockets
        assert socket._req is not None
        assert socket._req.transport is not None
        socket._req.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: one.connections >= 2)
        broker.make(17, "a")
        assert await waiting == ["a"]


async def test_only_one_waits_for_the_next_result(broker: FakeBroker) -> None:
    async with subscribed(broker) as one:
        waiting = await connected(broker, one, 1)
        with pytest.raises(InputError, match="one consumer"):
            await taken(one, 1)
        broker.make(17, "a")
        assert await waiting == ["a"]


async def test_what_cannot_be_mended_by_trying_again_ends_the_stream(broker: FakeBroker) -> None:
    async with subscribed(broker) as one:
        broker.refusals = [ForbiddenError("not here")]
        with pytest.raises(InputError, match="status 403"):
            await taken(one, 1)
    async with subscribed(broker) as one:
        waiting = await connected(broker, one, 1)
        broker.send(b"garbage")
        with pytest.raises(InputError, match="not a broker's message"):
            await waiting


async def test_closing_ends_the_consumer_and_needs_no_broker() -> None:
    broker = FakeBroker(passwords={"ann": "secret"})
    async with listening(broker):
        one = await client(broker, patience_s=0.0).__aenter__()
        await one.subscribe("v.c", [1])
        waiting = await connected(broker, one, 2)
        broker.make(17, "a")
        await until(lambda: broker.acked)
    await one.close()
    assert await waiting == ["a"]
    with pytest.raises(StopAsyncIteration):
        await anext(one.results())


# --- parts


def test_the_client_loads_neither_the_engine_nor_a_server() -> None:
    heavy = "numpy pyspark pyarrow deltalake pydantic cyclopts structlog rich uvloop argon2".split()
    program = f"import tocsin.sdk.sync, sys; print([one for one in {heavy} if one in sys.modules])"
    run = [sys.executable, "-c", program]
    found = subprocess.run(run, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@given(st.data())
def test_however_stretches_overlap_each_result_is_handed_out_once_and_in_order(data: st.DataObject) -> None:
    """A broker may begin anywhere at or before what it sent last, and cut its envelopes anywhere."""

    async def run() -> None:
        marks = AckTracker()
        inbox = Inbox(10, marks)
        sent, found = 0, []
        for _ in range(data.draw(st.integers(1, 8))):
            begin = data.draw(st.integers(0, sent))
            end = data.draw(st.integers(begin, 20))
            results = tuple(
                ResultItem(Cursor(1, each, 0), None, each)  # type: ignore[arg-type]
                for each in range(begin + 1, end + 1)
            )
            inbox.add(ResultsEvent("v.c", 7, Cursor(1, begin, 0), Cursor(1, end, 0), results, None, False))
            sent = max(sent, end)
            while len(inbox):
                entry = await inbox.get()
                assert entry is not None
                if isinstance(entry.event, Result):
                    found.append(entry.event.result)
                if entry.reached is not None:
                    marks.take(7, entry.reached)
        assert found == list(range(1, sent + 1))
        assert marks.last_seen(7) == Cursor(1, sent, 0) or sent == 0
        assert marks.unsent.get(7, Cursor(1, 0, 0)) == Cursor(1, sent, 0)

    asyncio.run(run())
