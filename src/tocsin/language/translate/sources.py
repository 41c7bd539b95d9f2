"""Translates the FROM clause: datasets, subqueries, functions, collections, joins and LET.

A source that refers to its neighbours becomes LATERAL. Columns of outer queries are imported level by level, because
Spark correlates over one level only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tocsin.language.functions import function_registry
from tocsin.language.functions.function_registry import is_computed_once
from tocsin.language.syntax import dialect
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.name_lookup import Dataset
from tocsin.language.translate.scope import (
    VALUE,
    QueryBlock,
    Relation,
    RowVariable,
    column,
    free_tables,
    nullable_side,
    row,
    variable,
)
from tocsin.language.translate.spark_text import render_for_analysis
from tocsin.language.types.typed_sql import FunctionError, TypedSql
from tocsin.language.types.variant import encoder, values
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ArrayType, Field, ObjectType
from tocsin.rules.model.values import parse_datetime

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator


class Sources:
    """Translates the FROM clause."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    # ------------------------------------------------------------ the FROM clause

    def add_sources(self, node: exp.Select) -> None:
        if node.args.get("from_"):
            self._source(node.args["from_"].this, exp.Join())
        for join in node.args.get("joins") or []:
            self._source(join.this, join)

    def _source(self, node: exp.Expr, join: exp.Join) -> None:
        match node:
            case dialect.Let():
                self._let(node)
            case dialect.FromValue():
                self._unnest(
                    self.translator.expression(node.this),
                    self._variable_name(node, node.args.get("alias")),
                    join,
                    bool(node.args.get("outer")),
                )
            case exp.Unnest() if len(node.expressions) == 1:
                self._unnest(
                    self.translator.expression(node.expressions[0]),
                    self._variable_name(node, node.args.get("alias")),
                    join,
                )
            case exp.Table() if isinstance(node.this, exp.Anonymous):
                self._function(node, join)
            case exp.Table():
                self._table(node, join)
            case exp.Subquery():
                self._relation(
                    self.translator.queries.query(node.this, self.translator.block),
                    self._variable_name(node, node.args.get("alias")),
                    join,
                )
            case exp.Lateral() if isinstance(node.this, exp.Subquery) and not node.args.get("view"):
                self._relation(
                    self.translator.queries.query(node.this.this, self.translator.block),
                    self._variable_name(node, node.args.get("alias")),
                    join,
                )
            case exp.Values():
                self._native(node, node, join)
            case _:
                fail("this cannot stand in FROM", node, "a dataset, a subquery, a function or an array with a name can")

    def _variable_name(self, node: exp.Expr, alias: Any, default: str | None = None) -> str:
        """Returns the variable of a source; it must have a name that is unique in its FROM."""
        if isinstance(alias, exp.TableAlias):
            if alias.args.get("columns"):
                fail("name columns in the SELECT list", node)
            alias = alias.this
        name = alias.name if alias is not None else default
        if not name:
            fail("this needs a name", node, "write … AS x")
        if name in self.translator.frame.ranges:
            fail(f"two variables are called {name}", node)
        return str(name)

    # ------------------------------------------------------------ kinds of sources

    def _table(self, node: exp.Table, join: exp.Join) -> None:
        """Adds a path into a variable, a WITH table or a dataset, in this order of priority."""
        parts = [part.name for part in node.parts]
        name = self._variable_name(node, node.args.get("alias"), parts[-1])
        if any(node.args.get(clause) for clause in ("pivots", "sample", "joins", "when", "hints", "partition")):
            fail("PIVOT and TABLESAMPLE are not supported", node)
        if self.translator.frame.find(parts[0]) is not None:
            self._unnest(self.translator.paths.path(exp.column(*reversed(parts[-4:]))), name, join)
            return
        if len(parts) == 1 and parts[0] in self.translator.relations:
            source, relation = self.translator.relations[parts[0]]
            alias = self.translator.alias(name)
            self._add(
                exp.Table(this=exp.to_identifier(source, quoted=True), alias=_table_alias(alias)),
                alias,
                join,
                name,
                variable(relation, alias),
            )
            return
        dataset = self._find_dataset(parts, node)
        alias = self.translator.alias(name)
        self._add(self.translator.hooks.scan_dataset(dataset, node, alias), alias, join, name, row(alias, dataset.type))

    def _find_dataset(self, parts: Sequence[str], node: exp.Expr) -> Dataset:
        translator = self.translator
        dataverse = parts[0] if len(parts) == 2 else translator.dataverse
        if len(parts) == 1 and parts[0] in translator.hooks.own_datasets:
            return translator.hooks.own_datasets[parts[0]]
        dataset = translator.names.find_dataset(dataverse, parts[-1]) if len(parts) <= 2 else None
        if dataset is None:
            hint = translator.names.suggest_dataset(dataverse, parts[-1]) or f"the dataverse is {dataverse}"
            fail(f"unknown dataset {'.'.join(parts)}", node, hint)
        if translator.depth == 0:
            translator.uses.add(("dataset", dataset.dataverse, dataset.name))
        return dataset

    def _function(self, node: exp.Table, join: exp.Join) -> None:
        """Adds a function in FROM: the catalog's functions are inlined, others must be table functions of Spark."""
        called = node.this
        dataverse = node.args["db"].name if node.args.get("db") else None
        name = called.this if isinstance(called.this, str) else called.this.name
        variable_name = self._variable_name(node, node.args.get("alias"), name)
        function = self.translator.names.find_function(
            dataverse or self.translator.dataverse, name, len(called.expressions)
        )
        if function is None:
            if dataverse is not None:
                self.translator.calls.fail_unknown(dataverse, name, called)
            if self.translator.names.arities(self.translator.dataverse, name):
                self.translator.calls.fail_unknown(self.translator.dataverse, name, called)
            self._native(node, called, join)
            return
        rows = self.translator.subqueries.inline_rows(
            function, [self.translator.expression(argument) for argument in called.expressions], called
        )
        if isinstance(rows, Relation):
            self._relation(rows, variable_name, join)
        else:
            self._unnest(rows, variable_name, join)

    def _native(self, node: exp.Expr, called: exp.Expr, join: exp.Join) -> None:
        """Translates VALUES, range(…) and other table functions of Spark. Spark's analyser returns their columns."""
        alias_node = node.args.get("alias")
        name = alias_node.name if alias_node is not None and alias_node.name else self.translator.alias("rows")
        rows_sql: exp.Expr
        if isinstance(called, exp.Anonymous):
            function = called.name.lower()
            if function not in function_registry.TABLE_FUNCTIONS:
                remedy = function_registry.suggest_function(function, function_registry.TABLE_FUNCTIONS)
                allowed = ", ".join(sorted(function_registry.TABLE_FUNCTIONS))
                fail(f"{called.name[:60]} cannot be called in FROM", called, f"yours, or one of {allowed}; {remedy}")
            rows_sql = exp.Anonymous(
                this=function, expressions=[self._constant(argument) for argument in called.expressions]
            )
        else:
            rows = (item.expressions if isinstance(item, exp.Tuple) else [item] for item in called.expressions)
            rows_sql = exp.Values(
                expressions=[exp.Tuple(expressions=[self._constant(value) for value in row]) for row in rows]
            )
        columns = alias_node.args.get("columns") if alias_node is not None else None
        names = exp.TableAlias(
            this=exp.to_identifier(name, quoted=True),
            columns=[exp.to_identifier(column_.name, quoted=True) for column_ in columns or []] or None,
        )
        source = rows_sql if isinstance(rows_sql, exp.Values) else exp.Table(this=rows_sql)
        source.set("alias", names)
        analysed = self.translator.type_analyser.columns(render_for_analysis(exp.select("*").from_(source.copy())))
        type_ = ObjectType(tuple(Field(name_, kind) for name_, kind in analysed), open=False)
        if any(physical(name_) != name_ for name_, _ in analysed):
            fail("name the columns of this source", node, f"… AS {name}(a, b)")
        query = exp.select(*(exp.column(name_, quoted=True) for name_, _ in analysed)).from_(source)
        self._relation(Relation(query, type_, False), name, join)

    def _constant(self, node: exp.Expr) -> exp.Expr:
        value = self.translator.expression(node)
        if value.sql.find(exp.Column):
            fail("a table function of Spark takes constants here", node, "use UNNEST for arrays of a row")
        # A plain number stays an INT, which some of these functions require.
        inner = node.this if isinstance(node, exp.Neg) else node
        return node.copy() if isinstance(inner, exp.Literal) and not inner.is_string else value.sql

    # ------------------------------------------------------------ joins

    def _relation(self, relation: Relation, name: str, join: exp.Join) -> None:
        """Adds a subquery; it becomes LATERAL if it refers to its neighbours."""
        alias = self.translator.alias(name)
        free = free_tables(relation.query)
        if free & self.translator.block.aliases:
            limited = any(
                select.args.get("limit") or select.args.get("offset")
                for select in relation.query.find_all(exp.Select, exp.SetOperation)
            )
            if limited:
                fail(
                    "a subquery in FROM that refers to its neighbours cannot have a LIMIT",
                    None,
                    "UNNEST an array subquery instead",
                )
            query = import_outer_columns(relation.query, self.translator.block, self.translator.alias)
            source: exp.Expr = exp.Lateral(this=exp.Subquery(this=query), alias=_table_alias(alias))
        else:
            source = exp.Subquery(this=relation.query, alias=_table_alias(alias))
        self._add(source, alias, join, name, variable(relation, alias))

    def _unnest(self, value: TypedSql, name: str, join: exp.Join, outer: bool = False) -> None:
        """Adds the items of an array as rows."""
        items = values.items(TypedSql(value.sql, value.type) if not isinstance(value, RowVariable) else value)
        assert isinstance(items.type, ArrayType)
        if join.args.get("on") is not None and not outer and join.side:
            fail(
                "an array takes part in an outer join by UNNEST, without ON, or as a subquery",
                join.this,
                "LEFT UNNEST a x, or LEFT JOIN (SELECT VALUE x FROM a x) x ON …",
            )
        alias = self.translator.alias(name)
        array = import_outer_columns(items.sql, self.translator.block, self.translator.alias)
        function = values.call("explode_outer" if outer else "explode", array)
        columns = exp.TableAlias(
            this=exp.to_identifier(alias, quoted=True), columns=[exp.to_identifier(VALUE, quoted=True)]
        )
        free = {reference.table for reference in array.find_all(exp.Column) if reference.table}
        item = items.type.item
        element = TypedSql(column(alias, VALUE), t.ANY if item == values.VOID else item)
        source: exp.Expr
        if free:
            source = exp.Lateral(this=function, alias=columns)
        else:
            source = exp.Table(this=function, alias=columns)
        self._add(source, alias, join, name, element, lateral=bool(free))

    def _add(
        self, source: exp.Expr, alias: str, join: exp.Join, name: str, value: TypedSql, *, lateral: bool = False
    ) -> None:
        """Adds a source to the current block, with its variable and its join condition."""
        block = self.translator.block
        self.translator.frame.names[name] = value
        if not name.startswith(" "):
            # No user can write a name that starts with a space, so its fields need no lookup either.
            self.translator.frame.ranges.append(name)
        if block.source is None and not lateral and not isinstance(source, exp.Lateral):
            block.source = source
            block.aliases.add(alias)
            return
        block.aliases.add(alias)
        kind, side = (join.args.get("kind") or "").upper(), (join.args.get("side") or "").upper()
        if join.args.get("method"):
            fail("NATURAL and ASOF joins are not supported", join)
        if side in ("RIGHT", "FULL"):
            for earlier in self.translator.frame.ranges[:-1]:
                self.translator.frame.names[earlier] = nullable_side(self.translator.frame.names[earlier])
        if side in ("LEFT", "FULL"):
            self.translator.frame.names[name] = nullable_side(value)
        translated = exp.Join(this=source, kind=kind or None, side=side or None)
        condition = join.args.get("on")
        if join.args.get("using"):
            condition = self._using(join, name)
        if condition is not None:
            joins = len(block.joins)
            translated.set("on", self.translator.boolean(condition) if isinstance(condition, exp.Expr) else condition)
            if len(block.joins) > joins:
                fail("a subquery cannot stand in ON", join, "put it into WHERE or LET")
        elif not side and kind not in ("SEMI", "ANTI"):
            translated.set("kind", "CROSS")
        elif side:
            fail(f"{side} JOIN needs ON", join.this)
        block.joins.append(translated)

    def _using(self, join: exp.Join, name: str) -> exp.Expr:
        others = [range_ for range_ in self.translator.frame.ranges if range_ != name]
        tests = []
        for shared in join.args["using"]:
            owner = next((other for other in others if self._declares(other, shared.name)), others[-1])
            tests.append(
                exp.EQ(this=exp.column(shared.name, table=owner), expression=exp.column(shared.name, table=name))
            )
        return exp.and_(*tests)

    def _declares(self, name: str, field: str) -> bool:
        type_ = self.translator.frame.names[name].type
        return isinstance(type_, ObjectType) and type_.find(field) is not None

    def _let(self, node: dialect.Let) -> None:
        """Adds a LET. A random or expensive value is computed once per row, in a LATERAL join."""
        name = node.args["alias"].name
        value = self.translator.expression(node.this)
        if is_computed_once(node.this) or is_computed_once(value.sql):
            query = exp.Select(expressions=[exp.alias_(value.sql, VALUE, quoted=True)])
            value = TypedSql(self.hoist(query), value.type)
        self.translator.frame.names[name] = value
        if node.args.get("is_range"):
            self.translator.frame.ranges.append(name)

    def hoist(self, query: exp.Select) -> exp.Expr:
        """Adds a one-row subquery as a LATERAL join of this block; returns the column with its value."""
        alias = self.translator.alias("q")
        block = self.translator.block
        local = import_outer_columns(query, block, self.translator.alias)
        if block.grouped and not free_tables(local):
            return exp.Subquery(this=local)
        if block.grouped:
            raise FunctionError(
                "a subquery behind GROUP BY cannot refer to the rows that were grouped; group in a subquery in FROM"
            )
        if not free_tables(local) and block.source is None:
            block.source = exp.Subquery(this=local, alias=_table_alias(alias))
        else:
            lateral: exp.Expr = exp.Subquery(this=local, alias=_table_alias(alias))
            if free_tables(local):
                lateral = exp.Lateral(this=exp.Subquery(this=local), alias=_table_alias(alias))
            block.joins.append(exp.Join(this=lateral, kind="CROSS"))
        block.aliases.add(alias)
        return column(alias, VALUE)


