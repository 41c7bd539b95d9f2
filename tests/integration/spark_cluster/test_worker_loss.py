"""The last file of the folder: it takes a worker away from the cluster that all files share."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.real_processes import ClusterHttpClient
from tests.support.spark_cluster import StandaloneCluster
from tests.support.waiting import WITHIN_S

pytestmark = pytest.mark.cluster

ROWS = 2_000_000
QUERY = f"SELECT VALUE sum(x.id % 7) FROM range(0, {ROWS}) AS x, range(0, 20) AS y;"


def test_a_query_goes_on_when_a_worker_dies_in_its_middle(
    client: ClusterHttpClient, workers: StandaloneCluster
) -> None:
    found: list[Any] = []
    expected = [20 * sum(i % 7 for i in range(ROWS))]
    asking = threading.Thread(target=lambda: found.append(client.rows(QUERY)))
    asking.start()
    asking.join(1.0)
    workers.workers[0].kill()
    asking.join(WITHIN_S)
    assert found == [expected]
    assert client.rows(QUERY) == expected
