"""Translates subqueries as values, and inlines the bodies of the catalog's functions at their calls.

A subquery becomes a LATERAL join that collects its rows, because Spark has no correlated subquery that yields an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlglot import exp

from tocsin.language.functions import temporal
from tocsin.language.functions.function_registry import ONCE
from tocsin.language.syntax import nodes
from tocsin.language.syntax.script import parse_body
from tocsin.language.translate.expressions import PARTS_LIMIT, TranslationError, fail, has_more_parts
from tocsin.language.translate.from_clause.outer_columns import import_outer_columns, pass_untyped_columns
from tocsin.language.translate.interfaces import Function
from tocsin.language.translate.paths import field_of
from tocsin.language.translate.predicate_notes import is_filter
from tocsin.language.translate.projection import SortKey, comparator
from tocsin.language.translate.rewrites.substitution import unwrap_query
from tocsin.language.translate.rewrites.with_clause import separate_values
from tocsin.language.translate.scope import (
    VALUE,
    NameScope,
    Relation,
    RowVariable,
    as_table,
    column,
    hidden_name,
    select_query,
    variable,
)
from tocsin.language.types import comparable_types
from tocsin.language.types.output_types import to_output_type
from tocsin.language.types.typed_sql import TypedSql, build, enclose
from tocsin.language.types.variant import encoder, values
from tocsin.language.types.variant import operators as untyped
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import physical
from tocsin.rules.model.types import ArrayType, ObjectType

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator

_DEPTH_LIMIT = 32  # the depth of functions that call functions


class Subqueries:
    """Translates subqueries as values, and inlines functions of the catalog."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    # ------------------------------------------------------------ subqueries as values

    def subquery(self, node: exp.Query) -> TypedSql:
        """Returns the subquery's rows as an array, or a single value where only one fits: `x = (SELECT max(y) …)`."""
        inner = unwrap_query(node)
        collected = self._collect(inner)
        enclosing: exp.Expr = node
        while isinstance(enclosing.parent, exp.Subquery | exp.Paren):
            enclosing = enclosing.parent
        if (
            isinstance(inner, exp.Select)
            and len(inner.expressions) == 1
            and not isinstance(inner.expressions[0], nodes.ValueOf)
            and isinstance(enclosing.parent, exp.Binary | exp.Between | exp.Neg | exp.In)
            and not isinstance(enclosing.parent, exp.Dot | exp.Connector)
        ):
            return _only_value(collected, inner)
        return collected

    def _collect(self, node: exp.Expr) -> TypedSql:
        """Translates a subquery to an array: a LATERAL join collects its rows."""
        keys: list[SortKey] = []
        outer = self.translator.block
        limit = offset = None
        node = separate_values(node)
        if isinstance(node, exp.Select) and not node.args.get("distinct"):
            with self.translator.queries.tables_of(node) as tables:
                relation = self.translator.queries.select(node, outer, keys)
                limit, offset = self.translator.projection.bounds(node, computed=True)
            if tables:
                relation.query.set("with_", exp.With(expressions=tables))
        else:
            if node.args.get("order") or node.args.get("limit"):
                fail(
                    "ORDER BY and LIMIT beside DISTINCT or UNION need a query of their own here",
                    node,
                    "SELECT VALUE x FROM (…) x ORDER BY …",
                )
            relation = self.translator.queries.query(node, outer)
        alias = self.translator.alias("each")
        row_value = variable(relation, alias)
        # collect_list drops NULLs; a struct around each value keeps them.
        parts = [(f"k{i}", column(alias, f"k{i}")) for i in range(len(keys))] + [("v", row_value.sql)]
        plain = not keys and isinstance(row_value.type, ObjectType)
        array = values.call("collect_list", row_value.sql if plain else values.record(parts))
        if keys:
            array = exp.Anonymous(this="array_sort", expressions=[array, comparator(keys)])
        # Spark's aggregates cannot refer to an outer query, so a bound of an outer row cuts the collected array.
        is_outer = any(bound is not None and bound.find(exp.Column) for bound in (limit, offset))
        if not is_outer:
            array = _between(array, limit, offset)
        if not plain:
            array = build("transform(_l, __e -> __e.v)", _l=array)
        query = select_query([(VALUE, array)]).from_(as_table(relation.query, alias))
        type_ = ArrayType(row_value.type)
        hoisted = self.translator.sources.hoist(query, type_)
        return TypedSql(_between(hoisted, limit, offset) if is_outer else hoisted, type_)

    def exists_query(self, node: exp.Query) -> TypedSql:
        relation = self.translator.queries.query(node, self.translator.block)
        query = pass_untyped_columns(relation.query, self.translator.block, self.translator.alias)
        query = import_outer_columns(query, self.translator.block, self.translator.alias)
        return TypedSql(exp.Exists(this=query), t.BOOLEAN)

    def in_query(self, value: TypedSql, node: exp.In) -> TypedSql:
        relation = self.translator.queries.query(node.args["query"], self.translator.block)
        alias = self.translator.alias("among")
        row_value = variable(relation, alias)
        if isinstance(row_value, RowVariable):
            assert isinstance(relation.type, ObjectType)
            if len(relation.type.fields) != 1:
                fail("IN needs a subquery of one column", node)
            row_value = TypedSql(column(alias, physical(relation.type.fields[0].name)), relation.type.fields[0].type)
        left_sql, right_sql = value.sql, row_value.sql
        if not comparable_types.is_comparable(value.type, row_value.type, by_order=False):
            left_sql, right_sql = values.null(t.BOOLEAN), exp.true()  # no row is equal or unequal
        elif t.ANY in (value.type, row_value.type) or comparable_types.is_structured(value.type):
            left_sql, right_sql = _keys(value, row_value)
        query = select_query([(VALUE, right_sql)]).from_(as_table(relation.query, alias))
        unknown = None
        if not _decides_rows(node, of_any_kind=value.type == row_value.type == t.ANY):
            unknown = self._is_unknown(left_sql, query.copy(), by_kind=value.type == row_value.type == t.ANY)
        query = pass_untyped_columns(query, self.translator.block, self.translator.alias)
        query = import_outer_columns(query, self.translator.block, self.translator.alias)
        test: exp.Expr = exp.In(this=enclose(left_sql), query=exp.Subquery(this=query))
        if unknown is not None:
            ifs = [exp.If(this=test, true=exp.true()), exp.If(this=unknown, true=values.null(t.BOOLEAN))]
            test = exp.Case(ifs=ifs, default=exp.false())
        return TypedSql(exp.Paren(this=test), t.BOOLEAN)

    def _is_unknown(self, left: exp.Expr, query: exp.Select, *, by_kind: bool) -> exp.Expr:
        """Whether IN is unknown, unless it is true: Spark answers false where IN decides about no row.

        `query` has the column VALUE with what IN compares; `by_kind` says that this is a key of untyped values.
        """
        alias = self.translator.alias("found")
        key = column(alias, VALUE)
        kinds = untyped.kind_of_key(key) if by_kind else values.null(t.STRING)
        summary = values.record([
            ("rows", values.call("count", exp.Literal.number(1))), ("known", values.call("count", key)),
            ("kinds", values.call("collect_set", kinds)),
        ])  # fmt: skip
        found = self.translator.sources.hoist(select_query([(VALUE, summary)]).from_(as_table(query, alias)), t.BOOLEAN)
        kind = untyped.kind_of_key(left) if by_kind else values.null(t.STRING)
        return build(
            "_f.rows > 0 AND (_left IS NULL OR _f.known < _f.rows OR exists(_f.kinds, __k -> __k <> _kind))",
            _f=found, _left=left, _kind=kind,
        )  # fmt: skip

    # ------------------------------------------------------------ functions of the catalog

    @contextmanager
    def _body(self, function: Function, arguments: Sequence[TypedSql], node: exp.Expr) -> Iterator[exp.Expr]:
        """Parses a function's body. Inside of the context only the function's parameters are in scope."""
        translator = self.translator
        self._note_function(function)
        if translator.depth >= _DEPTH_LIMIT:
            fail(f"functions call each other more than {_DEPTH_LIMIT} deep at {function.name}", node)
        saved = translator.frame, translator.dataverse, translator.relations
        translator.frame = NameScope(dict(zip(function.parameters, arguments, strict=True)))
        translator.dataverse, translator.relations = function.dataverse, {}
        translator.depth += 1
        try:
            yield _body_of(function)
        except TranslationError as error:
            fail(f"in function {function.name}: {error.message}", node, error.hint)
        finally:
            translator.depth -= 1
            translator.frame, translator.dataverse, translator.relations = saved

    def _note_function(self, function: Function) -> None:
        if self.translator.depth == 0:
            name = f"{function.name}@{len(function.parameters)}"
            self.translator.uses.add(("function", function.dataverse, name))

    def _call_python(self, function: Function, arguments: Sequence[TypedSql]) -> TypedSql:
        """Calls a Python function. Arguments have the form of query output; the result has the form of stored data."""
        self._note_function(function)
        outgoing = [to_output_type(TypedSql(argument.sql, argument.type)) for argument in arguments]
        name = self.translator.hooks.call_name(function, [argument.type for argument in outgoing])
        # Spark cannot call a Python function without arguments.
        sqls = [encoder.to_answer(argument) for argument in outgoing] or [exp.Literal.number(0)]
        call = values.call(name, *sqls)
        call.meta[ONCE] = True
        return TypedSql(encoder.from_stored(call, function.returns), function.returns)

    def rows_of_call(self, node: exp.Expr) -> Relation | None:
        """Translates a call that stands for a whole statement, if it calls a function whose body is a query."""
        called = node.expression if isinstance(node, exp.Dot) else node
        function = self._find_called(called)
        if function is None or not isinstance(_body_of(function), exp.Query):
            return None
        if any(argument.find(exp.Query) for argument in called.expressions):
            # The arguments need a FROM in which their subqueries are computed.
            name = exp.to_identifier(hidden_name("rows"), quoted=True)
            db = node.this.this.copy() if isinstance(node, exp.Dot) else None
            source = exp.Table(this=called.copy(), db=db, alias=exp.TableAlias(this=name))
            rows = exp.Select(expressions=[nodes.ValueOf(this=exp.column(name.copy()))]).from_(source)
            return self.translator.queries.query(rows, None)
        arguments = [self.translator.expression(argument) for argument in called.expressions]
        relation = self.inline_rows(function, arguments, called)
        assert isinstance(relation, Relation)
        return relation

    def _find_called(self, node: exp.Expr) -> Function | None:
        """Returns the function in SQL that a call names, as `f(…)` or `dataverse.f(…)`."""
        if not isinstance(node, exp.Anonymous):
            return None
        qualified = node.parent if isinstance(node.parent, exp.Dot) and node.parent.expression is node else None
        dataverse = qualified.this.name if qualified is not None else self.translator.dataverse
        name = node.this if isinstance(node.this, str) else node.this.name
        function = self.translator.names.find_function(dataverse, name, len(node.expressions))
        return function if function is not None and function.language == "SQL" else None

    def has_query(self, node: exp.Expr) -> bool:
        """Whether an expression contains a subquery, or calls a function whose body contains one."""
        if node.find(exp.Query) is not None:
            return True
        functions = (self._find_called(call) for call in node.find_all(exp.Anonymous))
        return any(function is not None and _body_of(function).find(exp.Query, exp.Anonymous) for function in functions)

    def inline(self, function: Function, arguments: Sequence[TypedSql], node: exp.Expr) -> TypedSql:
        if function.language == "PYTHON":
            return self._call_python(function, arguments)
        with self._body(function, arguments, node) as body:
            value = self._collect(body) if isinstance(body, exp.Query) else self.translator.expression(body)
        if has_more_parts(value.sql, PARTS_LIMIT):
            fail(
                f"a call of {function.name} has too many parts",
                node,
                "name the argument with LET, which computes it once",
            )
        return value

    def inline_rows(self, function: Function, arguments: Sequence[TypedSql], node: exp.Expr) -> Relation | TypedSql:
        """Translates a function in FROM to its query's rows, or to the value of its expression, which is unnested."""
        if function.language == "PYTHON":
            return self._call_python(function, arguments)
        with self._body(function, arguments, node) as body:
            return (
                self.translator.queries.query(body, self.translator.block)
                if isinstance(body, exp.Query)
                else self.translator.expression(body)
            )


