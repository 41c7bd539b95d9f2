"""Finds and renames the free variables of a part of a query; respects the names that inner queries bind themselves.

An inner query may bind the same name anew. Replacing the name everywhere would change what that query means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

from sqlglot import exp

from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import fail

FIRST_LETS = "first_lets"
"""The argument of a SELECT that holds the LETs before its FROM (see `with_clause.py`)."""


def mentions(node: exp.Expr, names: Set[str], *, as_value: bool = False) -> bool:
    """Whether the node refers to one of the names, unless an inner query hides it; with `as_value`, outside of FROM."""
    root = _root(node)
    if root is not None and root.name in names and not (as_value and isinstance(node, exp.Table)):
        return True
    return any(mentions(child, visible, as_value=as_value) for child, visible in visible_parts(node, names))


def rename_variables(node: exp.Expr, names: Mapping[str, str]) -> exp.Expr:
    """Returns a copy with these variables renamed."""

    def rename(root: exp.Identifier, _part: exp.Expr) -> None:
        other = exp.to_identifier(names[root.name], quoted=True)
        other.meta.update(root.meta)
        root.replace(other)

    copied = node.copy()
    _change_roots(copied, names.keys(), rename)
    return copied


def replace_variable(node: exp.Expr, name: str, value: exp.Expr) -> exp.Expr:
    """Returns a copy with a value in place of a variable. The value's own names must mean the same everywhere."""

    def replace(_root: exp.Identifier, part: exp.Expr) -> None:
        if isinstance(part, exp.Table):
            alias = part.args.get("alias") or exp.TableAlias(this=part.parts[-1].copy())
            part.replace(nodes.FromValue(this=_path(value, part.parts[1:]), alias=alias.copy()))
        elif isinstance(part, exp.Column):
            path = _path(value, part.parts[1:])
            is_output = isinstance(part.parent, exp.Select) and part.arg_key == "expressions"
            part.replace(exp.alias_(path, part.name, quoted=True) if is_output else path)

    holder = exp.Paren(this=node.copy())
    _change_roots(holder, {name}, replace)
    changed: exp.Expr = holder.this
    return changed


def _path(root: exp.Expr, steps: list[exp.Expr]) -> exp.Expr:
    path: exp.Expr = exp.Paren(this=root.copy())
    for step in steps:
        path = exp.Dot(this=path, expression=step.copy())
    return path


def _change_roots(node: exp.Expr, names: Set[str], change: Callable[[exp.Identifier, exp.Expr], None]) -> None:
    """Changes every path or source that begins with one of the names, unless an inner query hides the name."""
    for child, visible in list(visible_parts(node, names)):
        _change_roots(child, visible, change)
    root = _root(node)
    if root is not None and root.name in names:
        change(root, node)


def _root(node: exp.Expr) -> exp.Identifier | None:
    """Returns the first name of a path, or of a source in FROM."""
    first = node.parts[0] if isinstance(node, exp.Column | exp.Table) and node.parts else None
    return first if isinstance(first, exp.Identifier) else None


def visible_parts(node: exp.Expr, names: Set[str]) -> Iterator[tuple[exp.Expr, Set[str]]]:
    """Yields the children of a node, each with the names that no source hides there."""
    if not isinstance(node, exp.Select):
        yield from ((child, names) for child in node.iter_expressions())
        return
    if node.args.get("with_") is not None:
        yield node.args["with_"], names
    for let in node.args.get(FIRST_LETS) or []:
        yield let.this, names
        names = names - {name_of(let)}
    first = node.args.get("from_")
    for source, on in [*([(first.this, None)] if first is not None else []),
                       *((join.this, join.args.get("on")) for join in node.args.get("joins") or [])]:  # fmt: skip
        yield source, names
        names = names - {name_of(source)}
        if on is not None:
            yield on, names
    for clause, value in node.args.items():
        if clause not in ("with_", FIRST_LETS, "from_", "joins"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, exp.Expr):
                    yield child, names


def rename_parameters(body: exp.Select, parameters: Mapping[str, str]) -> exp.Select:
    """Returns a copy with renamed parameters, in which the output columns keep their names."""
    body = body.copy()
    outputs = {output.alias for output in body.expressions if isinstance(output, exp.Alias)}
    body.set("expressions", [
        exp.alias_(output, output.name, quoted=True) if isinstance(output, exp.Column) and output.name in parameters
        and len(output.parts) == 1 else output
        for output in body.expressions
    ])  # fmt: skip
    order = body.args.get("order")
    by_output = [ordered for ordered in order.expressions if _is_output(ordered.this, outputs)] if order else []
    saved_keys = [(ordered, ordered.this.copy()) for ordered in by_output]
    for ordered, _ in saved_keys:
        ordered.set("this", exp.null())
    result = rename_variables(body, parameters)
    assert isinstance(result, exp.Select)
    if order:
        for ordered, new in zip(order.expressions, result.args["order"].expressions, strict=True):
            saved = next((key for original, key in saved_keys if original is ordered), None)
            if saved is not None:
                new.set("this", saved)
    return result


def _is_output(key: exp.Expr, outputs: Set[str]) -> bool:
    """Whether a key of ORDER BY names an output column."""
    return isinstance(key, exp.Column) and len(key.parts) == 1 and key.name in outputs


def items(query: exp.Expr) -> list[exp.Join]:
    """Returns all sources of a query, in FROM and in joins, as joins."""
    first = [exp.Join(this=query.args["from_"].this.copy())] if query.args.get("from_") else []
    return [*first, *(query.args.get("joins") or [])]


def own_names(query: exp.Expr) -> Iterator[str]:
    return (name_of(join.this) for join in items(query))


def name_of(source: exp.Expr) -> str:
    """Returns the variable that a source in FROM, or a LET, binds."""
    alias = source.args.get("alias")
    if alias is not None:
        return str(alias.name)
    return str(source.parts[-1].name) if isinstance(source, exp.Table) and source.parts else ""


def move_sources(query: exp.Select, names: Mapping[str, str]) -> list[exp.Join]:
    """Returns a subquery's sources under other names."""
    joins: list[exp.Join] = []
    renamed_before: dict[str, str] = {}
    for original in items(query):
        name = name_of(original.this)
        join = original.copy()
        join.set("this", rename_variables(original.this, renamed_before))
        renamed_before[name] = names[name]
        if original.args.get("on") is not None:
            join.set("on", rename_variables(original.args["on"], renamed_before))
        alias = exp.to_identifier(names[name], quoted=True)
        join.this.set("alias", alias if isinstance(join.this, nodes.Let) else exp.TableAlias(this=alias))
        joins.append(join)
    return joins


def unwrap_query(node: exp.Expr) -> exp.Expr:
    """Returns a query without the parentheses around it."""
    while (isinstance(node, exp.Subquery) and not node.alias and not node.args.get("with_")) or isinstance(
        node, exp.Paren
    ):
        if any(node.args.get(clause) for clause in ("order", "limit", "offset", "joins", "where")):
            fail("put the clause behind the parentheses into a query of its own", node)
        node = node.this
    return node
