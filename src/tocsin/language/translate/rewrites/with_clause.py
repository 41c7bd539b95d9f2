"""Prepares WITH: a name of a query that only FROM uses stays a table, any other name becomes a LET before FROM.

In SQL++ a WITH names a value of any kind, in Spark SQL a table. A table is computed by Spark as a relation, however
large it is; a value is at hand in every expression, and a query among them keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.rewrites.substitution import (
    FIRST_LETS,
    mentions,
    name_of,
    replace_variable,
    unwrap_query,
)

_INLINED_LIMIT = 64


def separate_values(query: exp.Expr) -> exp.Expr:
    """Returns the query with only tables in its WITH; the other names are the first LETs of its SELECTs."""
    clause = query.args.get("with_")
    if clause is None or clause.args.get("recursive"):
        return query
    tables: list[exp.Expr] = []
    lets: list[nodes.Let] = []
    body = query.copy()
    body.set("with_", None)
    for i, item in enumerate(clause.expressions):
        users = [*(later.this for later in clause.expressions[i + 1 :]), body]
        if _is_table(item, {let.args["alias"].name for let in lets}, users):
            tables.append(item.copy())
            continue
        if item.args["alias"].args.get("columns"):
            fail("name the columns of a WITH in its SELECT list", item, "WITH x AS (SELECT a AS b …)")
        value = exp.Subquery(this=item.this.copy()) if isinstance(item.this, exp.Query) else item.this.copy()
        lets.append(nodes.Let(this=value, alias=item.args["alias"].this.copy()))
    if not lets:
        return query
    if tables:
        body.set("with_", exp.With(expressions=tables))
    for select in _selects(body):
        select.set(FIRST_LETS, [let.copy() for let in lets] + (select.args.get(FIRST_LETS) or []))
    return body


def _is_table(item: exp.Expr, values: set[str], users: list[exp.Expr]) -> bool:
    """Whether a name of WITH is a query over datasets that nothing but FROM uses."""
    is_value = any(mentions(user, {item.alias}, as_value=True) for user in users)
    return isinstance(item.this, exp.Query) and not is_value and not mentions(item.this, values)


def _selects(query: exp.Expr) -> Iterator[exp.Select]:
    query = unwrap_query(query)
    if isinstance(query, exp.SetOperation):
        yield from _selects(query.this)
        yield from _selects(query.expression)
    elif isinstance(query, exp.Select):
        yield query


# ---------------------------------------------------------------- for channels


def inline_with(query: exp.Expr) -> exp.Expr:
    """Returns the query without its WITH: each table becomes a subquery where FROM names it."""
    query = separate_values(unwrap_query(query))
    clause = query.args.get("with_")
    if clause is None:
        return query
    if clause.args.get("recursive"):
        fail("WITH RECURSIVE is not supported", clause, "join the dataset with itself, once per level")
    body = query.copy()
    body.set("with_", None)
    inlined = 0
    for i in reversed(range(len(clause.expressions))):
        item = clause.expressions[i]
        for table in [table for table in body.find_all(exp.Table) if _names(table, item.alias)]:
            inlined += 1
            if inlined > _INLINED_LIMIT:
                fail(f"the names of a WITH are used more than {_INLINED_LIMIT} times", clause, "use a function")
            alias = exp.TableAlias(this=exp.to_identifier(name_of(table), quoted=True))
            table.replace(exp.Subquery(this=item.this.copy(), alias=alias))
    return body


def _names(table: exp.Table, name: str) -> bool:
    return len(table.parts) == 1 and isinstance(table.this, exp.Identifier) and table.name == name


def place_first_lets(body: exp.Select) -> exp.Select:
    """Returns the query without LETs before FROM: plain values stand where their names stood, others follow FROM."""
    lets = body.args.get(FIRST_LETS)
    if not lets:
        return body
    body = body.copy()
    lets = body.args.pop(FIRST_LETS)
    moved: list[nodes.Let] = []
    while lets:
        let = lets.pop(0)
        if let.this.find(exp.Query) is not None:
            moved.append(let)
            continue
        name = let.args["alias"].name
        changed = replace_variable(exp.Select(**{FIRST_LETS: lets, **body.args}), name, let.this)
        assert isinstance(changed, exp.Select)
        lets = changed.args.pop(FIRST_LETS, [])
        body = changed
    names = {let.args["alias"].name for let in moved}
    first = body.args.get("from_")
    if first is not None and mentions(first, names):
        fail("a subquery that WITH names cannot stand in FROM here", first, "write it where its name stands")
    body.set("joins", [*(exp.Join(this=let) for let in moved), *(body.args.get("joins") or [])])
    return body
