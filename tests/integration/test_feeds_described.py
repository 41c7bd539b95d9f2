"""What a cluster tells of its feeds: in the dataverse Metadata, and as numbers for Prometheus."""

from __future__ import annotations

import pytest

from tests.integration.feed_places import Place
from tests.local_cluster import LocalCluster

HTTP = '{"adapter-name": "http_adapter", "type-name": "T"}'


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> Place:
    made = Place(cluster, dataverse)
    made.run("CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id")
    return made


def test_metadata_describes_feeds_and_where_they_go(place: Place) -> None:
    own = f'WHERE x.DataverseName = "{place.dataverse}" ORDER BY x.DatasetName'
    place.run(
        "CREATE FUNCTION same(r) { r }; CREATE DATASET E(T) PRIMARY KEY id;"
        f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D; CONNECT FEED F TO DATASET E APPLY FUNCTION same;"
    )
    feed = {
        "DataverseName": place.dataverse,
        "FeedName": "F",
        "AdapterName": "http_adapter",
        "DatatypeName": f"{place.dataverse}.T",
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
