"""The view that one statement has: the catalog as of its start, its instant, and the snapshots that it reads.

The catalog does not change under a statement, and the files of its snapshots stay until it ends. So changes by others
neither block it nor appear in the middle of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tocsin.cluster.catalog.catalog import METADATA, Catalog
from tocsin.cluster.catalog.entries import ChannelEntry, DatasetEntry, FunctionEntry, channel_of
from tocsin.cluster.catalog.metadata import DATASETS, RunHistory
from tocsin.cluster.catalog.refs import dataset_ref, function_ref
from tocsin.cluster.channels.virtual_datasets import VirtualDataset
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.language.syntax.nodes import Let, ValueOf
from tocsin.language.translate.interfaces import Dataset, Function, NameLookup
from tocsin.language.translate.scan_bounds import find_bounded_scans
from tocsin.language.translate.scope import NameScope
from tocsin.language.translate.spark_text import render
from tocsin.language.translate.translator import QueryHooks, TranslatedQuery, Translator
from tocsin.language.types.typed_sql import TypedSql, literal, string
from tocsin.language.types.variant import values as variants
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model.open_form import dumps_value
from tocsin.rules.model.types import ANY, BIGINT, Field, ObjectType, Type
from tocsin.rules.model.values import MISSING


class CatalogNames:
    """Resolves the names of a catalog for the translator."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def find_dataset(self, dataverse: str, name: str) -> Dataset | None:
        """Also returns datasets that a channel cannot read, so that the translator can say why."""
        if dataverse == METADATA:
            return DATASETS.get(name)
        ref = dataset_ref(dataverse, name)
        dataset = self.catalog.find(ref)
        if dataset is None and (channel := channel_of(ref)) is not None:
            entry = self.catalog.find(channel)
            return VirtualDataset(entry, ref) if isinstance(entry, ChannelEntry) else None
        return dataset if isinstance(dataset, DatasetEntry) else None

    def find_function(self, dataverse: str, name: str, arity: int) -> FunctionEntry | None:
        function = self.catalog.find(function_ref(dataverse, name, arity))
        return function if isinstance(function, FunctionEntry) else None

    def arities(self, dataverse: str, name: str) -> Sequence[int]:
        return sorted(function.arity for function in self.catalog.functions_named(dataverse, name))

    def suggest_dataset(self, dataverse: str, name: str) -> str | None:
        if dataverse == METADATA:
            return did_you_mean(name, DATASETS) or f"Metadata has {', '.join(sorted(DATASETS))}"
        return self.catalog.not_found_error(dataset_ref(dataverse, name)).hint


