"""kill -9 between the steps of statements about feeds: each happened or did not, and nothing acknowledged is lost.

A child runs the statements one after the other while a publisher sends all the time, and tells of each statement that
is done and each record that was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.real_processes import environment
from tests.support.sparkless_process import Parts, opened
from tocsin import faults
from tocsin.wire.errors import ConflictError, NotFoundError

SETUP = """
CREATE DATAVERSE v; USE v;
CREATE TYPE T AS { id: int };
CREATE DATASET D(T) PRIMARY KEY id;
CREATE DATASET E(T) PRIMARY KEY id;
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T"};
CONNECT FEED F TO DATASET D
"""
VISITS = [point for point in faults.POINTS if point.startswith("feeds.")]


@dataclass(frozen=True)
class State:
    """Of the feed: is it there, does it run, where does it go, and which of the steps' own records are where?"""

    exists: bool = True
    started: bool = False
    connected: tuple[str, ...] = ("D",)
    in_d: frozenset[int] = frozenset()
    in_e: frozenset[int] = frozenset()


def steps() -> list[tuple[str, State]]:
    life: list[tuple[str, State]] = []
    state = State()

    def then(step: str, **changes: object) -> None:
        nonlocal state
        state = replace(state, **changes)  # type: ignore[arg-type]
        life.append((step, state))

    then("START FEED v.F", started=True)
    then("send 1", in_d=frozenset({1}))
    then("CONNECT FEED v.F TO DATASET v.E", connected=("D", "E"))
    then("send 2", in_d=frozenset({1, 2}), in_e=frozenset({2}))
    then("DISCONNECT FEED v.F FROM DATASET v.E", connected=("D",))
    then("send 3", in_d=frozenset({1, 2, 3}))
    then("STOP FEED v.F", started=False)
    then("START FEED v.F", started=True)
    then("send 4", in_d=frozenset({1, 2, 3, 4}))
    then("DROP FEED v.F", exists=False, started=False, connected=())
    return life


async def take(parts: Parts, step: str) -> None:
    if step.startswith("send "):
        body = json.dumps({"id": int(step.split()[1])}).encode()
        await parts.feeds.accept("v.F", body, None, visible=True)
    else:
        await parts.run(step)


# ---------------------------------------------------------------- the child


async def publish(parts: Parts) -> None:
    """Records from 1,000 on, whenever somebody takes them."""
    number = 1_000
    while True:
        with suppress(ConflictError, NotFoundError):
            await parts.feeds.accept("v.F", json.dumps({"id": number}).encode(), None, visible=False)
            print(number, flush=True)
        number += 1
        await asyncio.sleep(0.001)


async def live(data: Path) -> None:
    async with opened(data) as parts:
        await parts.run(SETUP)
        publishing = asyncio.create_task(publish(parts))
        for step, _ in steps():
            await take(parts, step)
            print("done", flush=True)
        publishing.cancel()


# ---------------------------------------------------------------- its parent


def ids(parts: Parts, dataset: str) -> set[int]:
    rows = [row["id"] for row in parts.rows(parts.catalog.catalog.dataset("v", dataset))]
    assert len(rows) == len(set(rows))
    return set(rows)


async def seen(parts: Parts) -> State:
    """Once all of the log has landed."""
    found = next(iter(parts.catalog.catalog.feeds), None)
    if found is not None and found.started:
        await parts.run("STOP FEED v.F; START FEED v.F")
    in_d, in_e = (frozenset(identity for identity in ids(parts, name) if identity < 1_000) for name in "DE")
    if found is None:
        assert list((parts.settings.data / "intake").iterdir()) == []
        return State(False, False, (), in_d, in_e)
    return State(True, found.started, tuple(connection.dataset.name for connection in found.connections), in_d, in_e)


async def after_the_crash(data: Path, done: int, acknowledged: set[int]) -> None:
    life = steps()
    states = [State(), *(state for _, state in life)]
    async with opened(data) as parts:
        state = await seen(parts)
        assert state in states[done : done + 2]
        for step, after in life[states.index(state, done) :]:
            await take(parts, step)
            assert await seen(parts) == after, step
        assert acknowledged <= ids(parts, "D")


@pytest.mark.parametrize("point", VISITS)
def test_killed_within_a_statement_about_a_feed_it_happened_or_did_not(point: str, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", __spec__.name, str(tmp_path / "data")],
        env=environment(TOCSIN_CRASH_AT=point), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL, f"{point} was not visited: {process.stderr}"
    told = process.stdout.split()
    done = told.count("done")
    assert done == 0 or len(told) > done, "the publisher was never heard"
    asyncio.run(after_the_crash(tmp_path / "data", done, {int(item) for item in told if item != "done"}))


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])))
