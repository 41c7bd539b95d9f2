"""Two islands of the original: a push channel's results go to a feed of another cluster, through a BAD broker."""

from __future__ import annotations

import json
import urllib.request

from tests.support.feeds_in_process import FeedDataverse, free_port
from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import wait_until


def test_results_of_a_push_channel_land_in_the_dataset_of_another_island(cluster: LocalCluster, dataverse: str) -> None:
    place, tweets, alerts = FeedDataverse(cluster, dataverse), free_port(), free_port()
    place.run(
        f"""
        create type Tweet as open {{ tid : bigint }};
        CREATE ACTIVE DATASET Tweets(Tweet) primary key tid;
        CREATE FEED TweetFeed with {{ "adapter-name" : "http_adapter", "addresses" : "127.0.0.1:{tweets}",
          "address-type" : "IP", "type-name" : "Tweet", "format" : "adm", "dynamic" : "false" }};
        CONNECT FEED TweetFeed to dataset Tweets;
        START FEED TweetFeed;
        CREATE CONTINUOUS PUSH CHANNEL AlertsAt(area) PERIOD duration("PT1S") {{
          SELECT t FROM Tweets t WHERE t.area = area AND is_new(t)
        }};
        CREATE TYPE Alert AS {{ channelExecutionEpochTime: bigint, dataverseName: string, channelName: string }};
        CREATE DATASET Alerts(Alert) PRIMARY KEY channelExecutionEpochTime;
        CREATE FEED AlertFeed WITH {{ "adapter-name" : "http_adapter", "addresses" : "127.0.0.1:{alerts}",
          "address-type" : "IP", "type-name" : "Alert", "format" : "adm" }};
        CONNECT FEED AlertFeed TO DATASET Alerts;
        START FEED AlertFeed;
        CREATE BROKER Island AT "http://127.0.0.1:{alerts}" with {{ "broker-type" : "BAD" }};
        SUBSCRIBE TO AlertsAt("OC") on Island;
        """
    )
    for first in (0, 2):
        body = "".join(
            json.dumps({"tid": first + place_, "area": area, "text": area}) for place_, area in enumerate(("OC", "UCI"))
        )
        request = urllib.request.Request(f"http://127.0.0.1:{tweets}", body.encode())
        with urllib.request.urlopen(request) as answer:
            assert answer.read() == b"2"
        query = "SELECT VALUE r.result.t FROM Alerts l UNNEST l.results r ORDER BY r.result.t.tid"
        expected = [{"tid": tid, "area": "OC", "text": "OC"} for tid in range(0, first + 1, 2)]
        wait_until(lambda: place.rows(query) == expected, f"the other island has {expected}")  # noqa: B023
    (row,) = place.rows("SELECT VALUE l FROM Alerts l ORDER BY l.channelExecutionEpochTime LIMIT 1")
    assert (row["dataverseName"], row["channelName"]) == (dataverse, "AlertsAt")
    assert row["results"][0].keys() == {"result", "channelExecutionTime", "subscriptionId", "deliveryTime"}
    rows = place.rows(f'SELECT b.BrokerType FROM Metadata.`Broker` b WHERE b.DataverseName = "{dataverse}"')
    assert rows == [{"BrokerType": "bad"}]
