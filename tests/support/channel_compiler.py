"""Channels without a cluster: a body compiled against a few datasets, run over given rows and interests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal
from uuid import uuid4

import orjson
import pyarrow as pa
from pyspark.sql import SparkSession

from tocsin.language.channels.compiler import CalledFunction, Scan, SharedQuery, compile_shared_query
from tocsin.language.syntax.script import parse_body
from tocsin.language.translate.interfaces import Dataset
from tocsin.pipeline.analysis import SparkTypeAnalyser
from tocsin.pipeline.channels import plan_review, run_query
from tocsin.pipeline.channels.interests import Ids, InterestTable
from tocsin.pipeline.datasets import layout
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import AT, COMMIT
from tocsin.rules.model.json_form import plain
from tocsin.rules.model.types import ArrayType, Field, ObjectType, Type

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
PREVIOUS = NOW - timedelta(seconds=20)

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DatasetOf:
    name: str
    type: ObjectType
    active: bool = True
    dataverse: str = "d"
    folder: str = ""


@dataclass(frozen=True, slots=True)
class FunctionOf:
    name: str
    parameters: tuple[str, ...]
    body: str
    dataverse: str = "d"
    language: Literal["SQL", "PYTHON"] = "SQL"
    returns: Type = t.ANY
    optional: bool = False


REPORTS = DatasetOf(
    "Reports",
    ObjectType(
        (
            Field("id", t.BIGINT), Field("kind", t.STRING), Field("severity", t.INTEGER), Field("big", t.BIGINT),
            Field("level", t.DOUBLE), Field("note", t.STRING, True), Field("tags", ArrayType(t.STRING)),
            Field("numbers", ArrayType(t.INTEGER)), Field("place", t.POINT, True), Field("zone", t.CIRCLE),
            Field("box", t.RECTANGLE, True), Field("area", t.POLYGON), Field("low", t.DOUBLE), Field("high", t.DOUBLE),
            Field("at", t.DATETIME), Field("lasts", t.DURATION, True),
        ),
        open=True,
    ),
)  # fmt: skip
USERS = DatasetOf("Users", ObjectType((Field("name", t.STRING), Field("place", t.POINT, True)), open=True))
SHELTERS = DatasetOf(
    "Shelters", ObjectType((Field("name", t.STRING), Field("kind", t.STRING), Field("place", t.POINT)), open=False),
    active=False,
)  # fmt: skip
GLOBE = DatasetOf(
    "Globe",
    ObjectType((Field("id", t.BIGINT), Field("place", t.POINT), Field("zone", t.CIRCLE), Field("box", t.RECTANGLE))),
)
DATASETS = (REPORTS, USERS, SHELTERS, GLOBE)


class Names:
    """What the catalog would say."""

    def __init__(self, functions: Sequence[FunctionOf] = ()) -> None:
        self._functions = functions

    def find_dataset(self, dataverse: str, name: str) -> Dataset | None:
        return next((dataset for dataset in DATASETS if (dataset.dataverse, dataset.name) == (dataverse, name)), None)

    def find_function(self, dataverse: str, name: str, arity: int) -> FunctionOf | None:
        found = (function for function in self._functions if (function.dataverse, function.name) == (dataverse, name))
        return next((function for function in found if len(function.parameters) == arity), None)

    def arities(self, dataverse: str, name: str) -> Sequence[int]:
        return [
            len(function.parameters)
            for function in self._functions
            if (function.dataverse, function.name) == (dataverse, name)
        ]

    def suggest_dataset(self, dataverse: str, name: str) -> str | None:
        return did_you_mean(name, (dataset.name for dataset in DATASETS if dataset.dataverse == dataverse))


def compiled(
    spark: SparkSession,
    parameters: Sequence[str],
    body: str,
    *,
    continuous: bool = True,
    declared: Mapping[str, Type] | None = None,
    functions: Sequence[FunctionOf] = (),
) -> SharedQuery:
    return compile_shared_query(
        parse_body(body), parameters, declared or {},
        names=Names(functions), type_analyser=SparkTypeAnalyser(spark), dataverse="d", continuous=continuous,
    )  # fmt: skip


def planned(spark: SparkSession, query: SharedQuery) -> str:
    """Spark's plan of it; StatementError where it would test every pair."""
    return plan_review.checked_plan(spark, query, InterestTable(spark, query).schema, lambda one: one.name)


@dataclass(frozen=True, slots=True)
class Version:
    """A row version: the record, and the commit that brought it."""

    record: Record
    commit: int
    at: datetime = NOW


@dataclass(slots=True)
class FakeDatasets:
    """Datasets as of the end of an execution. Versions of a commit beyond `since` are new to it."""

    rows: Mapping[str, Sequence[Version]]
    since: int = 1
    tokens: dict[tuple[str, bool], str] = field(default_factory=dict)

    def all(self, dataset: DatasetOf) -> list[Record]:
        return [row.record for row in self.rows.get(dataset.name, ())]

    def new(self, dataset: DatasetOf) -> list[Record]:
        return [row.record for row in self.rows.get(dataset.name, ()) if row.commit > self.since]


