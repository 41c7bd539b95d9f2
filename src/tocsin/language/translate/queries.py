"""Translates whole queries: WITH, set operations, SELECT with its clauses, and DISTINCT.

ORDER BY and LIMIT inside a subquery that yields an array become operations on the collected list, because Spark answers
a LIMIT under a correlated equality wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlglot import exp

from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import PARTS_LIMIT, align, fail, has_more_parts
from tocsin.language.translate.filter_pushdown import push_down_filters
from tocsin.language.translate.from_clause.sources import from_clause
from tocsin.language.translate.projection import SortKey, aggregates
from tocsin.language.translate.rewrites.group_subqueries import separate_groups
from tocsin.language.translate.rewrites.substitution import FIRST_LETS, unwrap_query
from tocsin.language.translate.rewrites.with_clause import separate_values
from tocsin.language.translate.scope import (
    VALUE,
    QueryBlock,
    Relation,
    RowVariable,
    WithTable,
    as_table,
    column,
    column_names,
    select_query,
    variable,
)
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.language.types.variant import encoder, values
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import Field, ObjectType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator

# The clauses that this language has, by sqlglot's names. Any other clause is an error.
_KNOWN_CLAUSES = {
    "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "distinct", "with_",
    "kind", "hint", "windows", "operation_modifiers", "group_lets", FIRST_LETS,
}  # fmt: skip


# How often a set operation has a row that is `_here` and `_there` so often, by operation and DISTINCT.
_OCCURRENCES: dict[tuple[type[exp.Expr], bool], str] = {
    (exp.Union, True): "1",
    (exp.Intersect, True): "if(_here > 0 AND _there > 0, 1, 0)",
    (exp.Intersect, False): "CAST(least(_here, _there) AS INT)",
    (exp.Except, True): "if(_there = 0, 1, 0)",
    (exp.Except, False): "CAST(greatest(_here - _there, 0) AS INT)",
}
_SIDE = "side"
_COUNTS = ("here", "there")


class Queries:
    """Translates whole queries."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    def query(self, node: exp.Expr, outer: QueryBlock | None) -> Relation:
        node = separate_values(unwrap_query(node))
        with self.tables_of(node) as tables:
            if isinstance(node, exp.SetOperation):
                relation = self._set_operation(node, outer)
            elif isinstance(node, exp.Select):
                relation = self.select(node, outer)
            else:
                fail("a query was expected here", node)
        if tables:
            relation.query.set("with_", exp.With(expressions=tables))
        return relation

    @contextmanager
    def tables_of(self, node: exp.Expr) -> Iterator[list[exp.Expr]]:
        """Translates the WITH clause. Its tables are in scope inside of the context."""
        saved = dict(self.translator.relations)
        tables: list[exp.Expr] = []
        clause = node.args.get("with_")
        if clause is not None and clause.args.get("recursive"):
            fail("WITH RECURSIVE is not supported", clause, "join the dataset with itself, once per level")
        for cte in clause.expressions if clause is not None else []:
            if cte.args["alias"].args.get("columns"):
                fail("name the columns of a WITH in its SELECT list", cte, "WITH x AS (SELECT a AS b …)")
            alias = self.translator.alias(cte.alias)
            relation = self.query(cte.this, self.translator.block)
            table = WithTable(alias, relation, cte.this, self.translator.frame, dict(self.translator.relations))
            if not table.is_correlated:
                name = exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
                tables.append(exp.CTE(this=relation.query, alias=name))
            self.translator.relations[cte.alias] = table
        try:
            yield tables
        finally:
            self.translator.relations = saved

    def _set_operation(self, node: exp.SetOperation, outer: QueryBlock | None) -> Relation:
        left, right = self.query(node.this, outer), self.query(node.expression, outer)
        if node.args.get("by_name") or node.args.get("side"):
            fail("only UNION, INTERSECT and EXCEPT by position are supported", node)
        left, right = self._align_sides(left, right, node)
        is_all = isinstance(node, exp.Union) and not node.args.get("distinct")
        if values.contains_any(left.type) and not is_all:
            return self._untyped_set_operation(node, left, right)
        operation = type(node)(this=left.query, expression=right.query, distinct=node.args.get("distinct"))
        self.translator.projection.add_order(operation, node, self.translator.projection.by_output(left))
        return Relation(operation, left.type, left.is_value)

    def _untyped_set_operation(self, node: exp.SetOperation, left: Relation, right: Relation) -> Relation:
        """Translates UNION, INTERSECT and EXCEPT of untyped values, which Spark cannot compare: counts how often each
        value is on each side, by the keys of the values, and repeats it as often as the result has it."""
        sides = []
        for relation, number in ((left, 0), (right, 1)):
            alias = self.translator.alias("side")
            parts = [(name, column(alias, name)) for name in column_names(relation)]
            marked = select_query([*parts, (_SIDE, exp.Literal.number(number))])
            sides.append(marked.from_(as_table(relation.query, alias)))
        both = self.translator.alias("both")
        columns, keys = self._grouped_columns(left, both)
        counts = [
            values.call("count_if", exp.EQ(this=column(both, _SIDE), expression=exp.Literal.number(number)))
            for number in (0, 1)
        ]
        grouped = select_query([*columns, *zip(_COUNTS, counts, strict=True)]).from_(
            as_table(exp.Union(this=sides[0], expression=sides[1], distinct=False), both)
        )
        grouped.set("group", exp.Group(expressions=keys))
        once, times = self.translator.alias("once"), self.translator.alias("times")
        here, there = (column(once, name) for name in _COUNTS)
        wanted = _OCCURRENCES[type(node), bool(node.args.get("distinct"))]
        repeated = values.call(
            "explode", values.call("array_repeat", exp.Literal.number(0), build(wanted, _here=here, _there=there))
        )
        names = exp.TableAlias(
            this=exp.to_identifier(times, quoted=True), columns=[exp.to_identifier("n", quoted=True)]
        )
        result = select_query([(name, column(once, name)) for name, _ in columns]).from_(as_table(grouped, once))
        result.set("joins", [exp.Join(this=exp.Lateral(this=repeated, alias=names), kind="CROSS")])
        self.translator.projection.add_order(result, node, self.translator.projection.by_output(left))
        return Relation(result, left.type, left.is_value)

    def _align_sides(self, left: Relation, right: Relation, node: exp.Expr) -> tuple[Relation, Relation]:
        """Returns both sides with equal columns. Different types become the wider number, or untyped."""
        sides = []
        for relation in (left, right):
            alias = self.translator.alias("side")
            row_value = variable(relation, alias)
            if isinstance(row_value, RowVariable):
                assert isinstance(relation.type, ObjectType)
                if keeps_open(relation.type):
                    columns = [TypedSql(row_value.sql, relation.type)]
                else:
                    columns = [TypedSql(column(alias, physical(part.name)), part.type) for part in relation.type.fields]
            else:
                columns = [row_value]
            sides.append((relation, alias, columns))
        (relation, a, left_columns), (other, b, right_columns) = sides
        if relation.type == other.type and relation.is_value == other.is_value:
            return relation, other
        if len(left_columns) != len(right_columns) or relation.is_value != other.is_value:
            fail("both sides of a set operation need the same number of columns", node)
        types, first, second = [], [], []
        for left_column, right_column in zip(left_columns, right_columns, strict=True):
            type_, (left_sql, right_sql) = align([left_column, right_column])
            types.append(type_)
            first.append(left_sql)
            second.append(right_sql)
        if not relation.is_value and isinstance(relation.type, ObjectType) and not keeps_open(relation.type):
            fields = [part.name for part in relation.type.fields]
            result: Type = ObjectType(tuple(Field(n, k) for n, k in zip(fields, types, strict=True)), open=False)
            names, is_value = [physical(name) for name in fields], False
        else:
            result, names, is_value = types[0], [VALUE], True
        return (
            Relation(
                select_query(list(zip(names, first, strict=True))).from_(as_table(relation.query, a)), result, is_value
            ),
            Relation(
                select_query(list(zip(names, second, strict=True))).from_(as_table(other.query, b)), result, is_value
            ),
        )

    @contextmanager
    def _inside(self, block: QueryBlock) -> Iterator[None]:
        outer, self.translator.block = self.translator.block, block
        try:
            with self.translator.inner_scope({}):
                yield
        finally:
            self.translator.block = outer

    def select(self, node: exp.Select, outer: QueryBlock | None, collected: list[SortKey] | None = None) -> Relation:
        """Translates a SELECT. With `collected`, sort keys go there and into columns k0, k1, …, not into ORDER BY."""
        for clause, value in node.args.items():
            if value and clause not in _KNOWN_CLAUSES:
                fail(f"{clause.strip('_').upper()} is not supported", value if isinstance(value, exp.Expr) else node)
        translator, projection = self.translator, self.translator.projection
        node = separate_groups(node, translator.subqueries.has_query)
        block = QueryBlock(outer)
        with self._inside(block):
            translator.sources.add_sources(node)
            where = node.args.get("where")
            condition = translator.boolean(where.this) if where else None
            group = projection.group(node)
            block.grouped = group is not None or any(aggregates(item) for item in node.expressions)
            for let in node.args.get("group_lets") or []:
                value = translator.expression(let.this)
                if has_more_parts(value.sql, PARTS_LIMIT):
                    fail("this LET after GROUP BY has too many parts", let, "group in a subquery in FROM")
                translator.frame.names[let.args["alias"].name] = value
            output = projection.project(node, as_value=collected is not None)
            having = translator.boolean(node.args["having"].this) if node.args.get("having") else None
            query = select_query(output.columns)
            is_distinct = bool(node.args.get("distinct"))
            if collected is None and not (is_distinct and values.contains_any(output.type)):
                self.translator.projection.add_order(query, node, self.translator.projection.by_output(output))
            elif collected is not None:
                for i, key in enumerate(projection.sort_keys(node, self.translator.projection.by_output(output))):
                    collected.append(key)
                    query = query.select(exp.alias_(key.sql, f"k{i}", quoted=True), copy=False)
            if condition is not None and outer is not None:
                translator.hooks.import_outer(condition)
            if block.imports or block.source is not None:
                query = query.from_(from_clause(block), copy=False)
                query.set("joins", block.joins or None)
            if condition is not None:
                query.set("where", exp.Where(this=condition))
            if having is not None:
                query.set("having", exp.Having(this=having))
            if group is not None:
                query.set("group", projection.replace_untyped_keys(query, group))
        query = push_down_filters(translator.hooks.add_join_keys(query), self.translator.alias("base"))
        relation = Relation(query, output.type, output.is_value)
        return self._make_distinct(relation, node) if is_distinct else relation

    def row(self, node: nodes.RowOf) -> TypedSql:
        output = self.translator.projection.project(exp.Select(expressions=node.expressions), as_value=True)
        return TypedSql(output.columns[0][1], output.type)

    def place(self, node: nodes.PlaceOf) -> TypedSql:
        """Translates the position of a row among the rows of its interest to row_number()."""
        group = self.translator.expression(node.this).sql
        keys = list(
            self.translator.projection.sort_keys(
                exp.Select(order=exp.Order(expressions=node.expressions)), lambda _: None
            )
        )
        order = [exp.Ordered(this=key.sql, desc=key.descending, nulls_first=key.nulls_first) for key in keys]
        window = exp.Window(
            this=exp.Anonymous(this="row_number"), partition_by=[group],
            order=exp.Order(expressions=order or [exp.Ordered(this=group.copy())]),
        )  # fmt: skip
        return TypedSql(exp.cast(window, "BIGINT"), t.BIGINT)

    def _make_distinct(self, relation: Relation, node: exp.Select) -> Relation:
        """Applies DISTINCT, also to untyped values."""
        if node.args["distinct"].args.get("on"):
            fail("DISTINCT ON is not supported", node)
        if not values.contains_any(relation.type):
            relation.query.set("distinct", exp.Distinct())
            return relation
        # Spark cannot compare untyped values, so group by their keys and keep any value of each group.
        inner = self.translator.alias("all")
        columns, keys = self._grouped_columns(relation, inner)
        grouped = select_query(columns).from_(as_table(relation.query, inner))
        grouped.set("group", exp.Group(expressions=keys))
        outer = self.translator.alias("once")
        result = select_query([(name, column(outer, name)) for name, _ in columns])
        result = result.from_(as_table(grouped, outer))
        self.translator.projection.add_order(result, node, self.translator.projection.by_output(relation))
        return Relation(result, relation.type, relation.is_value)

    def _grouped_columns(self, relation: Relation, alias: str) -> tuple[list[tuple[str, exp.Expr]], list[exp.Expr]]:
        """Returns the columns of a group of equal rows, and the keys to group the rows by."""
        if isinstance(variable(relation, alias), RowVariable):
            assert isinstance(relation.type, ObjectType)
            pairs = [(physical(field.name), field.type) for field in relation.type.fields]
            pairs += [(OPEN, t.STRING)] if keeps_open(relation.type) else []
        else:
            pairs = [(VALUE, relation.type)]
        columns: list[tuple[str, exp.Expr]] = []
        keys: list[exp.Expr] = []
        for name, kind in pairs:
            value = column(alias, name)
            if kind == t.ANY:
                keys += [values.key(value), values.is_explicit_null(value)]
            else:
                keys.append(encoder.to_answer(TypedSql(value, kind)).copy())
            columns.append((name, values.call("any_value", value) if values.contains_any(kind) else value))
        return columns, keys
