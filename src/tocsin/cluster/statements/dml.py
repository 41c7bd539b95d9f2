"""Executes INSERT, UPSERT, DELETE and LOAD: each statement is one atomic commit of its dataset.

So a failed statement leaves nothing behind, and a channel sees all rows of a statement at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import pyarrow as pa
from sqlglot import exp

from tocsin.cluster.catalog.entries import DatasetEntry
from tocsin.cluster.channels.dataset_changes import ChannelDatasetChanges
from tocsin.cluster.channels.virtual_datasets import VirtualDataset
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.cluster.statements.statement_scope import BatchScope, StatementScope
from tocsin.durable_files import is_full_disk
from tocsin.language.functions.constants import ConstantError, NotConstantError, evaluate, with_values
from tocsin.language.syntax import statements as st
from tocsin.language.syntax.script import offset_of
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.translator import TranslatedQuery
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.datasets.table import Commit
from tocsin.pipeline.landing.rows import generate
from tocsin.pipeline.sources import load_files
from tocsin.rules.model.columns import physical
from tocsin.rules.model.type_check import RecordError, checker
from tocsin.rules.model.values import MISSING
from tocsin.wire.errors import ConflictError, StatementError, StoppedError, StorageFullError, UnavailableError

_T = TypeVar("_T")
_NO_POSITIONS: Final[Mapping[str, int]] = MappingProxyType({})


class CancellationToken:
    """Lets a statement be stopped until its commit begins. A stopped statement has changed nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_stopped = False
        self._is_committing = False

    def stop(self) -> bool:
        """Stops the statement and returns True, or returns False if its commit has begun. A commit is short, so the
        caller waits for it."""
        with self._lock:
            self._is_stopped = not self._is_committing
            return self._is_stopped

    def raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise StoppedError("the statement was stopped; it changed nothing")

    def commit(self) -> None:
        """Marks the beginning of the commit. From now on the statement cannot be stopped."""
        with self._lock:
            self.raise_if_stopped()
            self._is_committing = True


