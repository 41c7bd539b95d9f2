"""The second check: what it refuses, should text of a person's ever become Spark's SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.channel_compiler import NOW, PREVIOUS, compiled
from tocsin.language.channels.compiler import SharedQuery
from tocsin.language.types.typed_sql import FunctionError
from tocsin.pipeline.analysis import SparkTypeAnalyser, without_paths
from tocsin.pipeline.channels import plan_review, run_query
from tocsin.pipeline.channels.interests import InterestTable
from tocsin.pipeline.plan_check import analyse_query
from tocsin.wire.errors import StatementError

_SHELL = "(SELECT TRANSFORM(1) USING 'true' AS (o STRING))"


@pytest.fixture(autouse=True)
def _views(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    folder = str(tmp_path / "rows.parquet")
    spark.range(3).write.parquet(folder)
    spark.read.parquet(folder).createOrReplaceTempView("tocsin_checked")
    spark.read.parquet(folder).createOrReplaceTempView("foreign")
    yield
    for view in ("tocsin_checked", "foreign"):
        spark.catalog.dropTempView(view)


REFUSED = [
    ("SELECT TRANSFORM(1) USING 'true' AS (o STRING)", "ScriptTransformation"),
    (f"SELECT * FROM {_SHELL}", "ScriptTransformation"),
    (f"SELECT (SELECT first(o) FROM {_SHELL})", "ScriptTransformation"),
    (f"SELECT 1 WHERE EXISTS {_SHELL} OR 'a' IN {_SHELL}", "ScriptTransformation"),
    (f"SELECT id FROM tocsin_checked ORDER BY (SELECT first(o) FROM {_SHELL})", "ScriptTransformation"),
    (f"WITH x AS {_SHELL} SELECT * FROM tocsin_checked, x", "ScriptTransformation"),
    (f"SELECT * FROM tocsin_checked, LATERAL (SELECT * FROM {_SHELL} WHERE id = 1)", "ScriptTransformation"),
    (f"SELECT transform(array(1), x -> x + (SELECT count(*) FROM {_SHELL}))", ""),
    (f"SELECT 1 UNION ALL SELECT 1 FROM {_SHELL}", "ScriptTransformation"),
    ("SELECT * FROM foreign AS tocsin_checked", "View"),
    ("SELECT 1 AS `tocsin_checked` FROM (SELECT * FROM foreign) AS `View tocsin_x`", "View"),
    ("SELECT * FROM python_worker_logs()", ""),
    ("SELECT input_file_name() FROM tocsin_checked", "InputFileName"),
    ("SELECT current_user()", "CurrentUser"),
    ("SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/nowhere'))", "XmlToStructs"),
    ("SHOW TABLES", "no query"),
    ("DROP VIEW tocsin_checked", "no query"),
    ("FROM tocsin_checked INSERT OVERWRITE DIRECTORY '/nowhere' USING text SELECT 'x'", "no query"),
]


@pytest.mark.parametrize(("sql", "what"), REFUSED)
def test_what_is_no_query_of_ours_is_refused_before_it_runs(spark: SparkSession, sql: str, what: str) -> None:
    with pytest.raises((StatementError, PySparkException)) as refused:
        analyse_query(spark, sql)
    assert what in str(refused.value)
    if what:
        assert isinstance(refused.value, StatementError)
        assert refused.value.hint


_FOREIGN = """
public class Foreign implements org.apache.spark.sql.api.java.UDF1, java.io.Serializable {
  public Object call(Object value) { return value; }
}
"""


def test_no_function_in_java_is_called_but_ours(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_FOREIGN)
    nothing = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 0)  # type: ignore[union-attr]
    made = compiler.getClassLoader().loadClass("Foreign").getConstructors()[0].newInstance(nothing)
    functions: Any = spark._jsparkSession.udf()
    functions.register("foreign", made, jvm.org.apache.spark.sql.types.DataTypes.StringType)
    try:
        with pytest.raises(StatementError, match="ScalaUDF"):
            analyse_query(spark, "SELECT foreign('tocsin_split')")
    finally:
        spark.sql("DROP TEMPORARY FUNCTION foreign")
    assert analyse_query(spark, "SELECT tocsin_split('a,b', ',', -1)").columns


@pytest.mark.parametrize("kind", ["text", "parquet", "csv", "binaryFile"])
def test_no_name_is_a_path(spark: SparkSession, kind: str) -> None:
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        analyse_query(spark, f"SELECT * FROM {kind}.`/etc/hostname`")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'ScriptTransformation LogicalRelation' AS `\n+- ScriptTransformation`",
        "SELECT a.id, count(*) OVER (PARTITION BY a.id) FROM tocsin_checked a JOIN tocsin_checked b ON a.id = b.id",
        "SELECT id FROM tocsin_checked WHERE id IN (SELECT id FROM range(2)) ORDER BY id LIMIT 1 OFFSET 1",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x, x AS y, LATERAL (SELECT y.a + 1), VALUES (1)",
        "SELECT explode(sequence(1, id)) FROM tocsin_checked GROUP BY ROLLUP (id)",
        "SELECT DISTINCT id FROM tocsin_checked EXCEPT SELECT 1 INTERSECT SELECT 2 UNION SELECT 3",
        "SELECT /*+ BROADCAST(a) */ * FROM tocsin_checked a",
    ],
)
def test_what_queries_are_made_of_passes_whatever_its_texts_say(spark: SparkSession, sql: str) -> None:
    assert analyse_query(spark, sql).columns


def test_the_oracle_asks_nothing_else(spark: SparkSession) -> None:
    with pytest.raises(FunctionError, match="ScriptTransformation"):
        SparkTypeAnalyser(spark).columns(f"SELECT (SELECT first(o) FROM {_SHELL}) AS c")


def _spoiled(query: SharedQuery, **changes: object) -> SharedQuery:
    return replace(query, **changes)  # type: ignore[arg-type]


def test_a_channel_is_checked_when_it_is_made_and_when_it_first_runs(spark: SparkSession) -> None:
    query = compiled(spark, ("k",), "select value r.id from Reports r where r.kind = k")
    hostile = f"(SELECT first(o) FROM {_SHELL})"
    spoiled = _spoiled(query, sql=query.sql.replace("SELECT ", f"SELECT {hostile} AS hostile, ", 1))
    assert spoiled.sql != query.sql
    with pytest.raises(StatementError, match="ScriptTransformation"):
        plan_review.checked_plan(spark, spoiled, InterestTable(spark, spoiled).schema, lambda one: one.name)
    with_key = _spoiled(query, keys=(hostile,))
    with pytest.raises(StatementError, match="ScriptTransformation"):
        _ = InterestTable(spark, with_key).schema
    spark.createDataFrame([], "id BIGINT, kind STRING, severity BIGINT, `_commit` BIGINT").createOrReplaceTempView(
        "tocsin_reports"
    )
    run = InterestTable(spark, _spoiled(query, sql=f"SELECT {hostile} AS interest"))
    with pytest.raises(StatementError, match="ScriptTransformation"):
        run_query.query_matches(
            spark, _spoiled(query, sql=f"SELECT {hostile} AS interest", levels=(), is_numbered=False), run,
            lambda _: "tocsin_reports", run_query.ExecutionMoment(NOW, PREVIOUS, {}),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Location: InMemoryFileIndex [file:/data/x/a.parquet, ... 2 entries]", "[a.parquet, ... 2 entries]"),
        ("java.io.FileNotFoundException: /data/secret/part-1.parquet (Too many open files)", "part-1.parquet (Too"),
        ("File file:///srv/tocsin/datasets/f1/p.parquet does not exist.", "File p.parquet does not exist."),
        ("cannot parse '1/2/3'", "cannot parse '1/2/3'"),
    ],
)
def test_where_files_are_is_not_told(said: str, shown: str) -> None:
    assert shown in without_paths(said)
    assert "/data" not in without_paths(said)
    assert "/srv" not in without_paths(said)
