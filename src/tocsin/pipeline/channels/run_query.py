"""Runs a channel's shared query once, with views and instants as arguments, and returns the results of every interest.

One Spark job serves all interests, because a job costs far more than the matches of one more interest.
"""

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
from tocsin.language.functions.text_search import FILTER_BITS
from tocsin.pipeline.channels.interests import Ids, InterestTable
from tocsin.pipeline.channels.record_payloads import read_matches, with_single_payloads
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.plan_check import analyse_query_once
from tocsin.pipeline.result_json import result_json
from tocsin.rules.model.cursors import InterestId

# Up to here one task finds all matches quickly, which saves the shuffle that several tasks need (`record_payloads`).
ONE_TASK_INTERESTS: Final = 1 << 20
ONE_TASK_MATCHES: Final = 1 << 17
_MATCH_BYTES: Final = 16  # an interest and a record, without the text
_BRANCH_BITS: Final = 56  # the bits of a record's number above these are the number of its query in the UNION
_OURS: Final = re.compile(r"\btocsin_channel_[0-9a-f]{32}_\w+", re.IGNORECASE)

NameOf = Callable[[Scan | CalledFunction], str]
"""Returns the name under which Spark has a view or a function now."""


@dataclass(frozen=True, slots=True)
class ExecutionResults:
    """Results in the order of their interests. A result has an interest and the index of its text."""

    interests: npt.NDArray[np.int64]
    payloads: npt.NDArray[np.int64]
    texts: Sequence[bytes]
    # They order the results of an interest when runs are merged; None: the results are in order.
    places: npt.NDArray[np.int64] | None = None
    numbers: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.interests)

    @property
    def size_bytes(self) -> int:
        """About what Spark returns for them: each text once, and each match."""
        return sum(map(len, self.texts)) + _MATCH_BYTES * len(self)


def fits_one_task(interests: int, found: ExecutionResults) -> bool:
    """Returns whether one task should find all matches of the next execution, after these results of the last."""
    return interests <= ONE_TASK_INTERESTS and len(found) <= ONE_TASK_MATCHES


@dataclass(frozen=True, slots=True)
class ExecutionMoment:
    """The instants of an execution, and the commits after which records are new to it."""

    now: datetime
    previous: datetime
    since: Mapping[str, int]
    many: bool = False  # there are too many records to broadcast them
    in_one_task: bool = True  # one task finds all matches


def run(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: InterestTable,
    name_of: NameOf,
    moment: ExecutionMoment,
    among: Ids | None = None,
) -> ExecutionResults:
    """Returns the results of all interests, or of those in `among`."""
    return encode_results(query_matches(spark, query, interests, name_of, moment, among), query, interests.gone)


def query_matches(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: InterestTable,
    name_of: NameOf,
    moment: ExecutionMoment,
    among: Ids | None = None,
) -> pa.Table:
    """Returns the matches as Spark yields them, by one job."""
    if among is None:
        return _query_view(spark, query, interests, name_of, moment, interests.prepared())
    view = interests.part(among)
    try:
        return _query_view(spark, query, interests, name_of, moment, view)
    finally:
        interests.drop_part(view)


def _query_view(  # noqa: PLR0917
    spark: SparkSession,
    query: SharedQuery,
    interests: InterestTable,
    name_of: NameOf,
    moment: ExecutionMoment,
    view: str,
) -> pa.Table:
    names = {scan.view: name_of(scan) for scan in query.scans} | {call.name: name_of(call) for call in query.calls}
    names[query.interests_view] = view
    arguments: dict[str, Any] = {NOW: moment.now, PREVIOUS: moment.previous, **moment.since}
    for name, values in interests.quantiles().items():
        if name not in interests.remembered:
            interests.remembered[name] = _array(values)
        arguments[name] = interests.remembered[name]

    def query_of(sql: str, needed: Collection[str]) -> DataFrame:
        used = select_arguments(arguments, needed)
        return analyse_query_once(spark, interests.checked, sql, bind_names(sql, names), used)

    for level in query.levels:
        found_levels = interests.remembered.get(level.name)
        if found_levels is None:
            answer = query_of(level.sql, level.arguments).toArrow().column(0)[0]
            found_levels = _filter(answer) if level.is_filter else answer.as_py()
        if view == interests.view and not level.reads_records:
            interests.remembered[level.name] = found_levels
        arguments[level.name] = f.lit(found_levels) if level.is_filter else _array(found_levels or [level.nothing])
    sql = query.sql_for_many if moment.many else query.sql
    frame: Any = query_of(with_single_payloads(query, sql, in_one_task=moment.in_one_task), query.arguments)
    # Plan here: if the thread that serves the rows runs out of memory while planning, the reader waits for ever.
    frame._jdf.queryExecution().executedPlan()
    found: pa.Table = frame.toArrow()
    return found


