"""The JavaScript client in a real browser, against a broker in memory that breaks connections and repeats itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page

from tests.support.browser import page as open_page
from tests.support.fake_broker import FakeBroker, listening, port_of, too_many
from tests.support.waiting import until
from tocsin.wire.cursors import cursor_text
from tocsin.wire.errors import ForbiddenError, UnavailableError

# What the pages of these tests have in common: a client, and somebody who takes what comes.
PRELUDE = """
window.tocsin = await import("/v1/tocsin.js");
window.taken = [];
window.states = [];
window.quick = { tries: 0, nextMs: () => 2 };
window.made = (options) => new tocsin.Client({
  user: "ann", password: "secret", ackEveryMs: 0, pauses: quick, onstate: (state) => states.push(state), ...options,
});
window.follow = async (client, most = Infinity) => {
  for await (const told of client.results()) {
    taken.push(told.type === "result" ? told.result : told);
    if (taken.length >= most) return;
  }
};
"""


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with listening(FakeBroker(passwords={"ann": "secret"})) as broker:
        yield broker


@pytest.fixture
async def page(broker: FakeBroker) -> AsyncIterator[Page]:
    async with open_page() as page:
        await page.goto(f"{broker.url}/page")
        await run(page, PRELUDE)
        yield page


async def run(page: Page, script: str, argument: Any = None) -> Any:
    """What the script returns."""
    return await page.evaluate(f"async (given) => {{ {script} }}", argument)


async def taken(page: Page, number: int) -> list[Any]:
    """Returns the results that were taken, once there are this many."""
    await page.wait_for_function(f"taken.length >= {number}")
    found: list[Any] = await page.evaluate("taken")
    return found


async def test_results_reach_a_page_in_order_and_once_whatever_breaks(broker: FakeBroker, page: Page) -> None:
    made = await run(
        page,
        """
        window.client = await made({ user: "eve", password: "hush", register: true }).open();
        const subscription = await client.subscribe("v.c", [1.5, "x"]);
        follow(client);
        return [subscription, client.who.user, client.known.get("17") === subscription];
        """,
    )
    assert made[0]["parameters"] == [1.5, "x"]
    assert made[1:] == ["eve", True]
    await until(lambda: bool(broker.sockets))
    for each in range(8):
        broker.deaf = each % 4 < 2
        broker.make(17, 3 * each)
        if each % 2:
            broker.cut()
        broker.make(17, 3 * each + 1, 3 * each + 2)
        if each == 5:
            broker.tokens.clear()
        await taken(page, 3 * each + 3)
    assert await taken(page, 24) == list(range(24))
    broker.deaf = False
    # The acknowledgements that were lost are said again when the broker repeats itself.
    broker.cut()
    await until(lambda: broker.interests[17].marker == broker.interests[17].head)
    states = await page.evaluate("states")
    assert "connected" in states
    assert "disconnected" in states
    # A second login begins after what was acknowledged.
    await run(page, "await client.close(); taken = [];")
    broker.make(17, "new", send=False)
    await run(page, "client = await made({ user: 'eve', password: 'hush' }).open(); follow(client);")
    assert await taken(page, 1) == ["new"]


async def test_a_page_finds_a_broker_that_was_started_again(page: Page, broker: FakeBroker) -> None:
    other = FakeBroker(passwords={"ann": "secret"})
    async with listening(other):
        port = port_of(other)
        await page.goto(f"{other.url}/page")
        await run(page, PRELUDE)
        await run(page, "window.client = await made().open(); await client.subscribe('v.c'); follow(client);")
        await until(lambda: bool(other.sockets))
        other.make(17, "a")
        await taken(page, 1)
    other.make(17, "b", send=False)
    await page.wait_for_function("!client.connected")
    async with listening(other, port):
        assert await taken(page, 2) == ["a", "b"]
        await run(page, "await client.close()")


async def test_gaps_ends_and_what_is_to_be_pulled_are_told(broker: FakeBroker, page: Page) -> None:
    await run(
        page,
        """
        window.client = await made().open();
        await client.subscribe("v.c", [1]);
        window.pulled = await client.subscribe("v.c", [2], { mode: "notify" });
        """,
    )
    broker.make(17, "gone", "there")
    broker.interests[17].lost = lost = broker.interests[17].results[0][0]
    await run(page, "follow(client)")
    gap = {"type": "gap", "channel": "v.c", "interest": "17", "cursor": cursor_text(lost)}
    assert await taken(page, 2) == [gap, "there"]
    broker.make(18, *range(5))
    told = (await taken(page, 3))[2]
    assert told == {
        "type": "available", "channel": "v.c", "interest": "18", "cursor": cursor_text(broker.interests[18].head),
    }  # fmt: skip
    pull = """
        const found = [];
        for await (const one of client.pull(given, { limit: 2 })) found.push(one.result);
        return found;
    """
    assert await run(page, pull, told) == [*range(5)]
    assert broker.interests[18].marker == broker.interests[18].head
    broker.end(17, "the channel is gone")
    assert (await taken(page, 4))[3] == {
        "type": "ended", "channel": "v.c", "interest": "17", "reason": "the channel is gone",
    }  # fmt: skip


async def test_a_page_that_is_slow_or_leaves_holds_no_more_than_its_buffer_and_misses_nothing(
    broker: FakeBroker, page: Page
) -> None:
    await run(
        page,
        """
        window.client = await made({ buffer: 5 }).open();
        await client.subscribe("v.c", [1]);
        window.first = client.results().next();
        """,
    )
    await until(lambda: bool(broker.sockets))
    for each in range(40):
        broker.make(17, each)
    # It takes one and no more: beyond its buffer it leaves, and comes back when it has room.
    await run(page, "taken.push((await first).value.result)")
    await until(lambda: not broker.sockets)
    await run(page, "follow(client, 40)")
    assert await taken(page, 40) == list(range(40))
    # What it holds when it leaves is not acknowledged, unless it says so.
    await run(page, "await client.flush()")
    assert broker.interests[17].marker == broker.interests[17].results[38][0]
    await run(page, "await client.close()")
    await run(
        page,
        """
        window.client = await made({ ack: "manual" }).open();
        const { value } = await client.results().next();
        client.ack(value);
        await client.close();
        """,
    )
    assert broker.interests[17].marker == broker.interests[17].head


async def test_a_broker_that_is_silent_is_left(broker: FakeBroker, page: Page) -> None:
    await run(
        page,
        """
        window.client = await made({ heartbeatS: 0.2 }).open();
        await client.subscribe("v.c", [1]);
        follow(client);
        """,
    )
    await until(lambda: bool(broker.sockets))
    broker.deaf = True
    await page.wait_for_function("states.filter((state) => state === 'connected').length >= 2")
    broker.deaf = False
    broker.make(17, "a")
    assert await taken(page, 1) == ["a"]


async def test_requests_and_errors_are_as_the_contract_says(broker: FakeBroker, page: Page) -> None:
    broker.page = 1
    refused = "try { %s; return 'nothing'; } catch (error) { return [error.name, error.code, error.status]; }"
    assert await run(page, "return tocsin.compareCursors('1-9-0', '1-10-0') < 0") is True
    assert await run(page, refused % "made({ user: undefined })") == ["TocsinError", "error", 0]
    assert await run(page, refused % "await made({ password: 'x' }).open()") == ["TocsinError", "unauthorized", 401]
    nowhere = "await made({ url: 'http://127.0.0.1:1' }).open()"
    assert await run(page, refused % nowhere) == ["TocsinError", "no_broker", 0]
    await run(page, "window.client = await made().open()")
    assert await run(
        page,
        """
        const made = [await client.subscribe("v.c", [1]), await client.subscribe("v.c", [2])];
        const listed = await client.subscriptions();
        await client.unsubscribe(made[0]);
        return [listed.length, (await client.subscriptions()).length, (await client.channels())[0].name];
        """,
    ) == [2, 1, "v.c"]
    broker.refusals = [too_many(), UnavailableError("starting", retry_after_s=0.01)]
    published = await run(
        page, "return [await client.publish('v.f', [{ a: 1 }, { a: 2 }]), await client.publish('v.f', { a: 'bad' })]"
    )
    assert [record["accepted"] for record in published] == [2, 0]
    assert [body for _, _, body in broker.published] == [b'{"a":1}\n{"a":2}', b'{"a":"bad"}']
    broker.refusals = [ForbiddenError("no")]
    assert await run(page, refused % "await client.subscriptions()") == ["TocsinError", "forbidden", 403]
    # A token alone is renewed; when it is taken away there is nothing to log in with.
    broker.tokens["given"] = "ann"
    await run(page, "window.bare = await made({ user: undefined, password: undefined, token: 'given' }).open()")
    assert await page.evaluate("bare.who.user") == "ann"
    broker.tokens.clear()
    assert await run(page, refused % "await bare.results().next()") == ["TocsinError", "unauthorized", 401]
    await run(page, "await client.logout()")
    assert broker.tokens == {}
