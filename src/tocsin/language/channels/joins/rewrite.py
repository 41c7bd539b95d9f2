"""Conditions between two relations that Spark would test for every pair of rows, turned into equalities it joins by.

Each side gets a column of keys, exploded, and the condition stays as the exact test of what the keys bring together:

    shapes that meet, a distance below a bound      cells of a grid (functions/grid.py)
    x = p OR …, shapes that meet OR …               the keys of every alternative, marked with its place
    x IN p, p IN x, x IN (p, q), array_contains     the items
    x LIKE p, starts_with(x, p)                     the first characters that are no wildcards
    p <= x <= q                                     cells of a grid in one dimension
    x >= p, x >= f(p), and p <= x <= q of texts     buckets of the parameters' values in their order

What a subquery refers to beyond it is a relation of its own by then (`enriching`).
A pair that several keys bring together counts at the first of them only.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from tocsin.language.channels.joins.sides import JoinRequirements, JoinSides, equalities, explode, pair_of
from tocsin.language.channels.joins.strategies import is_of_keys, remedy_of, way_of
from tocsin.language.translate.predicate_notes import condition_near, conjuncts
from tocsin.language.translate.scope import column, free_tables


def matched(made: exp.Select, matches: JoinRequirements, alias: Callable[[str], str]) -> exp.Select:
    """The same query, with keys where it would test every pair of rows."""
    where = made.args.get("where")
    if where is None:
        return made
    conditions = list(conjuncts(where.this))
    joined = equalities(conditions)
    if any(matches.interests in pair for pair in joined):
        matches.told.append("equality")
    # Records without a partner have no keys either, and an alternative might hold for them.
    wide = any((join.side or "") in ("RIGHT", "FULL") for join in made.args.get("joins") or [])
    # What an OR says of two records helps where nothing else brings them together.
    for condition in sorted(conditions, key=lambda one: _is_between_records(one, matches)):
        pair = pair_of(condition, made)
        if pair is None or (frozenset(pair) in joined and condition_near(condition) is None):
            continue
        with_interests = matches.interests in pair
        left, right = sorted(pair, key=lambda one: one == matches.interests)
        sides = JoinSides(made, conditions, left, right, matches, alias)
        if condition_near(condition) is None and not with_interests and (wide or not is_of_keys(condition, sides.of)):
            continue
        way = way_of(condition, conditions, sides)
        if way is None:
            remedy = remedy_of(condition)
            if with_interests and remedy is not None:
                matches.remedies.append(remedy)
            continue
        joined.add(frozenset(pair))
        cells = {}
        for side, keys in ((left, way.left), (right, way.right)):
            kept = matches.kept(keys, side)
            cells[side] = column(side, explode(made, side, kept, alias))
        test: exp.Expr = exp.EQ(this=cells[left], expression=cells[right])
        if way.counts is not None:
            test = exp.and_(test, way.counts(cells[left]))
        others = list(conjuncts(made.args["where"].this))
        if _is_between_records(condition, matches):
            others.remove(condition)  # what counts has been asked all of it
        made.set("where", exp.Where(this=exp.and_(*others, test)))
        if with_interests:
            matches.told.append(way.what)
    return made


def _is_between_records(condition: exp.Expr, matches: JoinRequirements) -> bool:
    return isinstance(condition, exp.Or) and matches.interests not in free_tables(condition)