class DmlHandler:
    def __init__(
        self, tables: DatasetTables, engine: Engine, channel_datasets: ChannelDatasetChanges | None = None
    ) -> None:
        self._tables = tables
        self._engine = engine
        self._channel_datasets = channel_datasets
        # One lock per dataset: a DELETE first reads the keys that it removes, so nobody may write in between.
        self._turns: dict[str, asyncio.Lock] = {}

    async def run(
        self, statement: st.Insert | st.Delete, scope: StatementScope, positions: Mapping[str, int] = _NO_POSITIONS
    ) -> StatementSummary:
        """Executes the statement, and returns a summary. It commits the positions together with the rows, unless it
        inserts none, or changes the dataset of a channel."""
        target = self.target(statement.dataset, scope)
        if isinstance(target, VirtualDataset):
            return await self._change_channel(statement, target, scope)
        if isinstance(statement, st.Insert):
            return await self._insert(statement, target, scope, positions)
        return await self._delete(statement, target, scope, positions)

    def target(self, name: st.Name, scope: StatementScope) -> DatasetEntry | VirtualDataset:
        """Returns the dataset that a statement changes."""
        dataverse = name.dataverse or scope.dataverse
        dataset = scope.names.find_dataset(dataverse, name.name)
        if dataset is not None and dataverse == "Metadata":
            raise ConflictError("the dataverse Metadata is changed by CREATE and DROP only")
        return dataset if isinstance(dataset, VirtualDataset) else scope.catalog.dataset(dataverse, name.name)

    def _turn(self, entry: DatasetEntry) -> asyncio.Lock:
        return self._turns.setdefault(entry.folder, asyncio.Lock())

    async def _carry_out(
        self, work: Callable[[CancellationToken], Commit], entry: DatasetEntry, statement: st.Statement
    ) -> Commit:
        token = CancellationToken()
        guarded_work = _translate_store_errors(lambda: work(token), self._tables, entry)
        async with self._turn(entry):
            return await self._engine.work(guarded_work, statement.text, stop=token.stop)

    # ------------------------------------------------------------ datasets of channels

    async def _change_channel(
        self, statement: st.Insert | st.Delete, target: VirtualDataset, scope: StatementScope
    ) -> StatementSummary:
        """Changes the subscriptions or the results of a channel, in one transaction of the channel store."""
        assert self._channel_datasets is not None, "a cluster with channels can change their datasets"
        if isinstance(statement, st.Insert):
            records = await self._engine.work(lambda: self._values(statement.source, scope), statement.text)
            count = await self._channel_datasets.insert(target, records, upsert=statement.upsert)
            return {"upserted" if statement.upsert else "inserted": count}
        query = keys_to_delete(statement, target)
        keys: list[Any] | None = None
        if query is not None:
            keys = await self._engine.work(lambda: self._keys(query, scope), statement.text)
        return {"deleted": await self._channel_datasets.delete(target, keys)}

    def _keys(self, query: exp.Expr, scope: StatementScope) -> list[Any]:
        translated = scope.translate(query)
        return [row["k0"] for row in decode_rows(self._engine.rows(translated.sql), translated)]

    # ------------------------------------------------------------ INSERT, UPSERT

    async def run_returning(
        self,
        statement: st.Insert,
        scope: StatementScope,
        rows_limit: int,
        encode: Callable[[pa.Table, TranslatedQuery], list[bytes]],
    ) -> tuple[StatementSummary, list[bytes]]:
        """Executes an INSERT or UPSERT with RETURNING; returns its summary and the encoded rows.

        The rows are computed before the commit, so that an expression that fails leaves nothing behind."""
        assert statement.returning is not None
        returning = statement.returning
        if aggregates(returning):
            raise TranslationError(
                "RETURNING yields a value for each record", offset_of(returning), "aggregate in a query of its own"
            )
        entry = self.target(statement.dataset, scope)
        if isinstance(entry, VirtualDataset):
            raise StatementError(
                "the dataset of a channel returns nothing", hint="leave RETURNING out, and query the dataset"
            )
        returned: list[bytes] = []

        def compute(rows: pa.Table) -> None:
            if rows.num_rows > rows_limit:
                raise StatementError(
                    f"RETURNING would return {rows.num_rows} rows, at most {rows_limit} can be",
                    hint="leave RETURNING out, or insert in parts",
                )
            batch = BatchScope(
                scope.catalog, self._tables, self._engine, scope.dataverse, scope.now, rows, entry.type,
                values=scope.values,
            )  # fmt: skip
            try:
                translated = batch.translate_returning(returning.copy(), statement.alias or entry.name)
                returned.extend(encode(self._engine.rows(translated.sql), translated))
            finally:
                batch.close()

        summary = await self._insert(statement, entry, scope, _NO_POSITIONS, compute)
        return summary, returned

    async def _insert(
        self,
        statement: st.Insert,
        entry: DatasetEntry,
        scope: StatementScope,
        positions: Mapping[str, int],
        before_commit: Callable[[pa.Table], None] = lambda _rows: None,
    ) -> StatementSummary:
        def work(cancellation: CancellationToken) -> Commit:
            values = self._values(statement.source, scope)
            records, generated = _records(values, entry, cancellation)
            rows = layout.to_arrow(records, entry.type)
            before_commit(rows)
            table = self._tables.table(entry)
            cancellation.commit()
            new_positions = positions if rows.num_rows else _NO_POSITIONS
            if statement.upsert:
                return table.upsert(rows, positions=new_positions)
            return table.insert(rows, keys_are_new=generated, positions=new_positions)

        commit = await self._carry_out(work, entry, statement)
        return {"upserted" if statement.upsert else "inserted": commit.rows, "commit": commit.number}

    def _values(self, source: exp.Expr, scope: StatementScope) -> list[Any]:
        try:
            values = evaluate(with_values(source, scope.values), scope.now)
        except ConstantError as error:
            raise TranslationError(str(error), error.offset) from None
        except NotConstantError:
            translated = scope.translate(source)
            values = decode_rows(self._engine.rows(translated.sql), translated)
            # `INSERT INTO d [r, s]` and `INSERT INTO d (SELECT …)` both insert the records, not one record that is a
            # list.
            if not isinstance(source, exp.Query | exp.Subquery) and len(values) == 1 and isinstance(values[0], list):
                values = values[0]
        return list(values) if isinstance(values, list) else [values]

    # ------------------------------------------------------------ DELETE

    async def _delete(
        self, statement: st.Delete, entry: DatasetEntry, scope: StatementScope, positions: Mapping[str, int]
    ) -> StatementSummary:
        def work(cancellation: CancellationToken) -> Commit:
            table = self._tables.table(entry)
            query = keys_to_delete(statement, entry)
            if query is None:
                cancellation.commit()
                return table.delete_all(positions=positions)
            keys = _key_rows(self._engine.rows(scope.translate(query).sql), entry)
            cancellation.commit()
            return table.delete(keys, positions=positions)

        commit = await self._carry_out(work, entry, statement)
        return {"deleted": commit.rows, "commit": commit.number}

    # ------------------------------------------------------------ LOAD

    async def load(self, statement: st.Load, scope: StatementScope) -> StatementSummary:
        entry = self.target(statement.dataset, scope)
        if isinstance(entry, VirtualDataset):
            raise ConflictError(
                f"{entry.name} belongs to the channel {entry.channel.name} and takes no LOAD",
                hint="LOAD the records into a dataset of your own, and INSERT INTO this one with a query",
            )
        generate = entry.keys[0] if entry.autogenerated else None

        def work(cancellation: CancellationToken) -> Commit:
            # Opening the files here reports wrong options and missing files before the load blocks other writers.
            batches = load_files.batches(statement.options, entry.type, adapter=statement.adapter, generate=generate)
            return self._tables.table(entry).load(_arrow(batches, entry, cancellation))

        commit = await self._carry_out(work, entry, statement)
        return {"loaded": commit.rows, "commit": commit.number}


