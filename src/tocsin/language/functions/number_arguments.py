"""Applies SQL++'s rule to functions of numbers: a text, a boolean or a uuid is no number and gives NULL.

Spark would cast them, so that abs("5") is 5.0, and abs("x") ends the statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.collections.array_arguments import answer
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Type

_NO_NUMBERS: Final = (t.STRING, t.BOOLEAN, t.UUID)
FUNCTIONS: Final = frozenset(
    (
        "abs acos acosh asin asinh atan atan2 atanh bin bit_count bround cbrt ceil ceiling cos cosh cot csc degrees div"
        " exp expm1 factorial floor hypot isnan ln log log10 log1p log2 mod nanvl negative pmod positive pow power"
        " radians rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply"
        " try_subtract width_bucket"
        " corr covar_pop covar_samp kurtosis median percentile percentile_approx regr_avgx regr_avgy regr_count"
        " regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness std stddev stddev_pop stddev_samp"
        " try_avg try_sum var_pop var_samp variance"
    ).split()
)


# Which arguments of other functions are whole numbers.
_WHOLE: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys("substr substring".split(), (1, 2)),
    **dict.fromkeys("left lpad repeat right rpad".split(), (1,)),
}


def is_no_number(type_: Type) -> bool:
    """Whether a value of this type never is a number, and would be cast to one or refused by Spark."""
    return type_ in _NO_NUMBERS or isinstance(type_, ArrayType | MultisetType | ObjectType)


def only_numbers(name: str, arguments: Sequence[TypedSql]) -> list[TypedSql]:
    """Returns the arguments of a function, with NULL for each that is no number if the function takes numbers."""
    if name in _WHOLE:
        return [
            TypedSql(values.null(t.INTEGER), t.INTEGER)
            if at in _WHOLE[name] and is_no_number(argument.type)
            else argument
            for at, argument in enumerate(arguments)
        ]
    if name not in FUNCTIONS:
        return list(arguments)
    return [
        TypedSql(values.null(t.DOUBLE), t.DOUBLE)
        if is_no_number(argument.type) and not _is_percentages(name, at, argument)
        else argument
        for at, argument in enumerate(arguments)
    ]


def _is_percentages(name: str, at: int, argument: TypedSql) -> bool:
    return name.startswith("percentile") and at > 0 and isinstance(argument.type, ArrayType)


def truncate(name: str, arguments: Sequence[TypedSql]) -> TypedSql | None:
    """SQL++'s trunc of a number; None for Spark's trunc(date, unit)."""
    if len(arguments) == 2 and arguments[1].type == t.STRING:
        return None
    if len(arguments) not in (1, 2):
        raise FunctionError(f"{name} takes a number and a number of digits, or a date and a unit")
    numbers = [
        values.number(argument.sql) if argument.type == t.ANY
        else exp.cast(argument.sql.copy(), "DOUBLE") if argument.type in t.NUMBERS
        else values.null(t.DOUBLE)
        for argument in arguments
    ]  # fmt: skip
    scale = build("power(10E0, _n)", _n=numbers[1]) if len(numbers) == 2 else exp.Literal.number("1E0")
    # Larger numbers are whole.
    sql = build(
        "if(abs(_v) * _f < 9E15, sign(_v) * floor(abs(_v) * _f) / _f, if(_f IS NULL, NULL, _v))",
        _v=numbers[0], _f=scale,
    )  # fmt: skip
    return answer(sql, t.DOUBLE, arguments)
