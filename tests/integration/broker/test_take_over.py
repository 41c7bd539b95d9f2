"""A real broker is backed up under load and restored beside itself: the older process ends, and nobody who is with the
newer one loses anything."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from tests.integration.broker.test_process_crash import Load
from tests.support.real_brokers import Subscriber, broker_process, free_port
from tests.support.real_processes import tocsin
from tests.support.sparkless_cluster import world
from tests.support.waiting import WITHIN_S
from tests.unit.broker.cluster_link.test_take_over import held
from tocsin.wire.errors import EXIT_FENCED

OFTEN = {"TOCSIN_BROKER__CLUSTER__CHECK_EVERY_S": "0.2"}


async def asked_with(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/subscriptions", headers=headers) as response:
        return response.status


async def test_the_older_of_two_brokers_ends_and_the_newer_delivers_everything(tmp_path: Path) -> None:
    old_data, new_data, saved = str(tmp_path / "old"), str(tmp_path / "new"), str(tmp_path / "saved.db")
    async with world(tmp_path / "cluster") as here:
        load = Load(here, [await here.channel("c"), await here.channel("p", push=True)])
        async with broker_process(Path(old_data), here.url, free_port(), **OFTEN) as old:
            ann = Subscriber(old.url, "ann")
            await ann.enter()
            for channel in load.channels:
                subscribed = await ann.subscribe(f"v.{channel.name}", 1)
                load.add(channel, subscribed["interest"])
            async with AsyncExitStack() as under_load:
                await under_load.enter_async_context(load.running())
                backup = await asyncio.to_thread(tocsin, "broker", "backup", saved, "--name", "b", "--data", old_data)
                assert backup.returncode == 0, backup.stderr
                bob = Subscriber(old.url, "bob")  # of whom the backup does not know
                await bob.enter()
                await bob.subscribe("v.c", 2)
                restored = await asyncio.to_thread(tocsin, "broker", "restore", saved, "--data", new_data)
                assert "all sessions have ended" in restored.stdout, restored.stderr
                async with broker_process(Path(new_data), here.url, free_port(), **OFTEN) as new:
                    async with asyncio.timeout(WITHIN_S):
                        assert await old.process.wait() == EXIT_FENCED
                    # Whoever starts it again, as supervisors do, is told the same at once.
                    argument = ("broker", "--name", "b", "--data", old_data, "--cluster", here.url, "--port", "0")
                    again = await asyncio.to_thread(tocsin, *argument)
                    assert again.returncode == EXIT_FENCED, again.stderr
                    assert "error: another broker has taken the name Default.b over" in again.stderr
                    assert "--take-over" in again.stderr
                    assert await held(here) == {"[1]", "[2]"}
                    # Whoever comes first gets the number that bob had, and not bob.
                    carol = Subscriber(new.url, "carol")
                    await carol.enter()
                    for token, status in ((ann.token, 401), (bob.token, 401), (carol.token, 200)):
                        assert await asked_with(new.url, token) == status
                    ann.url, ann.token = new.url, ""  # Her session has ended.
                    await ann.enter()
                    ann.listen()
                    await under_load.aclose()
                    made = {interest: list(values) for interest, values in load.made.items()}
                    await ann.until(made, within_s=WITHIN_S)
                    await ann.leave()
                    assert (ann.gaps, new.process.returncode) == ([], None)