def _between(array: exp.Expr, limit: exp.Expr | None, offset: exp.Expr | None) -> exp.Expr:
    """Returns the items that LIMIT and OFFSET keep. A bound that is negative or unknown in a row is 0."""
    if limit is None and offset is None:
        return array

    def clamp(given: exp.Expr) -> exp.Expr:
        # greatest ignores NULL.
        return given if isinstance(given, exp.Literal) else values.call("greatest", given, exp.Literal.number(0))

    start: exp.Expr = exp.Literal.number(1)
    if offset is not None:
        start = exp.Add(this=clamp(offset).copy(), expression=start)
    return values.call("slice", array, start, exp.Literal.number(2**31 - 2) if limit is None else clamp(limit))


def _body_of(function: Function) -> exp.Expr:
    return unwrap_query(parse_body(function.body))


def _decides_rows(node: exp.In, *, of_any_kind: bool) -> bool:
    """Whether `x IN (SELECT …)`, or its negation, only decides which rows a query has. There Spark answers rightly;
    under NOT, two values of different kinds would be unequal."""
    if is_filter(node):
        return True
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    return isinstance(parent, exp.Not) and is_filter(parent) and not of_any_kind


def _keys(value: TypedSql, row_value: TypedSql) -> list[exp.Expr]:
    """Returns what IN compares where a side is untyped. An untyped value of another kind than the other side is NULL,
    because it is neither equal nor unequal."""
    kinds = {value.type, row_value.type} - {t.ANY, VOID}
    keys = [values.key(encoder.to_any(side)) for side in (value, row_value)]
    if len(kinds) != 1 or comparable_types.is_structured(only := kinds.pop()):
        return keys
    if only in t.NUMBERS:
        return [
            values.when(values.number(side.sql), key) if side.type == t.ANY else key
            for side, key in zip((value, row_value), keys, strict=True)
        ]
    sides = [
        TypedSql(values.exactly(side.sql, only) if side.type == t.ANY else side.sql, only)
        for side in (value, row_value)
    ]
    return [temporal.order_key(side) or side.sql for side in sides]


def _only_value(collected: TypedSql, node: exp.Expr) -> TypedSql:
    assert isinstance(collected.type, ArrayType)
    assert isinstance(collected.type.item, ObjectType)
    only = build(
        "if(size(_a) > 1, raise_error('a subquery that stands for one value yields several'), get(_a, 0))",
        _a=collected.sql,
    )
    return field_of(TypedSql(only, collected.type.item), collected.type.item.fields[0].name, node)
