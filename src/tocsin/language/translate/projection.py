"""Translates the SELECT list, GROUP BY, ORDER BY and LIMIT.

Spark can neither group nor order by an untyped value, so a key made of the value takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tocsin.language.functions import temporal
from tocsin.language.functions.function_registry import AGGREGATES, is_computed_once
from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import convert, fail, make_object, make_self_contained
from tocsin.language.translate.paths import field_of, part_of
from tocsin.language.translate.rewrites.substitution import FIRST_LETS
from tocsin.language.translate.scope import VALUE, OptionalVariable, Relation, RowVariable, is_hidden
from tocsin.language.types.typed_sql import TypedSql, build, constant_whole
from tocsin.language.types.variant import encoder, operators, values
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ArrayType, Field, ObjectType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator


_OF_GROUP = "of_group"  # in the `meta` of a condition: it is an aggregate


@dataclass(slots=True)
class SelectOutput:
    """The columns that a SELECT list yields, and their type."""

    columns: list[tuple[str, exp.Expr]]
    type: Type
    is_value: bool
    applied: bool = True  # False if the sort keys become extra columns instead of an ORDER BY
    members: list[tuple[str, exp.Expr]] = field(default_factory=list)  # the parts of the struct, if it is one column


@dataclass(frozen=True, slots=True)
class SortKey:
    sql: exp.Expr
    descending: bool
    nulls_first: bool


def comparator(keys: Sequence[SortKey]) -> exp.Lambda:
    """Returns the comparison function by which array_sort orders structs with the keys k0, k1, …."""

    def side(name: str, i: int) -> exp.Expr:
        return exp.Dot(this=exp.to_identifier(name), expression=exp.to_identifier(f"k{i}"))

    ifs = []
    for i, key in enumerate(keys):
        a, b = side("__a", i), side("__b", i)
        absent = [exp.Is(this=operand.copy(), expression=exp.null()) for operand in (a, b)]
        first, last = (-1, 1) if key.nulls_first else (1, -1)
        less, more = (1, -1) if key.descending else (-1, 1)
        both = exp.And(this=absent[0].copy(), expression=exp.Not(this=absent[1].copy()))
        other = exp.And(this=exp.Not(this=absent[0].copy()), expression=absent[1].copy())
        for test, result in (
            (both, first), (other, last),
            (exp.LT(this=a.copy(), expression=b.copy()), less), (exp.GT(this=a.copy(), expression=b.copy()), more),
        ):  # fmt: skip
            ifs.append(
                exp.If(
                    this=test, true=exp.Literal.number(result) if result >= 0 else exp.Neg(this=exp.Literal.number(1))
                )
            )
    body = exp.Case(ifs=ifs, default=exp.Literal.number(0))
    return exp.Lambda(this=body, expressions=[exp.to_identifier("__a"), exp.to_identifier("__b")])


class Projection:
    """Translates the SELECT list, GROUP BY, ORDER BY and LIMIT."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    def project(self, node: exp.Select, as_value: bool) -> SelectOutput:
        """Translates the SELECT list to columns, or with `as_value` to a single struct column."""
        if len(node.expressions) == 1 and isinstance(node.expressions[0], nodes.ValueOf):
            value = self._make_output(self.translator.expression(node.expressions[0].this))
            return SelectOutput([(VALUE, value.sql)], value.type, True, not as_value)
        members: list[tuple[str, TypedSql, exp.Expr]] = []
        fields: list[Field] = []
        opens: list[tuple[exp.Expr, set[str]]] = []  # the undeclared fields of each record, and its declared ones
        is_open = False
        for i, item in enumerate(node.expressions, start=1):
            if isinstance(item, nodes.ValueOf):
                fail("SELECT VALUE takes one expression", item)
            spread = self._spread(item)
            if spread is None:
                named = isinstance(item, exp.Alias | exp.Column | exp.Dot | exp.Identifier)
                name = (item.alias_or_name if named else "") or f"${i}"
                value = self._make_output(
                    self.translator.expression(item.this if isinstance(item, exp.Alias) else item)
                )
                members.append((name, value, item))
                fields.append(Field(name, value.type))
                continue
            for record in spread:
                if record.type == t.ANY:
                    # Its fields are known at run time only.
                    is_open = True
                    opens.append((encoder.open_fields(record.sql), set()))
                    continue
                if not isinstance(record.type, ObjectType):
                    fail(f"* needs objects, not {record.type}", item, "select the value itself with SELECT VALUE")
                for declared in record.type.fields:
                    part = TypedSql(part_of(record, physical(declared.name)), declared.type)
                    if isinstance(record, RowVariable) and record.present is not None:
                        part, declared = _of_nullable(record, declared, item)
                    members.append((declared.name, part, item))
                    fields.append(declared)
                if keeps_open(record.type):
                    is_open = is_open or record.type.open
                    opens.append((part_of(record, OPEN), {declared.name for declared in record.type.fields}))
        names = [name for name, _, _ in members]
        duplicate = next((member for i, member in enumerate(members) if member[0] in names[:i]), None)
        if duplicate is not None:
            fail(f"two columns are called {duplicate[0]}", duplicate[2], "give one of them another name with AS")
        type_ = ObjectType(tuple(fields), open=is_open)
        columns = [(physical(name), value.sql) for name, value, _ in members]
        if keeps_open(type_):
            rest = [encoder.without_fields(text, sorted({*names} - own)) for text, own in opens]
            columns.append((OPEN, encoder.merge_fields(rest)))
        if as_value:
            return SelectOutput([(VALUE, values.record(columns))], type_, True, False, columns)
        return SelectOutput(columns, type_, False)

    def _make_output(self, value: TypedSql) -> TypedSql:
        if self.translator.block.grouped:
            return make_self_contained(self._of_group(value))
        return make_self_contained(value)

    def _of_group(self, value: TypedSql) -> TypedSql:
        """Returns a value after GROUP BY. Of an optional key only the key itself can be named, so an aggregate tells
        whether it is NULL: NULL and MISSING share a group, which is NULL unless all of it is MISSING."""
        block = self.translator.block
        if isinstance(value, OptionalVariable) and _OF_GROUP in value.explicit.meta:
            return value
        if not isinstance(value, OptionalVariable) or value.sql not in block.optional_keys:
            return TypedSql(value.sql, value.type)
        is_null = values.call("bool_or", value.explicit)
        if block.group_sets:
            is_null = build("grouping(_k) = 1 OR _null", _k=value.sql, _null=is_null)
        explicit = exp.Paren(this=is_null)
        explicit.meta[_OF_GROUP] = True
        return OptionalVariable(value.sql, value.type, explicit)

    def _spread(self, node: exp.Expr) -> list[TypedSql] | None:
        """Returns the records that `*` or `x.*` expands, or None for another item."""
        star = node.expression if isinstance(node, exp.Dot) else node if isinstance(node, exp.Star) else node.this
        if isinstance(star, exp.Star) and any(star.args.get(option) for option in ("except_", "replace", "rename")):
            fail("* takes no EXCLUDE, EXCEPT or REPLACE", node, "name the fields that the answer is to have")
        if isinstance(node, exp.Star):
            ranges = [self.translator.frame.names[name] for name in self.translator.frame.ranges]
            if not ranges:
                fail("* needs a FROM", node)
            return ranges
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            return [self.translator.expression(exp.column(node.args["table"].copy()))]
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Star):
            return [self.translator.expression(node.this)]
        return None

    # ------------------------------------------------------------ GROUP BY, ORDER BY, LIMIT

    def group(self, node: exp.Select) -> exp.Group | None:
        """Translates GROUP BY, and adds its named keys and the name of GROUP AS to the scope."""
        clause = node.args.get("group")
        if clause is None:
            return None
        named = [alias for alias in clause.find_all(exp.Alias) if alias.parent is clause]
        keys: dict[str, TypedSql] = {}

        def translate_key(key_node: Any) -> Any:
            if isinstance(key_node, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
                return type(key_node)(expressions=[translate_key(part) for part in key_node.expressions])
            if isinstance(key_node, exp.Paren) and isinstance(
                key_node.parent, exp.Rollup | exp.Cube | exp.GroupingSets
            ):
                return exp.Tuple(expressions=[translate_key(key_node.this)])
            ordinal = ordinal_item(key_node, node)
            key = self.translator.expression(
                ordinal if ordinal is not None else key_node.this if isinstance(key_node, exp.Alias) else key_node
            )
            if key.type == t.ANY:
                self.translator.block.untyped_keys.append(key.sql)
            elif isinstance(key, OptionalVariable):
                self.translator.block.optional_keys.append(key.sql)
            if key_node in named:
                keys[key_node.alias] = key
            return values.key(key.sql) if key.type == t.ANY else key.sql.copy()

        group = exp.Group(expressions=[translate_key(item) for item in clause.expressions])
        for option in ("rollup", "cube"):
            if clause.args.get(option):
                group.set(option, [part.copy() for part in clause.args[option]])
        self.translator.block.group_sets = group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None
        if clause.args.get("totals"):
            members = clause.args.get(nodes.GROUP_FIELDS)
            if members is not None:
                rows = make_object([(item.alias, self.translator.expression(item.this), item) for item in members])
            else:
                rows = make_object([(name, value, clause) for name, value in self._variables(node)])
            keys[clause.args["totals"].name] = TypedSql(values.call("collect_list", rows.sql), ArrayType(rows.type))
        self.translator.frame.names.update({name: self._of_group(key) for name, key in keys.items()})
        return group

    def _variables(self, node: exp.Select) -> Iterator[tuple[str, TypedSql]]:
        """Yields the variables that FROM and LET bind in this SELECT."""
        before = {let.args["alias"].name for let in node.args.get(FIRST_LETS) or []}
        for name, value in self.translator.frame.names.items():
            if not is_hidden(name) and name not in before:
                yield name, value

    def replace_untyped_keys(self, made: exp.Select, group: exp.Group) -> exp.Group:
        """Replaces untyped keys in the output by any value of their group, since the grouping uses their text."""
        parts = [*made.expressions, *(made.args[clause] for clause in ("having", "order") if made.args.get(clause))]
        for key in self.translator.block.untyped_keys:
            for use in [candidate for part in parts for candidate in part.find_all(type(key)) if candidate == key]:
                if not _within_aggregate(use):
                    use.replace(_total_or(key) if self.translator.block.group_sets else _known_first(key))
        return group

    def by_output(self, output: SelectOutput | Relation) -> Callable[[exp.Expr], TypedSql | None]:
        """Returns a function that finds an output column by its name or number, as ORDER BY allows."""
        columns = (output.members or output.columns) if isinstance(output, SelectOutput) else []
        has_names = not output.is_value or (isinstance(output, SelectOutput) and output.members)
        parts = output.type.fields if has_names and isinstance(output.type, ObjectType) else ()

        def find(node: exp.Expr) -> TypedSql | None:
            found = None
            if isinstance(node, exp.Column) and len(node.parts) == 1:
                found = next((part for part in parts if part.name == node.name), None)
            elif isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit():
                if not 1 <= int(node.this) <= max(len(parts), 1):
                    fail(f"there is no column {node.this}", node)
                found = parts[int(node.this) - 1] if parts else Field(VALUE, output.type)
            if found is None:
                return None
            if isinstance(output, SelectOutput):
                wanted = (physical(found.name),) if parts else (VALUE,)
                name, sql = next(column for column in columns if column[0] in wanted)
                block = self.translator.block
                if output.applied and (block.group_sets or block.optional_keys or _must_not_be_repeated(sql)):
                    sql = exp.column(name, quoted=True)
                return TypedSql(sql, found.type)
            return TypedSql(exp.column(physical(found.name), quoted=True), found.type)

        return find

    def sort_keys(self, node: exp.Expr, find: Callable[[exp.Expr], TypedSql | None]) -> Iterator[SortKey]:
        order = node.args.get("order")
        for ordered in order.expressions if order else []:
            key = find(ordered.this) or self.translator.expression(ordered.this)
            descending, nulls_first = bool(ordered.args.get("desc")), bool(ordered.args.get("nulls_first"))
            sql = operators.total_order_key(key.sql) if key.type == t.ANY else temporal.order_key(key) or key.sql
            yield SortKey(sql, descending, nulls_first)

    def add_order(self, made: exp.Query, node: exp.Expr, find: Callable[[exp.Expr], TypedSql | None]) -> None:
        """Adds ORDER BY, LIMIT and OFFSET to a translated query."""
        keys = list(self.sort_keys(node, find))
        if keys:
            ordered = [
                exp.Ordered(this=key.sql.copy(), desc=key.descending, nulls_first=key.nulls_first) for key in keys
            ]
            made.set("order", exp.Order(expressions=ordered))
        limit, offset = self.bounds(node)
        if limit is not None:
            made.set("limit", exp.Limit(expression=limit))
        if offset is not None:
            made.set("offset", exp.Offset(expression=offset))

    def bounds(self, node: exp.Expr, *, computed: bool = False) -> tuple[exp.Expr | None, exp.Expr | None]:
        """Returns LIMIT and OFFSET as INT expressions: constants, unless they may be `computed`.

        Spark's own LIMIT takes constants only; a slice of an array takes any expression.
        """

        def translate_bound(word: str, clause: exp.Expr | None) -> exp.Expr | None:
            if clause is None:
                return None
            given = clause.expression
            if isinstance(clause, exp.Fetch) or given is None:
                fail("write LIMIT and a number", clause)
            if isinstance(given, exp.Literal) and not given.is_string and given.this.isdigit():
                return exp.Literal.number(min(int(given.this), 2**31 - 1))
            value = self.translator.expression(given)
            if value.type not in (*t.INTEGERS, t.ANY):
                fail(f"{word} takes a whole number, this is of type {value.type}", given, f"such as {word} 10")
            constant = constant_whole(value.sql)
            if constant is not None and constant < 0:
                fail(f"{word} takes a number from 0 on, this is {constant}", given, f"such as {word} 10")
            if constant is not None:
                return exp.Literal.number(min(constant, 2**31 - 1))
            # While a function is defined, its parameters have no values yet.
            is_parameter = self.translator.hooks.defines_function and value.sql.find(exp.Column, exp.Query) is None
            if not computed and not is_parameter:
                remedy = "write a number, a parameter, or a sum of them"
                fail(f"{word} takes a number that is known before the query runs", given, remedy)
            return exp.cast(convert(value, t.BIGINT).copy(), "INT")

        return translate_bound("LIMIT", node.args.get("limit")), translate_bound("OFFSET", node.args.get("offset"))


def _of_nullable(record: RowVariable, declared: Field, node: exp.Expr) -> tuple[TypedSql, Field]:
    """Returns a field that is MISSING where an outer join finds no record."""
    assert isinstance(record.type, ObjectType)
    value = field_of(record, declared.name, node)
    if keeps_open(record.type):
        # The column OPEN tells NULL from MISSING.
        return TypedSql(value.sql, value.type), Field(declared.name, declared.type, optional=True)
    value = make_self_contained(value)
    return value, Field(declared.name, value.type)


def _total_or(key: exp.Expr) -> exp.Expr:
    """Returns an untyped key in a row of ROLLUP or CUBE: NULL if the row is not grouped by it."""
    null = values.call("parse_json", exp.Literal.string("null"))
    return build("if(grouping(_k) = 1, _null, _v)", _k=values.key(key), _v=_known_first(key), _null=null)


def _known_first(key: exp.Expr) -> exp.Expr:
    """Returns an untyped key of a group: any value that is not MISSING, if there is one."""
    return values.call("any_value", key, exp.true())


def _must_not_be_repeated(sql: exp.Expr) -> bool:
    """Whether ORDER BY must name the column: a window cannot stand there, and a random value would be drawn again."""
    return sql.find(exp.Window) is not None or is_computed_once(sql)


def ordinal_item(node: exp.Expr, select: exp.Select) -> exp.Expr | None:
    """Returns the item of the SELECT list that a number in GROUP BY stands for."""
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit():
        if not 1 <= int(node.this) <= len(select.expressions):
            fail(f"there is no column {node.this}", node)
        item: exp.Expr = select.expressions[int(node.this) - 1]
        return item.this if isinstance(item, exp.Alias | nodes.ValueOf) else item
    return None


def _within_aggregate(node: exp.Expr) -> bool:
    ancestor = node.parent
    while ancestor is not None and not isinstance(ancestor, exp.Query):
        if isinstance(ancestor, exp.Anonymous) and str(ancestor.this).lower() in AGGREGATES:
            return True
        ancestor = ancestor.parent
    return False


def aggregates(node: exp.Expr) -> bool:
    """Whether an expression contains an aggregate outside of subqueries and windows."""
    if isinstance(node, exp.Query | exp.Window):
        return False
    if isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this.lower() in AGGREGATES:
        return True
    return any(aggregates(child) for child in node.iter_expressions())
