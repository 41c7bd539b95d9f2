"""Compiles the query of a channel from its catalog entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.cluster.catalog.catalog import METADATA, Catalog
from tocsin.cluster.catalog.channel_entries import channel_of
from tocsin.cluster.catalog.entries import ChannelEntry, DatasetEntry, FunctionEntry
from tocsin.cluster.catalog.metadata import DATASETS
from tocsin.cluster.catalog.refs import Ref, dataset_ref, function_ref
from tocsin.cluster.channels.virtual_datasets import VirtualDataset
from tocsin.cluster.engine.engine import Engine
from tocsin.language.channels.compiler import SharedQuery, shared_query
from tocsin.language.syntax.script import parsed_body
from tocsin.language.translate.name_lookup import Dataset
from tocsin.pipeline.channels.interests import InterestTable
from tocsin.pipeline.channels.plan_review import checked_plan
from tocsin.rules.model.types import Type


class CatalogNames:
    """Resolves names of the catalog for the channel translator."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def find_dataset(self, dataverse: str, name: str) -> Dataset | None:
        """Also returns datasets that a channel cannot read, so that the translator can say why."""
        if dataverse == METADATA:
            return DATASETS.get(name)
        ref = dataset_ref(dataverse, name)
        dataset = self._catalog.find(ref)
        if dataset is None and (channel := channel_of(ref)) is not None:
            entry = self._catalog.find(channel)
            return VirtualDataset(entry, ref) if isinstance(entry, ChannelEntry) else None
        return dataset if isinstance(dataset, DatasetEntry) else None

    def find_function(self, dataverse: str, name: str, arity: int) -> FunctionEntry | None:
        function = self._catalog.find(function_ref(dataverse, name, arity))
        return function if isinstance(function, FunctionEntry) else None

    def arities(self, dataverse: str, name: str) -> Sequence[int]:
        return sorted(function.arity for function in self._catalog.functions_named(dataverse, name))

    def suggestions(self, dataverse: str) -> Sequence[str]:
        if dataverse == METADATA:
            return list(DATASETS)
        return [dataset.name for dataset in self._catalog.datasets if dataset.dataverse == dataverse]


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
    return shared_query(
        parsed_body(body), parameters, declared,
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
