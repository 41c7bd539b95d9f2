"""A cluster with channels, saved and brought back: they go on where they were, and nobody is told anything twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.channels_in_process import ChannelDataverse
from tests.support.in_process_cluster import LocalCluster
from tests.support.sparkless_process import opened
from tocsin import compose
from tocsin.cluster.backup.progress import no_progress

SCHEMA = """CREATE DATAVERSE v; USE v; CREATE TYPE T AS { id: int, said: string };
CREATE ACTIVE DATASET D(T) PRIMARY KEY id; CREATE BROKER B AT "http://127.0.0.1:1/announcements";
CREATE CONTINUOUS CHANNEL C(said: string) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.said = said }"""


@contextmanager
def running(spark: SparkSession, folder: Path) -> Iterator[ChannelDataverse]:
    cluster = LocalCluster(spark, folder)
    try:
        yield ChannelDataverse(cluster, "v")
    finally:
        cluster.close()


def executions(place: ChannelDataverse) -> list[int]:
    return place.rows("SELECT VALUE e.Execution FROM Metadata.ChannelExecution e ORDER BY e.Execution")


def back_up_alive(place: ChannelDataverse, destination: Path) -> None:
    """As the cluster does over HTTP."""
    place.cluster.wait(place.cluster.cluster.back_up(destination))


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "stopped"])
def test_a_restored_channel_goes_on_where_it_was(spark: SparkSession, tmp_path: Path, alive: bool) -> None:
    with running(spark, tmp_path / "first") as place:
        place.cluster.run(SCHEMA)
        mine, other = place.subscribe('C("a")'), place.subscribe('C("b")')
        place.run('INSERT INTO D [{"id": 1, "said": "a"}, {"id": 2, "said": "b"}]')
        place.execute("C")
        assert place.told("C") == {mine: [1], other: [2]}
        before, settings = executions(place), place.cluster.settings
        first_epoch = place.cluster.cluster.channel_store.epoch
        if alive:
            back_up_alive(place, tmp_path / "saved.tar")
            place.run('INSERT INTO D [{"id": 9, "said": "a"}]')
            place.execute("C")

    if not alive:
        asyncio.run(compose.offline_backup(settings, tmp_path / "saved.tar", no_progress))
    new = settings.model_copy(update={"data": tmp_path / "second"})
    asyncio.run(compose.restore(new, tmp_path / "saved.tar", no_progress))

    with running(spark, tmp_path / "second") as place:
        assert place.cluster.cluster.channel_store.epoch > first_epoch
        assert place.told("C") == {mine: [1], other: [2]}
        place.run('INSERT INTO D [{"id": 3, "said": "a"}]')
        place.execute("C")
        told = place.told("C")
        assert (sorted(told[mine]), told[other]) == ([1, 3], [2])
        after = executions(place)
        assert after == list(range(1, len(after) + 1))
        assert len(after) == len(before) + 1


def test_a_channel_whose_rows_are_lost_begins_anew_with_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    with running(spark, tmp_path / "first") as place:
        place.cluster.run(SCHEMA)
        place.subscribe('C("a")')
        place.run('INSERT INTO D [{"id": 1, "said": "a"}]')
        place.execute("C")
        data = place.cluster.settings.data
    for path in data.glob("channels.db*"):
        path.unlink()

    async def set_aside() -> None:
        async with opened(data, set_aside=True):
            pass

    asyncio.run(set_aside())
    with running(spark, tmp_path / "first") as place:
        mine = place.subscribe('C("a")')
        place.run('INSERT INTO D [{"id": 2, "said": "a"}]')
        place.execute("C")
        assert place.told("C") == {mine: [2]}
