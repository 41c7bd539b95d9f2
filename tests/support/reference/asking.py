"""Asks Spark for the values of many expressions at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import Row, SparkSession

from tocsin.language.types.typed_sql import TypedSql
from tocsin.rules.model.types import DATETIME

_EPOCH = datetime(1970, 1, 1)
_AT_ONCE = 6  # Spark plans several queries of some columns sooner than one of very many


def ask(spark: SparkSession, expressions: Sequence[TypedSql], source: str = "") -> list[list[Any]]:
    """One list of answers per row of the source, structs as tuples, datetimes in UTC without a zone."""
    small = all(len(typed.sql.sql(dialect="spark")) < 500 for typed in expressions)
    step = len(expressions) if small else _AT_ONCE
    answers: list[list[Any]] = []
    for start in range(0, len(expressions), step):
        part = _ask(spark, expressions[start : start + step], source)
        answers = [before + row for before, row in zip(answers, part, strict=True)] if answers else part
    return answers


def _ask(spark: SparkSession, expressions: Sequence[TypedSql], source: str) -> list[list[Any]]:
    # Timestamps leave Spark as microseconds: PySpark would turn them into the local time of this machine.
    moments = [typed.type == DATETIME for typed in expressions]
    texts = [typed.sql.sql(dialect="spark") for typed in expressions]
    columns = ", ".join(
        f"{f'unix_micros({text})' if moment else text} AS c{i}"
        for i, (text, moment) in enumerate(zip(texts, moments, strict=True))
    )
    rows = spark.sql(f"SELECT {columns} {f'FROM {source}' if source else ''}").collect()
    return [[_moment(v) if moment else plain(v) for v, moment in zip(row, moments, strict=True)] for row in rows]


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def ask_one(spark: SparkSession, expressions: Sequence[TypedSql]) -> list[Any]:
    (row,) = ask(spark, expressions)
    return row


def plain(value: Any) -> Any:
    if isinstance(value, Row):
        return tuple(plain(part) for part in value)
    return [plain(part) for part in value] if isinstance(value, list) else value