def from_clause(block: QueryBlock) -> exp.Expr:
    """Returns the first source. If the block imports outer columns, these come first."""
    if not block.imports:
        assert block.source is not None
        return block.source
    imported = [
        exp.alias_(exp.column(name, table=alias, quoted=True), own_name, quoted=True)
        for (alias, name), own_name in block.imports.items()
    ]
    if block.source is not None:
        block.joins.insert(0, exp.Join(this=block.source, kind="CROSS"))
    return exp.Subquery(this=exp.Select(expressions=imported), alias=_table_alias(block.import_alias))


def version_of(node: exp.Table) -> tuple[int | None, Any]:  # noqa: RET503 (fail does not return)
    """Returns the commit number or the instant of AS OF; (None, None) without it."""
    version = node.args.get("version")
    if version is None:
        return None, None
    value = version.expression
    if str(version.this).upper() == "VERSION":
        if isinstance(value, exp.Literal) and not value.is_string and value.this.isdigit():
            return int(value.this), None
        fail("VERSION AS OF needs the number of a commit", version)
    while isinstance(value, exp.Anonymous | exp.Cast | exp.Paren):
        value = value.expressions[0] if isinstance(value, exp.Anonymous) and value.expressions else value.this
    if isinstance(value, exp.Literal) and value.is_string:
        try:
            return None, parse_datetime(value.this)
        except ValueError as error:
            fail(str(error), version)
    fail('TIMESTAMP AS OF needs a datetime such as "2026-11-15T08:30:00Z"', version)


