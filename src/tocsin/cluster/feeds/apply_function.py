"""Applies a function of the catalog to a batch of records (APPLY FUNCTION).

A function in SQL++ becomes one Spark query over the whole batch. Each row carries its `index`, because Spark
returns rows in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from sqlglot import exp

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import FunctionEntry
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.isolate_failures import FailedRecord
from tocsin.cluster.statements.dml import decode_rows
from tocsin.cluster.statements.statement_scope import BatchScope
from tocsin.language.syntax.nodes import FieldOf, ObjectOf
from tocsin.language.translate.spark_text import render
from tocsin.language.translate.translator import TranslatedQuery
from tocsin.language.types.variant import values
from tocsin.pipeline.datasets import layout
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import DeadlineError

_CANCEL_AGAIN_S: Final = 1.0  # a Spark job that starts after the others were cancelled is cancelled a moment later


class AppliedFunction:
    """Applies a function to records of one type. Each batch sees the datasets and modules as they are when it lands."""

    def __init__(  # noqa: PLR0917
        self,
        function: Ref,
        kind: ObjectType,
        catalog: CatalogStore,
        tables: DatasetTables,
        engine: Engine,
        deadline_s: float,
    ) -> None:
        self._deadline_s = deadline_s
        self._function = function
        self._kind = kind
        self._catalog = catalog
        self._tables = tables
        self._engine = engine

    def __call__(self, rows: pa.Table) -> Sequence[Any]:
        with self._scope(rows) as scope:
            entry = scope.catalog.find(self._function)
            if isinstance(entry, FunctionEntry) and entry.language == "PYTHON":
                return _call_python(entry, scope, self._engine)
            translated = self._translate(scope)
            outputs = decode_rows(self._engine.rows(translated.sql), translated)
            return [output.get("made") for output in sorted(outputs, key=itemgetter("index"))]

    def failing(self, rows: pa.Table) -> Sequence[bool]:
        """Returns for each record whether the function fails on it, by one query."""
        with self._scope(rows) as scope:
            rows_tried = self._engine.rows(render(_try_each_record(self._translate(scope).query))).sort_by("index")
            failed: list[bool] = rows_tried.column("failed").to_pylist()
            return failed

    @contextmanager
    def _scope(self, rows: pa.Table) -> Iterator[BatchScope]:
        catalog, now = self._catalog.catalog, datetime.now(UTC)
        scope = BatchScope(catalog, self._tables, self._engine, self._function.dataverse, now, rows, self._kind)
        try:
            with job_deadline(self._engine.spark, self._deadline_s):
                yield scope
        finally:
            scope.close()

    def _translate(self, scope: BatchScope) -> TranslatedQuery:
        name = self._function.name.rpartition("@")[0]
        call = exp.Anonymous(this=name, expressions=[exp.column("record", table="batch")])
        # Spark returns rows in any order, so each output carries the index of its record.
        fields = {"index": exp.column("index", table="batch"), "made": call}
        return scope.translate_batch(
            ObjectOf(
                expressions=[FieldOf(this=exp.Literal.string(key), expression=value) for key, value in fields.items()]
            )
        )


def _try_each_record(query: exp.Query) -> exp.Query:
    """Rewrites a query for `index` and `made` to return `index` and whether computing `made` `failed`."""
    first = query.selects[0]
    if len(query.selects) > 1:
        return _wrap(query, exp.column("index", table="out"), exp.column("made", table="out"))
    parts = _parts(first.unalias())
    if parts is not None and isinstance(query, exp.Select):
        # Replace the columns instead of wrapping the query: Spark may evaluate a subquery before the guard applies.
        return query.select(*_with_failed(*parts), append=False)
    value = exp.column("value", table="out")
    fields = [exp.Dot(this=value.copy(), expression=exp.to_identifier(name)) for name in ("index", "made")]
    return _wrap(query, *fields)


def _wrap(query: exp.Query, index: exp.Expr, made: exp.Expr) -> exp.Query:
    return exp.select(*_with_failed(index, made)).from_(query.subquery("out"))


def _parts(sql: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
    """Returns the two values of NAMED_STRUCT('index', …, 'made', …)."""
    if isinstance(sql, exp.Anonymous) and str(sql.this).lower() == "named_struct" and len(sql.expressions) == 4:
        _, index, _, made = sql.expressions
        return index, made
    return None


def _with_failed(index: exp.Expr, made: exp.Expr) -> list[exp.Expr]:
    # Spark's try_to_binary returns NULL for any error while its argument is computed.
    text = values.call("to_json", values.record([("made", made)]))
    attempt = values.call("try_to_binary", text, exp.Literal.string("utf-8"))
    return [exp.alias_(index, "index"), exp.alias_(exp.Is(this=attempt, expression=exp.null()), "failed")]


def _call_python(function: FunctionEntry, scope: BatchScope, engine: Engine) -> Sequence[Any]:
    """Calls a Python function. It reports by itself on which records it fails, so no retry is needed to find them."""
    decode = layout.decoder(function.returns)
    rows = engine.rows(scope.call_query(function)).sort_by("index")
    outputs = rows.column("made").to_pylist()
    return [
        decode(output["value"]) if output["failed"] is None else FailedRecord(output["failed"]) for output in outputs
    ]


@contextmanager
def job_deadline(spark: SparkSession, deadline_s: float) -> Iterator[None]:
    """Wraps work on a thread that has a job group. Raises DeadlineError if the work fails after its deadline."""
    context = spark.sparkContext
    group = context.getLocalProperty("spark.jobGroup.id")
    is_over, is_done = threading.Event(), threading.Event()

    def watch() -> None:
        wait_s = deadline_s
        while group is not None and not is_done.wait(wait_s):
            is_over.set()
            wait_s = _CANCEL_AGAIN_S
            with suppress(Exception):  # the JVM may be gone
                context.cancelJobGroup(group)

    watcher = threading.Thread(target=watch, name="job deadline", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if not is_over.is_set():
            raise
        raise DeadlineError(f"the engine did not answer within {deadline_s:g} s") from error
    finally:
        is_done.set()
