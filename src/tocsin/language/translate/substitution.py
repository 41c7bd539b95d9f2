"""Which variables a part of a query means, where queries inside of it bind names of their own, and under which other
names it would mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from sqlglot import exp

from tocsin.language.syntax import dialect


def mentions(node: exp.Expr, names: Set[str]) -> bool:
    """Whether the node refers to one of the names, which queries inside of it may hide."""
    root = _root(node)
    return (root is not None and root.name in names) or any(mentions(one, left) for one, left in _parts(node, names))


def renamed(node: exp.Expr, names: Mapping[str, str]) -> exp.Expr:
    """A copy in which other variables stand for these."""

    def change(one: exp.Expr, left: Set[str]) -> None:
        root = _root(one)
        if root is not None and root.name in left:
            other = exp.to_identifier(names[root.name], quoted=True)
            other.meta.update(root.meta)
            root.replace(other)
        for inner, still in list(_parts(one, left)):
            change(inner, still)

    copied = node.copy()
    change(copied, names.keys())
    return copied


def _root(node: exp.Expr) -> exp.Identifier | None:
    """The name that a path, or a source in FROM, begins with."""
    first = node.parts[0] if isinstance(node, exp.Column | exp.Table) and node.parts else None
    return first if isinstance(first, exp.Identifier) else None


def _parts(node: exp.Expr, names: Set[str]) -> Iterator[tuple[exp.Expr, Set[str]]]:
    """What a node consists of, each with those of the names that still mean there what they mean outside."""
    if not isinstance(node, exp.Select):
        yield from ((one, names) for one in node.iter_expressions())
        return
    first = node.args.get("from_")
    for source, on in [*([(first.this, None)] if first is not None else []),
                       *((join.this, join.args.get("on")) for join in node.args.get("joins") or [])]:  # fmt: skip
        yield source, names
        names = names - {name_of(source)}
        if on is not None:
            yield on, names
    for clause, value in node.args.items():
        if clause not in ("from_", "joins"):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, exp.Expr):
                    yield one, names


def with_parameters(body: exp.Select, parameters: Mapping[str, str]) -> exp.Select:
    """A copy where parameters go by the names given here, and results by those they had."""
    body = body.copy()
    outputs = {one.alias for one in body.expressions if isinstance(one, exp.Alias)}
    body.set("expressions", [
        exp.alias_(one, one.name, quoted=True) if isinstance(one, exp.Column) and one.name in parameters
        and len(one.parts) == 1 else one
        for one in body.expressions
    ])  # fmt: skip
    order = body.args.get("order")
    by_output = [one for one in order.expressions if _is_output(one.this, outputs)] if order else []
    kept = [(one, one.this.copy()) for one in by_output]
    for one, _ in kept:
        one.set("this", exp.null())
    made = renamed(body, parameters)
    assert isinstance(made, exp.Select)
    if order:
        for one, new in zip(order.expressions, made.args["order"].expressions, strict=True):
            found = next((key for before, key in kept if before is one), None)
            if found is not None:
                new.set("this", found)
    return made


def _is_output(key: exp.Expr, outputs: Set[str]) -> bool:
    """Whether ORDER BY means a column of the answer."""
    return isinstance(key, exp.Column) and len(key.parts) == 1 and key.name in outputs


def items(query: exp.Expr) -> list[exp.Join]:
    first = [exp.Join(this=query.args["from_"].this.copy())] if query.args.get("from_") else []
    return [*first, *(query.args.get("joins") or [])]


def bound_names(query: exp.Expr) -> Iterator[str]:
    return (name_of(one.this) for one in items(query))


def name_of(source: exp.Expr) -> str:
    """The variable that a source in FROM, or a LET, gives a name to."""
    alias = source.args.get("alias")
    if alias is not None:
        return str(alias.name)
    return str(source.parts[-1].name) if isinstance(source, exp.Table) and source.parts else ""


def moved(query: exp.Select, names: Mapping[str, str]) -> list[exp.Join]:
    """A subquery's sources under other names."""
    moved: list[exp.Join] = []
    known: dict[str, str] = {}
    for one in items(query):
        own = name_of(one.this)
        join = one.copy()
        join.set("this", renamed(one.this, known))
        known[own] = names[own]
        if one.args.get("on") is not None:
            join.set("on", renamed(one.args["on"], known))
        alias = exp.to_identifier(names[own], quoted=True)
        join.this.set("alias", alias if isinstance(join.this, dialect.Let) else exp.TableAlias(this=alias))
        moved.append(join)
    return moved
