"""One execution of a channel's shared query: views and moments in, results of every interest out."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tocsin.language.channels.compiler import NOW, PREVIOUS, CalledFunction, Scan, SharedQuery
from tocsin.pipeline.channels.interests import Ids, InterestTable
from tocsin.pipeline.channels.record_payloads import read_matches, with_single_payloads
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.plan_check import analyse_query_once
from tocsin.pipeline.result_json import result_json
from tocsin.rules.model.cursors import InterestId

# Up to here one task finds all matches quickly, which saves the shuffle that several tasks need (`record_payloads`).
ONE_TASK_INTERESTS: Final = 1 << 20
ONE_TASK_MATCHES: Final = 1 << 17
_BRANCH_BITS: Final = 56  # of a record's number: above them is its query's
_OURS: Final = re.compile(r"\btocsin_channel_[0-9a-f]{32}_\w+", re.IGNORECASE)

NameOf = Callable[[Scan | CalledFunction], str]
"""The name under which Spark finds a view or a function now."""


@dataclass(frozen=True, slots=True)
class ExecutionResults:
    """Results in the order of their interests, and of each interest's own: whose they are, and which text each has."""

    interests: npt.NDArray[np.int64]
    payloads: npt.NDArray[np.int64]
    texts: Sequence[bytes]
    # What orders the results of an interest, beside those of another run for it; None: their order here does.
    places: npt.NDArray[np.int64] | None = None
    numbers: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.interests)


def fits_one_task(interests: int, found: ExecutionResults) -> bool:
    """Returns whether one task should find all matches of the next execution, after these results of the last."""
    return interests <= ONE_TASK_INTERESTS and len(found) <= ONE_TASK_MATCHES


@dataclass(frozen=True, slots=True)
class ExecutionMoment:
    """When an execution takes place, and from where on records are new to it."""

    now: datetime
    previous: datetime
    since: Mapping[str, int]
    many: bool = False  # records: too many to be sent to every interest
    in_one_task: bool = True  # one task finds all matches


def run(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: InterestTable,
    name_of: NameOf,
    moment: ExecutionMoment,
    among: Ids | None = None,
) -> ExecutionResults:
    """The results of all interests, or of those alone."""
    return encoded(answer(spark, query, interests, name_of, moment, among), query, interests.gone)


def answer(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: InterestTable,
    name_of: NameOf,
    moment: ExecutionMoment,
    among: Ids | None = None,
) -> pa.Table:
    """What Spark finds: the one job over all interests."""
    if among is None:
        return _answer(spark, query, interests, name_of, moment, interests.prepared())
    view = interests.part(among)
    try:
        return _answer(spark, query, interests, name_of, moment, view)
    finally:
        interests.drop_part(view)


def _answer(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: InterestTable,
    name_of: NameOf,
    moment: ExecutionMoment,
    view: str,
) -> pa.Table:
    names = {scan.view: name_of(scan) for scan in query.scans} | {one.name: name_of(one) for one in query.calls}
    names[query.interests_view] = view
    arguments: dict[str, Any] = {NOW: moment.now, PREVIOUS: moment.previous, **moment.since}
    for name, values in interests.borders().items():
        if name not in interests.remembered:
            interests.remembered[name] = _array(values)
        arguments[name] = interests.remembered[name]

    def query_of(sql: str, needed: Collection[str]) -> DataFrame:
        return analyse_query_once(spark, interests.checked, sql, named(sql, names), chosen(arguments, needed))

    for level in query.levels:
        found_levels = interests.remembered.get(level.name)
        if found_levels is None:
            found_levels = query_of(level.sql, level.arguments).toArrow().column(0)[0].as_py()
        passing = *(one.view for one in query.scans), *(one.name for one in query.calls)
        if view == interests.view and not any(one in level.sql for one in passing):
            interests.remembered[level.name] = found_levels
        arguments[level.name] = _array(found_levels or [level.nothing])
    sql = query.sql_for_many if moment.many else query.sql
    frame: Any = query_of(with_single_payloads(query, sql, in_one_task=moment.in_one_task), query.arguments)
    # Planned here: if the thread that serves the rows lacks the memory for it, whoever waits for them waits for ever.
    frame._jdf.queryExecution().executedPlan()
    found: pa.Table = frame.toArrow()
    return found


def encoded(table: pa.Table, query: SharedQuery, gone: Collection[InterestId]) -> ExecutionResults:
    """Each different result as JSON once, however many interests have it."""
    found = read_matches(table)
    interests, places, payloads = found.interests, found.places, found.payloads
    numbers, used = found.numbers[payloads], np.arange(len(found.numbers))
    if gone:
        stays = ~np.isin(interests, np.fromiter(gone, np.int64, len(gone)))
        interests, places, numbers, payloads = (one[stays] for one in (interests, places, numbers, payloads))
        # Of whose results only those that left had, none is kept.
        kept, payloads = np.unique(payloads, return_inverse=True)
        used = used[kept]
    order = np.lexsort((numbers, places, interests))
    decode = layout.decoder(query.type)
    texts = [result_json(decode(value)) for value in found.results.take(pa.array(used)).to_pylist()]
    return ExecutionResults(interests[order], payloads[order], texts, places[order], numbers[order])


def together(parts: Sequence[ExecutionResults]) -> ExecutionResults:
    """The results of several runs: each for interests of its own, or for records that come after those before it."""
    known: dict[bytes, int] = {}
    columns: list[list[npt.NDArray[np.int64]]] = [[np.array([], np.int64)] for _ in range(5)]
    for number, part in enumerate(parts):
        # The same record has been made into text by each part of its interests.
        which = np.fromiter((known.setdefault(one, len(known)) for one in part.texts), np.int64, len(part.texts))
        nothing = np.zeros(len(part), np.int64)
        places = nothing if part.places is None else part.places
        numbers = nothing if part.numbers is None else part.numbers
        for column, values in zip(
            columns, (part.interests, which[part.payloads], places, numbers, nothing + number), strict=True
        ):
            column.append(values)
    interests, payloads, places, numbers, runs = (np.concatenate(column) for column in columns)
    # As one run would have ordered them: a query of a UNION after the other, and in each a record after the other.
    order = np.lexsort((numbers, runs, numbers >> _BRANCH_BITS, places, interests))
    return ExecutionResults(interests[order], payloads[order], list(known))


def named(sql: str, names: Mapping[str, str]) -> str:
    """The query with the names that views and functions have today, in place of those that it was made with."""
    return _OURS.sub(lambda found: names.get(found[0].lower(), found[0]), sql)


def chosen(arguments: Mapping[str, Any], needed: Collection[str]) -> dict[str, Any]:
    """Those that a text names: Spark refuses others."""
    return {name: value for name, value in arguments.items() if name in needed}


def _array(values: Sequence[Any]) -> Column:
    """The values as one literal of Spark's. All integers are BIGINT there, however small: Spark takes no mixture."""
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return f.array(*(f.expr(f"{value}L") if whole else f.lit(value) for value in values))
