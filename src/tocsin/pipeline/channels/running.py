"""One execution of a channel's shared query: views and moments in, results of every interest out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tocsin.language.channels import NOW, PREVIOUS, Called, Scan, SharedQuery
from tocsin.pipeline.channels.interests import Ids, Interests
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.plan_check import query_checked_once
from tocsin.rules.model.jsonform import plain

_NO_LEVEL: Final = [-1]
_OURS: Final = re.compile(r"\btocsin_channel_(?:scan_\d+|call_\d+|interests)\b", re.IGNORECASE)

NameOf = Callable[[Scan | Called], str]
"""The name under which Spark finds a view or a function now."""


@dataclass(frozen=True, slots=True)
class Found:
    """Results in the order of their interests, and of each interest's own: whose they are, and which text each has."""

    interests: npt.NDArray[np.int64]
    payloads: npt.NDArray[np.int64]
    texts: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.interests)


@dataclass(frozen=True, slots=True)
class Moment:
    """When an execution takes place, and from where on records are new to it."""

    now: datetime
    previous: datetime
    since: Mapping[str, int]
    many: bool = False  # records: too many to be sent to every interest


def run(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: Interests,
    name_of: NameOf,
    moment: Moment,
    among: Ids | None = None,
) -> Found:
    """The results of all interests, or of those alone."""
    table = answer(spark, query, interests, name_of, moment, among)
    return encoded(table, query, interests.gone)


def answer(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: Interests,
    name_of: NameOf,
    moment: Moment,
    among: Ids | None = None,
) -> pa.Table:
    """What Spark finds: the one job over all interests."""
    names = {scan.view: name_of(scan) for scan in query.scans} | {one.name: name_of(one) for one in query.calls}
    names[query.interests_view] = interests.prepared() if among is None else interests.part(among)
    arguments: dict[str, Any] = {NOW: moment.now, PREVIOUS: moment.previous, **moment.since}
    for name, values in interests.borders().items():
        if name not in interests.remembered:
            interests.remembered[name] = _array(values)
        arguments[name] = interests.remembered[name]

    def query_of(sql: str) -> DataFrame:
        return query_checked_once(spark, interests.checked, sql, named(sql, names), used(sql, arguments))

    for name, sql in query.levels:
        levels = interests.remembered.get(name)
        if levels is None:
            levels = query_of(sql).toArrow().column(0)[0].as_py()
        passing = *(one.view for one in query.scans), *(one.name for one in query.calls)
        if among is None and not any(one in sql for one in passing):
            interests.remembered[name] = levels
        arguments[name] = _array(levels or ([None] if name.startswith("some") else _NO_LEVEL))
    sql = query.sql_for_many if moment.many else query.sql
    frame: Any = query_of(sql)
    # Planned here: if the thread that serves the rows lacks the memory for it, whoever waits for them waits for ever.
    frame._jdf.queryExecution().executedPlan()
    found: pa.Table = frame.toArrow()
    return found


def encoded(table: pa.Table, query: SharedQuery, gone: set[int]) -> Found:
    """Each different result as JSON once, however many interests have it."""
    if gone:
        table = table.filter(pa.array(~np.isin(_numbers(table, "interest"), np.fromiter(gone, np.int64, len(gone)))))
    interests, places = _numbers(table, "interest"), _numbers(table, "place")
    order = np.lexsort((_numbers(table, "number"), places, interests))
    results = table.column("result")
    numbered = table.column("number").null_count == 0
    if numbered:
        _, first, which = np.unique(_numbers(table, "number"), return_index=True, return_inverse=True)
        results, payloads = results.take(pa.array(first)), which.astype(np.int64)
    else:
        payloads = np.arange(table.num_rows, dtype=np.int64)
    decode = layout.decoder(query.type)
    texts = [orjson.dumps(plain(decode(value))) for value in results.to_pylist()]
    return Found(interests[order], payloads[order], texts)


def together(parts: Sequence[Found]) -> Found:
    """The results of several runs, each for interests of its own."""
    texts: list[bytes] = []
    interests, payloads = [np.array([], np.int64)], [np.array([], np.int64)]
    for part in parts:
        interests.append(part.interests)
        payloads.append(part.payloads + len(texts))
        texts.extend(part.texts)
    all_interests = np.concatenate(interests)
    order = np.argsort(all_interests, kind="stable")
    return Found(all_interests[order], np.concatenate(payloads)[order], texts)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = table.column(name).combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
    return found


def named(sql: str, names: Mapping[str, str]) -> str:
    """The query with the names that views and functions have today."""
    return _OURS.sub(lambda found: names.get(found[0].lower(), found[0]), sql)


def used(sql: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Spark refuses arguments that the text does not name."""
    return {name: value for name, value in arguments.items() if re.search(rf":{name}\b", sql)}


def _array(values: Sequence[Any]) -> Column:
    """The values as one literal of Spark's. All integers are BIGINT there, however small: Spark takes no mixture."""
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return f.array(*(f.expr(f"{value}L") if whole else f.lit(value) for value in values))
