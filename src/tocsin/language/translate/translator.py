"""Translates a query to Spark SQL: the state of one translation, and the table of which part translates which node.

A new operator or expression gets a line in `handlers`; a new clause belongs to `queries.py` or `projection.py`, a new
source to `sources.py`, a new function to `functions/function_registry.py`, and a new statement to `syntax/parser.py`.
The parts share the state and call each other through the translator, so that each can be read by itself.

Every variable gets a unique alias, so a name in an inlined function cannot capture a name of its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from sqlglot import exp

from tocsin.language.functions import text_functions
from tocsin.language.functions.function_registry import CHANNEL_TIMES
from tocsin.language.syntax import nodes
from tocsin.language.translate.active_records import active_time, active_variable, check_channel_time
from tocsin.language.translate.calls import FunctionCalls
from tocsin.language.translate.expressions import Expressions, convert, fail
from tocsin.language.translate.from_clause.dataset_scan import scan, version_of
from tocsin.language.translate.from_clause.sources import Sources
from tocsin.language.translate.interfaces import (
    Dataset,
    DatasetScans,
    Function,
    NameLookup,
    TranslationHooks,
    TypeAnalyser,
)
from tocsin.language.translate.operators import ARITHMETIC, COMPARISONS, Operators
from tocsin.language.translate.paths import Paths
from tocsin.language.translate.projection import Projection
from tocsin.language.translate.queries import Queries
from tocsin.language.translate.rewrites.substitution import unwrap_query
from tocsin.language.translate.scope import (
    VALUE,
    NameScope,
    QueryBlock,
    Relation,
    RowVariable,
    WithTable,
    as_table,
    column,
    select_query,
    variable,
)
from tocsin.language.translate.spark_text import render
from tocsin.language.translate.subqueries import Subqueries
from tocsin.language.types import type_probe
from tocsin.language.types.output_types import to_output_type
from tocsin.language.types.typed_sql import FunctionError, TypedSql, literal
from tocsin.language.types.variant import encoder, values
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import AT, OPEN, keeps_open, physical
from tocsin.rules.model.types import Field, ObjectType, Type


@dataclass(frozen=True, slots=True)
class TranslatedQuery:
    """A query in Spark SQL, and the shape of its answer: one column `value`, or the fields of an object as columns."""

    sql: str
    type: Type
    is_value: bool
    query: exp.Query
    """The tree of `sql`."""


class Translator:
    """Translates one statement: holds the state that the parts share, and gives each node to its part."""

    def __init__(self, names: NameLookup, type_analyser: TypeAnalyser, hooks: TranslationHooks, dataverse: str) -> None:
        self.names = names
        self.type_analyser = type_analyser
        self.hooks = hooks
        self.dataverse = dataverse
        self.frame = NameScope()
        self.block = QueryBlock(None)
        self.relations: dict[str, WithTable] = {}  # the tables of WITH
        self.inlined_tables = 0
        self.uses: set[tuple[Literal["dataset", "function"], str, str]] = set()
        self.depth = 0  # of functions of the catalog around the current expression
        self._aliases = 0
        self.expressions = expressions = Expressions(self)
        self.paths = paths = Paths(self)
        self.operators = operators = Operators(self)
        self.calls = calls = FunctionCalls(self)
        self.queries = queries = Queries(self)
        self.sources = Sources(self)
        self.projection = Projection(self)
        self.subqueries = Subqueries(self)
        # Any other node goes to `expressions.generic`.
        self.handlers: dict[type, Callable[[Any], TypedSql]] = {
            exp.Literal: expressions.literal,
            exp.RawString: expressions.text,
            exp.National: expressions.text,
            exp.Boolean: expressions.boolean,
            exp.Null: expressions.null,
            nodes.ObjectOf: expressions.object_of,
            exp.Array: expressions.array,
            nodes.MultisetOf: expressions.array,
            exp.CurrentTimestamp: expressions.instant,
            exp.CurrentDate: expressions.instant,
            **dict.fromkeys((exp.Identifier, exp.Column, exp.Dot, exp.Bracket), paths.path),
            exp.Anonymous: calls.call_unqualified,
            exp.Paren: operators.paren,
            **dict.fromkeys((exp.And, exp.Or), operators.connective),
            exp.Not: operators.negation,
            **dict.fromkeys(COMPARISONS, operators.comparison),
            **dict.fromkeys(ARITHMETIC, operators.arithmetic),
            exp.Neg: operators.negative,
            nodes.Positive: operators.positive,
            exp.DPipe: operators.concatenation,
            exp.BitwiseXor: operators.caret,
            exp.Between: operators.between,
            **dict.fromkeys((exp.Like, exp.ILike, exp.Escape), operators.like),
            exp.In: operators.member,
            exp.Exists: operators.exists,
            exp.Case: operators.case,
            **dict.fromkeys((exp.Cast, exp.TryCast), operators.cast),
            nodes.IsKind: operators.is_kind,
            nodes.Quantified: operators.translate_quantifier,
            nodes.RowOf: queries.row,
            nodes.PlaceOf: queries.place,
            nodes.NumberedItems: self.sources.number_items,
        }

    # ------------------------------------------------------------ statements

    def translate(self, node: exp.Expr) -> TranslatedQuery:
        """Translates a statement: a query, or an expression, which stands for a query of one value."""
        relation = self.statement(node)
        query, type_ = self._export(relation)
        try:
            return TranslatedQuery(render(query), type_, relation.is_value, query)
        except FunctionError as error:
            fail(str(error), node)

    def statement(self, node: exp.Expr) -> Relation:
        """Translates a statement to a relation whose values still have their internal form."""
        inner = unwrap_query(node)
        if isinstance(inner, exp.Query):
            return self.queries.query(inner, None)
        rows = self.subqueries.rows_of_call(inner)
        return rows or self.queries.query(exp.Select(expressions=[nodes.ValueOf(this=inner)]), None)

    def _export(self, relation: Relation) -> tuple[exp.Query, Type]:
        """Returns the query with its values in the form of answers."""
        alias = self.alias("out")
        row_value = variable(relation, alias)
        if isinstance(row_value, RowVariable):
            assert isinstance(relation.type, ObjectType)
            fields = [
                (declared, to_output_type(TypedSql(column(alias, physical(declared.name)), declared.type)))
                for declared in relation.type.fields
            ]
            if all(
                output.type == declared.type and not values.contains_any(declared.type) for declared, output in fields
            ):
                return relation.query, relation.type
            type_: Type = ObjectType(
                tuple(Field(declared.name, output.type, declared.optional) for declared, output in fields),
                relation.type.open,
                relation.type.name,
            )
            columns = [(physical(declared.name), encoder.to_answer(output)) for declared, output in fields]
            if keeps_open(relation.type):
                columns.append((OPEN, column(alias, OPEN)))
        else:
            output = to_output_type(row_value)
            if output.type == relation.type and not values.contains_any(output.type):
                return relation.query, relation.type
            type_, columns = output.type, [(VALUE, encoder.to_answer(output))]
        return select_query(columns).from_(as_table(relation.query, alias)), type_

    # ------------------------------------------------------------ expressions, for the parts

    def expression(self, node: exp.Expr | None) -> TypedSql:
        """Translates an expression by the handler of its node type; errors get the node's place in the script."""
        if node is None:
            fail("an expression is missing")
        try:
            return self.handlers.get(type(node), self.expressions.generic)(node)
        except FunctionError as error:
            fail(str(error), node)

    def boolean(self, node: exp.Expr) -> exp.Expr:
        """Translates a condition."""
        value = self.expression(node)
        if value.type not in (t.BOOLEAN, t.ANY, VOID):
            fail(f"a condition is true or false, this is of type {value.type}", node)
        return convert(value, t.BOOLEAN)

    def ask(self, sql: exp.Expr, parts: Sequence[TypedSql]) -> TypedSql:
        """Returns the expression with the type that Spark's analyser finds, with typed NULLs in place of its parts."""
        sql, parts = text_functions.with_texts(sql, parts)
        types = [part.type for part in parts]
        name, question = text_functions.name_of(sql), type_probe.with_typed_nulls(sql, parts)
        return type_probe.type_by_spark(self.type_analyser, sql, name, question, types)

    @contextmanager
    def inner_scope(self, names: dict[str, TypedSql]) -> Iterator[None]:
        """Adds names that hide equal outer ones inside of the context."""
        outer, self.frame = self.frame, NameScope(names, parent=self.frame)
        try:
            yield
        finally:
            self.frame = outer

    def alias(self, name: str) -> str:
        """Makes a unique alias that contains the readable part of a name."""
        self._aliases += 1
        readable = "".join(letter for letter in name if letter.isascii() and letter.isalnum())[:20] or "v"
        return f"{readable}_{self._aliases}"


