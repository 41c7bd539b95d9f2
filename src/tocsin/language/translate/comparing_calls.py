"""Translates the functions that compare their arguments: nullif, decode, greatest and the like.

They compare as `=` does: a value is never cast, and values of incompatible types are not equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from tocsin.language.functions.collections import array_aggregates
from tocsin.language.functions.collections.array_arguments import build_missing_test, is_known
from tocsin.language.functions.kind_functions import IF_SPECIAL
from tocsin.language.translate.expressions import align, convert, make_self_contained
from tocsin.language.types.typed_sql import FunctionError, TypedSql
from tocsin.language.types.variant import encoder
from tocsin.language.types.variant import values as dynamic
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType

if TYPE_CHECKING:
    from tocsin.language.translate.operators import Operators


def _equal(operators: Operators, left: TypedSql, right: TypedSql, *, null_safe: bool = False) -> exp.Expr:
    test = operators.compare(exp.NullSafeEQ if null_safe else exp.EQ, left, right)
    return dynamic.call("coalesce", test.sql, exp.false())


def _check_count(name: str, arguments: Sequence[TypedSql], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        expected = str(least) if least == most else f"at least {least}"
        raise FunctionError(f"{name} takes {expected} arguments, got {len(arguments)}")


def _null_if(name: str, arguments: Sequence[TypedSql], operators: Operators) -> TypedSql:
    _check_count(name, arguments, 2, 2)
    value, other = arguments
    if VOID in (value.type, other.type):
        return TypedSql(value.sql, value.type)
    null = dynamic.NULL.copy() if value.type == t.ANY else exp.null()
    return TypedSql(exp.If(this=_equal(operators, value, other), true=null, false=value.sql.copy()), value.type)


def _missing_if(name: str, arguments: Sequence[TypedSql], operators: Operators) -> TypedSql:
    """Returns the first value, or MISSING if both are equal."""
    _check_count(name, arguments, 2, 2)
    value, other = (make_self_contained(argument) for argument in arguments)
    missing = [test for argument in arguments if (test := build_missing_test(argument)) is not None]
    known = [is_known(argument.sql, argument.type) for argument in arguments if argument.type != VOID]
    equal = _equal(operators, value, other)
    found = exp.Case(
        ifs=[
            exp.If(this=exp.or_(*missing, equal), true=dynamic.null(t.ANY)),
            exp.If(this=exp.and_(*known) if len(known) == 2 else exp.false(), true=encoder.to_any(value)),
        ],
        default=dynamic.NULL.copy(),
    )
    return TypedSql(found, t.ANY)


def _equal_null(name: str, arguments: Sequence[TypedSql], operators: Operators) -> TypedSql:
    _check_count(name, arguments, 2, 2)
    return operators.compare(exp.NullSafeEQ, *arguments)


def _deep_equal(name: str, arguments: Sequence[TypedSql], operators: Operators) -> TypedSql:
    """Whether two values are equal; values of different types are not."""
    _check_count(name, arguments, 2, 2)
    sides = [TypedSql(encoder.to_any(make_self_contained(argument)), t.ANY) for argument in arguments]
    known = exp.and_(*(is_known(side.sql, t.ANY) for side in sides))
    return TypedSql(exp.If(this=known, true=_equal(operators, *sides), false=dynamic.null(t.BOOLEAN)), t.BOOLEAN)


def _choose(*, null_safe: bool) -> Callable[[str, Sequence[TypedSql], Operators], TypedSql]:
    """decode(e, key, value, …, default), where NULL equals NULL, and switch_case, where it does not."""

    def call(name: str, arguments: Sequence[TypedSql], operators: Operators) -> TypedSql:
        _check_count(name, arguments, 3, len(arguments))
        subject, *rest = arguments
        default = rest.pop() if len(rest) % 2 else TypedSql(exp.null(), VOID)
        tests = [_equal(operators, subject, key, null_safe=null_safe) for key in rest[::2]]
        type_, results = align([*rest[1::2], default])
        ifs = [exp.If(this=test, true=value) for test, value in zip(tests, results[:-1], strict=True)]
        return TypedSql(exp.Case(ifs=ifs, default=results[-1]), type_)

    return call


def _extreme(name: str, arguments: Sequence[TypedSql], _operators: Operators) -> TypedSql:
    """The greatest or least value. Values of different types have none; NULL and MISSING do not count."""
    _check_count(name, arguments, 2, len(arguments))
    types = {argument.type for argument in arguments if argument.type != VOID}
    has_order = types <= set(t.NUMBERS) or (len(types) == 1 and types <= {t.STRING, t.BOOLEAN, t.DATE, t.DATETIME,
                                                                          t.TIME, t.UUID, t.DURATION})  # fmt: skip
    if has_order:
        type_, values = align(arguments)
        return TypedSql(dynamic.call(name, *values), type_)
    untyped = [encoder.to_any(make_self_contained(argument)) for argument in arguments]
    array = TypedSql(dynamic.call("array", *untyped), ArrayType(t.ANY))
    return array_aggregates.call("array_max" if name == "greatest" else "array_min", array)


def _if(name: str, arguments: Sequence[TypedSql], _operators: Operators) -> TypedSql:
    _check_count(name, arguments, 3, 3)
    condition = arguments[0]
    if condition.type not in (t.BOOLEAN, t.ANY, VOID):
        raise FunctionError(f"if takes a condition first, which is true or false, got {condition.type}")
    type_, (then, otherwise) = align(arguments[1:])
    return TypedSql(exp.If(this=convert(condition, t.BOOLEAN), true=then, false=otherwise), type_)


def _if_special(name: str, arguments: Sequence[TypedSql], _operators: Operators) -> TypedSql:
    """The first number that is not special, such as NaN."""
    _check_count(name, arguments, 2, len(arguments))
    canonical = {"ifnan": "if_nan", "ifinf": "if_inf", "ifnanorinf": "if_nan_or_inf"}.get(name, name)
    type_, sqls = align([make_self_contained(argument) for argument in arguments])
    if type_ not in (t.ANY, *t.NUMBERS):
        return TypedSql(dynamic.null(t.DOUBLE), t.DOUBLE)
    return TypedSql(IF_SPECIAL[canonical](sqls, type_) if type_ not in t.INTEGERS else sqls[0], type_)


FUNCTIONS: Final[dict[str, Callable[[str, Sequence[TypedSql], Operators], TypedSql]]] = {
    "deep_equal": _deep_equal,
    "equal_null": _equal_null,
    "greatest": _extreme,
    "if": _if,
    "least": _extreme,
    "missing_if": _missing_if,
    "missingif": _missing_if,
    "null_if": _null_if,
    "nullif": _null_if,
    "switch_case": _choose(null_safe=False),
    **dict.fromkeys((*IF_SPECIAL, "ifnan", "ifinf", "ifnanorinf"), _if_special),
}
DECODE: Final = _choose(null_safe=True)
