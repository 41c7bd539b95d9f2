"""Chooses the join keys for a condition between two relations. `rewrite.py` lists the kinds.

Without keys Spark compares every record with every interest, which is too slow for a channel with many interests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from tocsin.language.channels.joins.grid_keys import by_cells
from tocsin.language.channels.joins.range_keys import by_range
from tocsin.language.channels.joins.sides import JoinSides, KeyStrategy
from tocsin.language.channels.joins.text_keys import by_text
from tocsin.language.functions import grid
from tocsin.language.functions.function_registry import is_computed_once
from tocsin.language.translate.predicate_notes import COMPARED, ORDERS, condition_near, conjuncts, disjuncts
from tocsin.language.translate.scope import free_tables
from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t

_ALTERNATIVES: Final = 32  # the most alternatives of an OR, after nested ORs are expanded
_PREFIX: Final = 12  # the number of characters that form the key of a beginning


def find_key_strategy(condition: exp.Expr, conditions: Sequence[exp.Expr], sides: JoinSides) -> KeyStrategy | None:
    """Returns the join strategy for a condition, which is one of `conditions`; None if there is none."""
    near = condition_near(condition)
    if near is not None:
        return by_cells(near, sides)
    if isinstance(condition, exp.Or):
        return _alternatives(condition, sides)
    return (
        _match_list(condition, sides)
        or _items(condition, sides)
        or _prefix(condition, sides)
        or by_text(condition, sides)
        or by_range(condition, conditions, sides)
    )


def _alternatives(condition: exp.Or, sides: JoinSides) -> KeyStrategy | None:
    """Joins by an OR: each alternative contributes its keys, marked with the alternative's number."""
    alternatives = [
        conjunction for part in disjuncts(condition) for conjunction in _parts(list(conjuncts(part)), sides)
    ]
    if len(alternatives) > _ALTERNATIVES:
        return None
    of_records = sides.matches.interests not in (sides.left, sides.right)
    strategies: list[KeyStrategy] = []
    for alternative in alternatives:
        # Every alternative needs a strategy, or the OR has none. For a conjunction, one of its conditions is enough.
        candidates = (
            [condition_ for condition_ in alternative if _has_keys(condition_, sides.of)] if of_records else alternative
        )
        strategy = next(filter(None, (_single(candidate, sides) for candidate in candidates)), None)
        if strategy is None:
            return None
        if of_records:
            left, right = (
                _where([condition_ for condition_ in alternative if sides.of(condition_) == side], keys)
                for side, keys in ((sides.left, strategy.left), (sides.right, strategy.right))
            )
            strategy = replace(strategy, left=left, right=right)
        strategies.append(strategy)

    def mark_ways(keys: Sequence[exp.Expr]) -> exp.Expr:
        marked_keys = []
        for i, (strategy, side_keys) in enumerate(zip(strategies, keys, strict=True)):
            key = "xxhash64(__k)" if strategy.counts is None else "__k"  # `counts` needs the cell, not its hash
            not_null = "filter(coalesce(_k, array()), __k -> __k IS NOT NULL)"  # NULL keys would match each other
            marked_keys.append(
                build(f"transform({not_null}, __k -> named_struct('way', {i}, 'key', {key}))", _k=side_keys)
            )
        return values.call("array_distinct", values.call("concat", *marked_keys))

    def counts(key: exp.Expr) -> exp.Expr:
        # The CASE contains each alternative once: Spark evaluates repeated subexpressions early, where they might fail.
        first_that_holds = exp.Case(
            ifs=[
                exp.If(this=exp.and_(*alternative), true=exp.Literal.number(i))
                for i, alternative in enumerate(alternatives)
            ]
        )
        tests: list[exp.Expr] = [exp.EQ(this=build("_k['way']", _k=key), expression=first_that_holds)]
        for i, strategy in enumerate(strategies):
            if strategy.counts is not None:
                first = exp.Paren(this=strategy.counts(build("_k['key']", _k=key)))
                tests.append(exp.or_(build(f"_k['way'] != {i}", _k=key), first))
        return exp.and_(*tests)

    if not all(strategy.same_type for strategy in strategies):
        return None
    return KeyStrategy(
        "any of: " + ", ".join(strategy.what for strategy in strategies),
        mark_ways([strategy.left for strategy in strategies]),
        mark_ways([strategy.right for strategy in strategies]),
        counts,
    )


def _parts(every: list[exp.Expr], sides: JoinSides) -> Iterator[list[exp.Expr]]:
    """Yields an alternative as a list of conditions; expands an OR inside it if no other condition has a strategy."""
    nested = next((condition for condition in every if isinstance(condition, exp.Or)), None)
    if nested is None or any(_single(condition, sides) for condition in every):
        yield every
        return
    rest = [condition for condition in every if condition is not nested]
    for part in disjuncts(nested):
        yield from _parts([*conjuncts(part), *rest], sides)


