"""Decorrelates subqueries that look for rows near an outer row, such as the shelters in a report's zone.

    SELECT … FROM Shelters s WHERE geo_intersect(r.zone, s.place)                     becomes
    SELECT … FROM (SELECT r.zone AS i0) o, Shelters s WHERE geo_intersect(o.i0, s.place)

Spark turns `o` into the relation of all distinct zones. `joins/rewrite.py` can then join the two relations by grid
cells. Otherwise Spark would test every outer record against every row of the subquery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from sqlglot import exp

from tocsin.language.channels.joins.sides import JoinRequirements
from tocsin.language.channels.joins.strategies import is_of_keys
from tocsin.language.functions.grid import Near
from tocsin.language.translate.from_clause.outer_columns import import_outer_columns
from tocsin.language.translate.predicate_notes import NEAR, condition_near, conjuncts, disjuncts
from tocsin.language.translate.scope import QueryBlock, free_tables
from tocsin.language.types.typed_sql import TypedSql


def import_outer_values(
    condition: exp.Expr, block: QueryBlock, matches: JoinRequirements, alias: Callable[[str], str]
) -> None:
    """Imports the outer values that a subquery's WHERE compares with its own rows.

    This applies to conditions that ask for nearness, and to ORs whose alternatives ask for nearness or equality.
    """
    if any((join.side or "") in ("RIGHT", "FULL") for join in block.joins):
        return  # the rows before such a join may be missing
    for conjunct in conjuncts(condition):
        if not _leads_out(conjunct, block):
            continue
        matches.around.update(_plain_sources(block.outer))
        for part in (part for alternative in disjuncts(conjunct) for part in conjuncts(alternative)):
            near = condition_near(part)
            if near is not None:
                part.meta[NEAR] = Near(_within(near.a, block, alias), _within(near.b, block, alias), near.globe)
        import_outer_columns(conjunct, block, alias)


def _plain_sources(block: QueryBlock | None) -> Iterator[tuple[str, exp.Expr]]:
    """Yields the outer relations that are plain scans, so reading them again is cheap."""
    while block is not None:
        for source in (block.source, *(join.this for join in block.joins)):
            if isinstance(source, exp.Table | exp.Subquery) and not free_tables(source) and not source.find(exp.Join):
                yield source.alias_or_name, source
        block = block.outer


def _side_of(block: QueryBlock, sql: exp.Expr) -> str | None:
    """Returns the subquery's relation, or "" for everything outside of it, which becomes a single relation."""
    tables = free_tables(sql)
    if tables and not tables & block.aliases:
        return ""
    return next(iter(tables)) if len(tables) == 1 else None


def _leads_out(condition: exp.Expr, block: QueryBlock) -> bool:
    """Whether the condition relates rows of the subquery to one relation outside of it."""
    near = condition_near(condition)
    if near is None:
        has_one_inner = len(free_tables(condition) & block.aliases) == 1
        return has_one_inner and is_of_keys(condition, partial(_side_of, block))
    sides = [free_tables(shape.sql) for shape in (near.a, near.b)]
    is_inner = [bool(side) and side <= block.aliases for side in sides]
    is_outer = [bool(side) and not side & block.aliases for side in sides]
    return (is_inner[0] and is_outer[1]) or (is_inner[1] and is_outer[0])


def _within(value: TypedSql, block: QueryBlock, alias: Callable[[str], str]) -> TypedSql:
    return TypedSql(import_outer_columns(value.sql.copy(), block, alias), value.type)
