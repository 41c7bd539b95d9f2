"""The data folder as it is at each place where a channel is made, dropped, reads from the beginning, or is set back.

That is what kill -9 would leave there: whatever was handed to the operating system, and nothing else. Executions are
killed as processes, in `test_channels_crash`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.in_process_cluster import LocalCluster
from tests.support.running_channels import OF_KIND, SETUP, RunningChannelDataverse, record
from tocsin import faults
from tocsin.pipeline.datasets.upkeep import UpkeepLimits, upkeep

CREATE = [point for point in faults.POINTS if point.startswith("create-channel.")]
DROP = [point for point in faults.POINTS if point.startswith("drop-channel.")]
AHEAD = "channel.ahead.renewed"
EXECUTION = [point for point in faults.POINTS if point.startswith("channel.execution.")]


@contextmanager
def running(spark: SparkSession, folder: Path) -> Iterator[RunningChannelDataverse]:
    cluster = LocalCluster(spark, folder)
    try:
        yield RunningChannelDataverse(cluster, "v")
    finally:
        cluster.close()


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The points at which the folder `data` was copied, to a folder of the point's name."""
    return copied_at((*CREATE, *DROP, AHEAD), tmp_path, monkeypatch)


@pytest.fixture
def execution_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return copied_at(EXECUTION, tmp_path, monkeypatch)


def copied_at(points: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    def reach(point: str) -> None:
        if point in points and point not in seen and (tmp_path / "data").exists():
            shutil.copytree(tmp_path / "data", tmp_path / point)
            seen.append(point)

    monkeypatch.setattr(faults, "reach", reach)
    return seen


def test_a_channel_is_made_and_dropped_wholly_whatever_dies_in_between(
    spark: SparkSession, tmp_path: Path, images: list[str]
) -> None:
    with running(spark, tmp_path / "data") as place:
        place.cluster.run(f"CREATE DATAVERSE v; USE v; {SETUP}")
        place.run(OF_KIND)
        place.subscribe('"a"')
        place.write(record(1))
        place.caught_up()
        place.run("DROP CHANNEL c")
    assert images == [*CREATE, *DROP]
    for point in images:
        with running(spark, tmp_path / point) as place:
            made = [channel.name for channel in place.parts.catalog.catalog.channels]
            assert made == (["c"] if point == "create-channel.recorded" else []), point
            kept = [channel.channel_id for channel in place.parts.catalog.catalog.channels]
            assert list(place.wait(place.parts.channel_store.channel_ids())) == kept, f"{point}: nothing is left over"
            if not made:
                place.run(OF_KIND)
            mine = place.subscribe('"a"')
            place.write(record(2))
            place.told_once(mine, [2])


def test_a_channel_goes_back_with_its_dataset_also_when_the_start_that_saw_it_is_killed(
    spark: SparkSession, tmp_path: Path, images: list[str]
) -> None:
    with running(spark, tmp_path / "first") as place:
        place.cluster.run(f"CREATE DATAVERSE v; USE v; {SETUP} {OF_KIND}")
        mine = place.subscribe('"a"')
        place.write(record(1))
        place.told_once(mine, [1])
        dataset = Path("datasets", place.folder())
        shutil.copytree(tmp_path / "first" / dataset, tmp_path / "older")
        for number in (2, 3):
            place.write(record(number))
        place.told_once(mine, [1, 2, 3])
    shutil.copytree(tmp_path / "first", tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / dataset)
    shutil.copytree(tmp_path / "older", tmp_path / "data" / dataset)
    for start in ("data", AHEAD):
        with running(spark, tmp_path / start) as place:
            for item in (4, 5):
                place.write(record(item))
            place.told_once(mine, [1, 2, 3, 4, 5])
    assert images == [AHEAD]


def test_records_from_before_a_channel_are_told_once_whatever_dies_in_its_first_execution(
    spark: SparkSession, tmp_path: Path, execution_images: list[str]
) -> None:
    with running(spark, tmp_path / "before") as place:
        place.cluster.run(f"CREATE DATAVERSE v; USE v; {SETUP}")
        for n in range(6):
            place.write(record(n))
        place.write(record(3, n=1))
        table = place.parts.tables.table(place.parts.catalog.catalog.dataset("v", "D"))
        assert upkeep(table, UpkeepLimits(files_per_compaction=2)).compacted_files > 0
        place.run(OF_KIND.removesuffix(";") + ' PERIOD "P100D" WITH {"since": "beginning"};')
        mine = place.subscribe('"a"')
    (tmp_path / "before").rename(tmp_path / "data")
    with running(spark, tmp_path / "data") as place:
        place.execute()
        place.told_once(mine, range(6))
    assert execution_images == EXECUTION
    for point in EXECUTION:
        with running(spark, tmp_path / point) as place:
            place.execute()
            place.write(record(7))
            place.execute()
            place.told_once(mine, [*range(6), 7])
