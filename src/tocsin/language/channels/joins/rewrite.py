"""Rewrites conditions that Spark would test for every pair of rows as equalities of keys, by which Spark can join.

Each side gets an exploded column of keys. The original condition stays as the exact test of the pairs that share a key:

    shapes that meet, a distance below a bound      cells of a grid (functions/grid.py)
    x = p OR …, shapes that meet OR …               the keys of every alternative, marked with its place
    x IN p, p IN x, x IN (p, q), array_contains     the items
    starts_with(x, p)                               the first characters
    contains(x, p), ends_with(x, p), x LIKE p       parts of the text, of several lengths
    ftcontains(x, p)                                the words
    p <= x <= q                                     cells of a grid in one dimension
    x >= p, x >= f(p), and p <= x <= q of texts     buckets of the parameters' values in their order

`joins/decorrelate.py` has already turned the outer values of a subquery into a relation of its own.
If a pair shares several keys, it counts only at the first of them. Where no parameter occurs, all have the same key.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from tocsin.language.channels.joins.sides import (
    JoinRequirements,
    JoinSides,
    equalities,
    explode,
    explode_apart,
    pair_of,
)
from tocsin.language.channels.joins.strategies import find_key_strategy, is_of_keys, remedy_of
from tocsin.language.translate.predicate_notes import condition_near, conjuncts
from tocsin.language.translate.scope import column, free_tables
from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values


def add_join_keys(made: exp.Select, matches: JoinRequirements, alias: Callable[[str], str]) -> exp.Select:
    """Returns the query with join keys where Spark would test every pair of rows."""
    where = made.args.get("where")
    conditions = list(conjuncts(where.this)) if where is not None else []
    if _is_free(made, conditions, matches):
        _join_all(made, matches, alias)
        return made
    if where is None:
        return made
    joined = equalities(conditions)
    if any(matches.interests in pair for pair in joined):
        matches.strategies.append("equality")
    # RIGHT and FULL joins yield rows without a partner. They have no keys, but an alternative of an OR may hold there.
    has_wide_join = any((join.side or "") in ("RIGHT", "FULL") for join in made.args.get("joins") or [])
    # Handle ORs between records last: they help only if no other condition joins the two relations.
    for condition in sorted(conditions, key=lambda each: _is_between_records(each, matches)):
        pair = pair_of(condition, made)
        if pair is None or (frozenset(pair) in joined and condition_near(condition) is None):
            continue
        with_interests = matches.interests in pair
        left, right = sorted(pair, key=lambda side: side == matches.interests)
        sides = JoinSides(made, conditions, left, right, matches, alias)
        if (
            condition_near(condition) is None
            and not with_interests
            and (has_wide_join or not is_of_keys(condition, sides.of))
        ):
            continue
        strategy = find_key_strategy(condition, conditions, sides)
        if strategy is None:
            remedy = remedy_of(condition)
            if with_interests and remedy is not None:
                matches.remedies.append(remedy)
            continue
        joined.add(frozenset(pair))
        key_columns = {}
        for side, keys in ((right, strategy.right), (left, strategy.left)):
            stored = matches.find_stored_column(keys, side)
            apart = explode_apart(made, side, stored, matches, alias) if strategy.is_wide and side == left else None
            key_columns[side] = apart or column(side, explode(made, side, stored, alias))
        test: exp.Expr = exp.EQ(this=key_columns[left], expression=key_columns[right])
        if strategy.counts is not None:
            test = exp.and_(test, strategy.counts(key_columns[left]))
        others = list(conjuncts(made.args["where"].this))
        if _is_between_records(condition, matches):
            others.remove(condition)  # `counts` already tests the whole condition
        made.set("where", exp.Where(this=exp.and_(*others, test)))
        if with_interests:
            matches.strategies.append(strategy.what)
    return made


def _is_free(made: exp.Select, conditions: list[exp.Expr], matches: JoinRequirements) -> bool:
    """Whether the query joins records with interests, and no parameter occurs in it: then all interests get all."""
    joins = made.args.get("joins") or []
    if [join.this.alias_or_name for join in joins] != [matches.interests]:
        return False
    parts = [*conditions, *made.expressions, *(made.args[name] for name in ("group", "having") if made.args.get(name))]
    return not any(
        reference.table == matches.interests and reference.name in matches.parameters
        for part in parts
        for reference in part.find_all(exp.Column)
    )


def _join_all(made: exp.Select, matches: JoinRequirements, alias: Callable[[str], str]) -> None:
    """Gives all records and all interests the same key: every pair is a match, so that testing none is no loss."""
    records = made.args["from_"].this.alias_or_name
    same_key = values.call("array", build("0L"))
    keys = [column(side, explode(made, side, same_key, alias)) for side in (records, matches.interests)]
    conditions = [made.args["where"].this] if made.args.get("where") else []
    made.set("where", exp.Where(this=exp.and_(*conditions, exp.EQ(this=keys[0], expression=keys[1]))))
    matches.strategies.append("nothing: every interest gets every result")


def _is_between_records(condition: exp.Expr, matches: JoinRequirements) -> bool:
    return isinstance(condition, exp.Or) and matches.interests not in free_tables(condition)
