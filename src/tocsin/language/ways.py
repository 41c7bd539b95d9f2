"""The ways in which a condition brings two relations together: see `matching`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from tocsin.language import dynamic, grid, temporal
from tocsin.language.calls import is_made_once
from tocsin.language.grid import Near
from tocsin.language.meeting import Sides, Way
from tocsin.language.noted import COMPARED, ORDERS, condition_near, conjuncts, disjuncts
from tocsin.language.scope import column, free_tables
from tocsin.language.typed import Typed, build
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Type

_ALTERNATIVES: Final = 32  # of one OR, once those within are taken apart
_PREFIX: Final = 12  # characters of a pattern that are compared at first


def way_of(condition: exp.Expr, conditions: Sequence[exp.Expr], sides: Sides) -> Way | None:
    near = condition_near(condition)
    if near is not None:
        return _grid(near, sides)
    if isinstance(condition, exp.Or):
        return _alternatives(condition, sides)
    return (
        _listed(condition, sides)
        or _items(condition, sides)
        or _prefix(condition, sides)
        or _range(condition, conditions, sides)
    )


def _grid(near: Near, sides: Sides) -> Way | None:
    a, b = (near.a, near.b) if sides.of(near.a.sql) == sides.left else (near.b, near.a)
    if sides.of(a.sql) != sides.left or sides.of(b.sql) != sides.right:
        return None
    if not all(grid.known(one.type, globe=near.globe) for one in (a, b)):
        return None
    what = "a grid on the globe" if near.globe else "a grid in the plane"

    def region(shape: Typed, side: str) -> grid.Region:
        return grid.Region.of(shape, sides.beside(side), globe=near.globe)

    def points(shape: Typed, levels: exp.Expr) -> exp.Expr:
        return grid.point_cells(shape, levels, globe=near.globe)

    if a.type == t.POINT and b.type == t.POINT:
        everything = grid.array_of((0,))
        return Way(what, points(a, everything), points(b, everything))
    if b.type == t.POINT:
        first = region(a, sides.left)
        return Way(what, first.cells, points(b, sides.levels(sides.left, first)))
    if a.type == t.POINT:
        second = region(b, sides.right)
        return Way(what, points(a, sides.levels(sides.right, second)), second.cells)
    first, second = region(a, sides.left), region(b, sides.right)
    mine, theirs = sides.levels(sides.left, first), sides.levels(sides.right, second)
    # Own cells meet own and coarser ones under their number, coarser ones meet own ones under its negative.
    left = build("concat(_own, transform(_more, __n -> -__n - 1L))", _own=first.cells,
                 _more=first.coarser_cells(theirs))  # fmt: skip
    right = build("concat(_own, _more, transform(_own, __n -> -__n - 1L))", _own=sides.beside(sides.right)(
        second.cells), _more=second.coarser_cells(mine))  # fmt: skip

    def counts(key: exp.Expr) -> exp.Expr:
        return grid.is_first_shared(build("if(_k < 0L, -_k - 1L, _k)", _k=key), first, second)

    return Way(what, left, right, counts)


def _alternatives(condition: exp.Or, sides: Sides) -> Way | None:
    parts = [each for part in disjuncts(condition) for each in _parts(list(conjuncts(part)), sides)]
    if len(parts) > _ALTERNATIVES:
        return None
    of_records = sides.matches.interests not in (sides.left, sides.right)
    ways: list[Way] = []
    for every in parts:
        # A way for each or none at all. An alternative may be a conjunction: one of its parts is enough.
        several = [one for one in every if _has_keys(one, sides.of)] if of_records else every
        way = next(filter(None, (_single(one, sides) for one in several)), None)
        if way is None:
            return None
        if of_records:
            left, right = (
                _where([one for one in every if sides.of(one) == side], keys)
                for side, keys in ((sides.left, way.left), (sides.right, way.right))
            )
            way = replace(way, left=left, right=right)
        ways.append(way)

    def marked(keys: Sequence[exp.Expr]) -> exp.Expr:
        each = []
        for i, (way, one) in enumerate(zip(ways, keys, strict=True)):
            key = "xxhash64(__k)" if way.counts is None else "__k"  # a cell tells whether it counts
            known = "filter(coalesce(_k, array()), __k -> __k IS NOT NULL)"  # all NULLs would meet
            each.append(build(f"transform({known}, __k -> named_struct('way', {i}, 'key', {key}))", _k=one))
        return dynamic.call("array_distinct", dynamic.call("concat", *each))

    def counts(key: exp.Expr) -> exp.Expr:
        # Each is written once and asked in its turn: Spark computes early what it finds twice, and might fail there.
        held = exp.Case(ifs=[exp.If(this=exp.and_(*part), true=exp.Literal.number(i)) for i, part in enumerate(parts)])
        tests: list[exp.Expr] = [exp.EQ(this=build("_k['way']", _k=key), expression=held)]
        for i, way in enumerate(ways):
            if way.counts is not None:
                first = exp.Paren(this=way.counts(build("_k['key']", _k=key)))
                tests.append(exp.or_(build(f"_k['way'] != {i}", _k=key), first))
        return exp.and_(*tests)

    if not all(way.same_type for way in ways):
        return None
    return Way(
        "any of: " + ", ".join(way.what for way in ways),
        marked([way.left for way in ways]), marked([way.right for way in ways]), counts,
    )  # fmt: skip


def _parts(every: list[exp.Expr], sides: Sides) -> Iterator[list[exp.Expr]]:
    """An alternative, as its conditions. One that only an OR within it brings together is as many as that has."""
    within = next((one for one in every if isinstance(one, exp.Or)), None)
    if within is None or any(_single(one, sides) for one in every):
        yield every
        return
    rest = [one for one in every if one is not within]
    for part in disjuncts(within):
        yield from _parts([*conjuncts(part), *rest], sides)


def _single(one: exp.Expr, sides: Sides) -> Way | None:
    return None if isinstance(one, exp.Or) else _equality(one, sides) or way_of(one, [one], sides)


def _where(conditions: Sequence[exp.Expr], keys: exp.Expr) -> exp.Expr:
    """A record that an alternative is not about has no keys there, nor fails by what it would make them of."""
    return exp.If(this=exp.and_(*conditions), true=keys, false=exp.null()) if conditions else keys


def is_of_keys(condition: exp.Expr, side_of: Callable[[exp.Expr], str | None]) -> bool:
    """Whether this is an OR of which every alternative brings two sides together by cells or by an equality.

    `side_of` tells which of the two an expression is of, or None where it is of neither or of both.
    """
    if not isinstance(condition, exp.Or) or condition.find(exp.Query) or is_made_once(condition):
        return False  # what is dear to ask is asked once, not again of each key
    return all(any(_has_keys(one, side_of) for one in conjuncts(part)) for part in disjuncts(condition))


def _has_keys(condition: exp.Expr, side_of: Callable[[exp.Expr], str | None]) -> bool:
    near = condition_near(condition)
    if near is not None and all(grid.known(one.type, globe=near.globe) for one in (near.a, near.b)):
        ends = side_of(near.a.sql), side_of(near.b.sql)
    elif isinstance(condition, exp.EQ) and COMPARED in condition.meta and _is_alike(condition):
        ends = side_of(condition.this), side_of(condition.expression)
    else:
        return False
    return None not in ends and ends[0] != ends[1]


def _equality(condition: exp.Expr, sides: Sides) -> Way | None:
    ends = _ends(condition.this, condition.expression, sides) if isinstance(condition, exp.EQ) else None
    if ends is None:
        return None
    left, right = (dynamic.call("array", one) for one in _alike(condition, *ends[:2]))
    return Way("equality", left, right, same_type=_is_alike(condition))


def _alike(condition: exp.Expr, *sides: exp.Expr) -> list[exp.Expr]:
    """Both sides of an equation as values of one type: numbers of different types as doubles, which may be equal where
    the numbers are not, but never the other way round."""
    types = {one.type for one in condition.meta.get(COMPARED, ())}
    if len(types) > 1 and types <= set(t.NUMBERS):
        return [exp.cast(one.copy(), "DOUBLE") for one in sides]
    return list(sides)


def _is_alike(condition: exp.Expr) -> bool:
    types = {one.type for one in condition.meta.get(COMPARED, ())}
    return len(types) == 1 or types <= set(t.NUMBERS)


def _ends(a: exp.Expr, b: exp.Expr, sides: Sides) -> tuple[exp.Expr, exp.Expr, bool] | None:
    """What the condition has on the left and on the right side, and whether it was written the other way round."""
    at = sides.of(a), sides.of(b)
    if at == (sides.left, sides.right):
        return a, b, False
    return (b, a, True) if at == (sides.right, sides.left) else None


def _turned(what: str, keys: list[exp.Expr], turned: bool, *, same_type: bool = True) -> Way:
    left, right = keys[::-1] if turned else keys
    return Way(what, left, right, same_type=same_type)


def _items(condition: exp.Expr, sides: Sides) -> Way | None:
    """`exists(array, x -> x = value)` is what IN becomes; array_contains is what it is called elsewhere."""
    if not isinstance(condition, exp.Anonymous) or len(condition.expressions) != 2:
        return None
    array, test = condition.expressions
    name = str(condition.this).lower()
    if name == "exists" and isinstance(test, exp.Lambda) and isinstance(test.this, exp.EQ):
        variable = test.expressions[0].name
        of_item = [_is_about(one, variable) for one in (test.this.this, test.this.expression)]
        if of_item[0] == of_item[1]:
            return None
        item, value = (test.this.this, test.this.expression)[:: 1 if of_item[0] else -1]
        if free_tables(item):
            return None
        key, value_key = _alike(test.this, item, value)
        each = exp.Lambda(this=key.copy(), expressions=[one.copy() for one in test.expressions])
        items, same_type = dynamic.call("transform", array, each), _is_alike(test.this)
    elif name == "array_contains":
        value, value_key, items, same_type = test, test, array, False
    else:
        return None
    ends_ = _ends(array, value, sides)
    if ends_ is None:
        return None
    keys = [dynamic.call("array_distinct", items), dynamic.call("array", value_key)]
    return _turned("the items of an array", keys, ends_[2], same_type=same_type)


def _listed(condition: exp.Expr, sides: Sides) -> Way | None:
    """`value IN (one, other)`, all of one type."""
    if not isinstance(condition, exp.In) or not condition.expressions:
        return None
    listed = dynamic.call("array", *condition.expressions)
    ends = _ends(listed, condition.this, sides)
    if ends is None:
        return None
    keys = [dynamic.call("array_distinct", listed), dynamic.call("array", condition.this)]
    return _turned("the items of an array", keys, ends[2])


def _is_about(node: exp.Expr, variable: str) -> bool:
    return any(one.name == variable and not one.table for one in node.find_all(exp.Column))


def _prefix(condition: exp.Expr, sides: Sides) -> Way | None:
    if isinstance(condition, exp.Like):
        text, pattern = condition.this, condition.expression
        if _begins_with_wildcard(pattern):
            return None  # every text has the beginning that all such patterns share
        fixed = build(r"regexp_extract(_p, '^[^%_\\\\]*', 0)", _p=pattern)
    elif isinstance(condition, exp.Anonymous) and str(condition.this).lower() == "startswith":
        text, pattern = condition.expressions
        fixed = pattern
    else:
        return None
    ends = _ends(text, pattern, sides)
    if ends is None:
        return None
    beginnings = build(f"transform(sequence(0, least(length(_t), {_PREFIX})), __n -> substring(_t, 1, __n))", _t=text)
    beginning = build(f"array(substring(_f, 1, {_PREFIX}))", _f=fixed)
    return _turned("the beginning of a text", [beginnings, beginning], ends[2])


def _begins_with_wildcard(pattern: exp.Expr) -> bool:
    """Whether it does so whatever the parameter is."""
    while True:
        match pattern:
            case exp.If():
                pattern = pattern.args["true"]
            case exp.Paren() | exp.Cast() | exp.DPipe():
                pattern = pattern.this
            case exp.Concat() | exp.Anonymous() if pattern.expressions and pattern.name.lower() in ("", "concat"):
                pattern = pattern.expressions[0]
            case _:
                return isinstance(pattern, exp.Literal) and pattern.is_string and pattern.name[:1] in ("%", "_")


@dataclass(frozen=True, slots=True)
class _Bound:
    """The left side's value is at least, or at most, what the right side has."""

    value: Typed
    bound: Typed
    at_least: bool


