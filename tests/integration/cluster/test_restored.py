"""A cluster goes back to a backup under a running broker: subscribers go on, with what the backup has and with
what it does not know."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.support.in_process_broker import broker
from tests.support.real_brokers import Subscriber, free_port
from tests.support.sparkless_cluster import world
from tests.support.waiting import WITHIN_S, until
from tocsin.store.channels.sqlite.store import SqliteChannelStore


async def test_a_restored_cluster_is_told_what_it_lost_and_everybody_goes_on(tmp_path: Path) -> None:
    port, data, kept = free_port(), tmp_path / "cluster", tmp_path / "backup"
    quick = {"cluster__check_every_s": 0.1}
    async with broker(tmp_path / "broker", f"http://127.0.0.1:{port}", **quick) as made:
        ada = Subscriber(made.url, "ada")
        async with world(data, port=port) as here:
            channel = await here.channel("c")
            await ada.enter()
            ada.listen()
            known = (await ada.subscribe("v.c", 1))["interest"]
            for value in ("a", "b"):
                await here.execute(channel, {int(known): [value]})
            await ada.until({known: ["a", "b"]})
            await until(lambda: made.parts.counters.acknowledged >= 2)
        shutil.copytree(data, kept)
        async with world(data, port=port) as here:
            (channel,) = here.catalog.catalog.channels
            later = (await ada.subscribe("v.c", 2))["interest"]
            await here.execute(channel, {int(known): ["c"], int(later): ["d"]})
            await ada.until({known: ["a", "b", "c"], later: ["d"]})
        # Back to where it was before "c": in a new epoch, as a restore begins one.
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        store = SqliteChannelStore(data / "channels.db")
        await store.open()
        await store.renew_epoch()
        await store.close()
        async with world(data, port=port) as here:
            (channel,) = here.catalog.catalog.channels
            async with asyncio.timeout(WITHIN_S):
                while len(held := await here.store.subscriptions(channel.channel_id)) < 2:
                    await asyncio.sleep(0.01)
            (other,) = [holding.interest for holding in held if holding.interest != int(known)]
            await here.execute(channel, {int(known): ["e"], other: ["f"]})
            # The same number may be the other subscription's now; what was told of it before is another epoch's.
            wanted = {known: ["a", "b", "c", "e"], str(other): ["d", "f"] if str(other) == later else ["f"]}
            await ada.until(wanted)
            listed = (await ada.ask("GET", "/v1/subscriptions"))["subscriptions"]
            assert {subscription["interest"] for subscription in listed} == {known, str(other)}
        await ada.leave()