def keys_to_delete(statement: st.Delete, entry: DatasetEntry | VirtualDataset) -> exp.Expr | None:
    """Returns the query for the keys that a DELETE removes, or None if it removes everything."""
    if statement.where is None:
        return None
    alias = statement.alias or entry.name
    key_columns = [exp.alias_(_path(alias, path), f"k{i}") for i, path in enumerate(entry.keys)]
    source = exp.Table(
        this=exp.to_identifier(entry.name, quoted=True), db=exp.to_identifier(entry.dataverse, quoted=True),
        alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)),
    )  # fmt: skip
    return exp.Select(
        expressions=key_columns, from_=exp.From(this=source), where=exp.Where(this=statement.where.copy())
    )


def decode_rows(rows: pa.Table, translated: TranslatedQuery) -> list[Any]:
    """Returns the rows of a query's result as values."""
    decode = layout.decoder(translated.type)
    try:
        values = rows.column("value").to_pylist() if translated.is_value else rows.to_pylist()
    except (OverflowError, ValueError) as error:
        # Spark's dates reach the year 294,247, Python's only 9,999.
        raise StatementError(f"a value is outside of what can be told: {error}") from None
    return [decode(value) for value in values]


def _arrow(
    found: Iterator[list[dict[str, Any]]], entry: DatasetEntry, cancellation: CancellationToken
) -> Iterator[pa.RecordBatch]:
    for records in found:
        cancellation.raise_if_stopped()
        yield from layout.to_arrow(records, entry.type).to_batches()
    cancellation.commit()


def _records(
    values: Sequence[Any], entry: DatasetEntry, cancellation: CancellationToken
) -> tuple[list[dict[str, Any]], bool]:
    """Returns the checked records, and whether all their keys were generated here."""
    check = checker(entry.type)
    records, generated = [], entry.autogenerated
    for i, value in enumerate(values, start=1):
        if i % 1_000 == 0:
            cancellation.raise_if_stopped()
        if entry.autogenerated and isinstance(value, dict):
            generated = generate(value, entry.keys[0]) and generated
        try:
            if not isinstance(value, dict):
                value_type = "nothing" if value in (None, MISSING) else f"a {type(value).__name__}"
                raise RecordError("", f"a record is an object, this is {value_type}")
            records.append(check(value))
        except RecordError as error:
            where = f"record {i}" if len(values) > 1 else "the record"
            raise StatementError(f"{where}: {error}", field=error.field, record=i) from None
    return records, generated


def _path(alias: str, path: tuple[str, ...]) -> exp.Expr:
    node: exp.Expr = exp.column(exp.to_identifier(path[0], quoted=True), table=exp.to_identifier(alias, quoted=True))
    for name in path[1:]:
        node = exp.Dot(this=node, expression=exp.to_identifier(name, quoted=True))
    return node


def _key_rows(found: pa.Table, entry: DatasetEntry) -> pa.Table:
    """Returns the keys k0, k1, … in the table's shape: nested keys become nested structs."""
    schema = layout.record_schema(entry.type)
    columns: dict[str, Any] = {}
    for i, path in enumerate(entry.keys):
        kind = schema.field(physical(path[0])).type
        for name in path[1:]:
            kind = kind.field(physical(name)).type
        _put(columns, [physical(name) for name in path], found.column(f"k{i}").combine_chunks().cast(kind))
    arrays = {name: _array(inside) for name, inside in columns.items()}
    return pa.table(arrays)


def _put(columns: dict[str, Any], path: Sequence[str], values: pa.Array) -> None:
    for name in path[:-1]:
        columns = columns.setdefault(name, {})
    columns[path[-1]] = values


def _array(inside: Any) -> pa.Array:
    if isinstance(inside, dict):
        return pa.StructArray.from_arrays([_array(child) for child in inside.values()], names=list(inside))
    return inside


def _translate_store_errors(work: Callable[[], _T], tables: DatasetTables, entry: DatasetEntry) -> Callable[[], _T]:
    """Wraps work that writes: translates a full disk into StorageFullError, and reports a dropped dataset."""

    def guarded() -> _T:
        try:
            return work()
        except OSError as error:
            if is_full_disk(error):
                raise StorageFullError("there is no room left on the disk; nothing was changed") from error
            raise
        except UnavailableError:
            tables.table(entry)  # raises the right error if the dataset was dropped meanwhile
            raise

    return guarded