def _range(condition: exp.Expr, conditions: Sequence[exp.Expr], sides: Sides) -> Way | None:
    first = _bound(condition, sides)
    if first is None:
        return None
    for other in conditions:
        second = _bound(other, sides) if other is not condition else None
        if second is None or second.at_least == first.at_least:
            continue
        low, high = (first, second) if first.at_least else (second, first)
        way = None
        if low.value == high.value:
            way = _interval(low.value, low.bound, high.bound, sides)
        elif low.bound == high.bound:
            way = _interval(low.bound, high.value, low.value, sides)
        if way is not None:
            return way
    if not _is_plain(first, sides):
        others = (_bound(one, sides) for one in conditions if one is not condition)
        if any(one is not None and _is_plain(one, sides) and _is_ordered(one) for one in others):
            return None  # that one is kept with the interests
    return _half(first, sides)


def _bound(condition: exp.Expr, sides: Sides) -> _Bound | None:
    compared = condition.meta.get(COMPARED)
    greater = ORDERS.get(type(condition.this if isinstance(condition, exp.Paren) else condition))
    if greater is None or compared is None:
        return None
    a, b = compared
    at = sides.of(a.sql), sides.of(b.sql)
    if at == (sides.left, sides.right):
        return _Bound(a, b, greater)
    return _Bound(b, a, not greater) if at == (sides.right, sides.left) else None


