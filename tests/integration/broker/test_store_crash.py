"""kill -9 of a process that works on a broker's store: what was answered is there; a call is whole, or not at all."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.real_processes import environment
from tocsin import faults
from tocsin.rules.model.cursors import START, Cursor, Position
from tocsin.store.broker.rows import FrontendRequest, NewBackendRow, ReboundBackend
from tocsin.store.broker.sqlite.store import SqliteBrokerStore

POINTS = [point for point in faults.POINTS if point.startswith("broker-store.")]
APPLICATION, GROUP = 1, 1
# Frontends that are there at the end.
HOT = [4, 5, 7, 8]

Step: TypeAlias = Callable[[SqliteBrokerStore], Awaitable[Any]]


def backend(interest: int) -> NewBackendRow:
    return NewBackendRow(interest, "v.c", f"[{interest}]", f"at-{interest}", START)


def register(user: str) -> Step:
    return lambda store: store.add_subscriber(APPLICATION, user, password="#", created_us=1)


# Each is one call, which is there wholly or not at all.
LIFE: list[Step] = [
    register("ann"),
    register("bob"),
    register("cid"),
    lambda store: store.record_registration(epoch=7, position=Position(7, 1), secret="whsec_x"),
    lambda store: store.subscribe(
        [FrontendRequest(subscriber, interest) for subscriber in (1, 2, 3) for interest in (1, 2, 3)],
        backends=[backend(1), backend(2), backend(3)],
        created_us=9,
    ),
    lambda store: store.record_announcement(Position(7, 9), {1: Cursor(7, 1, 0), 2: Cursor(7, 1, 4)}),
    lambda store: store.acknowledge({1: Cursor(7, 1, 0), 2: Cursor(7, 1, 2), 6: Cursor(7, 1, 0)}),
    lambda store: store.add_group(APPLICATION, "crew", created_us=1),
    lambda store: store.add_members(GROUP, [1, 2], created_us=1),
    lambda store: store.subscribe_group(GROUP, 4, backends=[backend(4)], created_us=1),
    lambda store: store.unsubscribe([3, 6, 9]),
    lambda store: store.rebind(
        [ReboundBackend(1, 2, "b", Cursor(8, 0, 0)), ReboundBackend(2, 1, "a", Cursor(8, 0, 0))]
    ),
    lambda store: store.put_webhook(3, "http://there", "whsec_z", created_us=4),
    lambda store: store.revoke("token", expires_us=5),
    lambda store: store.remove_subscribers([1]),
    lambda store: store.release_backends([3]),
    lambda store: store.drop_backends([4]),
]


async def seen(store: SqliteBrokerStore) -> Any:
    """Everything a reader sees, but for what is drawn by chance and the time of the making."""
    frontends = [replace(each, public_id="") async for chunk in store.frontends() for each in chunk]
    return (
        [(each.name, each.subscribers) for each in await store.applications()],
        await store.subscribers(APPLICATION),
        [each async for chunk in store.backends() for each in chunk],
        frontends,
        await store.groups(APPLICATION),
        await store.members(GROUP),
        [each.interest for each in await store.group_subscriptions(GROUP)],
        await store.webhooks(),
        await store.link(),
        await store.revoked_tokens(),
    )


def opened(folder: Path) -> SqliteBrokerStore:
    return SqliteBrokerStore(folder / "broker-east.db")


async def live(folder: Path) -> None:
    store = opened(folder)
    await store.open()
    for step in LIFE:
        await step(store)
        print("done", flush=True)
    # Many at once: several for each frontend, in shared commits.
    await asyncio.gather(*(busy(store, frontend) for frontend in HOT))
    await store.close()


async def busy(store: SqliteBrokerStore, frontend: int) -> None:
    for execution in range(10, 40):
        await store.acknowledge({frontend: Cursor(8, execution, 0)})
        print("acknowledged", frontend, execution, flush=True)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The world before each step, and at the end."""

    async def undisturbed() -> list[Any]:
        store = opened(tmp_path_factory.mktemp("undisturbed"))
        await store.open()
        found = [await seen(store)]
        for step in LIFE:
            await step(store)
            found.append(await seen(store))
        await store.close()
        return found

    return asyncio.run(undisturbed())


def killed(folder: Path, point: str) -> list[str]:
    process = subprocess.run(
        [sys.executable, "-m", "tests.integration.broker.test_store_crash", str(folder)],
        env=environment(TOCSIN_CRASH_AT=point),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, f"{point} was not visited so often: {process.stderr}"
    return process.stdout.splitlines()


@pytest.mark.parametrize("nth", [1, 5, 7, 12])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_place_the_store_goes_on_as_if_nothing_had_been(
    point: str, nth: int, tmp_path: Path, worlds: list[Any]
) -> None:
    told = killed(tmp_path, f"{point}:{nth}").count("done")

    async def go_on() -> None:
        store = opened(tmp_path)
        await store.open()
        done = told + point.endswith(".committed")
        assert await seen(store) == worlds[done]
        for at in range(done, len(LIFE)):
            await LIFE[at](store)
            assert await seen(store) == worlds[at + 1], f"after step {at}"
        await store.close()

    asyncio.run(go_on())


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_many_acknowledge_no_answered_acknowledgement_is_lost(point: str, tmp_path: Path) -> None:
    said = [line.split() for line in killed(tmp_path, f"{point}:{len(LIFE) + 9}")]
    answered = {int(line[1]): int(line[2]) for line in said if line[0] == "acknowledged"}
    assert answered

    async def markers() -> dict[int, Cursor]:
        store = opened(tmp_path)
        await store.open()
        found = {each.id: each.marker async for chunk in store.frontends() for each in chunk}
        await store.close()
        return found

    kept = asyncio.run(markers())
    for frontend, execution in answered.items():
        assert Cursor(8, execution, 0) <= kept[frontend] <= Cursor(8, execution + 1, 0)


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])))
