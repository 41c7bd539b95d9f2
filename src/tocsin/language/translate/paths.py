"""Resolves names, and translates paths into records, arrays and open data.

A declared field is a column of its own. An undeclared one is read from the record's open part, where it is untyped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import convert, fail
from tocsin.language.translate.scope import OptionalVariable, RowVariable, column
from tocsin.language.types.typed_sql import SPARK_TYPES, MapType, TypedSql, build, constant_integer, enclose
from tocsin.language.types.variant import values
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, physical
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator


class Paths:
    """Translates names and paths."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    def path(self, node: exp.Expr) -> TypedSql:
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous):
            return self._qualified_call(node, node.expression)
        root, steps = _split_path(node)
        if root is None:
            return self._walk(*self._resolve(steps, node), node)
        if root is node:
            fail("this cannot be read as a path", node, "a field is a name, an index a number")
        return self._walk(self.translator.expression(root), steps, node)

    def _walk(self, value: TypedSql, steps: Sequence[str | exp.Expr], node: exp.Expr) -> TypedSql:
        for step in steps:
            value = field_of(value, step, node) if isinstance(step, str) else self._element(value, step, node)
        return value

    def _resolve(self, parts: Sequence[str | exp.Expr], node: exp.Expr) -> tuple[TypedSql, Sequence[Any]]:  # noqa: RET503 (fail does not return)
        """Resolves a path's first name: first as a variable or parameter, then as a field of a FROM variable."""
        name = parts[0]
        assert isinstance(name, str)
        variable = self.translator.frame.find(name)
        if variable is not None:
            return variable, parts[1:]
        if name.startswith("$"):
            fail(
                f"a statement has no parameters by itself, and {name} has no value",
                node,
                f'give it with the request, {{"{name}": …}} at /query/service, or write the value itself',
            )
        for frame in self.translator.frame.chain():
            ranges = [frame.names[name_] for name_ in frame.ranges]
            declared = [range_ for range_ in ranges if isinstance(range_.type, ObjectType) and range_.type.find(name)]
            if len(declared) > 1:
                fail(f"{name} is a field of several variables", node, f"write {frame.ranges[0]}.{name}")
            if declared:
                return declared[0], parts
            if len(ranges) == 1 and (ranges[0].type == t.ANY or getattr(ranges[0].type, "open", False)):
                return ranges[0], parts
        if name.upper() == "MISSING" and len(parts) == 1:
            return TypedSql(values.null(t.ANY), t.ANY), ()
        dataset = self._dataset(parts)
        if dataset is not None:
            return dataset
        known_names = [variable_name for frame in self.translator.frame.chain() for variable_name in frame.names]
        fields = [
            field.name
            for frame in self.translator.frame.chain()
            for value in frame.names.values()
            if isinstance(value.type, ObjectType)
            for field in value.type.fields
        ]
        hint = did_you_mean(name, known_names + fields) or "no variable, parameter or field is called so"
        fail(f"unknown name {name}", node, hint)

    def _dataset(self, parts: Sequence[str | exp.Expr]) -> tuple[TypedSql, Sequence[str | exp.Expr]] | None:
        """Resolves a path that begins with a dataset, which as a value is the array of its records."""
        for count in (1, 2):
            names = [part for part in parts[:count] if isinstance(part, str)]
            if len(names) < count or not self.translator.sources.is_dataset(names):
                continue
            identifiers = [exp.to_identifier(name, quoted=True) for name in reversed(names)]
            variable = exp.to_identifier(" record", quoted=True)
            table = exp.Table(
                this=identifiers[0], db=identifiers[1] if count == 2 else None, alias=exp.TableAlias(this=variable)
            )
            rows = exp.Select(expressions=[nodes.ValueOf(this=exp.column(variable.copy()))]).from_(table)
            return self.translator.subqueries.subquery(exp.Subquery(this=rows)), parts[count:]
        return None

    def _element(self, value: TypedSql, index: exp.Expr, node: exp.Expr) -> TypedSql:
        """Returns an item of an array; a negative index counts from the end."""
        if isinstance(index, exp.Slice):
            return self._slice(value, index)
        if isinstance(index, exp.Star):
            fail("[*] is not supported", node, "write a subquery: (SELECT VALUE x.field FROM array AS x)")
        if isinstance(value.type, MapType):
            at = self.translator.expression(index)
            return self.translator.ask(values.call("try_element_at", value.sql, at.sql), [value, at])
        if isinstance(index, exp.Literal) and index.is_string:
            return field_of(value, index.this, node)
        position = self.translator.expression(index)
        constant = constant_integer(position.sql)
        if value.type == t.ANY and constant is not None and constant >= 0:
            return TypedSql(values.step(value.sql, constant), t.ANY)
        items = values.items(value)
        assert isinstance(items.type, ArrayType)
        at_sql = exp.cast(convert(position, t.BIGINT).copy(), "INT")
        forward = values.call("get", items.sql, at_sql)
        if constant is not None:
            sql = forward if constant >= 0 else values.call("try_element_at", items.sql, at_sql)
        else:
            negative = exp.LT(this=at_sql.copy(), expression=exp.Literal.number(0))
            sql = exp.If(this=negative, true=values.call("try_element_at", items.sql, at_sql), false=forward)
        if not isinstance(value, OptionalVariable):
            return TypedSql(sql, items.type.item)
        inside = build("_at < size(_items) AND _at >= -size(_items)", _at=at_sql, _items=items.sql)
        return OptionalVariable(sql, items.type.item, values.call("coalesce", inside, value.explicit))

    def _slice(self, value: TypedSql, part: exp.Slice) -> TypedSql:
        items = values.items(value)
        size = values.call("size", items.sql)

        def place(node: exp.Expr | None, default: exp.Expr) -> exp.Expr:
            """Returns the array index of a bound: counts a negative one from the end, and clamps it to the array."""
            if node is None:
                return default
            bound = exp.cast(convert(self.translator.expression(node), t.BIGINT).copy(), "INT")
            clamped = "least(greatest(if(_b < 0, _size + _b, _b), 0), _size)"
            return build(clamped, _b=bound, _size=size)

        low, high = place(part.this, exp.Literal.number(0)), place(part.expression, size)
        start = exp.Add(this=enclose(low), expression=exp.Literal.number(1))
        bounded = build("greatest(_high - _low, 0)", _high=high, _low=low)
        return TypedSql(values.call("slice", items.sql, start, bounded), items.type)

    def _qualified_call(self, node: exp.Dot, called: exp.Anonymous) -> TypedSql:
        """Translates `dataverse.function(…)`."""
        root, steps = _split_path(node.this)
        if root is not None or len(steps) != 1 or not isinstance(steps[0], str):
            fail("a function is called by its name, or by its dataverse and its name", node)
        name = called.this if isinstance(called.this, str) else called.this.name
        return self.translator.calls.call(steps[0], name, called)


