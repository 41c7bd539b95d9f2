"""The interests of one channel as Spark sees them: a cached table, a small one of what came since, and what left.

A change costs what it changes. Interests that left stay in the cached table until it is made anew; whoever reads the
answer leaves them out (`gone`).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from tocsin.language import dynamic
from tocsin.language.channels import SharedQuery
from tocsin.language.meeting import Borders
from tocsin.language.sharing import ID, parameter_column
from tocsin.pipeline.datasets import layout
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType, Type

CACHED_FROM: Final = 5_000  # fewer are handed over anew when they change
_REBUILT_AT: Final = 0.2  # of the cached ones: so many came or left
BORDERS: Final = 256
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Ids:
    """Interests from one id to another, or all but a few."""

    first: int = 0
    last: int = (1 << 63) - 1
    without: tuple[int, ...] = ()

    def condition(self) -> str:
        within = f"`{ID}` BETWEEN {self.first} AND {self.last}"
        return f"{within} AND `{ID}` NOT IN ({', '.join(map(str, self.without))})" if self.without else within


class Interests:
    """Not thread-safe: one execution of a channel at a time."""

    def __init__(self, spark: SparkSession, query: SharedQuery) -> None:
        self._spark = spark
        self._query = query
        self.type = ObjectType(
            (
                Field(ID, t.BIGINT),
                *(Field(parameter_column(i), one) for i, one in enumerate(query.parameters)),
                *(Field(one.name, t.BIGINT) for one in query.borders),
            ),
            open=False,
        )
        self._all: dict[int, tuple[Any, ...]] = {}
        self._fresh: dict[int, tuple[Any, ...]] = {}  # those of them that are not in the cached table
        self._base: DataFrame | None = None
        self._borders: dict[str, list[Any]] = {one.name: [] for one in query.borders}
        self._stale = True
        self.remembered: dict[str, Any] = {}  # what was found out about the interests as they are
        self.gone: set[int] = set()
        self.suspects: set[int] = set()  # those on which the query has failed before
        self.view = f"tocsin_interests_{next(_numbers)}"

    @property
    def schema(self) -> str:
        """The view's, in Spark's words."""
        return str(self._untyped(self._frame({})).schema.simpleString().removeprefix("struct<").removesuffix(">"))

    def __len__(self) -> int:
        return len(self._all)

    def identities(self) -> Iterable[int]:
        return self._all.keys()

    def change(self, added: Iterable[tuple[int, Sequence[Any]]], removed: Iterable[int]) -> None:
        """Takes interests in (id and checked values of the parameters) and lets others go."""
        for identity, values in added:
            if identity in self._all:
                continue
            self._all[identity] = tuple(values)
            if identity in self.gone:
                self.gone.discard(identity)  # it is in the cached table still
            else:
                self._fresh[identity] = self._all[identity]
            self._stale = True
        for identity in removed:
            if self._all.pop(identity, None) is None:
                continue
            self.suspects.discard(identity)
            if self._fresh.pop(identity, None) is None:
                self.gone.add(identity)
            self._stale = True

    def prepared(self) -> str:
        """The name of the view, which shows every interest there is now."""
        if not self._stale:
            return self.view
        changed = len(self._fresh) + len(self.gone)
        if self._base is None or changed > max(CACHED_FROM, _REBUILT_AT * len(self._all)):
            self._rebuild()
        frame = self._base
        if self._fresh or frame is None:
            fresh = self._frame(self._fresh)
            frame = fresh if frame is None else frame.unionAll(fresh)
        self._untyped(frame).createOrReplaceTempView(self.view)
        self._stale = False
        self.remembered.clear()
        return self.view

    def part(self, ids: Ids) -> str:
        """The name of a view of some of them; the next one takes its place."""
        self._spark.table(self.prepared()).where(ids.condition()).createOrReplaceTempView(f"{self.view}_part")
        return f"{self.view}_part"

    def borders(self) -> Mapping[str, list[Any]]:
        """Some of each parameter's values, in their order."""
        return self._borders

    def close(self) -> None:
        if self._base is not None:
            self._base.unpersist()
        for view in (self.view, f"{self.view}_part"):
            self._spark.catalog.dropTempView(view)

    def _rebuild(self) -> None:
        """Wholly or not at all: what Spark could not take in now, it is given again."""
        borders, self._borders = self._borders, self._chosen_borders()
        if self._base is not None:
            self._base.unpersist()
        base: DataFrame | None = None
        try:
            if len(self._all) >= CACHED_FROM:
                base = self._frame(self._all).cache()
                base.count()
        except BaseException:
            self._borders = borders
            if base is not None:
                base.unpersist()
            raise
        self._base, self._fresh = base, {} if base is not None else dict(self._all)
        self.gone.clear()

    def _chosen_borders(self) -> dict[str, list[Any]]:
        chosen = {}
        for one in self._query.borders:
            values = sorted(set(self._compared(one, self._all.values())), key=_order)
            picked = range(0, len(values), max(1, -(-len(values) // BORDERS)))
            chosen[one.name] = [values[i] for i in picked]
        return chosen

    def _compared(self, borders: Borders, rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """One parameter's values as Spark compares them."""
        index = int(borders.parameter.removeprefix("p"))
        physical = _PHYSICAL.get(self._query.parameters[index])
        return (row[index] if physical is None else physical(row[index]) for row in rows)

    def _frame(self, interests: Mapping[int, tuple[Any, ...]]) -> DataFrame:
        frame = self._spark.createDataFrame(self._arrow(interests))
        keys = [f"{key} AS k{i}" for i, key in enumerate(self._query.keys)]
        if not keys:
            return frame
        # Some are only what others are made of.
        texts = " ".join((self._query.sql, *(sql for _, sql in self._query.levels)))
        unused = [f"k{i}" for i in range(len(keys)) if f"`k{i}`" not in texts]
        return frame.selectExpr("*", *keys).drop(*unused)

    def _untyped(self, frame: DataFrame) -> DataFrame:
        """The parameters without a type are text in the cache, and untyped values to a query."""
        for i, kind in enumerate(self._query.parameters):
            if dynamic.contains_any(kind):
                name = parameter_column(i)
                sql = dynamic.stored(exp.column(name, quoted=True), kind).sql(dialect="spark")
                frame = frame.withColumn(name, f.expr(sql))
        return frame

    def _arrow(self, interests: Mapping[int, tuple[Any, ...]]) -> pa.Table:
        rows = interests.values()
        columns: list[Any] = [pa.array(np.fromiter(interests, np.int64, len(interests)))]
        for i, kind in enumerate(self._query.parameters):
            columns.append(_column(kind, [row[i] for row in rows]))
        for one in self._query.borders:
            borders = [_order(border) for border in self._borders[one.name]]
            values = (_order(value) for value in self._compared(one, rows))
            columns.append(pa.array([bisect_right(borders, value) for value in values], pa.int64()))
        return pa.Table.from_arrays(columns, schema=layout.record_schema(self.type))


_PHYSICAL: Final[dict[Type, Callable[[Any], Any]]] = {
    t.TIME: lambda value: ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond,
    t.UUID: str,
}


def _order(value: Any) -> Any:
    """Spark's order: NaN is above all numbers."""
    return (math.isnan(value), value) if isinstance(value, float) else value


def _column(kind: Type, values: Sequence[Any]) -> pa.Array:
    if kind in (t.STRING, t.DOUBLE, t.FLOAT, *t.INTEGERS, t.BOOLEAN):
        return pa.array(values, layout.arrow_type(kind))
    record = ObjectType((Field("v", kind),), open=False)
    return layout.to_arrow([{"v": value} for value in values], record).column(0).combine_chunks()
