"""kill -9 of a process that registers and tells brokers: one is registered or is not, and is told of everything."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.real_processes import environment
from tests.support.sparkless_cluster import fake_broker, opened, world
from tocsin import faults
from tocsin.serving.tokens import Token
from tocsin.store.channels.rows import BrokerName
from tocsin.wire.cluster import SubscriptionRequest

REGISTERING = [point for point in faults.POINTS if point.startswith("broker.")]
TELLING = [point for point in faults.POINTS if point.startswith("announcer.")]
EXECUTIONS = 6
ADA = Token("ada", "admin")


async def live(folder: Path, url: str) -> None:
    """A broker comes, subscribes, and is told of a few executions, one by one."""
    async with opened(folder) as here:
        channel = await here.channel("c")
        done = await here.brokers.register("v", "b", url, ADA)
        print("secret", done.secret, flush=True)
        (held,) = await here.door.subscriptions.subscribe(channel, done.broker, [SubscriptionRequest([1])])
        for number in range(EXECUTIONS):
            await here.execute(channel, {held.interest: [number]})
            print("executed", flush=True)
            (figures,) = here.announcer.figures()
            while figures.counts.sent <= number:
                await asyncio.sleep(0.01)


async def killed(folder: Path, url: str, point: str, nth: int) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.broker.test_crash", str(folder), url,
        env=environment(TOCSIN_CRASH_AT=f"{point}:{nth}"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    said, complained = await process.communicate()
    assert process.returncode == -signal.SIGKILL, f"{point} was not visited {nth} times: {complained.decode()}"
    return said.decode()


@pytest.mark.parametrize("point", REGISTERING)
async def test_killed_while_registering_a_broker_is_not_there_and_may_come_again(point: str, tmp_path: Path) -> None:
    assert "secret" not in await killed(tmp_path, "http://127.0.0.1:1/", point, 1)
    async with world(tmp_path) as here:
        assert here.catalog.catalog.brokers == ()
        assert await here.store.registrations() == []
        assert (await here.register("v.b")).startswith("whsec_")
        assert await here.store.registration(BrokerName("v", "b")) is not None


@pytest.mark.parametrize("nth", [1, 3, EXECUTIONS])
@pytest.mark.parametrize("point", TELLING)
async def test_killed_while_telling_a_broker_it_is_told_again_and_misses_nothing(
    point: str, nth: int, tmp_path: Path
) -> None:
    async with fake_broker() as broker:
        # Its secret is not known yet.
        broker.trusting = True
        said = await killed(tmp_path / "data", broker.url, point, nth)
        broker.secret = said.split()[1]
        assert said.count("executed") == nth
        seen = list(broker.got)
        assert len(seen) == nth
        broker.trusting = False
        async with world(tmp_path / "data") as here:
            (channel,) = here.catalog.catalog.channels
            (held,) = await here.store.subscriptions(channel.channel_id)
            await here.execute(channel, {held.interest: ["more"]})
            await broker.until(lambda: broker.told == {held.interest: f"{nth + 1}-0"})
    # In order, without a hole; the one that was taken and not kept comes twice, from the same place.
    assert broker.refused == []
    assert broker.got[nth].after == seen[-1].after
    for cursor, following in pairwise(seen):
        assert following.after == cursor.position


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2]))
