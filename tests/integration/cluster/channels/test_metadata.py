"""What the cluster tells of its channels: executions in Metadata, and figures for Prometheus."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.channels_in_process import ChannelDataverse
from tests.support.in_process_cluster import LocalCluster
from tocsin.cluster.channels.metrics import ChannelCollector
from tocsin.rules.model.values import datetime_text

TICK = datetime(2096, 2, 29, 23, 59, 50, 250_000, tzinfo=UTC)


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> ChannelDataverse:
    made = ChannelDataverse(cluster, dataverse)
    made.run(
        """CREATE TYPE T AS { id: int, said: string, n: int };
        CREATE ACTIVE DATASET D(T) PRIMARY KEY id;
        CREATE BROKER B AT "http://127.0.0.1:1/announcements";
        CREATE CONTINUOUS CHANNEL C(said: string) PERIOD "P1D" {
            SELECT d.id, 100 div d.n AS share FROM D d WHERE is_new(d) AND d.said = said
        };"""
    )
    return made


class Told:
    """The figures of one channel."""

    def __init__(self, cluster: LocalCluster, channel: str) -> None:
        self._channel = channel
        self._registry = CollectorRegistry()
        self._registry.register(ChannelCollector(cluster.cluster.channels.figures))

    def __call__(self, name: str) -> float | None:
        return self._registry.get_sample_value(f"tocsin_channel_{name}", {"channel": self._channel})

    def series(self) -> int:
        samples = (sample for family in self._registry.collect() for sample in family.samples)
        return sum(sample.labels["channel"] == self._channel for sample in samples)


@pytest.fixture
def told(cluster: LocalCluster, place: ChannelDataverse) -> Told:
    return Told(cluster, f"{place.dataverse}.C")


def executions(place: ChannelDataverse) -> list[dict[str, Any]]:
    return place.rows(
        f'SELECT VALUE e FROM Metadata.ChannelExecution e WHERE e.DataverseName = "{place.dataverse}"'
        " ORDER BY e.Execution, e.Ended"
    )


def test_metadata_tells_of_executions_their_results_and_the_records_set_aside(
    place: ChannelDataverse, told: Told
) -> None:
    mine, other = place.subscribe('C("a")'), place.subscribe('C("b")')
    place.run(
        """INSERT INTO D [{"id": 1, "said": "a", "n": 50}, {"id": 2, "said": "a", "n": 0},
        {"id": 3, "said": "b", "n": 10}, {"id": 4, "said": "nobody", "n": 20}]"""
    )
    place.execute("C", TICK)
    made, done = executions(place)
    assert (made["Execution"], made["Results"], made["PoisonRecords"]) == (1, 0, [])
    assert (done["ChannelName"], done["Execution"], done["Results"]) == ("C", 2, 2)
    assert done["Tick"] == datetime_text(TICK)
    assert done["Started"] <= done["Ended"]
    assert "Reason" not in done
    (poison_record,) = done["PoisonRecords"]
    assert (poison_record["Dataset"], poison_record["Key"]) == (f"{place.dataverse}.D", ["2"])
    assert "zero" in poison_record["Reason"]
    assert place.told("C") == {mine: [{"id": 1, "share": 2}], other: [{"id": 3, "share": 10}]}
    counts = ("executions", "results", "failures", "missed_ticks", "poison_records")
    assert [told(f"{count}_total") for count in counts] == [1, 2, 0, 0, 1]
    assert told("interests") == 2
    assert (told("last_execution_seconds") or 0) > 0


def test_a_failed_execution_says_why(place: ChannelDataverse, cluster: LocalCluster) -> None:
    channel = place.channel("C")
    cluster.wait(channel.record_failure(ValueError("no reason at all"), TICK))
    assert [(execution["Execution"], execution.get("Reason")) for execution in executions(place)] == [
        (1, None), (2, "ValueError: no reason at all"),
    ]  # fmt: skip


def test_the_series_of_a_dropped_channel_end(place: ChannelDataverse, told: Told) -> None:
    assert told.series() > 0
    place.run("DROP CHANNEL C")
    assert told.series() == 0
    assert executions(place) == []
