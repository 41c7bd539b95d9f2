"""Functions that make as large a value as they are told to: as Spark has them, but for what is too much."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from tests.property.language.test_regular_expressions import asked_in_group, call, cancel, running_tasks
from tests.support.waiting import WITHIN_S, wait_until
from tocsin.cluster.engine.spark_errors import translate_spark_error
from tocsin.language.translate.spark_text import render, render_for_analysis
from tocsin.pipeline.plan_check import analyse_query
from tocsin.wire.errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CALLS = [
    "levenshtein(t, p)", "levenshtein(t, p, n)", "levenshtein(t, p, 2)", "repeat(t, n)", "space(n)", "lpad(t, n, p)",
    "rpad(t, n, p)", "lpad(t, n)", "array_repeat(t, n)", "array_insert(array(t), if(n = 0, 1, n), p)",
    "format_string(concat('%', abs(n) + 1, 's %s %%'), t, p)", "sequence(0, n)", "sequence(5L, n)",
    "sequence(0, n, if(n < 0, -2, 2))", "sequence(date_add(DATE'2026-01-30', n), DATE'2026-01-31')",
    "sequence(DATE'2026-01-30', add_months(DATE'2026-01-31', n), if(n < 0, INTERVAL -1 MONTH, INTERVAL 1 MONTH))",
    "sequence(timestamp_seconds(n), timestamp_seconds(7), if(n > 7, INTERVAL '-1' SECOND, INTERVAL '1' SECOND))",
    "transform(array(t, p, null), __x -> levenshtein(__x, repeat(__x, n)))",
    "aggregate(sequence(1, abs(n) + 1), 0, (__a, __x) -> __a + size(sequence(1, __x)))",
]  # fmt: skip
_TEXTS = st.text(st.sampled_from("aabc é😀"), max_size=12)


@pytest.mark.parametrize("text", _CALLS)
@settings(max_examples=8, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.none() | _TEXTS, st.none() | _TEXTS, st.none() | st.integers(-9, 9)), min_size=8, max_size=8
    )
)
def test_what_is_not_too_much_is_as_spark_has_it(
    spark: SparkSession, text: str, rows: list[tuple[str | None, str | None, int | None]]
) -> None:
    frame = spark.createDataFrame(rows, "t string, p string, n int").repartition(1)
    frame.createOrReplaceTempView("tocsin_bounded")
    tree = exp.select(exp.alias_(call(text), "made")).from_("tocsin_bounded")
    ours, theirs = (analyse_query(spark, write(tree)).toArrow().to_pylist() for write in (render, render_for_analysis))
    assert "tocsin_" in render(tree).lower().replace("tocsin_bounded", "")
    assert ours == theirs


_HUGE = 2_000_000_000


def collect(spark: SparkSession, sql: str) -> None:
    try:
        analyse_query(spark, sql).collect()
    except Exception as error:
        raise translate_spark_error(error) from error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("levenshtein(repeat(t, 8000), repeat(p, 8000))", "levenshtein takes more than 50,000,000 steps"),
        ("levenshtein(repeat('e', n div 400), repeat('z', n div 400))", "levenshtein takes more than 50,000,000 steps"),
        ("repeat(t, n)", "repeat makes texts of at most 10,000,000 characters"),
        ("repeat(repeat('abcdefgh', 1000000), 2)", "repeat makes texts"),
        ("repeat('a', shiftleft(1, 30))", "repeat makes texts"),
        ("space(n)", "space makes texts"),
        ("lpad(t, n, p)", "lpad makes texts"),
        ("rpad(t, n, p)", "rpad makes texts"),
        ("array_repeat(t, n)", "array_repeat makes arrays of at most 1,000,000 items"),
        ("array_insert(array(t), -n, p)", "array_insert makes arrays"),
        ("format_string(concat('%', n, 's'), t)", "format_string makes texts"),
        ("sequence(0, n)", "sequence makes arrays of at most 1,000,000 items"),
        ("sequence(n, 0, -1)", "sequence makes arrays"),
        ("sequence(timestamp_seconds(0), timestamp_seconds(n), INTERVAL '1' SECOND)", "sequence makes arrays"),
        ("sequence(DATE'0001-01-01', date_add(DATE'2026-01-01', cast(n div 1000 AS INT)))", "sequence makes arrays"),
        ("if(n > 0, size(sequence(0, shiftleft(1, 30))), 0)", "sequence makes arrays"),
    ],
)
@pytest.mark.parametrize("at_hand", [False, True])
def test_what_is_too_much_is_an_error_with_a_remedy(spark: SparkSession, text: str, reason: str, at_hand: bool) -> None:
    """Also where the optimizer computes it, of rows that are at hand."""
    rows = f"SELECT * FROM VALUES ('a', 'b', {_HUGE}) AS rows(t, p, n)"
    made = f"SELECT 'a' AS t, 'b' AS p, CAST({_HUGE} + id AS INT) AS n FROM range(2)"
    spark.sql(rows if at_hand else made).createOrReplaceTempView("tocsin_bounded")
    sql = render(exp.select(exp.alias_(call(text), "made")).from_("tocsin_bounded"))
    with pytest.raises(StatementError) as failed:
        collect(spark, sql)
    assert reason in failed.value.message
    assert failed.value.hint


def test_a_comparison_that_is_stopped_frees_its_slots(spark: SparkSession) -> None:
    slots = spark.sparkContext._jsc.sc().defaultParallelism()  # type: ignore[attr-defined]
    rows = spark.range(0, 100_000 * slots, 1, slots).selectExpr("repeat('e', 7000 + 0 * id) AS t")
    rows.createOrReplaceTempView("tocsin_bounded")
    sql = render(exp.select(exp.alias_(call("max(levenshtein(t, reverse(t)))"), "m")).from_("tocsin_bounded"))
    with asked_in_group(spark, analyse_query(spark, sql).collect) as (thread, group):
        wait_until(lambda: running_tasks(spark) == slots, "all slots are taken")
        cancel(spark, group)
        wait_until(lambda: running_tasks(spark) == 0, "all slots are free")
        thread.join(WITHIN_S)
        assert not thread.is_alive()


def test_so_does_one_that_spark_computes_while_it_plans(spark: SparkSession) -> None:
    values = ", ".join(f"('{'e' * 7_000}')" for _ in range(300))
    spark.sql(f"SELECT * FROM VALUES {values} AS rows(t)").createOrReplaceTempView("tocsin_bounded")
    tree = exp.select("t").from_("tocsin_bounded").where(call("levenshtein(t, upper(t)) = 1"))
    frame: Any = analyse_query(spark, render(tree))
    begun = threading.Event()

    def plan() -> None:
        begun.set()
        frame._jdf.queryExecution().executedPlan()

    with asked_in_group(spark, plan) as (thread, group):
        assert begun.wait(WITHIN_S)
        cancel(spark, group)
        thread.join(WITHIN_S)
        assert not thread.is_alive()
