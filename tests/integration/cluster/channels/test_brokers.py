"""From a record to a broker, through everything: a real channel on Spark, over the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import requests
from pyspark.sql import SparkSession

from tests.support.served_cluster import ServedCluster
from tests.support.waiting import WITHIN_S
from tocsin.rules.model.cursors import Range
from tocsin.wire.announcements import Announcement, parse_announcement
from tocsin.wire.cursors import parse_cursor, position_text
from tocsin.wire.results import FrameReader, fetch_request

SCRIPT = """
CREATE DATAVERSE v; USE v;
CREATE TYPE Report AS {id: bigint, kind: string, said: string};
CREATE ACTIVE DATASET Reports(Report) PRIMARY KEY id;
CREATE CONTINUOUS CHANNEL OfKind(kind: string) { SELECT r.said FROM Reports r WHERE is_new(r) AND r.kind = kind };
CREATE CONTINUOUS PUSH CHANNEL Alarms(kind: string) {
    SELECT VALUE r.said FROM Reports r WHERE is_new(r) AND r.kind = kind };
"""


@pytest.fixture
def served(spark: SparkSession, tmp_path: Path) -> Iterator[ServedCluster]:
    made = ServedCluster(spark, tmp_path)
    yield made
    made.close()


def test_a_record_reaches_the_brokers_that_asked_for_it(served: ServedCluster) -> None:
    served.run(SCRIPT)
    at = served.client.url

    def ask(method: str, path: str, said: object = None) -> requests.Response:
        body = None if said is None else orjson.dumps(said)
        answer = requests.request(method, at + path, data=body, timeout=WITHIN_S)
        assert answer.status_code in (200, 201), answer.text
        return answer

    def told(after: str) -> Announcement:
        return parse_announcement(ask("GET", f"/v1/brokers/v.b/announcements?after={after}&wait=50").content)

    start = ask("PUT", "/v1/brokers/v.b", {"url": None}).json()["position"]
    wanted = {"broker": "v.b", "subscriptions": [{"parameters": ["flood"]}, {"parameters": ["fire"]}]}
    flood, fire = ask("POST", "/v1/channels/v.OfKind/subscriptions", wanted).json()["subscriptions"]
    served.run(
        """USE v; INSERT INTO Reports [
            {"id": 1, "kind": "flood", "said": "up"}, {"id": 2, "kind": "storm", "said": "no"}];"""
    )
    found = told(start)
    assert [(name, [interest for interest, _ in heads]) for name, heads in found.heads.items()] == [
        ("v.OfKind", [flood["interest"]])
    ]
    ranges = [Range(interest["interest"], parse_cursor(interest["since"])) for interest in (flood, fire)]
    answer = requests.post(f"{at}/v1/results:fetch", data=fetch_request(ranges), timeout=WITHIN_S)
    reader = FrameReader()
    parts = list(reader.feed(answer.content))
    assert reader.check() is None
    assert [[orjson.loads(result.payload) for result in part.results] for part in parts] == [[{"said": "up"}], []]
    assert parts[0].results[0].cursor == found.heads["v.OfKind"][0][1]

    (alarm,) = ask(
        "POST", "/v1/channels/v.Alarms/subscriptions", {"broker": "v.b", "subscriptions": [{"parameters": ["fire"]}]}
    ).json()["subscriptions"]
    served.run("""USE v; INSERT INTO Reports {"id": 3, "kind": "fire", "said": "hot"};""")
    pushed: dict[int, list[object]] = {}
    while not pushed:
        found = told(position_text(found.position))
        pushed |= {result.interest: [orjson.loads(each.payload) for each in result.results] for result in found.pushed}
    assert pushed == {alarm["interest"]: ["hot"]}
    # The same rows are seen by queries.
    assert served.rows("USE v; SELECT VALUE r.result FROM AlarmsResults r;") == ["hot"]