def _single(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    return (
        None
        if isinstance(condition, exp.Or)
        else _equality(condition, sides) or find_key_strategy(condition, [condition], sides)
    )


def _where(conditions: Sequence[exp.Expr], keys: exp.Expr) -> exp.Expr:
    """Returns NULL for a record that the alternative excludes, so that computing its keys cannot fail."""
    return exp.If(this=exp.and_(*conditions), true=keys, false=exp.null()) if conditions else keys


def is_of_keys(condition: exp.Expr, side_of: Callable[[exp.Expr], str | None]) -> bool:
    """Whether this is an OR whose alternatives all join two sides by grid cells or by an equality.

    `side_of` returns the side that an expression belongs to, or None if it belongs to neither or to both.
    """
    if not isinstance(condition, exp.Or) or condition.find(exp.Query) or is_computed_once(condition):
        return False  # an expensive condition runs once per pair; with keys it would run once per key
    return all(any(_has_keys(conjunct, side_of) for conjunct in conjuncts(part)) for part in disjuncts(condition))


def _has_keys(condition: exp.Expr, side_of: Callable[[exp.Expr], str | None]) -> bool:
    """Whether a condition joins two sides by grid cells or by an equality."""
    near = condition_near(condition)
    if near is not None and all(grid.has_cells(shape.type, globe=near.globe) for shape in (near.a, near.b)):
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
    left, right = (values.call("array", value) for value in _alike(condition, *ends[:2]))
    return KeyStrategy("equality", left, right, same_type=_is_alike(condition))


def _alike(condition: exp.Expr, *sides: exp.Expr) -> list[exp.Expr]:
    """Returns both sides of an equality as one type.

    Numbers of different types become doubles. Equal numbers stay equal. Different numbers may become equal; the
    exact test removes such pairs.
    """
    types = {operand.type for operand in condition.meta.get(COMPARED, ())}
    if len(types) > 1 and types <= set(t.NUMBERS):
        return [exp.cast(side.copy(), "DOUBLE") for side in sides]
    return list(sides)


def _is_alike(condition: exp.Expr) -> bool:
    types = {operand.type for operand in condition.meta.get(COMPARED, ())}
    return len(types) == 1 or types <= set(t.NUMBERS)


def _ends(a: exp.Expr, b: exp.Expr, sides: JoinSides) -> tuple[exp.Expr, exp.Expr, bool] | None:
    """Returns the operands for the left and the right side, and whether the condition names them in reverse order."""
    tables = sides.of(a), sides.of(b)
    if tables == (sides.left, sides.right):
        return a, b, False
    return (b, a, True) if tables == (sides.right, sides.left) else None


def _order_sides(what: str, keys: list[exp.Expr], turned: bool, *, same_type: bool = True) -> KeyStrategy:
    left, right = keys[::-1] if turned else keys
    return KeyStrategy(what, left, right, same_type=same_type)


def _items(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    """Handles an array's items: the translator turns IN into `exists(array, x -> x = value)`; or array_contains."""
    if not isinstance(condition, exp.Anonymous) or len(condition.expressions) != 2:
        return None
    array, test = condition.expressions
    name = str(condition.this).lower()
    if name == "exists" and isinstance(test, exp.Lambda) and isinstance(test.this, exp.EQ):
        variable = test.expressions[0].name
        of_item = [_is_about(operand, variable) for operand in (test.this.this, test.this.expression)]
        if of_item[0] == of_item[1]:
            return None
        item, value = (test.this.this, test.this.expression)[:: 1 if of_item[0] else -1]
        if free_tables(item):
            return None
        key, value_key = _alike(test.this, item, value)
        to_key = exp.Lambda(this=key.copy(), expressions=[parameter.copy() for parameter in test.expressions])
        items, same_type = values.call("transform", array, to_key), _is_alike(test.this)
    elif name == "array_contains":
        value, value_key, items, same_type = test, test, array, False
    else:
        return None
    ends_ = _ends(array, value, sides)
    if ends_ is None:
        return None
    keys = [values.call("array_distinct", items), values.call("array", value_key)]
    return _order_sides("the items of an array", keys, ends_[2], same_type=same_type)


def _match_list(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    """Handles `value IN (a, b)`, where all values have one type."""
    if not isinstance(condition, exp.In) or not condition.expressions:
        return None
    candidates = values.call("array", *condition.expressions)
    ends = _ends(candidates, condition.this, sides)
    if ends is None:
        return None
    keys = [values.call("array_distinct", candidates), values.call("array", condition.this)]
    return _order_sides("the items of an array", keys, ends[2])


def _is_about(node: exp.Expr, variable: str) -> bool:
    return any(reference.name == variable and not reference.table for reference in node.find_all(exp.Column))


def _prefix(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    """Joins by the first characters of a text: each text has a key per prefix."""
    if not isinstance(condition, exp.Anonymous) or str(condition.this).lower() != "startswith":
        return None
    text, beginning = condition.expressions
    ends = _ends(text, beginning, sides)
    if ends is None:
        return None
    beginnings = build(f"transform(sequence(0, least(length(_t), {_PREFIX})), __n -> substring(_t, 1, __n))", _t=text)
    own_beginning = build(f"array(substring(_b, 1, {_PREFIX}))", _b=beginning)
    return _order_sides("the beginning of a text", [beginnings, own_beginning], ends[2])


def remedy_of(condition: exp.Expr) -> str | None:
    """Returns advice for a condition that no join can use although its kind sometimes can; else None."""
    if isinstance(condition, exp.Or):
        return "let every alternative of OR compare a parameter with a field, or make a channel of each"
    compared = condition.meta.get(COMPARED, ())
    if any(value.type == t.ANY for value in compared) and condition.find(*ORDERS):
        return "declare a type for the parameter, and for the field: values of any type are not kept in order"
    return None