@contextmanager
def shown(spark: SparkSession, world: FakeDatasets) -> Iterator[FakeDatasets]:
    """The world's rows as views."""
    try:
        for dataset in DATASETS:
            for new in (False, True):
                versions = [row for row in world.rows.get(dataset.name, ()) if not new or row.commit > world.since]
                table = layout.to_arrow([version.record for version in versions], dataset.type)
                if dataset.active:
                    moments = pa.array([version.at for version in versions], pa.timestamp("us", tz="UTC"))
                    table = table.append_column(COMMIT, pa.array([version.commit for version in versions], pa.int64()))
                    table = table.append_column(AT, moments)
                view = f"tocsin_shown_{uuid4().hex}"
                spark.createDataFrame(table).createOrReplaceTempView(view)
                world.tokens[dataset.name, new] = view
        yield world
    finally:
        for view in world.tokens.values():
            spark.catalog.dropTempView(view)


def executed(
    spark: SparkSession, query: SharedQuery, world: FakeDatasets, interests: InterestTable, among: Ids | None = None
) -> Counter[tuple[int, str]]:
    """(interest, result as text), each as often as it is told."""
    return Counter(_told(spark, query, world, interests, among))


def _told(
    spark: SparkSession,
    query: SharedQuery,
    world: FakeDatasets,
    interests: InterestTable,
    among: Ids | None = None,
    *,
    in_one_task: bool = True,
    many: bool = False,
) -> list[tuple[int, str]]:
    def view_of(read: Scan | CalledFunction) -> str:
        assert isinstance(read, Scan)
        return world.tokens[read.dataset.name, read.new]

    since = {dataset.since: world.since for dataset in query.watched}
    moment = run_query.ExecutionMoment(NOW, PREVIOUS, since, many, in_one_task)
    found = run_query.run(spark, query, interests, view_of, moment, among)
    texts = [canonical(json.loads(item)) for item in found.texts]
    return [(int(interest), texts[which]) for interest, which in zip(found.interests, found.payloads, strict=True)]


def answers(
    spark: SparkSession,
    query: SharedQuery,
    world: FakeDatasets,
    values: Sequence[Sequence[Any]],
    *,
    in_one_task: bool = True,
    many: bool = False,
) -> list[list[str]]:
    """For each set of values what the channel tells it, as texts with sorted keys, in the order it is told."""
    interests = InterestTable(spark, query)
    interests.change(enumerate(values), [])
    told: list[list[str]] = [[] for _ in values]
    try:
        for interest, result in _told(spark, query, world, interests, in_one_task=in_one_task, many=many):
            told[interest].append(result)
    finally:
        interests.close()
    return told


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def text(value: Any) -> str:
    """The text of a result that plain Python made."""
    return canonical(json.loads(orjson.dumps(plain(value))))


@dataclass(frozen=True, slots=True)
class Case:
    """A channel, the interests it is tried with, and what each must be told, worked out in plain Python."""

    parameters: Sequence[str]
    body: str
    interests: Callable[[Random, FakeDatasets], Sequence[Sequence[Any]]]
    told: Callable[..., Sequence[Any]]  # of the world and an interest's values
    ordered: bool = False
    continuous: bool = True
    declared: Mapping[str, Type] = field(default_factory=dict)
    functions: Sequence[FunctionOf] = ()


_compiled: dict[str, SharedQuery] = {}


def check(spark: SparkSession, case: Case, world: FakeDatasets, seed: int) -> None:
    """That the shared query tells every interest what it would be told alone."""
    name = repr((case.body, case.parameters, case.continuous, sorted(case.declared), case.functions))
    if name not in _compiled:
        _compiled[name] = compiled(
            spark, case.parameters, case.body,
            continuous=case.continuous, declared=case.declared, functions=case.functions,
        )  # fmt: skip
        planned(spark, _compiled[name])
    values = list(case.interests(Random(seed), world))
    # Whether one task finds the matches or several do makes no difference.
    found = answers(spark, _compiled[name], world, values, in_one_task=seed % 2 == 0, many=seed % 3 == 0)
    for item, got in zip(values, found, strict=True):
        expected = [text(value) for value in case.told(world, *item)]
        same = got == expected if case.ordered else Counter(got) == Counter(expected)
        assert same, (
            f"{case.body}\nwith {dict(zip(case.parameters, item, strict=True))}, seed {seed}\n"
            f"missing {list((Counter(expected) - Counter(got)).elements())[:5]}\n"
            f"too many {list((Counter(got) - Counter(expected)).elements())[:5]}\n"
            f"in order {expected[:10]}, got {got[:10]}"
        )
