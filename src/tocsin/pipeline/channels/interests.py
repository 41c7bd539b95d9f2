"""The interests of one channel in Spark: a cached table, a small table of newer interests, and a set of ended ones.

A change costs in proportion to its size. Interests that ended stay in the cached table until it is rebuilt; readers of
the results skip them (`gone`).

The engine may lack memory or time for all interests at once, or be lost. After `most_failures` failures their join keys
are no longer cached, but computed by each query. After as many more, nothing is cached: each part of an execution
(`part`) sends the interests that it needs.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from tocsin.language.channels.compiler import SharedQuery
from tocsin.language.channels.joins.sides import Quantiles
from tocsin.language.channels.shared_query import ID, parameter_column
from tocsin.language.functions.temporal_functions import MICROS_PER_DAY
from tocsin.language.translate.spark_text import render
from tocsin.language.types.variant import encoder
from tocsin.language.types.variant import values as dynamic
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.plan_check import check_plan
from tocsin.rules.model import types as t
from tocsin.rules.model.cursors import InterestId
from tocsin.rules.model.types import Field, ObjectType, Type
from tocsin.rules.model.values import Duration, micros_of_day

_REBUILT_AT: Final = 0.2  # rebuild when this share of the cached interests was added or ended
_QUANTILES: Final = 256
_PLANNED_BYTES: Final = "spark.sql.execution.arrow.localRelationThreshold"
_numbers = itertools.count()
# Back-off for interests on which the query failed twice: they are tried again after some executions, twice as many
# each time up to a limit, and few at once, because each failing interest turns the execution into a search.
_FIRST_WAIT: Final = 4
_LONGEST_WAIT: Final = 1_024
_TRIED_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class InterestLimits:
    cached_from: int = 5_000  # fewer interests are sent to Spark again whenever they change
    most_failures: int = 2  # at each step; the first one may have another cause


@dataclass(slots=True)
class SuspectInterest:
    """An interest on which the query failed. `failures`: in how many executions in a row it failed on every record."""

    failures: int = 0
    reason: str = ""
    wait: int = 0  # it is left out for this many more executions


@dataclass(frozen=True, slots=True)
class Ids:
    """A range of interest ids, with exceptions, or a list of ids."""

    first: int = 0
    last: int = (1 << 63) - 1
    without: tuple[InterestId, ...] = ()
    only: tuple[InterestId, ...] = ()

    def condition(self) -> str:
        if self.only:
            return f"`{ID}` IN ({', '.join(map(str, self.only))})"
        within = f"`{ID}` BETWEEN {self.first} AND {self.last}"
        return f"{within} AND `{ID}` NOT IN ({', '.join(map(str, self.without))})" if self.without else within

    def among(self, identities: Iterable[InterestId]) -> list[InterestId]:
        """Returns the identities that it covers, in ascending order."""
        if self.only:
            return sorted(set(self.only).intersection(identities))
        excluded = set(self.without)
        return sorted(
            identity for identity in identities if self.first <= identity <= self.last and identity not in excluded
        )


class InterestTable:
    """Not thread-safe: one execution of a channel runs at a time."""

    def __init__(
        self, spark: SparkSession | Callable[[], SparkSession], query: SharedQuery, limits: InterestLimits | None = None
    ) -> None:
        """`spark` is the session, or returns the present session. A new session gets the interests at its first use."""
        self._session: Callable[[], Any] = spark if callable(spark) else lambda: spark
        self._spark: Any = None  # the session that has the interests
        self._attempt: object = None  # identifies the last rebuild
        self._query = query
        self._limits = limits or InterestLimits()
        self.type = ObjectType(
            (
                Field(ID, t.BIGINT),
                *(Field(parameter_column(i), parameter_type) for i, parameter_type in enumerate(query.parameters)),
                *(Field(quantiles.name, t.BIGINT) for quantiles in query.quantiles),
            ),
            open=False,
        )
        self._all: dict[InterestId, tuple[Any, ...]] = {}
        self._fresh: dict[InterestId, tuple[Any, ...]] = {}  # interests that are not in the cached table
        self._base: DataFrame | None = None
        self._cached: DataFrame | None = None  # the cached frame behind the base
        self._plain_fresh: DataFrame | None = None  # the fresh interests without their join keys
        self._quantiles: dict[str, list[Any]] = {quantiles.name: [] for quantiles in query.quantiles}
        self._stale = True
        self._handover_failures = 0  # of handing the interests over
        self.remembered: dict[str, Any] = {}  # facts derived from the present set of interests
        self.gone: set[InterestId] = set()
        self.suspects: dict[InterestId, SuspectInterest] = {}
        self.checked: set[str] = set()  # texts of queries over the interests whose plans were checked
        self._newest = -1
        self._succeeded = -1  # all interests up to this id, except suspects, took part in a successful execution
        self.view = f"tocsin_interests_{next(_numbers)}"

    @property
    def schema(self) -> str:
        """The view's schema in Spark's notation."""
        return str(self._untyped(self._frame({})).schema.simpleString().removeprefix("struct<").removesuffix(">"))

    def __len__(self) -> int:
        return len(self._all)

    def identities(self) -> KeysView[InterestId]:
        return self._all.keys()

    def change(self, added: Iterable[tuple[InterestId, Sequence[Any]]], removed: Iterable[InterestId]) -> None:
        """Adds interests (id and checked parameter values) and removes others."""
        for identity, values in added:
            if identity in self._all:
                continue
            self._all[identity] = tuple(values)
            self._newest = max(self._newest, identity)
            if identity in self.gone:
                self.gone.discard(identity)  # the cached table still has it
            else:
                self._fresh[identity] = self._all[identity]
            self._stale = True
        for identity in removed:
            if self._all.pop(identity, None) is None:
                continue
            self.suspects.pop(identity, None)
            if self._fresh.pop(identity, None) is None:
                self.gone.add(identity)
            self._stale = True

    # ------------------------------------------------------------ interests on which the query fails

    def left_out(self) -> dict[InterestId, str]:
        """The interests that take no part in the execution that begins now, with the reasons."""
        excluded, tried_again = {}, 0
        for identity, suspect in self.suspects.items():
            if suspect.wait or (suspect.failures and tried_again >= _TRIED_AT_ONCE):
                suspect.wait = max(0, suspect.wait - 1)
                excluded[identity] = suspect.reason
            elif suspect.failures:
                tried_again += 1
        return excluded

    def mark_suspect(self, identity: InterestId) -> None:
        """Marks an interest on which the query failed, though not with every record."""
        self.suspects[identity] = SuspectInterest()

    def count_failure_of(self, identity: InterestId, reason: str) -> None:
        """Counts an execution in which the query failed on the interest with every record, and sets its back-off."""
        suspect = self.suspects.pop(identity, SuspectInterest())  # re-inserted at the end of the order
        wait = min(_FIRST_WAIT << (suspect.failures - 1), _LONGEST_WAIT) if suspect.failures else 0
        self.suspects[identity] = SuspectInterest(min(suspect.failures + 1, 16), reason, wait)

    def mark_succeeded(self, left: Container[InterestId]) -> None:
        """Marks all interests but `left`, which took no part, as interests for which the query succeeds."""
        self.suspects = {identity: suspect for identity, suspect in self.suspects.items() if identity in left}
        self._succeeded = self._newest

    def has_succeeded(self, identity: InterestId) -> bool:
        return identity <= self._succeeded and identity not in self.suspects

    # ------------------------------------------------------------ the interests in Spark

    def _present_session(self) -> Any:
        """The present session. If it is a new one, forgets what the previous session had."""
        spark = self._session()
        if spark is not self._spark:
            self._spark = spark
            self._base = self._cached = self._plain_fresh = None
            self._stale = True
            self.remembered.clear()
        return spark

    @property
    def is_stale(self) -> bool:
        """Whether Spark's copy of the interests is out of date."""
        self._present_session()
        return self._stale

    @property
    def is_split(self) -> bool:
        """Whether Spark never gets all interests at once. Then the views of `part` are the only ones."""
        return self._handover_failures >= 2 * self._limits.most_failures

    def count_handover_failure(self) -> None:
        """Call this if the engine lacked something for `prepared` or `renew`, or was lost. The count is kept until the
        channel is started again, because the cause is still there."""
        self._handover_failures += 1

    def prepared(self) -> str:
        """Brings the view up to date and returns its name. It shows all present interests."""
        self._present_session()
        if not self._stale:
            return self.view
        if self.is_split:
            self._rebuild()
            self._stale = False
            return self.view
        changes = len(self._fresh) + len(self.gone)
        if self._base is None or changes > max(self._limits.cached_from, _REBUILT_AT * len(self._all)):
            self._rebuild()
        frame = self._base
        self._plain_fresh = self._plain(self._fresh)
        if self._fresh or frame is None:
            fresh = self._keyed(self._plain_fresh)
            frame = fresh if frame is None else frame.unionAll(fresh)
        self._untyped(frame).createOrReplaceTempView(self.view)
        self._stale = False
        self.remembered.clear()
        return self.view

    def part(self, ids: Ids) -> str:
        """Creates a view of some interests and returns its name; `drop_part` removes it."""
        self.prepared()
        # Do not compute the keys of other interests: a failure there would fail these, too.
        if self.is_split:
            frame = self._frame({interest: self._all[interest] for interest in ids.among(self._all)})
        else:
            assert self._plain_fresh is not None
            frame = self._keyed(self._plain_fresh.where(ids.condition()))
        if self._base is not None:
            frame = self._base.where(ids.condition()).unionAll(frame)
        # The name is unique, because an abandoned run may still create the view of its part.
        view = f"{self.view}_part_{next(_numbers)}"
        self._untyped(frame).createOrReplaceTempView(view)
        return view

    def drop_part(self, view: str) -> None:
        self._spark.catalog.dropTempView(view)

    def renew(self) -> None:
        """Removes ended interests from the cached table."""
        self._present_session()
        self._rebuild()
        self._stale = True

    def quantiles(self) -> Mapping[str, list[Any]]:
        """Sample values of each parameter, in their order."""
        return self._quantiles

    def close(self) -> None:
        spark = self._present_session()
        if self._cached is not None:
            self._cached.unpersist()
        spark.catalog.dropTempView(self.view)

    def _rebuild(self) -> None:
        """Rebuilds completely or not at all: what Spark failed to cache is sent again later."""
        attempt = self._attempt = object()
        previous_quantiles, self._quantiles = self._quantiles, self._choose_quantiles()
        if self._cached is not None:
            self._cached.unpersist()
        self._cached, base = None, None
        try:
            if len(self._all) >= self._limits.cached_from and not self.is_split:
                base = self._cache()
        except BaseException:
            if self._attempt is attempt:
                self._quantiles, self._base, self._stale = previous_quantiles, None, True
            raise
        self._session()  # raises on an abandoned thread, which must change nothing
        self._base, self._fresh = base, {} if base is not None else dict(self._all)
        self.gone.clear()

    def _cache(self) -> DataFrame:
        with _outside_plan(self._present_session()):
            plain = self._plain(self._all)
        if self._handover_failures < self._limits.most_failures:
            try:
                self._cached = base = _filled(self._keyed(plain))
            except Exception:
                if not self._query.keys:
                    raise
            else:
                return base
        # Some keys cannot be computed. Compute each key when it is used, so that the failing interest is found.
        self._cached = _filled(plain)
        return self._keyed(self._cached)

    def _choose_quantiles(self) -> dict[str, list[Any]]:
        sampled: dict[str, list[Any]] = {}
        for quantiles in self._query.quantiles:
            values = sorted(set(self._compared(quantiles, self._all.values())), key=_order)
            indices = range(0, len(values), max(1, -(-len(values) // _QUANTILES)))
            sampled[quantiles.name] = [values[i] for i in indices]
        return sampled

    def _compared(self, quantiles: Quantiles, rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """The values of one parameter as Spark compares them."""
        index = quantiles.parameter
        physical = _PHYSICAL.get(self._query.parameters[index])
        return (row[index] if physical is None else physical(row[index]) for row in rows)

    def _frame(self, interests: Mapping[InterestId, tuple[Any, ...]]) -> DataFrame:
        return self._keyed(self._plain(interests))

    def _plain(self, interests: Mapping[InterestId, tuple[Any, ...]]) -> DataFrame:
        frame: DataFrame = self._present_session().createDataFrame(self._arrow(interests))
        return frame

    def _keyed(self, frame: DataFrame) -> DataFrame:
        keys = [f"{key} AS k{i}" for i, key in enumerate(self._query.keys)]
        if not keys:
            return frame
        key_text = ", ".join(keys)
        if key_text not in self.checked:
            check_plan(self._spark, self._plain({}).selectExpr("*", *keys))
            self.checked.add(key_text)
        # Some keys are only inputs of other keys.
        texts = " ".join((self._query.sql, *(level.sql for level in self._query.levels)))
        unused = [f"k{i}" for i in range(len(keys)) if f"`k{i}`" not in texts]
        return frame.selectExpr("*", *keys).drop(*unused)

    def _untyped(self, frame: DataFrame) -> DataFrame:
        """Parameters without a type are text in the cache and become untyped values for queries."""
        for i, kind in enumerate(self._query.parameters):
            if dynamic.contains_any(kind):
                name = parameter_column(i)
                sql = render(encoder.from_stored(exp.column(name, quoted=True), kind))
                frame = frame.withColumn(name, f.expr(sql))
        return frame

    def _arrow(self, interests: Mapping[InterestId, tuple[Any, ...]]) -> pa.Table:
        rows = interests.values()
        columns: list[Any] = [pa.array(np.fromiter(interests, np.int64, len(interests)))]
        for i, kind in enumerate(self._query.parameters):
            columns.append(_column(kind, [row[i] for row in rows]))
        for quantiles in self._query.quantiles:
            borders = [_order(border) for border in self._quantiles[quantiles.name]]
            values = (_order(value) for value in self._compared(quantiles, rows))
            columns.append(pa.array([bisect_right(borders, value) for value in values], pa.int64()))
        return pa.Table.from_arrays(columns, schema=layout.record_schema(self.type))


def _seconds(value: Duration) -> float:
    """As `language.channels.joins.range_keys` computes it."""
    days, micros = divmod(value.micros, MICROS_PER_DAY)
    return (value.months * 30 + days) * 86400.0 + micros / 1e6


_PHYSICAL: Final[dict[Type, Callable[[Any], Any]]] = {t.TIME: micros_of_day, t.UUID: str, t.DURATION: _seconds}


@contextmanager
def _outside_plan(spark: SparkSession) -> Iterator[None]:
    """Keeps frames made in the block out of the plans that use them: Spark hashes every row of a local relation
    whenever it copies the plan, several times per query. The setting also affects frames that other threads make
    meanwhile, harmlessly.
    """
    spark.conf.set(_PLANNED_BYTES, 0)
    try:
        yield
    finally:
        spark.conf.unset(_PLANNED_BYTES)


def _filled(frame: DataFrame) -> DataFrame:
    frame = frame.cache()
    try:
        frame.count()
    except BaseException:
        frame.unpersist()
        raise
    return frame


def _order(value: Any) -> Any:
    """Spark's order: NaN is above all numbers."""
    return (math.isnan(value), value) if isinstance(value, float) else value


def _column(kind: Type, values: Sequence[Any]) -> pa.Array:
    if kind in (t.STRING, t.DOUBLE, t.FLOAT, *t.INTEGERS, t.BOOLEAN):
        return pa.array(values, layout.arrow_type(kind))
    record = ObjectType((Field("v", kind),), open=False)
    return layout.to_arrow([{"v": value} for value in values], record).column(0).combine_chunks()
