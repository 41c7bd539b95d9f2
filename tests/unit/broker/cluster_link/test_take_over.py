"""Two brokers under one name: the older stops, and neither ends what the other holds at the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process_broker import Listener, both, broker
from tests.support.sparkless_cluster import SparklessCluster
from tests.support.waiting import WITHIN_S
from tocsin.store.broker import broker_backup
from tocsin.store.channels.rows import BrokerName
from tocsin.wire.errors import FencedError

NAME = BrokerName("Default", "b")
FILE = "broker-Default.b.db"


async def held(here: SparklessCluster) -> set[str]:
    return {subscription.parameters for subscription in await here.store.subscriptions_of(NAME)}


async def restored(tmp_path: Path) -> Path:
    (tmp_path / "restored").mkdir()
    await broker_backup.restore_broker(tmp_path / "saved", tmp_path / "restored" / FILE)
    return tmp_path / "restored"


async def test_a_broker_that_is_restored_beside_the_old_one_takes_its_name(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=0.05) as old:
        channel = await here.channel("c")
        interest = int((await old.subscribe("ada", "v.c", 1))["interest"])
        await broker_backup.save(tmp_path / "broker" / FILE, tmp_path / "saved")
        await old.subscribe("ada", "v.c", 2)
        async with broker(await restored(tmp_path), here.url, cluster__check_every_s=0.05) as new:
            await new.idle()
            error = await old.parts.link.fenced
            assert "has taken the name Default.b over" in error.message
            assert new.parts.link.fenced.done() is False
            status, said = await old.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [3]}, user="ada")
            assert (status, said["error"]["code"]) == (409, "fenced")
            assert await held(here) == {"[1]", "[2]"}, "what only the old one knows is there, if it comes back"
            assert (await new.ask("GET", "/v1/subscriptions", token=old.tokens["ada"]))[0] == 401
            async with Listener(new.url, await new.login("ada")) as ada:
                await here.execute(channel, {interest: ["for the new one"]})
                assert await ada.values_until(1) == ["for the new one"]


async def test_the_older_one_stays_away_until_it_is_told_to_take_over(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here:
        channel = await here.channel("c")
        async with both(tmp_path / "broker", here, cluster__check_every_s=0.05) as old:
            await broker_backup.save(tmp_path / "broker" / FILE, tmp_path / "saved")
            interest = int((await old.subscribe("ada", "v.c", 2))["interest"])
            folder = await restored(tmp_path)
            async with broker(folder, here.url) as new:
                await new.idle()
                await old.parts.link.fenced
        await here.execute(channel, {interest: ["while nobody knew the interest"]})
        with pytest.raises(FencedError, match="has taken the name"):
            async with broker(tmp_path / "broker", here.url):
                pass
        async with (
            broker(folder, here.url, cluster__check_every_s=0.05) as new,
            broker(tmp_path / "broker", here.url, take_over=True) as old,
        ):
            await old.idle()
            await new.parts.link.fenced
            async with Listener(old.url, await old.login("ada")) as ada:
                assert await ada.values_until(1) == ["while nobody knew the interest"]


async def test_an_older_one_that_was_not_there_when_its_name_was_taken_finds_out(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here:
        async with both(tmp_path / "broker", here):
            await broker_backup.save(tmp_path / "broker" / FILE, tmp_path / "saved")
        async with broker(await restored(tmp_path), here.url, cluster__check_every_s=0.05) as new:
            await new.idle()
            async with broker(tmp_path / "broker", here.url) as old:
                await old.parts.link.fenced
            assert not new.parts.link.fenced.done()
            assert new.parts.link.connected


async def test_a_broker_that_lost_its_file_ends_nothing_and_the_file_can_come_back(
    cluster: Any, tmp_path: Path
) -> None:
    async with cluster as here:
        channel = await here.channel("c")
        async with both(tmp_path / "broker", here) as old:
            interest = int((await old.subscribe("ada", "v.c", 1))["interest"])
            token = old.tokens["ada"]
        (tmp_path / "empty").mkdir()
        async with broker(tmp_path / "empty", here.url) as new:
            await new.idle()
            assert await held(here) == {"[1]"}
            assert (await new.ask("GET", "/v1/subscriptions", token=token))[0] == 401
            await here.execute(channel, {interest: ["while the file was lost"]})
        async with broker(tmp_path / "broker", here.url, take_over=True) as old:
            await old.idle()
            async with Listener(old.url, await old.login("ada")) as ada:
                assert await ada.values_until(1) == ["while the file was lost"]


async def test_what_a_former_broker_held_ends_when_its_time_is_over(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here:
        await here.channel("c")
        async with both(tmp_path / "broker", here) as old:
            await broker_backup.save(tmp_path / "broker" / FILE, tmp_path / "saved")
            await old.subscribe("ada", "v.c", 2)
        async with broker(await restored(tmp_path), here.url, cluster__former_subscriptions_s=0) as new:
            await new.idle()
            assert await held(here) == set()


async def test_a_broker_that_starts_again_and_one_whose_cluster_was_restored_keep_their_names(
    cluster: Any, tmp_path: Path
) -> None:
    async with cluster as here:
        channel = await here.channel("c")
        async with both(tmp_path / "broker", here) as made:
            interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        async with broker(tmp_path / "broker", here.url, cluster__check_every_s=0.05) as made:
            await made.idle()
            first = await here.store.registration(NAME)
            await here.store.renew_epoch()
            assert first is not None
            assert first.generation is not None
            again = first
            async with asyncio.timeout(WITHIN_S):
                while again is None or again.generation is None or again.generation <= first.generation:
                    await asyncio.sleep(0.01)
                    again = await here.store.registration(NAME)
            assert again.secret != first.secret, "a restored cluster signs with new keys"
            async with Listener(made.url, await made.login("ada")) as ada:
                await here.execute(channel, {interest: ["signed anew"]})
                assert await ada.values_until(1) == ["signed anew"]