def field_of(value: TypedSql, name: str, node: exp.Expr) -> TypedSql:
    """Returns a field of a value: a declared field by its column, another field from the open part."""
    if value.type == t.ANY:
        return TypedSql(values.step(value.sql, name), t.ANY)
    if isinstance(value.type, t.Primitive) and value.type in SPARK_TYPES and value.type not in t.SPATIAL:
        missing = values.null(t.ANY)
        if isinstance(value, OptionalVariable):
            # A field of NULL is NULL.
            missing = exp.If(this=value.explicit.copy(), true=values.NULL.copy(), false=missing)
        return TypedSql(missing, t.ANY)
    if not isinstance(value.type, ObjectType):
        hint = "use get_x, get_y, get_center, get_radius or get_points" if value.type in t.SPATIAL else None
        if isinstance(value.type, ArrayType | MultisetType):
            hint = "use UNNEST to look inside an array"
        fail(f"a value of type {value.type} has no field {name}", node, hint)
    declared = value.type.find(name)
    if declared is not None:
        sql = part_of(value, physical(name))
        # A field of NULL is NULL, a field of MISSING is MISSING.
        parent_is_null = [value.explicit] if isinstance(value, OptionalVariable) else []
        if isinstance(value, RowVariable) and value.present is not None and not declared.optional:
            # Without a record the field is MISSING; a NULL in a record is NULL.
            return TypedSql(sql, t.ANY) if declared.type == t.ANY else OptionalVariable(
                sql, declared.type, value.present)  # fmt: skip
        if declared.optional:
            is_null = values.is_explicit_null(values.step(_open_part(value), name))
            is_null = values.call("coalesce", is_null, exp.false())
            return OptionalVariable(
                sql, declared.type, exp.Paren(this=exp.or_(*parent_is_null, is_null)) if parent_is_null else is_null
            )
        return (
            OptionalVariable(sql, declared.type, parent_is_null[0]) if parent_is_null else TypedSql(sql, declared.type)
        )
    if not value.type.open:
        hint = did_you_mean(name, (field.name for field in value.type.fields))
        fail(f"there is no field {name} in {value.type}", node, hint or "declare it in the type, or make the type OPEN")
    member = values.step(_open_part(value), name)
    if isinstance(value, OptionalVariable):
        null = values.call("parse_json", exp.Literal.string("null"))
        member = exp.If(this=value.explicit.copy(), true=null, false=member)
    return TypedSql(member, t.ANY)


def _open_part(value: TypedSql) -> exp.Expr:
    return values.call("parse_json", part_of(value, OPEN))


def part_of(value: TypedSql, name: str) -> exp.Expr:
    if isinstance(value, RowVariable):
        return column(value.alias, name)
    return exp.Dot(this=enclose(value.sql), expression=exp.to_identifier(name, quoted=True))


def _split_path(node: exp.Expr) -> tuple[exp.Expr | None, list[str | exp.Expr]]:
    """Splits a path into its root and the steps from there. A root of None means: look up the first name."""
    match node:
        case exp.Column() if isinstance(node.this, exp.Star):
            fail("* can only stand in a SELECT list", node)
        case exp.Column():
            return None, [part.name for part in node.parts]
        case exp.Identifier():
            return None, [node.name]
        case exp.Dot() if isinstance(node.expression, exp.Identifier | exp.Literal | exp.Var):
            root, steps = _split_path(node.this)
            return root, [*steps, node.expression.name]
        case exp.Dot() if isinstance(node.expression, exp.Star):
            fail("* can only stand in a SELECT list", node)
        case exp.Bracket():
            root, steps = _split_path(node.this)
            return root, [*steps, *node.expressions]
    return node, []
