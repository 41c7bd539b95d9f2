"""Reviews Spark's plan of a channel before it runs: no plan may test every interest against every record.

Such a plan costs the number of interests times the number of records, which is harmless while there are few of both. So
the review does not wait for a slow execution: it plans over relations of unknown size when the channel is created.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tocsin.language.channels.compiler import NOW, PREVIOUS, CalledFunction, SharedQuery
from tocsin.language.channels.shared_query import ID
from tocsin.pipeline.channels.run_query import bind_names, select_arguments
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.plan_check import analyse_query
from tocsin.rules.model.columns import AT, COMMIT
from tocsin.wire.errors import StatementError

_PAIRWISE: Final = ("BroadcastNestedLoopJoin", "CartesianProduct")
_ADAPTIVE: Final = "AdaptiveSparkPlan"  # shows its plan, which may change while it runs, not as a child
_REMEDY: Final = "compare a parameter with a field by =, IN, BETWEEN, LIKE or a spatial function, in WHERE and by AND"
_numbers = itertools.count()


def checked_plan(
    spark: SparkSession, query: SharedQuery, interests: str, call_of: Callable[[CalledFunction], str]
) -> str:
    """Spark's plan of the query over relations of unknown size. Raises StatementError if it would test every pair.

    `interests` is the schema of the interests in Spark's notation.
    """
    frame = _planned(spark, query, interests, {call.name: call_of(call) for call in query.calls})
    root: Any = frame._jdf.queryExecution().executedPlan()
    if query.parameters and any(_has_interests(node) for node in _pairwise(root)):
        raise StatementError(
            "nothing ties the parameters of this channel to single records: Spark would test every interest against "
            "every record",
            hint=query.remedy or _REMEDY,
        )
    return str(root.toString())


def _planned(spark: SparkSession, query: SharedQuery, interests: str, calls: Mapping[str, str]) -> DataFrame:
    # Relations of unknown content: for an empty table Spark would plan nothing at all.
    unknown: Any = spark.sparkContext.emptyRDD()
    number = next(_numbers)  # unique, as other threads may plan at the same time
    names = {}
    for i, scan in enumerate(query.scans):
        names[scan.view] = f"tocsin_planned_{number}_{i}"
        extra = f", `{COMMIT}` BIGINT, `{AT}` TIMESTAMP" if scan.dataset.active else ""
        schema = layout.spark_schema(scan.dataset.type) + extra
        spark.createDataFrame(unknown, schema).createOrReplaceTempView(names[scan.view])
    names[query.interests_view] = f"tocsin_planned_{number}_interests"
    spark.createDataFrame(unknown, interests).createOrReplaceTempView(names[query.interests_view])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    arguments: dict[str, Any] = {NOW: now, PREVIOUS: now, **{scan_watched.since: 0 for scan_watched in query.watched}}
    arguments.update(
        {level.name: f.lit(b"") if level.is_filter else f.array(f.lit(level.nothing)) for level in query.levels}
    )
    arguments.update({quantiles.name: f.array(f.lit(None)) for quantiles in query.quantiles})

    def analyse(sql: str, needed: Collection[str]) -> DataFrame:
        return analyse_query(spark, bind_names(sql, {**names, **calls}), select_arguments(arguments, needed))

    try:
        for level in query.levels:
            analyse(level.sql, level.arguments)
        analyse(query.sql_for_many, query.arguments)
        return analyse(query.sql, query.arguments)
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)


def _pairwise(node: Any) -> Iterator[Any]:
    if any(node.nodeName().startswith(join_name) for join_name in _PAIRWISE):
        yield node
    if node.nodeName() == _ADAPTIVE:
        yield from _pairwise(node.initialPlan())
    children = node.children()
    for i in range(children.size()):
        yield from _pairwise(children.apply(i))


def _has_interests(node: Any) -> bool:
    return f"{ID}#" in node.toString()