def encode_results(table: pa.Table, query: SharedQuery, gone: Collection[InterestId]) -> ExecutionResults:
    """Encodes each distinct result as JSON once, however many interests have it."""
    found = read_matches(table)
    interests, places, payloads = found.interests, found.places, found.payloads
    numbers, used = found.numbers[payloads], np.arange(len(found.numbers))
    if gone:
        stays = ~np.isin(interests, np.fromiter(gone, np.int64, len(gone)))
        interests, places, numbers, payloads = (column[stays] for column in (interests, places, numbers, payloads))
        # Drop results whose interests have all ended.
        kept, payloads = np.unique(payloads, return_inverse=True)
        used = used[kept]
    order = np.lexsort((numbers, places, interests))
    decode = layout.decoder(query.type)
    texts = [result_json(decode(value)) for value in found.results.take(pa.array(used)).to_pylist()]
    return ExecutionResults(interests[order], payloads[order], texts, places[order], numbers[order])


def merge_results(parts: Sequence[ExecutionResults]) -> ExecutionResults:
    """Merges the results of several runs into the order of one run. Each run has interests of its own, or later
    records."""
    known: dict[bytes, int] = {}
    columns: list[list[npt.NDArray[np.int64]]] = [[np.array([], np.int64)] for _ in range(5)]
    for number, part in enumerate(parts):
        # Each part has encoded the same record again.
        which = np.fromiter((known.setdefault(text, len(known)) for text in part.texts), np.int64, len(part.texts))
        nothing = np.zeros(len(part), np.int64)
        places = nothing if part.places is None else part.places
        numbers = nothing if part.numbers is None else part.numbers
        for column, values in zip(
            columns, (part.interests, which[part.payloads], places, numbers, nothing + number), strict=True
        ):
            column.append(values)
    interests, payloads, places, numbers, runs = (np.concatenate(column) for column in columns)
    # The order of a single run: by query of the UNION, then by record.
    order = np.lexsort((numbers, runs, numbers >> _BRANCH_BITS, places, interests))
    return ExecutionResults(interests[order], payloads[order], list(known))


def bind_names(sql: str, names: Mapping[str, str]) -> str:
    """Puts the current names of views and functions into the SQL. The digest in a name of ours makes this safe: it
    occurs nowhere else in a text."""
    return _OURS.sub(lambda found: names.get(found[0].lower(), found[0]), sql)


def select_arguments(arguments: Mapping[str, Any], needed: Collection[str]) -> dict[str, Any]:
    """Returns the arguments that the SQL names; Spark refuses others."""
    return {name: value for name, value in arguments.items() if name in needed}


def _filter(words: Any) -> bytes:
    """Returns the bits of a filter from the words that are not 0, with their indexes; no bits if there is none."""
    parts = words.values
    if not len(parts):
        return b""
    bits = np.zeros(1 << (FILTER_BITS - 6), "<i8")
    bits[parts.field("place").to_numpy()] = parts.field("word").to_numpy()
    return bits.tobytes()


def _array(values: Sequence[Any]) -> Column:
    """Returns the values as an array literal. Integers are BIGINT, because Spark refuses a mixture of sizes."""
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return f.array(*(f.expr(f"{value}L") if whole else f.lit(value) for value in values))