def _interval(value: Typed, low: Typed, high: Typed, sides: Sides) -> Way | None:
    types = {one.type for one in (value, low, high)}
    numbers = [_as_number(one) for one in (value, low, high)]
    if any(one is None for one in numbers) or not (len(types) == 1 or types <= set(t.NUMBERS)):
        return None
    x, x1, x2 = (one for one in numbers if one is not None)
    parts = {"_z": exp.Literal.number("0E0"), "_x": x, "_a": x1, "_b": x2}
    point = build("if(_x IS NULL, NULL, named_struct('x', _x, 'y', _z))", **parts)
    span = build("if(_a <= _b, named_struct('x1', _a, 'y1', _z, 'x2', _b, 'y2', _z), NULL)", **parts)
    way = _grid(Near(Typed(point, t.POINT), Typed(span, t.RECTANGLE), globe=False), sides)
    return None if way is None else Way("a grid of ranges", way.left, way.right)


def _as_number(value: Typed) -> exp.Expr | None:
    """A number that is not less for a greater value."""
    if value.type in t.NUMBERS:
        return exp.cast(value.sql.copy(), "DOUBLE")
    made = _NUMBER_OF.get(value.type)
    return None if made is None else build(made, _v=temporal.order_key(value) or value.sql)


# `pipeline.channels.interests` makes the same number of a duration.
_NUMBER_OF: Final[dict[Type, str]] = {
    t.DATETIME: "CAST(unix_micros(_v) AS DOUBLE) / 1E6",
    t.DATE: "CAST(unix_date(_v) AS DOUBLE)",
    t.TIME: "CAST(_v AS DOUBLE) / 1E6",
    t.DURATION: "_v.days * 86400E0 + _v.micros / 1E6",
}
_ORDERED: Final = frozenset((*t.NUMBERS, t.STRING, t.UUID, t.BOOLEAN, t.DATE, t.TIME, t.DATETIME, t.DURATION))


