"""AsterixDB's query service of a whole cluster, asked as a notebook asks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from pyspark.sql import SparkSession

from tests.support.served_cluster import ServedCluster


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Iterator[ServedCluster]:
    made = ServedCluster(spark, tmp_path)
    try:
        yield made
    finally:
        made.close()


def ask(cluster: ServedCluster, statement: str, **parameters: Any) -> tuple[int, dict[str, Any]]:
    given = {"statement": statement, **{f"${name}": json.dumps(value) for name, value in parameters.items()}}
    try:
        with urllib.request.urlopen(f"{cluster.client.url}/query/service", urlencode(given).encode()) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_notebook_creates_fills_and_queries_a_dataset(cluster: ServedCluster) -> None:
    status, said = ask(
        cluster,
        """DROP DATAVERSE notes IF EXISTS; CREATE DATAVERSE notes; USE notes; CREATE TYPE T AS OPEN { id: bigint };
        CREATE DATASET Notes(T) PRIMARY KEY id WITH {"merge-policy": {"name": "prefix"}};
        INSERT INTO Notes [{"id": 1, "said": "a"}, {"id": 2, "said": "b"}]""",
    )
    assert (status, said["status"], said["metrics"]["warningCount"]) == (200, "success", 1)
    assert "results" not in said
    hostile = 'b"; DROP DATAVERSE notes; --'
    for value, expected in (("b", [2]), (hostile, [])):
        _, said = ask(cluster, "SELECT VALUE n.id FROM notes.Notes n WHERE n.said = $said;", said=value)
        assert (said["status"], said["results"], said["signature"]) == ("success", expected, {"*": "*"})
    status, said = ask(cluster, "SELECT VALUE n FROM notes.Nothing n;")
    assert (status, said["status"]) == (400, "fatal")
    assert "Nothing" in said["errors"][0]["msg"]
    request = urllib.request.Request(
        f"{cluster.client.url}/query/service",
        json.dumps({"statement": "SELECT VALUE x FROM range(0, 5000) AS x", "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        streamed = json.load(answer)
    assert (streamed["status"], len(streamed["results"]), streamed["metrics"]["resultCount"]) == ("success", 5000, 5000)
