"""Feeds through functions in Python: records are enriched, dropped, split, and set aside one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.feeds_in_process import FeedDataverse
from tests.support.in_process_cluster import LocalCluster
from tests.support.python_sources import PythonDataverse
from tocsin.wire.errors import ConflictError

HTTP = '{"adapter-name": "http_adapter", "type-name": "Sent"}'
TYPES = """
    CREATE TYPE Sent AS { id: int, at: point? };
    CREATE TYPE Kept AS { id: int, said: string };
    CREATE DATASET D(Kept) PRIMARY KEY id;
"""
FUNCTION = """
    from tocsin.rules.model.values import Circle, Point

    def kept(record):
        number = record["id"]
        if number == 0:
            return None
        if number == 13:
            raise ValueError("unlucky")
        if number == 14:
            return {"id": number, "said": None}
        if number == 15:
            return 15
        if number < 0:
            return [{"id": number, "said": "a"}, {"id": number - 100, "said": "b"}]
        near = Circle(record.get("at", Point(0, 0)), 1.5)
        return {"id": number, "said": ",".join(sorted(record)), "near": near, "more": record.get("more")}
"""


class Fed(PythonDataverse, FeedDataverse):
    """A test's dataverse with a feed F into D through the function `kept` of a module of its own."""

    def __init__(self, cluster: LocalCluster, dataverse: str) -> None:
        PythonDataverse.__init__(self, cluster, dataverse)
        self._cluster = cluster


@pytest.fixture
def fed(cluster: LocalCluster, dataverse: str) -> Fed:
    made = Fed(cluster, dataverse)
    made.run(TYPES)
    made.module.write(FUNCTION)
    made.create("kept(r)", "kept")
    made.run(f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D APPLY FUNCTION kept; START FEED F")
    return made


def test_records_are_enriched_dropped_split_and_set_aside_one_by_one(fed: Fed) -> None:
    sent = [{"id": n, "at": [1, 2], "more": {"deep": [n, None, 2**53 + 1]}} for n in (1, 0, -1, 13, 14, 15, 16)]
    assert fed.send(*sent).answer == {"accepted": 7, "rejected": []}
    assert fed.rows("SELECT VALUE d FROM D d ORDER BY d.id") == [
        {"id": -101, "said": "b"},
        {"id": -1, "said": "a"},
        *(
            {
                "id": n, "said": "at,id,more", "near": {"center": [1.0, 2.0], "radius": 1.5},
                "more": {"deep": [n, None, 2**53 + 1]},
            }
            for n in (1, 16)
        ),
    ]  # fmt: skip
    reasons = {int(rejection["record"][6:8]): rejection["reason"] for rejection in fed.rejected()}
    assert set(reasons) == {13, 14, 15}
    assert reasons[13].startswith("the function kept failed: ValueError: unlucky (")
    assert "required" in reasons[14]
    assert "object" in reasons[15]


def test_what_returns_says_is_held_against_each_record(fed: Fed) -> None:
    fed.create("strict(r) RETURNS Kept?", "kept")
    fed.run("CREATE DATASET E(Kept) PRIMARY KEY id; CONNECT FEED F TO DATASET E APPLY FUNCTION strict")
    fed.send({"id": 0}, {"id": 1}, {"id": -1}, {"id": 14})
    assert fed.rows("SELECT VALUE d.id FROM E d") == [1]
    reasons = [rejection["reason"] for rejection in fed.rejected() if rejection["dataset"] == f"{fed.dataverse}.E"]
    assert all("the function strict gave what does not fit Kept" in reason for reason in reasons)
    assert len(reasons) == 2


def test_a_reference_dataset_is_joined_by_a_sql_function_that_calls_the_python_one(fed: Fed) -> None:
    fed.module.write("""
        def key(said):
            if said == "bad": raise ValueError(said)
            return said.strip().lower()
    """)
    fed.create("key(said) RETURNS string", "key")
    fed.run("""
        CREATE TYPE Town AS { name: string, people: int };
        CREATE DATASET Towns(Town) PRIMARY KEY name;
        INSERT INTO Towns [{"name": "ITHACA", "people": 32870}, {"name": "Irvine", "people": 307670}];
        CREATE FUNCTION placed(r) {
            SELECT VALUE {"id": r.id, "said": key(r.town),
                          "people": (SELECT VALUE t.people FROM Towns AS t WHERE key(t.name) = key(r.town))}
            FROM [r] AS one
        };
        CREATE DATASET E(Kept) PRIMARY KEY id;
        CONNECT FEED F TO DATASET E APPLY FUNCTION placed; DISCONNECT FEED F FROM DATASET D
    """)
    fed.send(
        {"id": 1, "town": " Ithaca "}, {"id": 2, "town": "irvine"}, {"id": 3, "town": "bad"}, {"id": 4, "town": "x"}
    )
    assert fed.rows("SELECT VALUE [d.id, d.said, d.people] FROM E d ORDER BY d.id") == [
        [1, "ithaca", [32870]], [2, "irvine", [307670]], [4, "x", []],
    ]  # fmt: skip
    (refused,) = fed.rejected()
    assert "the function key failed: ValueError: bad" in refused["reason"]
    fed.run('INSERT INTO Towns {"name": "X", "people": 1}')
    fed.send({"id": 5, "town": "x"})
    assert fed.rows("SELECT VALUE d.people FROM E d WHERE d.id = 5") == [[1]]


def test_a_module_that_cannot_be_imported_holds_the_feed_and_refuses_nothing(fed: Fed) -> None:
    fed.send({"id": 1})
    fed.module.write("def kept(record) oops")
    name = f"{fed.dataverse}.F"
    fed.cluster.wait(fed.cluster.cluster.feeds.accept(name, b'{"id": 2}', None, visible=False))
    assert [d["id"] for d in fed.rows("SELECT VALUE d FROM D d")] == [1]
    fed.module.write("def kept(record): return {**record, 'said': 'mended'}")
    fed.send({"id": 3})
    assert fed.held() == {1: "id", 2: "mended", 3: "mended"}
    assert fed.rejected() == []


def test_a_function_that_a_feed_uses_cannot_be_dropped(fed: Fed) -> None:
    with pytest.raises(ConflictError, match="is used by"):
        fed.run("DROP FUNCTION kept@1")
    fed.run("STOP FEED F; DISCONNECT FEED F FROM DATASET D; DROP FUNCTION kept@1")


def test_a_started_feed_goes_on_through_its_function_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    before = Fed(LocalCluster(spark, tmp_path), "Default")
    before.run(TYPES)
    before.module.write(FUNCTION)
    before.create("kept(r)", "kept")
    before.run(f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D APPLY FUNCTION kept; START FEED F")
    before.send({"id": 1})
    before.cluster.close()
    after = Fed(LocalCluster(spark, tmp_path), "Default")
    try:
        after.send({"id": 2}, {"id": 13})
        assert after.held() == {1: "id", 2: "id"}
        assert len(after.rejected()) == 1
    finally:
        after.cluster.close()
