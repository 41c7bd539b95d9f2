"""kill -9 of a process that works on a channel store: each call happened wholly or not at all, or can be made again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.real_processes import environment
from tocsin import faults
from tocsin.rules.model.cursors import START, Cursor, Range
from tocsin.store.channels.rows import BackendRequest, BrokerName, Execution
from tocsin.store.channels.sqlite.store import SqliteChannelStore

POINTS = [point for point in faults.POINTS if point.startswith("channel-store.")]
EAST = BrokerName("Default", "east")
INTERESTS = 40

Step: TypeAlias = Callable[[SqliteChannelStore], Awaitable[Any]]


def subscribe(channel_id: int, first: int, count: int) -> Step:
    wanted = [BackendRequest(f"[{n}]", EAST, f"{n:03}") for n in range(first, first + count)]
    return lambda store: store.subscribe(channel_id, wanted, created_us=1)


def unsubscribe(channel_id: int, first: int, count: int) -> Step:
    return lambda store: store.unsubscribe(channel_id, [f"{n:03}" for n in range(first, first + count)])


def execute(channel_id: int, number: int) -> Step:
    async def step(store: SqliteChannelStore) -> None:
        interests = [each async for chunk in store.interests(channel_id) for each in chunk.ids] * 2
        payloads = [f"{number} {at % 7} ".encode() * 200 for at in range(len(interests))]
        await store.commit_execution(
            channel_id, Execution(number, number, number, {"d": number}, number), interests, payloads
        )

    return step


def trim(channel_id: int, execution: int) -> Step:
    async def step(store: SqliteChannelStore) -> None:
        interests = [each async for chunk in store.interests(channel_id) for each in chunk.ids]
        await store.trim(channel_id, dict.fromkeys(interests[: INTERESTS // 4], Cursor(store.epoch, execution, 0)))

    return step


def change(channel_id: int, first: int, count: int) -> Step:
    wanted = [BackendRequest(f"[{n} anew]", EAST, f"{n:03}") for n in range(first, first + count)]
    return lambda store: store.subscribe(channel_id, wanted, created_us=1, when_taken="change")


def delete(channel_id: int) -> Step:
    """Deletes every third result, among them some whose payloads others share."""

    async def step(store: SqliteChannelStore) -> None:
        interests = [each async for chunk in store.interests(channel_id) for each in chunk.ids]
        ranges = [Range(interest, START) for interest in interests]
        results = [
            (interests[part.range], result.cursor)
            async for chunk in store.fetch(ranges) for part in chunk for result in part.results
        ]  # fmt: skip
        await store.delete_results(channel_id, results[::3])

    return step


# A life, and of each step whether it works in steps of its own.
LIFE: list[tuple[Step, bool]] = [
    (lambda store: store.add_channel(), False),
    (subscribe(1, 0, INTERESTS), False),
    (execute(1, 1), False),
    (execute(1, 2), False),
    (subscribe(1, 100, 5), False),
    (unsubscribe(1, 0, INTERESTS * 2 // 3), False),
    (execute(1, 3), False),
    (change(1, 30, 5), False),
    (delete(1), False),
    (lambda store: store.change_subscription(1, "031", EAST, parameters="[0]"), False),
    (lambda store: store.retain(1), True),
    (trim(1, 2), True),
    (lambda store: store.retain(1, ended_before_us=2), True),
    (lambda store: store.add_channel(), False),
    (subscribe(2, 0, INTERESTS), False),
    (execute(2, 1), False),
    (delete(2), False),
    (delete(2), False),
    (delete(2), False),
    (lambda store: store.drop_channel(1), True),
    (execute(2, 2), False),
    (lambda store: store.retain(2, max_bytes=0), True),
]


async def seen(store: SqliteChannelStore) -> Any:
    """Everything a reader sees, but for the epoch."""
    world: dict[int, Any] = {}
    for channel_id in await store.channel_ids():
        state = await store.state(channel_id)
        subscriptions = await store.subscriptions(channel_id)
        ranges = [Range(each.interest, START) for each in subscriptions]
        results: list[Any] = [(each.id, each.interest, each.since[1:]) for each in subscriptions]
        async for chunk in store.fetch(ranges):
            for part in chunk:
                results += [("gap", part.range, part.gap[1:])] if part.gap else []
                results += [(part.range, each.cursor[1:], each.payload) for each in part.results]
        recorded = [(each.number, each.vector, each.results) for each in await store.executions(channel_id)]
        world[channel_id] = (state.last_execution, state.vector, state.tick_us, state.change, recorded, results)
    return world, len((await store.new_results((await store.position())._replace(number=0))).items)


def opened(folder: Path) -> SqliteChannelStore:
    # A few rows take several steps.
    return SqliteChannelStore(folder / "channels.db", step_rows=20)


async def live(folder: Path) -> None:
    store = opened(folder)
    await store.open()
    for step, _ in LIFE:
        await step(store)
        print("done", flush=True)
    await store.close()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The world before each step, and at the end."""

    async def undisturbed() -> list[Any]:
        store = opened(tmp_path_factory.mktemp("undisturbed"))
        await store.open()
        found = [await seen(store)]
        for step, _ in LIFE:
            await step(store)
            found.append(await seen(store))
        await store.close()
        return found

    return asyncio.run(undisturbed())


async def go_on(folder: Path, told: int, worlds: list[Any]) -> None:
    store = opened(folder)
    await store.open()
    if not LIFE[told][1]:
        world = await seen(store)
        assert world in (worlds[told], worlds[told + 1])
        told += world != worlds[told]
    for at in range(told, len(LIFE)):
        await LIFE[at][0](store)
        assert await seen(store) == worlds[at + 1], f"after step {at}"
    assert (await store.state(2)).results == INTERESTS * 2
    await store.close()


@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_place_the_store_goes_on_as_if_nothing_had_been(
    point: str, nth: int, tmp_path: Path, worlds: list[Any]
) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.integration.cluster.channels.test_store_crash", str(tmp_path)],
        env=environment(TOCSIN_CRASH_AT=f"{point}:{nth}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, f"{point} was not visited {nth} times: {process.stderr}"
    asyncio.run(go_on(tmp_path, process.stdout.count("done"), worlds))


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])))