def _table_alias(alias: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(alias, quoted=True))


def scan(name: str, type_: ObjectType, alias: str, extra: Sequence[str] = ()) -> exp.Expr:
    """Returns a scan of a dataset's view. Declared fields of type `any` are stored as text and read as variants.

    `extra` names further columns to read.
    """
    view = exp.Table(this=exp.to_identifier(name, quoted=True))
    if not values.contains_any(type_):
        view.set("alias", _table_alias(alias))
        return view
    columns = [
        (physical(field.name), encoder.from_stored(exp.column(physical(field.name), quoted=True), field.type))
        for field in type_.fields
    ]
    if keeps_open(type_):
        columns.append((OPEN, exp.column(OPEN, quoted=True)))
    columns += [(name, exp.column(name, quoted=True)) for name in extra]
    query = exp.Select(expressions=[exp.alias_(sql, name, quoted=True) for name, sql in columns]).from_(view)
    return exp.Subquery(this=query, alias=_table_alias(alias))


def import_outer_columns(query: Any, block: QueryBlock, alias: Callable[[str], str]) -> Any:
    """Replaces every reference to an outer block by a column that `block` imports."""
    foreign = free_tables(query) - block.aliases - {block.import_alias}
    if not foreign:
        return query
    name = block.import_alias or alias("outer")
    for reference in list(query.find_all(exp.Column)):
        if reference.table in foreign:
            replacement = block.imported(reference, name)
            if reference is query:
                return replacement
            reference.replace(replacement)
    return query