def _half(bound: _Bound, sides: Sides) -> Way | None:
    """Buckets between some of the parameter's values: a value meets its own bucket and all below it (or above it)."""
    if not _is_ordered(bound):
        return None
    # A whole number and a fraction are compared as doubles, which may be equal where the numbers are not.
    mixed = (bound.value.type in t.INTEGERS) != (bound.bound.type in t.INTEGERS)
    mine, theirs = (
        _as_number(one) if one.type == t.DURATION or mixed else one.sql for one in (bound.value, bound.bound)
    )
    if mine is None or theirs is None:
        return None
    if is_made_once(mine):
        mine = sides.beside(sides.left)(mine)  # Spark makes no such call for each item of an array
    if _is_plain(bound, sides) and not mixed:
        name = sides.matches.borders_of(bound.bound.sql.name)
        borders: exp.Expr = exp.Placeholder(this=name)
        what, own = "buckets of a range", dynamic.call("array", column(sides.right, name))
    else:
        theirs = sides.beside(sides.right)(theirs)
        borders = sides.some_of(sides.right, theirs)
        what = "buckets of a computed range"
        own = build(f"if(_v IS NULL, NULL, array({_PLACE}))", _borders=borders, _v=theirs)
    whole = f"sequence(0L, {_PLACE})" if bound.at_least else f"sequence({_PLACE}, CAST(size(_borders) AS BIGINT))"
    return Way(what, build(f"if(_v IS NULL, NULL, {whole})", _borders=borders, _v=mine), own)


# How many borders are not above the value, in whatever order they are.
_PLACE: Final = "CAST(size(filter(_borders, __b -> __b <= _v)) AS BIGINT)"


def _is_plain(bound: _Bound, sides: Sides) -> bool:
    """Whether it is a parameter, whose values are known without Spark."""
    sql = bound.bound.sql
    return isinstance(sql, exp.Column) and sql.table == sides.matches.interests and sql.name.startswith("p")


def _is_ordered(bound: _Bound) -> bool:
    return bound.bound.type in _ORDERED and bound.value.type != t.ANY


# ---------------------------------------------------------------- where there is none


def remedy_of(condition: exp.Expr) -> str | None:
    """What would help a condition that brings nothing together although it is of a kind that may."""
    if isinstance(condition, exp.Or):
        return "let every alternative of OR compare a parameter with a field, or make a channel of each"
    if isinstance(condition, exp.Like) and _begins_with_wildcard(condition.expression):
        return "let the pattern begin with what it is given, or compare whole words with IN"
    compared = condition.meta.get(COMPARED, ())
    if any(one.type == t.ANY for one in compared) and condition.find(*ORDERS):
        return "declare a type for the parameter, and for the field: values of any type are not kept in order"
    return None
