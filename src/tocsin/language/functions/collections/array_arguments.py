"""Prepares the arguments of collection functions, so that declared and undeclared values follow one rule.

A function sees arrays whose items have one type: a simple type if all arguments agree on it, else untyped items. It is
MISSING if an argument is MISSING, and NULL if an argument is NULL or has the wrong type, as in SQL++. Arguments stand
outside of the lambdas that use them, because a call into Python and an aggregate cannot stand inside of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlglot import exp

from tocsin.language.translate.scope import OptionalVariable
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build, enclose
from tocsin.language.types.variant import encoder, values
from tocsin.language.types.variant.values import VOID, once
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, Type

# The types whose items Spark itself compares and orders as the language does.
SIMPLE: Final = (*t.NUMBERS, t.STRING, t.BOOLEAN, t.DATE, t.DATETIME, t.TIME, t.UUID)
_FLOATS: Final = frozenset((t.FLOAT, t.DOUBLE))
_ARGUMENTS: Final = "__s"  # the struct of a call's arguments


def item_type(value: TypedSql) -> Type:
    """Returns the type of a collection's items; untyped for a value that is no declared collection."""
    return value.type.item if isinstance(value.type, ArrayType | MultisetType) else t.ANY


def _common_type(types: Sequence[Type]) -> Type:
    """Returns the simple type that all of these types share, or untyped."""
    distinct = {type_ for type_ in types if type_ != VOID}
    if len(distinct) == 1 and distinct <= set(SIMPLE):
        return distinct.pop()
    if distinct and distinct <= set(t.INTEGERS):
        return t.BIGINT
    return t.DOUBLE if distinct and distinct <= _FLOATS else t.ANY


def items_of(value: TypedSql, item: Type) -> exp.Expr:
    """Returns a collection as an array of items of this type; SQL NULL for NULL, MISSING and any other value."""
    array = ArrayType(item)
    if value.type == t.ANY:
        return values.as_type(value.sql, array)
    if value.type == VOID:
        return values.void_as(value.sql, array)
    if not isinstance(value.type, ArrayType | MultisetType):
        return values.null(array)
    if value.type.item == item:
        return value.sql
    if item != t.ANY or value.type.item == VOID:
        return exp.cast(value.sql.copy(), values.spark_type(array), dialect="spark")
    inner = encoder.to_any(TypedSql(exp.column("__item"), value.type.item))
    return build("transform(_v, __item -> _inner)", _v=value.sql, _inner=inner)


def _item_of(value: TypedSql, item: Type) -> exp.Expr:
    """Returns a value as an item of this type."""
    if value.type == item:
        return value.sql
    if value.type == VOID:
        return values.void_as(value.sql, item)
    if item == t.ANY:
        return encoder.to_any(value)
    return exp.cast(value.sql.copy(), values.spark_type(item), dialect="spark")


def whole_number(value: TypedSql) -> exp.Expr:
    """Returns a whole number as BIGINT, such as 3 or 3.0; SQL NULL for any other value."""
    if value.type in t.INTEGERS:
        return value.sql if value.type == t.BIGINT else exp.cast(value.sql.copy(), "BIGINT")
    if value.type == t.ANY:
        number = values.number(value.sql)
    elif value.type in _FLOATS:
        number = exp.cast(value.sql.copy(), "DOUBLE")
    else:
        return values.null(t.BIGINT)
    return build("if(_n = floor(_n) AND abs(_n) < 9E15, CAST(_n AS BIGINT), NULL)", _n=number)


def is_absent(sql: exp.Expr) -> exp.Expr:
    return exp.Is(this=enclose(sql), expression=exp.null())


def is_unknown(sql: exp.Expr, type_: Type) -> exp.Expr:
    """Whether a value is NULL or MISSING."""
    absent = is_absent(sql)
    return exp.or_(absent, values.is_explicit_null(sql)) if type_ == t.ANY else absent


def is_known(sql: exp.Expr, type_: Type) -> exp.Expr:
    return exp.Not(this=exp.Paren(this=is_unknown(sql, type_)))


def build_missing_test(value: TypedSql) -> exp.Expr | None:
    """Returns the test whether a value is MISSING, or None for a value that never is."""
    if isinstance(value, OptionalVariable):
        return exp.and_(is_absent(value.sql), exp.Not(this=exp.Paren(this=value.explicit.copy())))
    return is_absent(value.sql) if value.type == t.ANY else None


def answer(sql: exp.Expr, type_: Type, arguments: Sequence[TypedSql]) -> TypedSql:
    """Returns a result that is MISSING if an argument is MISSING. `sql` is SQL NULL in this case, and for NULL."""
    missing = [test for argument in arguments if (test := build_missing_test(argument)) is not None]
    if type_ == t.ANY:
        known = values.call("coalesce", sql, values.NULL)
        return TypedSql(exp.If(this=exp.or_(*missing), true=exp.null(), false=known) if missing else known, type_)
    if not missing:
        return TypedSql(sql, type_)
    return OptionalVariable(sql, type_, exp.Not(this=exp.Paren(this=exp.or_(*missing))))


