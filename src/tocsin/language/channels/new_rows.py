"""Which records are new to a channel: by `is_new(v)` in WHERE its body wants the new rows of a dataset alone."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from tocsin.language.translate.expressions import fail
from tocsin.language.translate.predicate_notes import conjuncts, disjuncts
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.subqueries import unwrapped
from tocsin.language.translate.substitution import name_of

_NEW: Final = "new"  # on a table of the tree


def watching(body: exp.Expr, *, continuous: bool) -> exp.Expr:
    """The body with every dataset marked of which it wants new rows only; one that watches none watches its first."""
    body = _disjoint(unwrapped(body)).copy()
    calls = [one for one in body.find_all(exp.Anonymous) if str(one.this).lower() == "is_new"]
    if continuous and not calls:
        _watch_first(body)
    for select in list(body.find_all(exp.Select)):
        where = select.args.get("where")
        wanted = {_is_new_of(one) for one in conjuncts(where.this)} if where else set()
        for join in [*_froms(select)]:
            inner = (join.side or "") not in ("LEFT", "RIGHT", "FULL")
            if isinstance(join.this, exp.Table) and inner and name_of(join.this) in wanted:
                join.this.meta[_NEW] = True
    return body


def wants_new(source: exp.Expr) -> bool:
    """Whether the body wants only the new rows of what this source of it names."""
    return bool(source.meta.get(_NEW))


def needs_new(body: exp.Expr) -> bool:
    """Whether there is no answer without new rows: every query of a UNION reads some, and has none to say without."""
    body = unwrapped(body)
    if isinstance(body, exp.SetOperation):
        return needs_new(body.this) and needs_new(body.expression)
    if not body.args.get("group") and any(aggregates(one) for one in body.expressions):
        return False
    sources = [join.this for join in _froms(body) if not join.side] if isinstance(body, exp.Select) else []
    return any(wants_new(one) or (isinstance(one, exp.Subquery) and needs_new(one.this)) for one in sources)


def _disjoint(body: exp.Expr) -> exp.Expr:
    """`is_new(a) OR is_new(b)` as two queries that have no row in common: each reads the new rows of one dataset."""
    if isinstance(body, exp.Union):
        return exp.Union(
            this=_disjoint(unwrapped(body.this)), expression=_disjoint(unwrapped(body.expression)),
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
        if len(parts) > 1 and all(_is_new_of(one) is not None for one in parts):
            others = [one for one in conditions if one is not condition]
            made: exp.Expr | None = None
            for i, part in enumerate(parts):
                branch = body.copy()
                # Of a row that an outer join left out nobody can say whether it is new.
                earlier = (exp.Not(this=exp.Anonymous(this="coalesce", expressions=[one.copy(), exp.false()]))
                           for one in parts[:i])  # fmt: skip
                tests = [part, *earlier, *others]
                branch.set("where", exp.Where(this=exp.and_(*(one.copy() for one in tests))))
                made = branch if made is None else exp.Union(this=made, expression=branch, distinct=False)
            assert made is not None
            return made
    return body


def _is_new_of(node: exp.Expr) -> str | None:
    """The variable of a plain `is_new(v)`."""
    if isinstance(node, exp.Anonymous) and str(node.this).lower() == "is_new" and len(node.expressions) == 1:
        argument = node.expressions[0]
        return argument.name if isinstance(argument, exp.Column) and len(argument.parts) == 1 else None
    return None


def _watch_first(body: exp.Expr) -> None:
    body = unwrapped(body)
    if isinstance(body, exp.SetOperation):
        _watch_first(body.this)
        _watch_first(body.expression)
        return
    source = body.args["from_"].this if body.args.get("from_") else None
    if isinstance(source, exp.Subquery):
        _watch_first(source.this)
    elif isinstance(source, exp.Table) and not isinstance(source.this, exp.Anonymous):
        test = exp.Anonymous(this="is_new", expressions=[exp.column(exp.to_identifier(name_of(source), quoted=True))])
        where = body.args.get("where")
        body.set("where", exp.Where(this=exp.and_(where.this, test) if where else test))
    else:
        fail("a continuous channel needs a dataset to watch", body, "begin its FROM with an ACTIVE dataset")


def _froms(select: exp.Select) -> list[exp.Join]:
    first = [exp.Join(this=select.args["from_"].this)] if select.args.get("from_") else []
    if first:
        first[0].args["this"].parent = select.args["from_"]
    return [*first, *(select.args.get("joins") or [])]
