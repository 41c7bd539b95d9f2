"""Compiles the query of a channel from its catalog entry, at CREATE and again at every start.

The catalog stores the text of the body, not the compiled query: a new release may compile it better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.cluster.catalog.catalog import Catalog
from tocsin.cluster.catalog.entries import ChannelEntry, FunctionEntry
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.statements.statement_scope import CatalogNames
from tocsin.language.channels.compiler import SharedQuery, compile_shared_query
from tocsin.language.syntax.script import parse_body
from tocsin.pipeline.channels.interests import InterestTable
from tocsin.pipeline.channels.plan_review import checked_plan
from tocsin.rules.model.types import Type


def compile_channel(
    engine: Engine,
    catalog: Catalog,
    dataverse: str,
    body: str,
    *,
    parameters: Sequence[str],
    declared: Mapping[str, Type],
    continuous: bool,
) -> SharedQuery:
    return compile_shared_query(
        parse_body(body), parameters, declared,
        names=CatalogNames(catalog), type_analyser=engine.type_analyser, dataverse=dataverse, continuous=continuous,
    )  # fmt: skip


def query_of(engine: Engine, catalog: Catalog, entry: ChannelEntry) -> SharedQuery:
    """Compiles the query of an existing channel. Its parameters keep the types of its creation."""
    dataverse, body = entry.dataverse, entry.body
    if entry.function is not None:
        function = catalog.find(entry.function)
        assert isinstance(function, FunctionEntry)
        dataverse, body = function.dataverse, function.body
    assert body is not None
    return compile_channel(
        engine, catalog, dataverse, body,
        parameters=entry.parameters, declared=dict(zip(entry.parameters, entry.types, strict=True)),
        continuous=entry.continuous,
    )  # fmt: skip


def plan_of(engine: Engine, query: SharedQuery) -> str:
    """Returns Spark's plan. Raises StatementError if the plan would test every interest against every record."""
    interests = InterestTable(engine.spark, query)
    return checked_plan(
        engine.spark, query, interests.schema, lambda call: engine.python.called(call.function, call.arguments)
    )


def used_by(query: SharedQuery) -> tuple[Ref, ...]:
    """Returns the datasets and functions that the body names."""
    refs = []
    for kind, dataverse, name in sorted(query.uses):
        refs.append(Ref("dataset" if kind == "dataset" else "function", dataverse, name))
    return tuple(refs)
