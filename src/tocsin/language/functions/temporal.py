"""Implements dates, times, datetimes and durations: arithmetic and order (functions: `temporal_functions.py`).

A duration has months and microseconds as separate parts, because a month has no fixed length. Adding a duration to a
datetime adds the months first (a day past the end of the month becomes the last day), then the microseconds. A date
moves like the datetime of its midnight and becomes a date again. A time of day wraps around and takes no months.

Durations are equal if both parts are equal. For order, a month counts 30 days; if two durations then tie (P1M, P30D),
the one with fewer months is smaller. So any two durations compare, and exactly one of `<`, `=` and `>` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.temporal_functions import MICROS_PER_DAY
from tocsin.language.types import typed_sql
from tocsin.language.types.typed_sql import (
    FunctionError,
    TypedSql,
    as_bigint,
    build,
    constant_integer,
    field,
    guard_nulls,
    is_null,
    literal,
    part_field,
)
from tocsin.language.types.variant import values
from tocsin.rules.model.types import BOOLEAN, DATE, DATETIME, DURATION, INTEGERS, TIME, ArrayType, Primitive, Type
from tocsin.rules.model.values import Duration

TEMPORAL: Final = (DATE, TIME, DATETIME, DURATION)

# ---------------------------------------------------------------- arithmetic


def arithmetic(op: str, left: TypedSql, right: TypedSql) -> TypedSql | None:
    """Translates `left op right` for op in + - *; returns None if neither side is temporal."""
    if left.type not in TEMPORAL and right.type not in TEMPORAL:
        return None
    if is_null(left.sql) or is_null(right.sql):
        type_ = right.type if is_null(left.sql) else left.type
        return TypedSql(typed_sql.null_of(type_), type_)
    for operator, left_types, right_types, result, make in _ARITHMETIC:
        if op == operator and left.type in left_types and right.type in right_types:
            return TypedSql(make(left, right), result)
    raise FunctionError(f"cannot compute {left.type} {op} {right.type}; {_possible(left, right)}")


def add(left: TypedSql, right: TypedSql) -> TypedSql | None:
    return arithmetic("+", left, right)


def subtract(left: TypedSql, right: TypedSql) -> TypedSql | None:
    return arithmetic("-", left, right)


def negate(value: TypedSql) -> TypedSql | None:
    """Translates `-value` of a duration; returns None if the value is not temporal."""
    if value.type not in TEMPORAL:
        return None
    if value.type != DURATION:
        raise FunctionError(f"cannot compute -{value.type}; a duration has a sign, a {value.type} has none")
    constant = _constant_duration(value.sql)
    if constant is not None and constant.months > -(2**31) and constant.micros > -(2**63):
        return literal(Duration(-constant.months, -constant.micros))
    negated = build("named_struct('months', -_a.months, 'micros', -_a.micros)", _a=value.sql)
    return TypedSql(guard_nulls((value.sql,), negated), DURATION)


def _constant_duration(sql: exp.Expr) -> Duration | None:
    """Returns the duration of a literal, or None for any other expression."""
    if isinstance(sql, exp.Struct):
        months, micros = constant_integer(part_field(sql, "months")), constant_integer(part_field(sql, "micros"))
        if months is not None and micros is not None:
            return Duration(months, micros)
    return None


def _shift(start: str, sign: str, moment: TypedSql, duration: TypedSql) -> exp.Expr:
    """Moves `start` (SQL of a timestamp over `_m`) by the duration; omits a part that is known to be zero."""
    constant = _constant_duration(duration.sql)
    if constant is None or constant.months:
        start = f"({start} {sign} make_ym_interval(0, _d.months))"
    if constant is None or constant.micros:
        start = f"timestamp_micros(unix_micros({start}) {sign} _d.micros)"
    return build(start, _m=moment.sql, _d=duration.sql)


def _datetime_shift(sign: str) -> Callable[[TypedSql, TypedSql], exp.Expr]:
    return lambda moment, duration: _shift("_m", sign, moment, duration)


def _date_shift(sign: str) -> Callable[[TypedSql, TypedSql], exp.Expr]:
    return lambda day, duration: exp.cast(_shift("CAST(_m AS TIMESTAMP)", sign, day, duration), "DATE")


def _time_shift(sign: str) -> Callable[[TypedSql, TypedSql], exp.Expr]:
    def make(clock: TypedSql, duration: TypedSql) -> exp.Expr:
        constant = _constant_duration(duration.sql)
        if constant is not None and constant.months:
            raise FunctionError("a time of day takes a duration without months")
        moved = f"pmod(_m {sign} _d.micros % {MICROS_PER_DAY}, {MICROS_PER_DAY})"
        if constant is None:
            moved = (
                "IF(_d.months <> 0, CAST(raise_error('a time of day takes a duration without months') AS BIGINT),"
                f" {moved})"
            )
        return build(moved, _m=clock.sql, _d=duration.sql)

    return make


def _swap_arguments(make: Callable[[TypedSql, TypedSql], exp.Expr]) -> Callable[[TypedSql, TypedSql], exp.Expr]:
    return lambda left, right: make(right, left)


def _micros_apart(left: TypedSql, right: TypedSql) -> exp.Expr:
    def micros(side: TypedSql) -> exp.Expr:
        if side.type == TIME:
            return side.sql
        return build("unix_micros(CAST(_a AS TIMESTAMP))" if side.type == DATE else "unix_micros(_a)", _a=side.sql)

    difference = build("named_struct('months', CAST(0 AS INT), 'micros', _a - _b)", _a=micros(left), _b=micros(right))
    return guard_nulls((left.sql, right.sql), difference)


def _durations(sign: str) -> Callable[[TypedSql, TypedSql], exp.Expr]:
    text = f"named_struct('months', _a.months {sign} _b.months, 'micros', _a.micros {sign} _b.micros)"
    return lambda left, right: guard_nulls((left.sql, right.sql), build(text, _a=left.sql, _b=right.sql))


def _times(duration: TypedSql, factor: TypedSql) -> exp.Expr:
    text = "named_struct('months', CAST(CAST(_a.months AS BIGINT) * _n AS INT), 'micros', _a.micros * _n)"
    return guard_nulls((duration.sql, factor.sql), build(text, _a=duration.sql, _n=as_bigint(factor)))


_MOMENTS: Final = (DATETIME, DATE)
_ARITHMETIC: Final[
    tuple[tuple[str, tuple[Type, ...], tuple[Type, ...], Type, Callable[[TypedSql, TypedSql], exp.Expr]], ...]
] = (
    ("+", (DATETIME,), (DURATION,), DATETIME, _datetime_shift("+")),
    ("-", (DATETIME,), (DURATION,), DATETIME, _datetime_shift("-")),
    ("+", (DURATION,), (DATETIME,), DATETIME, _swap_arguments(_datetime_shift("+"))),
    ("+", (DATE,), (DURATION,), DATE, _date_shift("+")),
    ("-", (DATE,), (DURATION,), DATE, _date_shift("-")),
    ("+", (DURATION,), (DATE,), DATE, _swap_arguments(_date_shift("+"))),
    ("+", (TIME,), (DURATION,), TIME, _time_shift("+")),
    ("-", (TIME,), (DURATION,), TIME, _time_shift("-")),
    ("+", (DURATION,), (TIME,), TIME, _swap_arguments(_time_shift("+"))),
    ("-", _MOMENTS, _MOMENTS, DURATION, _micros_apart),
    ("-", (TIME,), (TIME,), DURATION, _micros_apart),
    ("+", (DURATION,), (DURATION,), DURATION, _durations("+")),
    ("-", (DURATION,), (DURATION,), DURATION, _durations("-")),
    ("*", (DURATION,), INTEGERS, DURATION, _times),
    ("*", INTEGERS, (DURATION,), DURATION, _swap_arguments(_times)),
)


def _possible(left: TypedSql, right: TypedSql) -> str:
    temporal_type = left.type if left.type in TEMPORAL else right.type
    signatures = [
        f"{_text(a)} {op} {_text(b)}" for op, a, b, _, _ in _ARITHMETIC if temporal_type in a or temporal_type in b
    ]
    return "possible are " + ", ".join(signatures)


def _text(types: tuple[Type, ...]) -> str:
    return "integer" if types == INTEGERS else "|".join(map(str, types))


# ---------------------------------------------------------------- order

_COMPARISONS: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<=>": "<=>",
                       "<": "<", "<=": "<=", ">": ">", ">=": ">="}  # fmt: skip


def comparison(op: str, left: TypedSql, right: TypedSql) -> TypedSql | None:
    """Translates `left op right` where Spark's own operator would be wrong; returns None where Spark is right.

    A date counts as its midnight beside a datetime. A time or a duration compares only with its own type: Spark would
    compare the numbers inside them.
    """
    if is_null(left.sql) or is_null(right.sql) or (left.type not in TEMPORAL and right.type not in TEMPORAL):
        return None
    if left.type == right.type == DURATION:
        symbol = _COMPARISONS[op]
        is_equality = symbol in ("=", "<>", "<=>")
        a, b = (left.sql, right.sql) if is_equality else (_duration_key(left.sql), _duration_key(right.sql))
        return TypedSql(exp.Paren(this=build(f"_a {symbol} _b", _a=a, _b=b)), BOOLEAN)
    if left.type == right.type or (left.type in _MOMENTS and right.type in _MOMENTS):
        return None
    raise FunctionError(f"cannot compare {left.type} {op} {right.type}; expected two values of one type")


# The type of `order_key`, which only Spark has.
ORDER_KEY: Final = Primitive("struct<days: bigint, micros: bigint, months: int>")


def order_key(value: TypedSql) -> exp.Expr | None:
    """Returns the key by which ORDER BY, MIN and MAX sort a duration; None for other types."""
    return _duration_key(value.sql) if value.type == DURATION and not is_null(value.sql) else None


def _duration_key(sql: exp.Expr) -> exp.Expr:
    # Separate the days: the microseconds of the largest number of months do not fit 64 bits.
    whole_days = f"_a.micros DIV {MICROS_PER_DAY} - IF(_a.micros % {MICROS_PER_DAY} < 0, 1, 0)"
    days = f"CAST(_a.months AS BIGINT) * 30 + {whole_days}"
    rest = f"pmod(_a.micros, {MICROS_PER_DAY})"
    return guard_nulls((sql,), build(f"named_struct('days', {days}, 'micros', {rest}, 'months', _a.months)", _a=sql))


def order_durations(name: str, arguments: Sequence[TypedSql]) -> TypedSql | None:
    """Returns a call of an array or comparison function with the order key before each duration; None for other calls.

    Spark itself would compare the months first.
    """
    if name in ("greatest", "least") and arguments and all(argument.type == DURATION for argument in arguments):
        return TypedSql(field(values.call(name, *(_with_key(argument.sql) for argument in arguments)), "v"), DURATION)
    if name not in ("array_max", "array_min", "array_sort", "sort_array") or not arguments:
        return None
    items, *rest = arguments
    if not isinstance(items.type, ArrayType) or items.type.item != DURATION:
        return None
    keyed = build("transform(_v, __d -> _keyed)", _v=items.sql, _keyed=_with_key(exp.column("__d")))
    result = values.call(name, keyed, *(argument.sql for argument in rest))
    if name in ("array_max", "array_min"):
        return TypedSql(field(result, "v"), DURATION)
    return TypedSql(build("transform(_v, __d -> _d)", _v=result, _d=field(exp.column("__d"), "v")), items.type)


def _with_key(sql: exp.Expr) -> exp.Expr:
    key = order_key(TypedSql(sql, DURATION))
    assert key is not None
    return guard_nulls((sql,), values.record([("k", key), ("v", sql)]))
