"""A tiny city, lived through: channels on Spark, brokers in processes of their own, everybody a client of the SDK."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.served_cluster import ServedCluster
from tocsin.lab.experiments.edge_caching_prototype.live import run_live
from tocsin.lab.experiments.edge_caching_prototype.live.hour_run import run_hour
from tocsin.lab.experiments.edge_caching_prototype.live.servers import LiveServer, LiveServers
from tocsin.lab.experiments.journal import Journal

TINY = {
    "policy": "nc,lsc", "size_kb": "2", "subscribers": "8", "subscriptions": "40", "places": "3", "near_share": "0.2",
    "span_s": "100", "join_s": "10", "publish_every_s": "2", "zone_every_s": "20", "move_every_s": "20", "speed": "20",
    "late_s": "20",
}  # fmt: skip


def test_a_tiny_city_is_lived_through_and_its_traces_give_the_same_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cluster on the Spark that is there already: starting one is what takes longest.
    cluster = ServedCluster(spark, tmp_path / "cluster")

    class Beside(LiveServer):
        def cpu_s(self) -> float:
            return 0.0

    async def served(_: LiveServers) -> LiveServer:
        nobody: Any = None
        return Beside("cluster", nobody, tmp_path / "log", cluster.client.url)

    monkeypatch.setattr(LiveServers, "cluster", served)
    one_drill = partial(run_hour, drills=1)
    said: list[str] = []
    try:
        done = run_live.run(TINY, tmp_path, quick=True, seed=2, fresh=False, say=said.append, run_hour=one_drill)
    finally:
        cluster.close()
    assert done.replayed, said
    assert done.compared == 8
    wanted = run_live.parse_options(TINY, quick=True, seed=2)
    with Journal(done.report.parent) as journal:
        bare, cached = (journal.find(wanted.key(cell)) for cell in wanted.cells())
    assert bare is not None
    assert cached is not None
    # The same hour at both: only where results come from differs.
    assert bare["arrived"] == cached["arrived"] > 0
    assert bare["hits"] == 0
    assert cached["hits"] > 0
    for item in (bare, cached):
        assert item["hits"] + item["misses"] == item["results"] > 0
        assert item["interests"] > 10
    assert list(tmp_path.glob("*/servers")) == []
