"""Finds which values a query asks of the columns of its scans, so that files without such values need not be read.

Only comparisons with constants count that every row of the answer must satisfy: those in the WHERE of the query block
that scans, joined by AND. A comparison with NULL is not true, so this holds for both sides of an outer join, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlglot import exp

from tocsin.rules.model.values import parse_datetime

_REVERSED = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ}


@dataclass(frozen=True, slots=True)
class ColumnBound:
    """Wanted rows have a value from `least` to `greatest` in this column; None is no bound. The path leads into
    structs.
    """

    path: tuple[str, ...]
    least: Any = None
    greatest: Any = None


@dataclass(frozen=True, slots=True)
class BoundedScan:
    """The scan of a view in a query, and what the query asks of its columns."""

    table: exp.Table
    bounds: tuple[ColumnBound, ...]


def find_bounded_scans(query: exp.Expr) -> list[BoundedScan]:
    scans = []
    for select in query.find_all(exp.Select):
        where = select.args.get("where")
        tables = {source.alias: source for source in _sources(select) if isinstance(source, exp.Table)}
        if where is None or not tables:
            continue
        bounds: dict[str, list[ColumnBound]] = {}
        for conjunct in _conjuncts(where.this):
            for alias, bound in _bounds_of(conjunct):
                bounds.setdefault(alias, []).append(bound)
        scans += [BoundedScan(tables[alias], tuple(found)) for alias, found in bounds.items() if alias in tables]
    return scans


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    start = select.args.get("from_") or select.args.get("from")
    if start is not None:
        yield start.this
    for join in select.args.get("joins") or ():
        yield join.this


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    node = node.unnest()
    if isinstance(node, exp.And):
        yield from _conjuncts(node.left)
        yield from _conjuncts(node.right)
    else:
        yield node


def _bounds_of(node: exp.Expr) -> Iterator[tuple[str, ColumnBound]]:
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        column = _column(node.this)
        values = [_constant(value) for value in node.expressions]
        if column is not None and _are_comparable(values):
            yield column[0], ColumnBound(column[1], min(values), max(values))
        return
    comparison = type(node)
    if not isinstance(node, exp.Binary) or comparison not in _REVERSED:
        return
    column, value = _column(node.left), _constant(node.right)
    if column is None:
        column, value, comparison = _column(node.right), _constant(node.left), _REVERSED[comparison]
    if column is None or value is None:
        return
    least = value if comparison in (exp.EQ, exp.GT, exp.GTE) else None
    greatest = value if comparison in (exp.EQ, exp.LT, exp.LTE) else None
    yield column[0], ColumnBound(column[1], least, greatest)


def _are_comparable(values: Sequence[Any]) -> bool:
    return None not in values and (
        all(isinstance(value, str) for value in values)
        or all(isinstance(value, datetime) for value in values)
        or all(isinstance(value, int | float) for value in values)
    )


def _column(node: exp.Expr) -> tuple[str, tuple[str, ...]] | None:
    """The alias and the path of a column; None for anything else."""
    node = node.unnest()
    names: list[str] = []
    while isinstance(node, exp.Dot):
        if not isinstance(node.expression, exp.Identifier):
            return None
        names.insert(0, node.expression.name)
        node = node.this
    if not isinstance(node, exp.Column):
        return None
    *qualifiers, name = [part.name for part in node.parts]
    return (qualifiers[0], (*qualifiers[1:], name, *names)) if qualifiers else None


def _constant(node: exp.Expr) -> Any:
    """The value of a constant of a type that files have bounds for; None for anything else."""
    node = node.unnest()
    if isinstance(node, exp.Cast):
        if node.to.is_type(exp.DataType.Type.BIGINT):
            value = _constant(node.this)
            return value if isinstance(value, int) else None
        if node.to.this in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ):
            return _moment(node.this)
        return None
    if isinstance(node, exp.Neg):
        value = _constant(node.this)
        return -value if isinstance(value, int | float) else None
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.this
    try:
        return int(node.this) if node.this.isdigit() else float(node.this)
    except ValueError:
        return None


def _moment(node: exp.Expr) -> datetime | None:
    if not isinstance(node, exp.Literal) or not node.is_string:
        return None
    try:
        return parse_datetime(node.this.replace(" ", "T", 1))
    except ValueError:
        return None
