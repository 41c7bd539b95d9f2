"""Implements SQL++'s aggregates: over the items of a collection (array_sum, strict_sum), and over untyped rows (sum).

Sums and averages take numbers only: other values do not count, and without a number the answer is NULL. The strict ones
are NULL if an item is NULL or of another type. A minimum or maximum of values without a common order is NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

from tocsin.language.functions import temporal
from tocsin.language.functions.collections.array_arguments import SIMPLE, is_absent, is_known, item_type, items_of
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.language.types.variant import encoder, operators, values
from tocsin.language.types.variant.values import VOID, once
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Type

_FLOATS: Final = (t.FLOAT, t.DOUBLE)
_SUM: Final = "aggregate(_v, _zero, (__a, __x) -> __a + __x)"
_STATISTICS: Final = ("stddev_samp", "stddev_pop", "var_samp", "var_pop", "skewness", "kurtosis")
NAMES: Final = ("count", "sum", "avg", "min", "max", *_STATISTICS)
FUNCTIONS: Final = frozenset(f"{prefix}_{name}" for prefix in ("array", "coll", "strict") for name in NAMES)


def call(function: str, collection: TypedSql) -> TypedSql:
    """Calls an aggregate over the items of a collection: array_sum, strict_sum, or coll_sum, its older name."""
    prefix, _, name = function.partition("_")
    item = item_type(collection)
    item = t.ANY if item == VOID else item
    return _AGGREGATES[name](TypedSql(items_of(collection, item), ArrayType(item)), item, prefix != "array")


def _drop_unknown_items(items: exp.Expr, item: Type) -> exp.Expr:
    return build("filter(_v, __x -> _known)", _v=items, _known=is_known(exp.column("__x"), item))


def _count(items: TypedSql, item: Type, strict: bool) -> TypedSql:
    counted = items.sql if strict else _drop_unknown_items(items.sql, item)
    return TypedSql(build("CAST(coalesce(size(_v), 0) AS BIGINT)", _v=counted), t.BIGINT)


def _sum(items: TypedSql, item: Type, strict: bool) -> TypedSql:
    if item == t.ANY:
        return TypedSql(_over_numbers(items.sql, strict, _sum_of_untyped), t.ANY)
    if item not in t.NUMBERS:
        return TypedSql(values.null(t.DOUBLE), t.DOUBLE)
    wide = t.DOUBLE if item in _FLOATS else t.BIGINT
    zero = exp.cast(exp.Literal.number(0), values.spark_type(wide))
    total = build(_SUM, _v=exp.column("__v"), _zero=zero)
    return TypedSql(_over_typed(items.sql, wide, strict, total), wide)


def _average(items: TypedSql, item: Type, strict: bool) -> TypedSql:
    mean = "aggregate(_v, 0E0, (__a, __x) -> __a + __x) / size(_v)"
    if item == t.ANY:
        numbers = build("transform(__v, __x -> __x.d)")
        return TypedSql(_over_numbers(items.sql, strict, lambda _: build(mean, _v=numbers)), t.DOUBLE)
    if item not in t.NUMBERS:
        return TypedSql(values.null(t.DOUBLE), t.DOUBLE)
    return TypedSql(_over_typed(items.sql, t.DOUBLE, strict, build(mean, _v=exp.column("__v"))), t.DOUBLE)


def _statistic(name: str) -> Callable[[TypedSql, Type, bool], TypedSql]:
    """A variance or the like of the numbers; NULL where it would divide by zero."""

    def moment(power: int) -> str:
        factors = " * ".join(["(__x - __m)"] * power)
        return f"aggregate(__n, 0E0, (__a, __x) -> __a + {factors})"

    variance = f"{moment(2)} / nullif(size(__n) - {1 if name.endswith('_samp') else 0}, 0)"
    squared = f"nullif({moment(2)}, 0E0)"
    body = build({
        "stddev": f"sqrt({variance})",
        "var": variance,
        "skewness": f"sqrt(CAST(size(__n) AS DOUBLE)) * {moment(3)} / sqrt({squared} * {squared} * {squared})",
        "kurtosis": f"size(__n) * {moment(4)} / ({squared} * {squared}) - 3E0",
    }[name.partition("_")[0]])  # fmt: skip
    mean = build("aggregate(__n, 0E0, (__a, __x) -> __a + __x) / size(__n)")

    def make(items: TypedSql, item: Type, strict: bool) -> TypedSql:
        def of(numbers: exp.Expr) -> exp.Expr:
            return once(numbers, "__n", lambda _: once(mean, "__m", lambda _: body))

        if item == t.ANY:
            numbers = build("transform(__v, __x -> __x.d)")
            return TypedSql(_over_numbers(items.sql, strict, lambda _: of(numbers)), t.DOUBLE)
        if item not in t.NUMBERS:
            return TypedSql(values.null(t.DOUBLE), t.DOUBLE)
        return TypedSql(_over_typed(items.sql, t.DOUBLE, strict, of(exp.column("__v"))), t.DOUBLE)

    return make


def _over_typed(items: exp.Expr, wide: Type, strict: bool, made: exp.Expr) -> exp.Expr:
    """Aggregates the known items `__v` of a declared array of numbers; NULL if there are none."""
    numbers = exp.cast(items.copy(), values.spark_type(ArrayType(wide)), dialect="spark")
    known = build("filter(_v, __x -> __x IS NOT NULL)", _v=numbers)
    enough = build("size(__v) > 0")
    if strict:
        enough = exp.and_(enough, build("size(__v) = size(_items)", _items=items))
    return once(known, "__v", lambda _: exp.If(this=enough, true=made, false=exp.null()))


def _over_numbers(items: exp.Expr, strict: bool, make: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Aggregates the numbers among untyped items: structs `__v` of a whole number or NULL, and of a double."""
    item = exp.column("__x")
    pairs = build(
        "filter(transform(_v, __x -> named_struct('w', _whole, 'd', _real)), __x -> __x.d IS NOT NULL)",
        _v=items, _whole=values.whole(item), _real=values.number(item),
    )  # fmt: skip
    enough = build("size(__v) > 0")
    if strict:
        enough = exp.and_(enough, build("size(__v) = size(_items)", _items=items))
    return once(pairs, "__v", lambda pairs_: exp.If(this=enough, true=make(pairs_), false=_nothing(make)))


