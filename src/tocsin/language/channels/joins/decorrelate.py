"""Subqueries whose rows are near what stands around them, such as the shelters in a report's zone.

    SELECT … FROM Shelters s WHERE geo_intersect(r.zone, s.place)                     becomes
    SELECT … FROM (SELECT r.zone AS i0) o, Shelters s WHERE geo_intersect(o.i0, s.place)

Spark takes `o` for all different zones, and so the two are relations whose rows meet by cells as any others do
(`matching`). Otherwise it would test every record around against every row within.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from sqlglot import exp

from tocsin.language.channels.joins.sides import JoinRequirements
from tocsin.language.channels.joins.strategies import is_of_keys
from tocsin.language.functions.grid import Near
from tocsin.language.translate.predicate_notes import NEAR, condition_near, conjuncts, disjuncts
from tocsin.language.translate.scope import QueryBlock, free_tables
from tocsin.language.translate.sources import localized
from tocsin.language.types.typed_sql import TypedSql


def bring_in(condition: exp.Expr, block: QueryBlock, matches: JoinRequirements, alias: Callable[[str], str]) -> None:
    """Where a part of a subquery's WHERE asks that a row of its own be near something beyond it, or
    be near or equal to it in one of several ways, that is imported."""
    if any((join.side or "") in ("RIGHT", "FULL") for join in block.joins):
        return  # what comes before these may be missing
    for one in conjuncts(condition):
        if not _leads_out(one, block):
            continue
        matches.around.update(_plain_sources(block.outer))
        for part in (part for either in disjuncts(one) for part in conjuncts(either)):
            near = condition_near(part)
            if near is not None:
                part.meta[NEAR] = Near(_within(near.a, block, alias), _within(near.b, block, alias), near.globe)
        localized(one, block, alias)


def _plain_sources(block: QueryBlock | None) -> Iterator[tuple[str, exp.Expr]]:
    """The relations further out that cost no more than reading them."""
    while block is not None:
        for one in (block.source, *(join.this for join in block.joins)):
            if isinstance(one, exp.Table | exp.Subquery) and not free_tables(one) and not one.find(exp.Join):
                yield one.alias_or_name, one
        block = block.outer


def _side_of(block: QueryBlock, sql: exp.Expr) -> str | None:
    """The subquery's own relation, or what is beyond it: one name for all of that, as it will be one relation."""
    tables = free_tables(sql)
    if tables and not tables & block.aliases:
        return ""
    return next(iter(tables)) if len(tables) == 1 else None


def _leads_out(condition: exp.Expr, block: QueryBlock) -> bool:
    """Whether it brings rows of the subquery's own and of one relation beyond it together."""
    near = condition_near(condition)
    if near is None:
        one_own = len(free_tables(condition) & block.aliases) == 1
        return one_own and is_of_keys(condition, partial(_side_of, block))
    sides = [free_tables(one.sql) for one in (near.a, near.b)]
    own = [bool(side) and side <= block.aliases for side in sides]
    beyond = [bool(side) and not side & block.aliases for side in sides]
    return (own[0] and beyond[1]) or (own[1] and beyond[0])


def _within(value: TypedSql, block: QueryBlock, alias: Callable[[str], str]) -> TypedSql:
    return TypedSql(localized(value.sql.copy(), block, alias), value.type)
