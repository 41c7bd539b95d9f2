"""Predicate pushdown: applies WHERE before LATERAL.

Spark evaluates a correlated subquery for every row on its left and applies WHERE afterwards, even if the condition
concerns only the left side. So the left side and its conditions become a derived table.
"""

from __future__ import annotations

from sqlglot import exp

from tocsin.language.functions.function_registry import NONDETERMINISTIC
from tocsin.language.translate.predicate_notes import conjuncts
from tocsin.language.translate.scope import as_table, free_tables, select_query


def push_down_filters(made: exp.Select, alias: str) -> exp.Select:
    """Returns the query with every possible condition moved before the first lateral subquery."""
    joins, where = made.args.get("joins") or [], made.args.get("where")
    first = next((i for i, join in enumerate(joins) if _is_subquery(join.this)), None)
    if first is None or where is None or any(join.side in ("RIGHT", "FULL") for join in joins[first:]):
        return made
    source = made.args["from_"].this
    left = {relation.alias_or_name for relation in (source, *(join.this for join in joins[:first]))}
    early: list[exp.Expr] = []
    late: list[exp.Expr] = []
    for condition in conjuncts(where.this):
        (early if free_tables(condition) <= left and _is_deterministic(condition) else late).append(condition)
    if not early:
        return made
    made.set("from_", None)
    made.set("joins", joins[first:])
    made.set("where", exp.Where(this=exp.and_(*late)) if late else None)
    names: dict[tuple[str, str], str] = {}
    for column in list(made.find_all(exp.Column)):
        if column.table in left:
            name = names.setdefault((column.table, column.name), f"c{len(names)}")
            column.replace(exp.column(name, table=alias, quoted=True))
    columns = [(name, exp.column(column, table=table, quoted=True)) for (table, column), name in names.items()]
    base = select_query(columns or [("c", exp.Literal.number(1))]).from_(source)
    base.set("joins", joins[:first] or None)
    base.set("where", exp.Where(this=exp.and_(*early)))
    return made.from_(as_table(base, alias), copy=False)


def _is_subquery(source: exp.Expr) -> bool:
    return isinstance(source, exp.Lateral) and isinstance(source.this, exp.Subquery)


def _is_deterministic(condition: exp.Expr) -> bool:
    return not any(str(call.this).lower() in NONDETERMINISTIC for call in condition.find_all(exp.Anonymous))