class StatementScope:
    """Provides scans for the translator. Holds the snapshots and views that it gave out until `close`."""

    def __init__(
        self,
        catalog: Catalog,
        tables: DatasetTables,
        engine: Engine,
        dataverse: str,
        now: datetime,
        *,
        values: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`values` binds the free variables of a query, such as the arguments of a procedure."""
        self.catalog = catalog
        self.names: NameLookup = CatalogNames(catalog)
        self.dataverse = dataverse
        self.now = now
        self.values = values
        self._tables = tables
        self._engine = engine
        self._held: list[Snapshot] = []
        self._views: list[str] = []
        self._scanned: dict[str, tuple[DatasetEntry, Snapshot]] = {}  # by view

    def within(self, dataverse: str, catalog: Catalog | None = None) -> StatementScope:
        """Returns a scope of its own for another dataverse, or for a catalog that is to come."""
        return StatementScope(catalog or self.catalog, self._tables, self._engine, dataverse, self.now)

    def close(self) -> None:
        self._held.clear()
        self._engine.drop_views(self._views)
        self._views.clear()

    def translate(self, node: Any) -> TranslatedQuery:
        translated = self.translator().translate(node)
        if self._prune_scans(translated.query):
            return replace(translated, sql=render(translated.query))
        return translated

    def _prune_scans(self, query: exp.Expr) -> bool:
        """Lets scans read only the files that can have wanted rows, by the statistics of the log. Returns whether the
        query has changed.
        """
        changed = False
        for scan in find_bounded_scans(query):
            scanned = self._scanned.get(scan.table.name)
            if scanned is None:
                continue
            dataset, snapshot = scanned
            pruned = self._tables.table(dataset).prune(snapshot, scan.bounds)
            if pruned is not snapshot:
                self._held.append(pruned)
                self._views.append(self._engine.views.of_part(pruned, dataset.type))
                scan.table.set("this", exp.to_identifier(self._views[-1], quoted=True))
                changed = True
        return changed

    def translator(self, *, defines_function: bool = False) -> Translator:
        hooks = QueryHooks(self, self.now, defines_function)
        translator = Translator(self.names, self._engine.type_analyser, hooks, self.dataverse)
        translator.frame = NameScope({name: _bind_value(value) for name, value in self.values.items()})
        return translator

    def scan(self, dataset: Dataset, commit: int | None, at: datetime | None) -> str:
        if not isinstance(dataset, DatasetEntry):
            self._views.append(self._engine.views.of_rows(self._compute_rows(dataset)))
            return self._views[-1]
        table = self._tables.table(dataset)
        if commit is not None:
            snapshot = table.as_of_commit(commit)
        elif at is not None:
            snapshot = table.as_of_time(at)
        else:
            snapshot = table.snapshot()
        self._held.append(snapshot)
        view = self._engine.views.of_snapshot(dataset.folder, snapshot, dataset.type)
        self._scanned[view] = dataset, snapshot
        return view

    def _compute_rows(self, dataset: Dataset) -> pa.Table:
        """Returns the rows of a dataset that is not stored: one of a channel, or of the dataverse Metadata."""
        rows = dataset if isinstance(dataset, VirtualDataset) else DATASETS[dataset.name].rows
        if not isinstance(rows, VirtualDataset | RunHistory):
            return layout.to_arrow(rows(self.catalog, self._tables.folder), dataset.type)
        reader = self._engine.virtual_datasets
        assert reader is not None
        if rows is RunHistory.CHANNELS:
            return reader.executions(self.catalog.channels, dataset.type)
        return reader.runs(dataset.type) if rows is RunHistory.PROCEDURES else reader.rows(rows)

    def call_name(self, function: Function, arguments: Sequence[Type]) -> str:
        return self._engine.python.called(function, arguments)


def _bind_value(value: Any) -> TypedSql:
    """Returns the value with its own type; collections and objects are untyped. No part of it is ever parsed as SQL."""
    if value is MISSING:
        return TypedSql(variants.null(ANY), ANY)
    if value is None:
        return TypedSql(exp.null(), variants.VOID)
    if isinstance(value, dict | list):
        return TypedSql(variants.call("parse_json", string(dumps_value(value))), ANY)
    return literal(value)


@dataclass(frozen=True, slots=True)
class _BatchDataset:
    """Records on their way into a dataset, presented as a dataset of their own."""

    type: ObjectType
    dataverse: str = ""
    name: str = "a batch"
    active: None = None


class _BatchNames(CatalogNames):
    """Resolves also the name of a batch."""

    def __init__(self, catalog: Catalog, batch: _BatchDataset) -> None:
        super().__init__(catalog)
        self._batch = batch

    def find_dataset(self, dataverse: str, name: str) -> Dataset | None:
        return self._batch if name == self._batch.name else super().find_dataset(dataverse, name)


class BatchScope(StatementScope):
    """A scope for records that are in no dataset yet. Expressions read each `record` and its `index` in the batch."""

    def __init__(  # noqa: PLR0917
        self,
        catalog: Catalog,
        tables: DatasetTables,
        engine: Engine,
        dataverse: str,
        now: datetime,
        rows: pa.Table,
        kind: ObjectType,
        *,
        values: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(catalog, tables, engine, dataverse, now, values=values)
        self._kind = kind
        self._batch = _BatchDataset(ObjectType((Field("index", BIGINT), Field("record", kind)), open=False))
        self.names = _BatchNames(catalog, self._batch)
        records = pa.StructArray.from_arrays(
            [column.combine_chunks() for column in rows.columns], fields=list(rows.schema)
        )
        indexes = pa.array(range(rows.num_rows), pa.int64())
        self._rows = pa.table([indexes, records], schema=layout.record_schema(self._batch.type))

    def translate_batch(self, expression: exp.Expr) -> TranslatedQuery:
        """Translates `SELECT VALUE expression FROM the batch AS batch`."""
        source = exp.Table(
            this=exp.to_identifier(self._batch.name, quoted=True), alias=exp.TableAlias(this=exp.to_identifier("batch"))
        )
        return self.translate(exp.Select(expressions=[ValueOf(this=expression)], from_=exp.From(this=source)))

    def translate_returning(self, expression: exp.Expr, variable: str) -> TranslatedQuery:
        """Translates an expression about each record of the batch, in their order."""
        name = exp.to_identifier(" batch", quoted=True)

        def part(field: str) -> exp.Column:
            return exp.column(exp.to_identifier(field, quoted=True), table=name.copy())

        source = exp.Table(
            this=exp.to_identifier(self._batch.name, quoted=True), alias=exp.TableAlias(this=name.copy())
        )
        record = Let(this=part("record"), alias=exp.to_identifier(variable, quoted=True), is_range=True)
        query = exp.Select(expressions=[ValueOf(this=expression)], from_=exp.From(this=source))
        query.set("joins", [exp.Join(this=record)])
        query.set("order", exp.Order(expressions=[exp.Ordered(this=part("index"))]))
        return self.translate(query)

    def call_query(self, function: Function) -> str:
        """Returns a query that applies a Python function to each record: its `index`, and what the function `made` of
        it. See `Signature.each`."""
        name = self._engine.python.called(function, [self._kind], each=True)
        made_column = exp.alias_(exp.Anonymous(this=name, expressions=[exp.column("record")]), "made")
        return render(exp.select("index", made_column).from_(self.scan(self._batch, None, None)))

    def scan(self, dataset: Dataset, commit: int | None, at: datetime | None) -> str:
        if dataset is not self._batch:
            return super().scan(dataset, commit, at)
        self._views.append(self._engine.views.of_rows(self._rows))
        return self._views[-1]