def _key_of(item: exp.Expr, type_: Type) -> exp.Expr:
    """Returns what is equal for equal items, so that Spark can compare and sort them. A NULL item has a key too."""
    return values.call("coalesce", values.key(item), exp.Literal.string("null")) if type_ == t.ANY else item.copy()


def _keys_of(items: exp.Expr, type_: Type) -> exp.Expr:
    if type_ != t.ANY:
        return items.copy()
    return build("transform(_v, __i -> _key)", _v=items, _key=_key_of(exp.column("__i"), type_))


def in_any_order(value: TypedSql) -> exp.Expr:
    """Returns an array that is equal for collections of the same items in any order."""
    return values.call("array_sort", _keys_of(items_of(value, t.ANY), t.ANY))


@dataclass(frozen=True, slots=True)
class CollectionCall:
    """The arguments of a call inside of the function: arrays of one item type, single items, and whole numbers."""

    item: Type
    arrays: Sequence[exp.Expr]
    items: Sequence[exp.Expr] = ()
    numbers: Sequence[exp.Expr] = ()

    def key(self, sql: exp.Expr) -> exp.Expr:
        return _key_of(sql, self.item)

    def keys(self, array: exp.Expr) -> exp.Expr:
        return _keys_of(array, self.item)


def evaluate(call: CollectionCall, needed: Sequence[exp.Expr], make: Callable[[CollectionCall], exp.Expr]) -> exp.Expr:
    """Builds the function's body, or SQL NULL if an array, a number or one of the `needed` conditions fails.

    An argument that is more than a column is computed once.
    """
    parts = [*call.arrays, *call.items, *call.numbers]
    if all(isinstance(part, exp.Column | exp.Literal | exp.Cast) and not part.find(exp.Anonymous) for part in parts):
        return _guard_call(call, list(needed), make)
    names = [f"p{i}" for i in range(len(parts) + len(needed))]
    bound = [exp.column(name, table=_ARGUMENTS) for name in names]
    arrays, items = len(call.arrays), len(call.arrays) + len(call.items)
    inside = CollectionCall(call.item, bound[:arrays], bound[arrays:items], bound[items : len(parts)])
    fields = list(zip(names, [*parts, *needed], strict=True))
    return once(values.record(fields), _ARGUMENTS, lambda _: _guard_call(inside, bound[len(parts) :], make))


def _guard_call(
    call: CollectionCall, needed: Sequence[exp.Expr], make: Callable[[CollectionCall], exp.Expr]
) -> exp.Expr:
    tests = [is_absent(part) for part in (*call.arrays, *call.numbers)]
    tests += [exp.Not(this=exp.Paren(this=test.copy())) for test in needed]
    return exp.If(this=exp.or_(*tests), true=exp.null(), false=make(call)) if tests else make(call)


@dataclass(frozen=True, slots=True)
class CollectionFunction:
    """A function: the roles of its arguments, the builder of its body, and its result.

    The roles are `array`, `number` (a whole one), `item`, and `nullable` (an item that may be NULL). A role with `?`
    may be left out, and a role with `+` stands once or more often.
    """

    roles: str
    build: Callable[[CollectionCall], exp.Expr]
    result: Type | Literal["collection", "item"] = "collection"

    def call(self, name: str, arguments: Sequence[TypedSql]) -> TypedSql:
        parts: dict[str, list[TypedSql]] = {"array": [], "number": [], "item": []}
        needed: list[exp.Expr] = []
        for role, argument in zip(self._roles(name, len(arguments)), arguments, strict=True):
            parts["item" if role == "nullable" else role].append(argument)
            if role == "item":
                needed.append(_is_value(argument))
            elif role == "nullable" and (missing := build_missing_test(argument)) is not None:
                needed.append(exp.Not(this=exp.Paren(this=missing)))
        arrays, items = parts["array"], parts["item"]
        item = _common_type([*map(item_type, arrays), *(value.type for value in items)])
        call = CollectionCall(
            item,
            [items_of(value, item) for value in arrays],
            [_item_of(value, item) for value in items],
            [whole_number(value) for value in parts["number"]],
        )
        return answer(evaluate(call, needed, self.build), self._type(arrays, item), arguments)

    def _roles(self, name: str, count: int) -> list[str]:
        """Returns the role of each of so many arguments."""
        roles = self.roles.split()
        few = sum(not role.endswith("?") for role in roles)
        many = count if any(role.endswith("+") for role in roles) else len(roles)
        if not few <= count <= many:
            expected = f"at least {few}" if many == count else str(few) if few == many else f"{few} or {many}"
            raise FunctionError(f"{name} takes {expected} argument{'' if expected == '1' else 's'}, got {count}")
        found: list[str] = []
        for role in roles:
            if role.endswith("?") and len(found) == count:
                break
            times = 1 + count - len(roles) if role.endswith("+") else 1
            found += [role.rstrip("?+")] * times
        return found

    def _type(self, arrays: Sequence[TypedSql], item: Type) -> Type:
        if isinstance(self.result, Type):
            return self.result
        if self.result == "item":
            return item
        return MultisetType(item) if arrays and isinstance(arrays[0].type, MultisetType) else ArrayType(item)


def _is_value(value: TypedSql) -> exp.Expr:
    return exp.false() if value.type == VOID else is_known(value.sql, value.type)
