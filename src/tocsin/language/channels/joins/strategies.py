"""The ways in which a condition brings two relations together: see `matching`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from tocsin.language.channels.joins.grid_keys import by_cells
from tocsin.language.channels.joins.range_keys import by_range
from tocsin.language.channels.joins.sides import JoinSides, KeyStrategy
from tocsin.language.functions import grid
from tocsin.language.functions.calls import is_made_once
from tocsin.language.translate.predicate_notes import (
    COMPARED,
    ORDERS,
    condition_near,
    conjuncts,
    disjuncts,
)
from tocsin.language.translate.scope import free_tables
from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t

_ALTERNATIVES: Final = 32  # of one OR, once those within are taken apart
_PREFIX: Final = 12  # characters of a pattern that are compared at first


def way_of(condition: exp.Expr, conditions: Sequence[exp.Expr], sides: JoinSides) -> KeyStrategy | None:
    """How this condition, one of the `conditions`, brings the sides together; None where it does not."""
    near = condition_near(condition)
    if near is not None:
        return by_cells(near, sides)
    if isinstance(condition, exp.Or):
        return _alternatives(condition, sides)
    return (
        _listed(condition, sides)
        or _items(condition, sides)
        or _prefix(condition, sides)
        or by_range(condition, conditions, sides)
    )


def _alternatives(condition: exp.Or, sides: JoinSides) -> KeyStrategy | None:
    parts = [each for part in disjuncts(condition) for each in _parts(list(conjuncts(part)), sides)]
    if len(parts) > _ALTERNATIVES:
        return None
    of_records = sides.matches.interests not in (sides.left, sides.right)
    ways: list[KeyStrategy] = []
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
        return values.call("array_distinct", values.call("concat", *each))

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
    return KeyStrategy(
        "any of: " + ", ".join(way.what for way in ways),
        marked([way.left for way in ways]), marked([way.right for way in ways]), counts,
    )  # fmt: skip


def _parts(every: list[exp.Expr], sides: JoinSides) -> Iterator[list[exp.Expr]]:
    """An alternative, as its conditions. One that only an OR within it brings together is as many as that has."""
    within = next((one for one in every if isinstance(one, exp.Or)), None)
    if within is None or any(_single(one, sides) for one in every):
        yield every
        return
    rest = [one for one in every if one is not within]
    for part in disjuncts(within):
        yield from _parts([*conjuncts(part), *rest], sides)


def _single(one: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
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


def _equality(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    ends = _ends(condition.this, condition.expression, sides) if isinstance(condition, exp.EQ) else None
    if ends is None:
        return None
    left, right = (values.call("array", one) for one in _alike(condition, *ends[:2]))
    return KeyStrategy("equality", left, right, same_type=_is_alike(condition))


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


def _ends(a: exp.Expr, b: exp.Expr, sides: JoinSides) -> tuple[exp.Expr, exp.Expr, bool] | None:
    """What the condition has on the left and on the right side, and whether it was written the other way round."""
    at = sides.of(a), sides.of(b)
    if at == (sides.left, sides.right):
        return a, b, False
    return (b, a, True) if at == (sides.right, sides.left) else None


def _turned(what: str, keys: list[exp.Expr], turned: bool, *, same_type: bool = True) -> KeyStrategy:
    left, right = keys[::-1] if turned else keys
    return KeyStrategy(what, left, right, same_type=same_type)


def _items(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
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
        items, same_type = values.call("transform", array, each), _is_alike(test.this)
    elif name == "array_contains":
        value, value_key, items, same_type = test, test, array, False
    else:
        return None
    ends_ = _ends(array, value, sides)
    if ends_ is None:
        return None
    keys = [values.call("array_distinct", items), values.call("array", value_key)]
    return _turned("the items of an array", keys, ends_[2], same_type=same_type)


def _listed(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    """`value IN (one, other)`, all of one type."""
    if not isinstance(condition, exp.In) or not condition.expressions:
        return None
    listed = values.call("array", *condition.expressions)
    ends = _ends(listed, condition.this, sides)
    if ends is None:
        return None
    keys = [values.call("array_distinct", listed), values.call("array", condition.this)]
    return _turned("the items of an array", keys, ends[2])


def _is_about(node: exp.Expr, variable: str) -> bool:
    return any(one.name == variable and not one.table for one in node.find_all(exp.Column))


def _prefix(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
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
