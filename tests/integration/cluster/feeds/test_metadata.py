"""What a cluster tells of its feeds: in the dataverse Metadata, and as numbers for Prometheus."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from tests.integration.cluster.feeds.test_sockets import connection, is_dropped, listening, send
from tests.support.feeds_in_process import FeedDataverse
from tests.support.in_process_cluster import LocalCluster, held_until
from tests.support.waiting import wait_until
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.cluster.feeds.metrics import FeedCollector
from tocsin.cluster.feeds.running_feed import AcceptedRecords
from tocsin.cluster.intake.log import AppendedRange, IntakeLog
from tocsin.wire.errors import ConflictError, InputError, LimitError, StorageFullError

SETUP = "CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id"
HTTP = '{"adapter-name": "http_adapter", "type-name": "T"}'


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> FeedDataverse:
    made = FeedDataverse(cluster, dataverse)
    made.run(SETUP)
    return made


def test_metadata_describes_feeds_and_where_they_go(place: FeedDataverse) -> None:
    own = f'WHERE x.DataverseName = "{place.dataverse}" ORDER BY x.DatasetName'
    place.run(
        "CREATE FUNCTION same(r) { r }; CREATE DATASET E(T) PRIMARY KEY id;"
        f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D; CONNECT FEED F TO DATASET E APPLY FUNCTION same;"
    )
    feed = {
        "DataverseName": place.dataverse,
        "FeedName": "F",
        "AdapterName": "http_adapter",
        "DatatypeDataverseName": place.dataverse,
        "DatatypeName": "T",
        "AdapterConfiguration": [
            {"Name": "adapter-name", "Value": "http_adapter"},
            {"Name": "type-name", "Value": "T"},
        ],
        "Started": False,
    }
    feeds = f'SELECT VALUE x FROM Metadata.Feed AS x WHERE x.DataverseName = "{place.dataverse}"'
    assert place.rows(feeds) == [feed]
    assert place.rows(f"SELECT VALUE x FROM Metadata.FeedConnection AS x {own}") == [
        {
            "DataverseName": place.dataverse,
            "FeedName": "F",
            "DatasetDataverseName": place.dataverse,
            "DatasetName": name,
            "AppliedFunctions": functions,
        }
        for name, functions in (("D", []), ("E", [f"{place.dataverse}.same@1"]))
    ]
    place.run("START FEED F")
    assert place.rows(feeds) == [{**feed, "Started": True}]
    place.run("DROP FEED F")
    assert place.rows(feeds) == []
    assert place.rows(f"SELECT VALUE x FROM Metadata.FeedConnection AS x {own}") == []


# ---------------------------------------------------------------- metrics


class Figures:
    """What Prometheus would be told of one feed."""

    def __init__(self, cluster: LocalCluster, feed: str) -> None:
        self.feed = feed
        self._registry = CollectorRegistry()
        self._registry.register(FeedCollector(cluster.cluster.feeds.figures))

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"tocsin_feed_{name}", {"feed": self.feed, **labels})

    def series(self) -> int:
        samples = (sample for family in self._registry.collect() for sample in family.samples)
        return sum(sample.labels["feed"] == self.feed for sample in samples)


@pytest.fixture
def told(cluster: LocalCluster, place: FeedDataverse) -> Figures:
    return Figures(cluster, f"{place.dataverse}.F")


@pytest.fixture
def fed(place: FeedDataverse) -> FeedDataverse:
    place.run(f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D; START FEED F")
    return place


def post(cluster: LocalCluster, place: FeedDataverse, *records: Any) -> AcceptedRecords:
    """Sent, not waited for."""
    body = "\n".join(json.dumps(record) for record in records).encode()
    return cluster.wait(cluster.cluster.feeds.accept(f"{place.dataverse}.F", body, None, visible=False))


def test_what_was_taken_and_refused_is_counted_through_stop_and_start(
    cluster: LocalCluster, fed: FeedDataverse, told: Figures
) -> None:
    fed.send({"id": 1, "said": "a"}, {"id": 2}, key="same")
    fed.send({"id": 1, "said": "a"}, {"id": 2}, key="same")  # once is enough
    fed.run("STOP FEED F")
    with pytest.raises(ConflictError):
        fed.send({"id": 3, "said": "c"})
    fed.run("START FEED F")
    fed.send({"id": 4, "said": "d"})
    with pytest.raises(InputError):
        fed.send(b"{")
    assert told("records_accepted_total") == 2
    assert told("records_rejected_total") == 1
    assert told("taken_bytes_total") == len('{"id": 1, "said": "a"}\n{"id": 2}{"id": 4, "said": "d"}')
    assert told("batches_landed_total") == 2
    assert told("requests_refused_total", status="409") == 1
    assert told("requests_refused_total", status="400") == 1
    assert told("lag_records") == 0
    assert told("sockets_open") is None


def test_how_far_a_feed_is_behind_is_told(cluster: LocalCluster, fed: FeedDataverse, told: Figures) -> None:
    cluster.before_landing = held_until(go := threading.Event())
    post(cluster, fed, {"id": 1, "said": "a"}, {"id": 2, "said": "b"})
    assert told("lag_records") == 2
    assert (told("unlanded_bytes") or 0) > 0
    wait_until(lambda: (told("lag_seconds") or 0) > 0, "the oldest one has waited")
    go.set()
    fed.send({"id": 3, "said": "c"})
    assert (told("lag_records"), told("unlanded_bytes"), told("lag_seconds")) == (0, 0, 0)


class FullLog(IntakeLog):
    """A log that refuses records while `error` is set."""

    error: Exception | None = None

    async def append(self, *args: Any, **named: Any) -> AppendedRange:
        if FullLog.error is not None:
            raise FullLog.error
        return await super().append(*args, **named)


def test_failures_to_land_and_answers_of_429_and_507_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    fails = iter([StorageFullError("no room"), RuntimeError("a bug")])

    def fail_twice(_dataset: Ref) -> None:
        if (error := next(fails, None)) is not None:
            raise error

    cluster = LocalCluster(spark, tmp_path, feed_limits=FeedLimits(open_log=FullLog.open))
    try:
        cluster.run("CREATE DATAVERSE v")
        fed, told = FeedDataverse(cluster, "v"), Figures(cluster, "v.F")
        fed.run(f"{SETUP}; CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D; START FEED F")
        cluster.before_landing = fail_twice
        fed.send({"id": 1, "said": "a"})
        assert told("landing_failures_total") == 2
        for error in (LimitError("behind", status=429), StorageFullError("no room")):
            FullLog.error = error
            with pytest.raises(type(error)):
                fed.send({"id": 2, "said": "b"})
            assert told("requests_refused_total", status=str(error.status)) == 1
    finally:
        FullLog.error = None
        cluster.close()


def test_a_dropped_feeds_numbers_are_gone_and_another_of_its_name_begins_anew(
    fed: FeedDataverse, told: Figures
) -> None:
    fed.send({"id": 1, "said": "a"})
    assert told("records_accepted_total") == 1
    fed.run("DROP FEED F")
    assert told.series() == 0
    fed.run(f"CREATE FEED F WITH {HTTP}")
    assert told("records_accepted_total") == 0


def test_sockets_and_what_they_drop_are_counted(place: FeedDataverse, told: Figures) -> None:
    port = listening(place, "json")
    with connection(port) as to:
        wait_until(lambda: told("sockets_open") == 1, "the connection is counted")
        to.sendall(b'{"id": 1, "said": "a"} nonsense')
        assert is_dropped(to)
    send(port, b'{"id": 2, "said": "b"}{"id": 3, "sa')
    wait_until(lambda: told("socket_records_dropped_total") == 2, "the frame and the half record are counted")
    wait_until(lambda: told("sockets_open") == 0, "none is left")
    assert told("sockets_dropped_total") == 1
    assert told("records_accepted_total") == 2


# ---------------------------------------------------------------- while connections change


def test_publishers_go_on_while_a_started_feed_is_connected_even_when_nothing_lands(
    cluster: LocalCluster, fed: FeedDataverse, told: Figures
) -> None:
    cluster.before_landing = held_until(go := threading.Event())
    post(cluster, fed, {"id": 1, "said": "a"})
    fed.run("CREATE DATASET E(T) PRIMARY KEY id; CONNECT FEED F TO DATASET E")
    post(cluster, fed, {"id": 2, "said": "b"})
    go.set()
    fed.send({"id": 3, "said": "c"})
    assert fed.held() == {1: "a", 2: "b", 3: "c"}
    assert fed.held("E") == {2: "b", 3: "c"}


def test_a_policy_is_noted_and_the_records_land(place: FeedDataverse) -> None:
    place.run(f"CREATE FEED F WITH {HTTP}")
    (connected,) = place.run("CONNECT FEED F TO DATASET D USING POLICY BasicFT")
    assert "every acknowledged record is durable" in connected["notes"][0]
    place.run("START FEED F")
    place.send({"id": 1, "said": "a"})
    place.run("STOP FEED F")
    assert place.rows("SELECT VALUE d.said FROM D d") == ["a"]


def test_an_unknown_policy_is_refused(place: FeedDataverse) -> None:
    place.run(f"CREATE FEED F WITH {HTTP}")
    with pytest.raises(InputError, match="Sloppy"):
        place.run("CONNECT FEED F TO DATASET D USING POLICY Sloppy")


def test_metadata_writes_options_as_the_original_does(place: FeedDataverse) -> None:
    place.run('CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T", "dynamic": true}')
    own = f'f.DataverseName = "{place.dataverse}"'
    (options,) = place.rows(f"SELECT VALUE f.AdapterConfiguration FROM Metadata.Feed f WHERE {own}")
    assert {"Name": "dynamic", "Value": "true"} in options