_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QueryHooks:
    """The hooks of a query, and of a function's body at its definition. A query needs none of a channel's rewrites."""

    scans: DatasetScans
    now: datetime
    defines_function: bool = False
    own_datasets: Mapping[str, Dataset] = field(default_factory=dict)
    scanned: dict[str, Dataset] = field(default_factory=dict)  # the datasets by their aliases

    def scan_dataset(self, dataset: Dataset, node: exp.Table, alias: str) -> exp.Expr:
        self.scanned[alias] = dataset
        extra = (AT,) if dataset.active else ()
        return scan(self.scans.scan(dataset, *version_of(node)), dataset.type, alias, extra)

    def call_name(self, function: Function, arguments: Sequence[Type]) -> str:
        return self.scans.call_name(function, arguments)

    def instant(self, kind: Type) -> TypedSql:
        return literal(self.now if kind == t.DATETIME else self.now.date() if kind == t.DATE else self.now.time())

    def call_channel_function(self, name: str, node: exp.Anonymous, translator: Translator) -> TypedSql:
        """Translates the times of records, and the times of executions: a query runs now, and never ran before."""
        if name in CHANNEL_TIMES:
            check_channel_time(name, node, translator)
            return self.instant(t.DATETIME) if name == "current_channel_time" else literal(_NEVER)
        value, _ = active_variable(name, node, translator, self.scanned)
        if name in ("active_timestamp", "meta"):
            return active_time(name, value)
        if not self.defines_function:
            fail("is_new means something in a channel only", node, "compare active_timestamp(v) with a datetime")
        return TypedSql(exp.true(), t.BOOLEAN)

    def note_use(self, value: TypedSql, type_: Type) -> None: ...

    def import_outer(self, condition: exp.Expr) -> None: ...

    def add_join_keys(self, query: exp.Select) -> exp.Select:
        return query

    def check_pattern(self, sql: exp.Expr, escape: str) -> exp.Expr:  # noqa: ARG002 - a channel needs it
        return sql
