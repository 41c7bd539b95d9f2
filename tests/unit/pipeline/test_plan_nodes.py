"""The list of what may stand in a plan: all that the language can call is on it, and nothing else that Spark has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tocsin.language.functions import function_registry
from tocsin.pipeline.plan_check import check_plan
from tocsin.pipeline.plan_nodes import EXPRESSIONS, EXPRESSIONS_BY_KIND, NODES, NODES_BY_KIND
from tocsin.wire.errors import StatementError

# Casts have no examples in Spark, and the others are about TIME, which this version of it has and does not support.
_WITHOUT_EXAMPLES = frozenset(
    "bigint binary boolean date decimal double float int make_time smallint string time time_diff time_from_micros"
    " time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp tinyint"
    " to_time try_to_time".split()
)
# Other names, and operators, that become what a listed function or an operator of the language becomes.
_OTHER_NAMES = frozenset("! != % & * + - / < << <= <=> <> = == > >= >> >>> ^ and in not or | ~".split())


@dataclass(frozen=True, slots=True)
class Example:
    """A query from Spark's own documentation of a function, analysed and not run."""

    function: str
    sql: str
    frame: DataFrame
    is_table: bool = False

    def is_listed(self) -> bool:
        return self.function in (function_registry.TABLE_FUNCTIONS if self.is_table else function_registry.NAMES)


@pytest.fixture(scope="module")
def examples(spark: SparkSession) -> list[Example]:
    return list(_examples(spark))


def _examples(spark: SparkSession) -> Iterator[Example]:
    state: Any = spark._jsparkSession.sessionState()  # type: ignore[attr-defined]
    for registry, is_table in ((state.functionRegistry(), False), (state.tableFunctionRegistry(), True)):
        identifiers = registry.listFunction()
        for i in range(identifiers.size()):
            info = registry.lookupFunction(identifiers.apply(i)).get()
            name = identifiers.apply(i).funcName()
            if name.startswith("tocsin_"):
                continue
            for line in info.getExamples().splitlines():
                sql = line.strip().removeprefix("> ").rstrip(";")
                if not sql.startswith("SELECT "):
                    continue
                try:
                    yield Example(name, sql, spark.sql(sql), is_table)
                except PySparkException:
                    continue  # it needs a setting or a catalog that we do not have


def _is_refused(spark: SparkSession, example: Example) -> bool:
    try:
        check_plan(spark, example.frame)
    except StatementError:
        return True
    return False


def test_every_function_of_the_language_passes(spark: SparkSession, examples: list[Example]) -> None:
    listed = [example for example in examples if example.is_listed()]
    assert [example.sql for example in listed if _is_refused(spark, example)] == []
    assert {
        example.function for example in listed
    } | _WITHOUT_EXAMPLES == function_registry.NAMES | function_registry.TABLE_FUNCTIONS


@pytest.mark.parametrize("kind", ["BIGINT", "BOOLEAN", "DATE", "DECIMAL(9, 2)", "DOUBLE", "STRING", "TIMESTAMP"])
def test_every_cast_passes(spark: SparkSession, kind: str) -> None:
    check_plan(spark, spark.sql(f"SELECT CAST('1' AS {kind}), TRY_CAST('1' AS {kind})"))


def test_every_other_function_of_spark_is_refused(spark: SparkSession, examples: list[Example]) -> None:
    foreign = [example for example in examples if not example.is_listed() and example.function not in _OTHER_NAMES]
    assert len({example.function for example in foreign}) > 50
    assert [example.sql for example in foreign if not _is_refused(spark, example)] == []


def test_the_list_is_sorted_and_every_name_on_it_is_one_of_sparks(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for names in (*NODES_BY_KIND.values(), *EXPRESSIONS_BY_KIND.values()):
        assert list(names) == sorted(set(names))
    assert len(EXPRESSIONS) == sum(map(len, EXPRESSIONS_BY_KIND.values()))
    for name in (*NODES, *EXPRESSIONS):
        assert loader.loadClass(name).getName() == name


_SAME = "public class Same implements org.apache.spark.sql.api.java.UDF1 { public Object call(Object x) { return x; } }"


@pytest.mark.parametrize(("name", "passes"), [("tocsin_same", True), ("same", False), ("not_tocsin_same", False)])
def test_a_java_function_passes_under_a_name_of_ours_alone(spark: SparkSession, name: str, passes: bool) -> None:
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SAME)
    nothing = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 0)  # type: ignore[union-attr]
    same = compiler.getClassLoader().loadClass("Same").getConstructors()[0].newInstance(nothing)
    session: Any = spark._jsparkSession
    session.udf().register(name, same, jvm.org.apache.spark.sql.types.DataTypes.LongType)
    try:
        frame = spark.sql(f"SELECT {name}(id) FROM range(1)")
        if passes:
            check_plan(spark, frame)
        else:
            with pytest.raises(StatementError, match="ScalaUDF"):
                check_plan(spark, frame)
    finally:
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")