def _nothing(make: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    return values.NULL.copy() if make is _sum_of_untyped else exp.null()


def _sum_of_untyped(_pairs: exp.Expr) -> exp.Expr:
    whole = build("aggregate(__v, 0L, (__a, __x) -> __a + __x.w)")
    real = build("aggregate(__v, 0E0, (__a, __x) -> __a + __x.d)")
    return exp.If(
        this=build("forall(__v, __x -> __x.w IS NOT NULL)"),
        true=exp.cast(whole, "VARIANT", dialect="spark"),
        false=once(real, "__d", lambda total: encoder.to_any(TypedSql(total, t.DOUBLE))),
    )


def _extreme(name: str) -> Callable[[TypedSql, Type, bool], TypedSql]:
    def make(items: TypedSql, item: Type, strict: bool) -> TypedSql:
        on_durations = temporal.order_durations(f"array_{name}", [items])
        if on_durations is None and item not in SIMPLE:
            return _untyped_extreme(name, items, strict)
        found = on_durations or TypedSql(values.call(f"array_{name}", items.sql), item)
        if not strict:
            return found
        unknown = build("exists(_v, __x -> __x IS NULL)", _v=items.sql)
        return TypedSql(exp.If(this=unknown, true=exp.null(), false=found.sql), found.type)

    return make


def _untyped_extreme(name: str, items: TypedSql, strict: bool) -> TypedSql:
    untyped = items_of(items, t.ANY)
    element = exp.column("__x")
    known = _drop_unknown_items(untyped, t.ANY)
    pairs = build(
        "transform(_v, __x -> named_struct('k', _key, 'v', __x, 'w', _whole))",
        _v=known, _key=operators.sort_key(element), _whole=values.whole(element),
    )  # fmt: skip
    sign = "<" if name == "min" else ">"
    best = build(f"aggregate(__v, get(__v, 0), (__a, __x) -> if(__x.k {sign} __a.k, __x, __a), __a -> __a.v)")
    has_order = build(
        "size(__v) > 0 AND forall(__v, __x -> __x.k IS NOT NULL)"
        " AND array_min(transform(__v, __x -> __x.k.k)) = array_max(transform(__v, __x -> __x.k.k))"
    )
    if strict:
        has_order = exp.and_(has_order, build("size(__v) = size(_items)", _items=untyped))
    is_real = build("get(__v, 0).k.k = 0 AND exists(__v, __x -> __x.w IS NULL)")
    found = exp.If(this=has_order, true=promote(best, is_real), false=values.NULL.copy())
    return TypedSql(once(pairs, "__v", lambda _: found), t.ANY)


def promote(number: exp.Expr, is_real: exp.Expr) -> exp.Expr:
    """Returns an integer as a double if `is_real`: the numbers that it was compared with were not all integers."""
    found = values.record([("v", number), ("r", is_real)])
    best, real = (exp.column(name, table="__best") for name in ("v", "r"))
    whole = values.whole(best)
    double = exp.cast(exp.cast(whole, "DOUBLE"), "VARIANT", dialect="spark")
    test = exp.and_(real, exp.Not(this=is_absent(whole)))
    return once(found, "__best", lambda _: exp.If(this=test, true=double, false=best))


_AGGREGATES: Final[dict[str, Callable[[TypedSql, Type, bool], TypedSql]]] = {
    "count": _count, "sum": _sum, "avg": _average, "min": _extreme("min"), "max": _extreme("max"),
    **{name: _statistic(name) for name in _STATISTICS},
}  # fmt: skip
