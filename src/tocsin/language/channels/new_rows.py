"""Finds the datasets that a channel watches, of which it reads only the new rows, and translates `is_new(v)`.

Which rows are new is decided at each execution, by the commits since the last one; here it is decided only where new
rows are read, so that an execution without new rows can be skipped and the others read few rows.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from tocsin.language.translate.active_records import IMPLIED
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.predicate_notes import conjuncts, disjuncts
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.rewrites.substitution import name_of, unwrap_query
from tocsin.language.translate.scope import RowVariable, column
from tocsin.language.types.typed_sql import TypedSql
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import COMMIT

_WATCHED: Final = "watched"  # key in the `meta` of a table node


def mark_watched_datasets(body: exp.Expr, *, continuous: bool) -> exp.Expr:
    """Marks every dataset from which the body reads only new rows.

    A continuous channel that names no such dataset watches the first dataset in its FROM.
    """
    body = _disjoint(unwrap_query(body)).copy()
    calls = [call for call in body.find_all(exp.Anonymous) if str(call.this).lower() == "is_new"]
    if continuous and not calls:
        _watch_first(body)
    for select in list(body.find_all(exp.Select)):
        where = select.args.get("where")
        watched = {_is_new_of(condition) for condition in conjuncts(where.this)} if where else set()
        for join in [*_froms(select)]:
            inner = (join.side or "") not in ("LEFT", "RIGHT", "FULL")
            if isinstance(join.this, exp.Table) and inner and name_of(join.this) in watched:
                join.this.meta[_WATCHED] = True
    return body


def is_watched(source: exp.Expr) -> bool:
    """Whether the body reads only the new rows of this source."""
    return bool(source.meta.get(_WATCHED))


def needs_new_rows(body: exp.Expr) -> bool:
    """Whether the body has no result without new rows: this must hold for every query of a UNION."""
    body = unwrap_query(body)
    if isinstance(body, exp.SetOperation):
        return needs_new_rows(body.this) and needs_new_rows(body.expression)
    if not body.args.get("group") and any(aggregates(output) for output in body.expressions):
        return False
    sources = [join.this for join in _froms(body) if not join.side] if isinstance(body, exp.Select) else []
    return any(
        is_watched(source) or (isinstance(source, exp.Subquery) and needs_new_rows(source.this)) for source in sources
    )


def translate_is_new(value: RowVariable, since: str) -> TypedSql:
    """Translates `is_new(v)` to a comparison with the last commit that the channel has read, its argument `since`."""
    last_commit = exp.Placeholder(this=since)
    return TypedSql(exp.Paren(this=exp.GT(this=column(value.alias, COMMIT), expression=last_commit)), t.BOOLEAN)


def _disjoint(body: exp.Expr) -> exp.Expr:
    """Splits `is_new(a) OR is_new(b)` into a UNION of disjoint queries; each reads the new rows of one dataset."""
    if isinstance(body, exp.Union):
        return exp.Union(
            this=_disjoint(unwrap_query(body.this)), expression=_disjoint(unwrap_query(body.expression)),
            **{name: value for name, value in body.args.items() if name not in ("this", "expression")},
        )  # fmt: skip
    where = body.args.get("where") if isinstance(body, exp.Select) else None
    if (
        where is None
        or body.args.get("group")
        or body.args.get("distinct")
        or body.args.get("limit")
        or body.args.get("order")
    ):
        return body
    conditions = list(conjuncts(where.this))
    for condition in conditions:
        parts = list(disjuncts(condition))
        if len(parts) > 1 and all(_is_new_of(part) is not None for part in parts):
            others = [other for other in conditions if other is not condition]
            union: exp.Expr | None = None
            for i, part in enumerate(parts):
                branch = body.copy()
                # `is_new` is NULL for a row that an outer join did not match. Such a row is not new.
                earlier = (exp.Not(this=exp.Anonymous(this="coalesce", expressions=[previous.copy(), exp.false()]))
                           for previous in parts[:i])  # fmt: skip
                tests = [part, *earlier, *others]
                branch.set("where", exp.Where(this=exp.and_(*(test.copy() for test in tests))))
                union = branch if union is None else exp.Union(this=union, expression=branch, distinct=False)
            assert union is not None
            return union
    return body


def _is_new_of(node: exp.Expr) -> str | None:
    """Returns the variable of a plain `is_new(v)`, else None."""
    if isinstance(node, exp.Anonymous) and str(node.this).lower() == "is_new" and len(node.expressions) == 1:
        argument = node.expressions[0]
        return argument.name if isinstance(argument, exp.Column) and len(argument.parts) == 1 else None
    return None


def _watch_first(body: exp.Expr) -> None:
    """Adds `is_new(v)` for the first dataset in FROM, in every query of a UNION."""
    body = unwrap_query(body)
    if isinstance(body, exp.SetOperation):
        _watch_first(body.this)
        _watch_first(body.expression)
        return
    source = body.args["from_"].this if body.args.get("from_") else None
    if isinstance(source, exp.Subquery):
        _watch_first(source.this)
    elif isinstance(source, exp.Table) and not isinstance(source.this, exp.Anonymous):
        test = exp.Anonymous(this="is_new", expressions=[exp.column(exp.to_identifier(name_of(source), quoted=True))])
        test.meta[IMPLIED] = True
        where = body.args.get("where")
        body.set("where", exp.Where(this=exp.and_(where.this, test) if where else test))
    else:
        fail(
            "a continuous channel needs a dataset to watch",
            body,
            "begin its FROM with an ACTIVE dataset, or make it REPETITIVE",
        )


def _froms(select: exp.Select) -> list[exp.Join]:
    first = [exp.Join(this=select.args["from_"].this)] if select.args.get("from_") else []
    if first:
        first[0].args["this"].parent = select.args["from_"]
    return [*first, *(select.args.get("joins") or [])]
