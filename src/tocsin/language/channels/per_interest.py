"""Builds the parts of a shared query that belong to each interest: duplicate removal, order (places) and limits.

One query serves all interests, so an ORDER BY or LIMIT of Spark's would apply to all of them together. Here they become
row numbers within each interest, and filters by these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from sqlglot import exp

from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.scope import hidden_name

_INNER: Final = hidden_name("inner")
_ANSWER = ("interest", "number", "place", "result")
"""The columns of a shared query: the interest; the record's number (equal numbers mean equal results); the result's
place in the interest's order; the result."""


def column_of(variable: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(variable, quoted=True))


def has_column(query: exp.Expr, name: Literal["number", "place"]) -> bool:
    """Whether some results of a shared query have a number or a place. A result that does not depend on its interest
    has its record's number."""
    if isinstance(query, exp.SetOperation):
        return has_column(query.this, name) or has_column(query.expression, name)
    value = next(output.this for output in query.args["expressions"] if output.alias == name)
    if isinstance(value, exp.Column) and value.table == _INNER:
        return has_column(query.args["from_"].this.this, name)
    return not isinstance(value, exp.Cast)


def keep_first_of_each(query: exp.Select, keys: int, *, numbered: bool) -> exp.Select:
    """Keeps one match of each record and interest, however many the joins find."""
    inner = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(_INNER, quoted=True)))
    parts: dict[str, exp.Expr] = {
        name: exp.Anonymous(this="any_value", expressions=[column_of(_INNER, name)])
        for name in (*_ANSWER, *(f"key{i}" for i in range(keys)))
    }
    parts["interest"] = column_of(_INNER, "interest")
    if not numbered:
        parts["number"] = exp.cast(exp.null(), "BIGINT")
    select = exp.Select(expressions=[exp.alias_(part, name, quoted=True) for name, part in parts.items()]).from_(inner)
    select.set("group", exp.Group(expressions=[column_of(_INNER, "interest"), column_of(_INNER, "number")]))
    return select


def add_places(query: exp.Select, order: Sequence[exp.Expr]) -> exp.Select:
    """Numbers the rows of each interest in their order, after duplicates are gone."""
    inner = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(_INNER, quoted=True)))
    keys = []
    for i, ordered in enumerate(order):
        key = ordered.copy()
        key.set("this", column_of(_INNER, f"key{i}"))
        keys.append(key)
    place = nodes.PlaceOf(this=column_of(_INNER, "interest"), expressions=keys)
    parts = {name: column_of(_INNER, name) for name in _ANSWER} | {"place": place}
    return exp.Select(expressions=[exp.alias_(part, name, quoted=True) for name, part in parts.items()]).from_(inner)


def limit_results(query: exp.Select, body: exp.Select) -> exp.Select:
    """Applies LIMIT and OFFSET to each interest: it filters by place."""

    def number(clause: str) -> int | None:
        value = body.args[clause].expression if body.args.get(clause) else None
        if value is None:
            return None
        if not isinstance(value, exp.Literal) or value.is_string or not value.this.isdigit():
            fail(f"{clause.upper()} in a channel is a number", value, "the same for every interest, such as LIMIT 10")
        return int(value.this)

    skipped = number("offset") or 0
    taken = number("limit")
    inner = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(_INNER, quoted=True)))
    select = exp.Select(expressions=[exp.alias_(column_of(_INNER, name), name, quoted=True) for name in _ANSWER]).from_(
        inner
    )
    tests: list[exp.Expr] = [exp.GT(this=column_of(_INNER, "place"), expression=exp.Literal.number(skipped))]
    if taken is not None:
        tests.append(exp.LTE(this=column_of(_INNER, "place"), expression=exp.Literal.number(skipped + taken)))
    select.set("where", exp.Where(this=exp.and_(*tests)))
    return select
