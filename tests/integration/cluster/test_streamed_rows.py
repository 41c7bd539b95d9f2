"""Rows that Spark has written to files, and that are encoded when a client reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.support.in_process_cluster import LocalCluster
from tocsin.wire.errors import StatementError, TocsinError

QUERIES = (
    "SELECT VALUE x FROM range(0, 5000) AS x",
    "SELECT VALUE [x, null, missing] FROM [1, 2] AS x",
    'SELECT VALUE datetime("9999-12-31T23:59:59.999Z")',
    'SELECT VALUE datetime("1000-01-01T00:00:00Z")',
    'SELECT VALUE date("0001-01-01")',
    'SELECT VALUE {"point": create_point(1.5, 2.0), "when": time("23:59:59.5"), "for": duration("P1Y2M3DT4S")}',
    "SELECT VALUE repeat('ä', 3) FROM range(0, 2000) AS x",
    f"SELECT VALUE {'[' * 20}1{']' * 20}",
    "SELECT VALUE x FROM range(0, 0) AS x",
)
BAD = (
    'SELECT VALUE date("9999-12-31") + duration("P9999Y")',
    'SELECT VALUE datetime("9999-12-31T23:59:59Z") + duration("P65038Y")',
)


@pytest.fixture(scope="module")
def own_cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(spark, tmp_path_factory.mktemp("streamed"))
    yield cluster
    cluster.close()


def answers(cluster: LocalCluster) -> list[Path]:
    """The folders of answers that are on the disk."""
    return list(cluster.settings.data.glob("**/answer-*"))


@pytest.mark.parametrize("query", QUERIES)
def test_a_streamed_answer_has_the_rows_of_a_whole_one(own_cluster: LocalCluster, query: str) -> None:
    assert own_cluster.rows(query, stream=True) == own_cluster.rows(query)
    assert answers(own_cluster) == []


@pytest.mark.parametrize("query", BAD)
def test_a_value_that_cannot_be_written_is_refused_in_either_form(own_cluster: LocalCluster, query: str) -> None:
    said = []
    for stream in (False, True):
        with pytest.raises(StatementError) as caught:
            own_cluster.run(query, stream=stream)
        said.append((caught.value.message, caught.value.statement, caught.value.line))
    assert said[0] == said[1]
    assert answers(own_cluster) == []


def test_an_answer_nested_too_deep_for_files_is_refused_with_the_remedy(own_cluster: LocalCluster) -> None:
    with pytest.raises(StatementError, match="nested too deep to be streamed") as caught:
        own_cluster.run(f"SELECT VALUE {'[' * 60}1{']' * 60}", stream=True)
    assert caught.value.hint == "ask for it whole"


@pytest.mark.parametrize("query", BAD)
def test_nothing_runs_after_a_query_whose_rows_cannot_be_written(own_cluster: LocalCluster, query: str) -> None:
    own_cluster.run("CREATE TYPE T AS {id: int}; CREATE DATASET D(T) PRIMARY KEY id; INSERT INTO D [{'id': 1}]")

    async def read_late() -> None:
        """As a client of a stream does: the rows are read when the script has ended."""
        outcomes = [
            outcome async for outcome in own_cluster.cluster.statements.run(f"{query}; DELETE FROM D", stream=True)
        ]
        for outcome in outcomes:
            if outcome.rows is not None:
                await outcome.rows.close()

    with pytest.raises(StatementError):
        own_cluster.wait(read_late())
    assert own_cluster.rows("SELECT VALUE d.id FROM D AS d") == [1]
    assert answers(own_cluster) == []
    own_cluster.run("DROP DATASET D; DROP TYPE T")


def test_large_equal_values_are_read_a_few_at_a_time(own_cluster: LocalCluster) -> None:
    async def first_piece() -> tuple[int, int]:
        query = "SELECT VALUE repeat('a', 400000) FROM range(0, 1000) AS x"
        async for outcome in own_cluster.cluster.statements.run(query, stream=True):
            assert outcome.rows is not None
            before_bytes = psutil.Process().memory_info().rss
            piece = await anext(outcome.rows.batches)
            more_bytes = psutil.Process().memory_info().rss - before_bytes
            await outcome.rows.close()
            return sum(map(len, piece)), more_bytes
        raise AssertionError("a query has an outcome")

    piece_bytes, more_bytes = own_cluster.wait(first_piece())
    assert piece_bytes < 2 << 20
    assert more_bytes < 150 << 20, "of 400 MB"
    assert answers(own_cluster) == []


def test_a_script_that_is_stopped_leaves_no_answer_behind(own_cluster: LocalCluster) -> None:
    async def stopped(after_s: float) -> None:
        async def run() -> None:
            async for outcome in own_cluster.cluster.statements.run(
                "SELECT VALUE repeat('a', 100) FROM range(0, 200000) AS x", stream=True
            ):
                assert outcome.rows is not None
                await outcome.rows.close()

        task = asyncio.create_task(run())
        await asyncio.wait((task,), timeout=after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for tenths in range(12):
        own_cluster.wait(stopped(tenths / 10))
    # What a task has written after its folder was removed goes with the next answer.
    own_cluster.run("SELECT VALUE 1", stream=True)
    assert answers(own_cluster) == []


def test_an_error_of_a_later_statement_comes_after_the_statements_before_it(own_cluster: LocalCluster) -> None:
    kinds = []

    async def run() -> None:
        async for outcome in own_cluster.cluster.statements.run("SELECT VALUE 1; SELECT VALUE 2; SELEC 3", stream=True):
            kinds.append(outcome.kind)
            assert outcome.rows is not None
            await outcome.rows.close()

    with pytest.raises(TocsinError) as caught:
        own_cluster.wait(run())
    assert (kinds, caught.value.statement) == (["query", "query"], 3)
