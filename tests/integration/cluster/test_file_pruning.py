"""Queries read only the files that can have their rows, and answer as before."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.support.in_process_cluster import LocalCluster
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.pipeline.views import DatasetViews

QUERIES = [
    "SELECT VALUE d.id FROM D d WHERE d.id = 42",
    "SELECT VALUE d.id FROM D d WHERE d.id >= 39 AND d.said < 'w042'",
    "SELECT VALUE d.id FROM D d WHERE d.at < datetime('2026-01-04T00:00:00Z')",
    "SELECT VALUE d.id FROM D d WHERE d.id IN [3, 77]",
    "SELECT VALUE d.id FROM D d WHERE d.id = 42 OR d.id = 3",
    "SELECT VALUE d.id FROM D d WHERE d.more = 42",
    "SELECT VALUE e.id FROM D d, D e WHERE d.id = 42 AND e.id = d.id + 1",
    "SELECT VALUE d.id FROM D d LEFT JOIN D e ON d.id = e.id + 1 WHERE e.id = 41",
    "SELECT VALUE d.id FROM D d WHERE EXISTS (SELECT VALUE e FROM D e WHERE e.id = d.id AND e.said = 'w042')",
    "SELECT VALUE d.id FROM D VERSION AS OF 2 AS d WHERE d.id BETWEEN 5 AND 15",
    "LET wanted = 42 SELECT VALUE d.id FROM D d WHERE d.id = wanted",
]


@pytest.fixture
def filled(cluster: LocalCluster) -> LocalCluster:
    cluster.run(
        "DROP DATAVERSE pruning IF EXISTS; CREATE DATAVERSE pruning; USE pruning;"
        "CREATE TYPE T AS {id: int64, said: string, at: datetime}; CREATE DATASET D(T) PRIMARY KEY id;"
        + "".join(
            f'INSERT INTO D [{{"id": {tens}0, "said": "w{tens:02d}0", "more": {tens}0, '
            f'"at": datetime("2026-01-{tens + 1:02d}T00:00:00Z")}}, '
            f'{{"id": {tens}2, "said": "w{tens:02d}2", "more": {tens}2, '
            f'"at": datetime("2026-01-{tens + 1:02d}T12:00:00Z")}}];'
            for tens in range(10)
        )
    )
    return cluster


def test_a_pruned_query_answers_as_one_that_reads_everything(filled: LocalCluster) -> None:
    read: list[int] = []
    frame = DatasetViews._frame

    def counting(self: DatasetViews, snapshot: Snapshot, *args: object) -> object:
        read.append(len(snapshot.files))
        return frame(self, snapshot, *args)  # type: ignore[arg-type]

    pruned_queries = 0
    for query in QUERIES:
        with mock.patch.object(StatementScope, "_prune_scans", return_value=False):
            expected = filled.run(f"USE pruning; {query};")[-1].rows
        read.clear()
        with mock.patch.object(DatasetViews, "_frame", counting):
            found = filled.run(f"USE pruning; {query};")[-1].rows
        assert sorted(found or []) == sorted(expected or []), query
        pruned_queries += any(files < 10 for files in read)
    assert pruned_queries >= 6


def test_a_deletion_by_key_reads_the_file_of_that_key(filled: LocalCluster) -> None:
    filled.run("USE pruning; DELETE FROM D d WHERE d.id = 42;")
    assert len(filled.run("USE pruning; SELECT VALUE d.id FROM D d;")[-1].rows or []) == 19
