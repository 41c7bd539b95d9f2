"""What is each interest's own in a shared query: every record once, its place in the order, and how many are taken."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tocsin.language.syntax import dialect
from tocsin.language.translate.expressions import fail

_INNER = " inner"
ANSWER = ("interest", "number", "place", "result")
"""The columns of a shared query: the interest, the record (the same number: the same result), its place in the
interest's order, and what the channel tells it."""


def of(variable: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(variable, quoted=True))


def is_numbered(query: exp.Expr) -> bool:
    """Whether no result of a shared query depends on its interest: each has its record's number."""
    if isinstance(query, exp.SetOperation):
        return is_numbered(query.this) and is_numbered(query.expression)
    number = next(one.this for one in query.args["expressions"] if one.alias == "number")
    if isinstance(number, exp.Column) and number.table == _INNER:
        return is_numbered(query.args["from_"].this.this)
    return not isinstance(number, exp.Cast)


def first_of_each(query: exp.Select, keys: int, *, numbered: bool) -> exp.Select:
    """A record once for each interest, whatever number of ways lead to it."""
    inner = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(_INNER, quoted=True)))
    parts: dict[str, exp.Expr] = {
        name: exp.Anonymous(this="any_value", expressions=[of(_INNER, name)])
        for name in (*ANSWER, *(f"key{i}" for i in range(keys)))
    }
    parts["interest"] = of(_INNER, "interest")
    if not numbered:
        parts["number"] = exp.cast(exp.null(), "BIGINT")
    made = exp.Select(expressions=[exp.alias_(one, name, quoted=True) for name, one in parts.items()]).from_(inner)
    made.set("group", exp.Group(expressions=[of(_INNER, "interest"), of(_INNER, "number")]))
    return made


def with_places(query: exp.Select, order: Sequence[exp.Expr]) -> exp.Select:
    """The places of rows of which each is there once."""
    inner = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(_INNER, quoted=True)))
    keys = []
    for i, one in enumerate(order):
        key = one.copy()
        key.set("this", of(_INNER, f"key{i}"))
        keys.append(key)
    place = dialect.PlaceOf(this=of(_INNER, "interest"), expressions=keys)
    parts = {name: of(_INNER, name) for name in ANSWER} | {"place": place}
    return exp.Select(expressions=[exp.alias_(one, name, quoted=True) for name, one in parts.items()]).from_(inner)


def limited_to(query: exp.Select, body: exp.Select) -> exp.Select:
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
    made = exp.Select(expressions=[exp.alias_(of(_INNER, one), one, quoted=True) for one in ANSWER]).from_(inner)
    tests: list[exp.Expr] = [exp.GT(this=of(_INNER, "place"), expression=exp.Literal.number(skipped))]
    if taken is not None:
        tests.append(exp.LTE(this=of(_INNER, "place"), expression=exp.Literal.number(skipped + taken)))
    made.set("where", exp.Where(this=exp.and_(*tests)))
    return made
