"""Translates the FROM clause: datasets, subqueries, functions, collections, joins and LET.

A source that refers to its neighbours becomes LATERAL, because Spark's other sources cannot refer to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from sqlglot import exp

from tocsin.language.functions.function_registry import CALLABLE, TABLE_FUNCTIONS, is_computed_once
from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import fail, has_more_parts, make_self_contained
from tocsin.language.translate.from_clause.dataset_scan import table_alias
from tocsin.language.translate.from_clause.outer_columns import import_outer_columns, pass_untyped_columns
from tocsin.language.translate.from_clause.table_functions import translate_spark_rows
from tocsin.language.translate.interfaces import Dataset
from tocsin.language.translate.rewrites.substitution import FIRST_LETS, name_of
from tocsin.language.translate.scope import (
    VALUE,
    NameScope,
    QueryBlock,
    Relation,
    RowVariable,
    WithTable,
    as_table,
    column,
    column_names,
    find_required_column,
    free_tables,
    is_hidden,
    nullable_side,
    row,
    select_query,
    variable,
)
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build
from tocsin.language.types.variant import values
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Field, ObjectType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator


_REPEATED_PARTS = 500  # the nodes of a value that stands wherever its name stands
_PRESENT = "there"  # a column that is never NULL
_POSITION = "pos"
_METADATA = "Metadata"  # the dataverse of the catalog
_INLINED_LIMIT = 64  # uses of the tables of WITH that refer to variables outside of it


class Sources:
    """Translates the FROM clause."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    # ------------------------------------------------------------ the FROM clause

    def add_sources(self, node: exp.Select) -> None:
        sides = {(join.args.get("side") or "").upper() for join in node.args.get("joins") or []}
        self.translator.block.has_outer_join = bool(sides & {"LEFT", "RIGHT", "FULL"})
        for let in node.args.get(FIRST_LETS) or []:
            self._let(let)
        if node.args.get("from_"):
            self._source(node.args["from_"].this, exp.Join())
        for join in node.args.get("joins") or []:
            self._source(join.this, join)

    def _source(self, node: exp.Expr, join: exp.Join) -> None:
        match node:
            case nodes.Let():
                self._let(node)
            case nodes.FromValue():
                self._unnest(
                    self.translator.expression(node.this),
                    self._variable_name(node, node.args.get("alias"), _last_name(node.this)),
                    join,
                    bool(node.args.get("outer")),
                    node=node,
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
                self._spark_rows(node, node, join)
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
            self._unnest(self.translator.paths.path(_path_of(node)), name, join, node=node)
            return
        if len(parts) == 1 and parts[0] in self.translator.relations:
            self._with_table(self.translator.relations[parts[0]], node, name, join)
            return
        dataset = self._find_dataset(parts, node)
        alias = self.translator.alias(name)
        source = self.translator.hooks.scan_dataset(dataset, node, alias)
        present = find_required_column(alias, dataset.type)
        self._add(source, alias, join, name, row(alias, dataset.type), present=present)

    def _with_table(self, table: WithTable, node: exp.Table, name: str, join: exp.Join) -> None:
        translator = self.translator
        if not table.is_correlated:
            alias = translator.alias(name)
            source = exp.Table(this=exp.to_identifier(table.alias, quoted=True), alias=table_alias(alias))
            if translator.block.has_outer_join:
                columns = [(column_, column(alias, column_)) for column_ in column_names(table.relation)]
                relation = Relation(select_query(columns).from_(source), table.relation.type, table.relation.is_value)
                self._relation(relation, name, join)
            else:
                self._add(source, alias, join, name, variable(table.relation, alias))
            return
        translator.inlined_tables += 1
        if translator.inlined_tables > _INLINED_LIMIT:
            fail(f"the tables of WITH are used more than {_INLINED_LIMIT} times", node, "use LET, which is an array")
        saved = translator.frame, translator.relations
        translator.frame, translator.relations = table.frame, table.relations
        try:
            relation = translator.queries.query(table.node.copy(), translator.block)
        finally:
            translator.frame, translator.relations = saved
        self._relation(relation, name, join)

    def number_items(self, node: nodes.NumberedItems) -> TypedSql:
        """Translates the source of an AT to an array of `{item, position}`; positions begin with 1."""
        source = node.this
        if isinstance(source, nodes.FromValue):
            array = self.translator.expression(source.this)
        elif isinstance(source, exp.Table) and self.translator.frame.find(source.parts[0].name) is not None:
            array = self.translator.paths.path(_path_of(source))
        elif (
            isinstance(source, exp.Table)
            and not isinstance(source.this, exp.Anonymous)
            and not (len(source.parts) == 1 and source.name in self.translator.relations)
        ):
            fail("AT numbers the items of an array, and a dataset has no order", source,
                 "FROM (SELECT VALUE x FROM D x ORDER BY …) AS x AT i")  # fmt: skip
        elif isinstance(source, exp.Subquery):
            array = self.translator.subqueries.subquery(exp.Subquery(this=source.this))
        else:
            rows = exp.Select(
                expressions=[nodes.ValueOf(this=exp.column(exp.to_identifier(name_of(source), quoted=True)))]
            )
            array = self.translator.subqueries.subquery(exp.Subquery(this=rows.from_(source)))
        items = values.items(TypedSql(array.sql, array.type) if not isinstance(array, RowVariable) else array)
        assert isinstance(items.type, ArrayType)
        item = t.ANY if items.type.item == values.VOID else items.type.item
        # LEFT UNNEST has a row without an item: an untyped position is MISSING there.
        outer = bool(source.args.get("outer"))
        fields = (Field("item", item), Field("position", t.ANY if outer else t.BIGINT))
        numbered = build(
            "transform(_items, (__item, __i) -> named_struct('item', __item, 'position', CAST(__i + 1 AS {})))".format(
                "VARIANT" if outer else "BIGINT"
            ),
            _items=items.sql,
        )
        return TypedSql(numbered, ArrayType(ObjectType(fields, open=False)))

    def is_dataset(self, parts: Sequence[str]) -> bool:
        """Whether this names a dataset, with or without its dataverse."""
        translator = self.translator
        if len(parts) == 1 and parts[0] in translator.hooks.own_datasets:
            return True
        dataverse = parts[0] if len(parts) == 2 else translator.dataverse
        return translator.names.find_dataset(dataverse, parts[-1]) is not None

    def _find_dataset(self, parts: Sequence[str], node: exp.Expr) -> Dataset:
        translator = self.translator
        dataverse = parts[0] if len(parts) == 2 else translator.dataverse
        if len(parts) == 1 and parts[0] in translator.hooks.own_datasets:
            return translator.hooks.own_datasets[parts[0]]
        dataset = translator.names.find_dataset(dataverse, parts[-1]) if len(parts) <= 2 else None
        if dataset is None:
            self._fail_unknown(parts, node)
        if translator.depth == 0:
            translator.uses.add(("dataset", dataset.dataverse, dataset.name))
        return dataset

    def _fail_unknown(self, parts: Sequence[str], node: exp.Expr) -> NoReturn:
        """Says what a name in FROM could have meant: a dataset, or a path that begins with a variable."""
        translator, name = self.translator, ".".join(parts)
        if parts[0] in translator.relations:
            fail(f"{parts[0]} is a table of WITH, not a record", node, f"FROM {parts[0]} AS x UNNEST x.{parts[1]} …")
        dataverse = parts[0] if len(parts) == 2 else translator.dataverse
        suggested = translator.names.suggest_dataset(dataverse, parts[-1])
        if len(parts) == 2 and parts[0] == _METADATA:
            fail(f"there is no dataset {name}", node, suggested)
        if len(parts) > 1:
            known_names = [known for frame in translator.frame.chain() for known in frame.names if not is_hidden(known)]
            hint = did_you_mean(parts[0], known_names) or suggested or "a path begins with a variable of this query"
            fail(f"unknown name {name}: {parts[0]} is no variable, and no dataverse with such a dataset", node, hint)
        owner = next(
            (own for frame in translator.frame.chain() for own in frame.ranges if self._has(frame, own, name)), None
        )
        hint = suggested or (f"did you mean {owner}.{name}?" if owner else f"the dataverse is {dataverse}")
        fail(f"unknown dataset {name}", node, hint)

    def _has(self, frame: NameScope, variable_name: str, field: str) -> bool:
        type_ = frame.names[variable_name].type
        return isinstance(type_, ObjectType) and type_.find(field) is not None

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
            if name.lower() in CALLABLE - TABLE_FUNCTIONS:
                self._unnest(self.translator.expression(called), variable_name, join, node=called)
            else:
                self._spark_rows(node, called, join)
            return
        rows = self.translator.subqueries.inline_rows(
            function, [self.translator.expression(argument) for argument in called.expressions], called
        )
        if isinstance(rows, Relation):
            self._relation(rows, variable_name, join)
        else:
            self._unnest(rows, variable_name, join, node=called)

    def _spark_rows(self, node: exp.Expr, called: exp.Expr, join: exp.Join) -> None:
        relation, name = translate_spark_rows(node, called, self.translator)
        self._relation(relation, name, join)

    # ------------------------------------------------------------ joins

    def _relation(self, relation: Relation, name: str, join: exp.Join) -> None:
        """Adds a subquery; it becomes LATERAL if it refers to its neighbours."""
        alias = self.translator.alias(name)
        present = None
        if self.translator.block.has_outer_join:
            relation, present = self._marked(relation), column(alias, _PRESENT)
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
            query = pass_untyped_columns(relation.query, self.translator.block, self.translator.alias)
            query = import_outer_columns(query, self.translator.block, self.translator.alias)
            source: exp.Expr = exp.Lateral(this=exp.Subquery(this=query), alias=table_alias(alias))
        else:
            source = exp.Subquery(this=relation.query, alias=table_alias(alias))
        self._add(source, alias, join, name, variable(relation, alias), present=present)

    def _marked(self, relation: Relation) -> Relation:
        """Adds a column that is NULL where an outer join finds no row; every other column may be NULL in a row."""
        alias = self.translator.alias("side")
        columns = [(name, column(alias, name)) for name in column_names(relation)]
        query = select_query([*columns, (_PRESENT, exp.true())]).from_(as_table(relation.query, alias))
        return Relation(query, relation.type, relation.is_value)

    def _unnest(
        self, value: TypedSql, name: str, join: exp.Join, outer: bool = False, *, node: exp.Expr | None = None
    ) -> None:
        """Adds the items of an array as rows."""
        try:
            items = values.items(TypedSql(value.sql, value.type) if not isinstance(value, RowVariable) else value)
        except FunctionError as error:
            remedy = f"put the value into brackets: FROM [value] AS {name}"
            fail(f"FROM reads arrays, datasets and subqueries: {error}", node, remedy)
        assert isinstance(items.type, ArrayType)
        if join.args.get("on") is not None and not outer and join.side:
            fail(
                "an array takes part in an outer join by UNNEST, without ON, or as a subquery",
                join.this,
                "LEFT UNNEST a x, or LEFT JOIN (SELECT VALUE x FROM a x) x ON …",
            )
        alias = self.translator.alias(name)
        array = import_outer_columns(items.sql, self.translator.block, self.translator.alias)
        item = t.ANY if items.type.item == values.VOID else items.type.item
        element = TypedSql(column(alias, VALUE), item)
        # An untyped SQL NULL is MISSING; for other types the position tells whether there is an item.
        has_position = (outer or self.translator.block.has_outer_join) and item != t.ANY
        generator = ("pos" if has_position else "") + ("explode_outer" if outer else "explode")
        function = values.call(generator, array)
        names = ([_POSITION] if has_position else []) + [VALUE]
        columns = exp.TableAlias(
            this=exp.to_identifier(alias, quoted=True),
            columns=[exp.to_identifier(name_, quoted=True) for name_ in names],
        )
        present = exp.Not(this=exp.Is(this=column(alias, _POSITION), expression=exp.null())) if has_position else None
        if outer and present is not None:
            element = nullable_side(element, present)
        free = free_tables(array)
        source: exp.Expr
        if free:
            source = exp.Lateral(this=function, alias=columns)
        else:
            source = exp.Table(this=function, alias=columns)
        self._add(source, alias, join, name, element, lateral=bool(free), present=present)

    def _add(
        self, source: exp.Expr, alias: str, join: exp.Join, name: str, value: TypedSql, *, lateral: bool = False,
        present: exp.Expr | None = None,
    ) -> None:  # fmt: skip
        """Adds a source to the current block, with its variable and its join condition.

        `present` is a column or condition that is NULL or false where an outer join finds no row of the source.
        """
        block = self.translator.block
        if present is not None:
            is_there = present if not isinstance(present, exp.Column) else exp.Paren(
                this=exp.Not(this=exp.Is(this=present, expression=exp.null())))  # fmt: skip
            block.presence[name] = is_there
        block.note_columns(value, alias)
        self.translator.frame.names[name] = value
        if not is_hidden(name):
            # A script cannot name a hidden variable, so it cannot name its fields without prefix either.
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
                self._make_nullable(earlier)
        if side in ("LEFT", "FULL"):
            self._make_nullable(name)
        translated = exp.Join(this=source, kind=kind or None, side=side or None)
        condition = join.args.get("on")
        if join.args.get("using"):
            condition = self._translate_using(join, name)
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

    def _make_nullable(self, name: str) -> None:
        names, present = self.translator.frame.names, self.translator.block.presence.get(name)
        if present is not None:
            names[name] = nullable_side(names[name], present)

    def _translate_using(self, join: exp.Join, name: str) -> exp.Expr:
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

    def _let(self, node: nodes.Let) -> None:
        """Adds a LET. A random or expensive value is computed once per row, in a LATERAL join."""
        name = node.args["alias"].name
        value = self.translator.expression(node.this)
        # A large value is computed once, too: each use of its name would repeat it, and names of names multiply.
        is_large = not isinstance(value, RowVariable) and has_more_parts(value.sql, _REPEATED_PARTS)
        if is_computed_once(node.this) or is_computed_once(value.sql) or is_large:
            value = make_self_contained(value)
            query = exp.Select(expressions=[exp.alias_(value.sql, VALUE, quoted=True)])
            value = TypedSql(self.hoist(query, value.type), value.type)
        self.translator.frame.names[name] = value
        if node.args.get("is_range"):
            self.translator.frame.ranges.append(name)

    def hoist(self, query: exp.Select, type_: Type) -> exp.Expr:
        """Adds a one-row subquery as a LATERAL join of this block; returns the column with its value."""
        alias = self.translator.alias("q")
        block = self.translator.block
        local = import_outer_columns(query, block, self.translator.alias)
        if block.grouped and not free_tables(local):
            return exp.Subquery(this=local)
        if block.grouped:
            raise FunctionError(
                "a subquery beside an aggregate cannot refer to the rows that were aggregated; "
                "aggregate in a subquery in FROM, or use GROUP BY and GROUP AS"
            )
        local = pass_untyped_columns(local, block, self.translator.alias)
        if not free_tables(local) and block.source is None:
            block.source = exp.Subquery(this=local, alias=table_alias(alias))
        else:
            lateral: exp.Expr = exp.Subquery(this=local, alias=table_alias(alias))
            if free_tables(local):
                lateral = exp.Lateral(this=exp.Subquery(this=local), alias=table_alias(alias))
            block.joins.append(exp.Join(this=lateral, kind="CROSS"))
        block.aliases.add(alias)
        block.note_columns(TypedSql(column(alias, VALUE), type_), alias)
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
    return exp.Subquery(this=exp.Select(expressions=imported), alias=table_alias(block.import_alias))


def _last_name(node: exp.Expr) -> str | None:
    """Returns the name of a path's last step, which is the default variable."""
    return node.name if isinstance(node, exp.Column | exp.Dot) else None


def _path_of(node: exp.Table) -> exp.Expr:
    """Returns a source in FROM as a path."""
    first, *steps = node.parts
    path: exp.Expr = exp.column(first.copy())
    for step in steps:
        path = exp.Dot(this=path, expression=step.copy())
    return path
