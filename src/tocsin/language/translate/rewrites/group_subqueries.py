"""Separates grouping from the subqueries after it: the groups become a subquery in FROM, with their keys as columns.

    SELECT k, count(*), (SELECT … FROM g) FROM D r GROUP BY r.a AS k GROUP AS g        becomes

    SELECT k, `count`, (SELECT … FROM g) FROM (SELECT r.a AS k, count(*), g FROM D r GROUP BY …) LET k = …, g = …

Spark computes a subquery for rows of a relation, and a group is a row only after the grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any, Final

from sqlglot import exp

from tocsin.language.functions.function_registry import AGGREGATES
from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.projection import aggregates, ordinal_item
from tocsin.language.translate.rewrites.substitution import FIRST_LETS, mentions, own_names, visible_parts
from tocsin.language.translate.scope import hidden_name

# Leading spaces make names that no user can write.
_GROUP: Final = hidden_name("group")
_BEFORE: Final = (FIRST_LETS, "from_", "joins", "where", "group", "hint")
_AROUND_A_CALL: Final = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)

_HasQuery = Callable[[exp.Expr], bool]
"""Whether an expression contains a subquery, or calls a function that does."""


def separate_groups(select: exp.Select, has_query: _HasQuery) -> exp.Select:
    """Returns the query, rewritten if a subquery stands after its GROUP BY or in an aggregate."""
    after = [*select.expressions, *(select.args.get("group_lets") or [])]
    after += [select.args[clause] for clause in ("having", "order") if select.args.get(clause)]
    if not any(has_query(part) for part in after):
        return select
    if select.args.get("group") is None and not any(aggregates(part) for part in after):
        return select
    return _GroupSplit(select.copy(), has_query).separate()


class _GroupSplit:
    """Rewrites one SELECT."""

    def __init__(self, select: exp.Select, has_query: _HasQuery) -> None:
        self.select = select
        self.has_query = has_query
        self.group = select.args.get("group")
        self.keys: list[exp.Expr] = []
        self.aggregates: list[exp.Expr] = []
        self.arguments: list[exp.Join] = []

    def separate(self) -> exp.Select:
        if self.group is None:
            self._move_arguments()
            return self.select
        self.group.set("expressions", [self._key(key) for key in self.group.expressions])
        items = [self._item(item, i) for i, item in enumerate(self.select.expressions, start=1)]
        after: dict[str, Any] = {
            clause: value for clause, value in self.select.args.items() if clause not in (*_BEFORE, "expressions")
        }
        having = after.pop("having", None)
        lets = [nodes.Let(this=self._after(let.this), alias=let.args["alias"])
                for let in after.pop("group_lets", None) or []]  # fmt: skip
        if having is not None:
            after["where"] = exp.Where(this=self._after(having.this))
        if after.get("order") is not None:
            for ordered in after["order"].expressions:
                ordered.set("this", self._after(ordered.this))
        grouped = exp.Subquery(
            this=self._build_grouping(), alias=exp.TableAlias(this=exp.to_identifier(_GROUP, quoted=True))
        )
        outer = exp.Select(expressions=items, from_=exp.From(this=grouped), **after)
        outer.set("joins", [exp.Join(this=let) for let in [*self._names(), *lets]])
        self._check(outer)
        return outer

    def _key(self, key: exp.Expr) -> exp.Expr:
        """Notes a key, and replaces the number of an output column by its expression."""
        if isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple | exp.Paren):
            parts = [key.this] if isinstance(key, exp.Paren) else key.expressions
            changed = [self._key(part) for part in parts]
            return exp.Paren(this=changed[0]) if isinstance(key, exp.Paren) else type(key)(expressions=changed)
        item = ordinal_item(key, self.select)
        key = item.copy() if item is not None else key
        if key not in self.keys:
            self.keys.append(key)
        return key

    def _build_grouping(self) -> exp.Select:
        """Returns the query that groups: its columns are the keys, the aggregates, and the rows of GROUP AS."""
        columns = [exp.alias_(_expression(key).copy(), f"key{i}", quoted=True) for i, key in enumerate(self.keys)]
        columns += [exp.alias_(value, f"aggregate{i}", quoted=True) for i, value in enumerate(self.aggregates)]
        assert self.group is not None
        if self.group.args.get("totals") is not None:
            columns.append(exp.alias_(exp.column(self.group.args["totals"].copy()), "rows", quoted=True))
        grouped = exp.Select(expressions=columns)
        for clause in _BEFORE:
            if self.select.args.get(clause):
                grouped.set(clause, self.select.args[clause])
        grouped.set("joins", [*(grouped.args.get("joins") or []), *self.arguments])
        return grouped

    def _names(self) -> Iterator[nodes.Let]:
        """Yields LETs for the names of the keys, also those that a path implies, and for the name of GROUP AS."""
        names: dict[str, exp.Expr] = {}
        for i, key in enumerate(self.keys):
            if isinstance(key, exp.Alias) or (isinstance(key, exp.Column | exp.Dot) and key.name not in names):
                names[key.alias_or_name] = _column(f"key{i}")
        assert self.group is not None
        if self.group.args.get("totals") is not None:
            names[self.group.args["totals"].name] = _column("rows")
        for name, value in names.items():
            yield nodes.Let(this=value, alias=exp.to_identifier(name, quoted=True))

    # ------------------------------------------------------------ expressions after GROUP BY

    def _item(self, item: exp.Expr, number: int) -> exp.Expr:
        """Returns an item of the SELECT list over groups, with the name that it has without the rewrite."""
        if isinstance(item, exp.Alias | nodes.ValueOf):
            item.set("this", self._after(item.this))
            return item
        name = item.alias_or_name if isinstance(item, exp.Column | exp.Dot | exp.Identifier) else f"${number}"
        # sqlglot's alias_ would make a table of a subquery.
        return exp.Alias(this=self._after(item), alias=exp.to_identifier(name, quoted=True))

    def _after(self, node: exp.Expr) -> exp.Expr:
        """Replaces keys and aggregates by columns of the groups."""
        key = self._key_number(node)
        if key is not None:
            return exp.Paren(this=_column(f"key{key}"))
        if isinstance(node, exp.Query):
            holder = exp.Paren(this=node)
            self._replace_keys(holder, {root for root in map(_root, self.keys) if root is not None})
            changed: exp.Expr = holder.this
            return changed
        if _is_aggregate(node):
            self._move_subqueries(node)
            if node not in self.aggregates:
                self.aggregates.append(node.copy())
            return exp.Paren(this=_column(f"aggregate{self.aggregates.index(node)}"))
        if isinstance(node, exp.Window):
            call = node.this
            while isinstance(call, _AROUND_A_CALL):
                call = call.this
            parts = [*call.expressions, *(child for child in node.iter_expressions() if child is not node.this)]
        else:
            parts = list(node.iter_expressions())
        for part in parts:
            changed = self._after(part)
            if changed is not part:
                part.replace(changed)
        return node

    def _key_number(self, node: exp.Expr) -> int | None:
        return next((i for i, key in enumerate(self.keys) if _expression(key) == node), None)

    def _replace_keys(self, node: exp.Expr, visible: Set[str]) -> None:
        """Replaces keys inside of a subquery, except where it binds their variable anew."""
        for child, names in list(visible_parts(node, visible)):
            key = self._key_number(child)
            if key is not None and _root(child) in names:
                child.replace(exp.Paren(this=_column(f"key{key}")))
            else:
                self._replace_keys(child, names)

    def _check(self, outer: exp.Select) -> None:
        """Refuses variables of rows that are grouped."""
        named = {let.args["alias"].name for let in [*self._names(), *(self.select.args.get("group_lets") or [])]}
        rows = {name for name in own_names(self.select) if name and name not in named}
        for part in [
            *outer.expressions,
            *(outer.args[clause] for clause in ("where", "order") if outer.args.get(clause)),
        ]:
            for variable in rows:
                if mentions(part, {variable}):
                    remedy = "name a key with GROUP BY … AS k, or the rows with GROUP AS g and read them FROM g"
                    fail(f"{variable} ranges over rows that were grouped", part, remedy)

    # ------------------------------------------------------------ subqueries in aggregates

    def _move_arguments(self) -> None:
        """Computes subqueries inside of aggregates before the aggregation."""
        for part in [*self.select.expressions, *(self.select.args.get(clause) for clause in ("having", "order"))]:
            for node in [node for node in part.walk() if _is_aggregate(node)] if part is not None else ():
                if node.find_ancestor(exp.Query) is self.select:
                    self._move_subqueries(node)
        self.select.set("joins", [*(self.select.args.get("joins") or []), *self.arguments])

    def _move_subqueries(self, aggregate: exp.Expr) -> None:
        call = aggregate
        while isinstance(call, _AROUND_A_CALL):
            call = call.this
        for argument in call.expressions:
            if self.has_query(argument):
                name = exp.to_identifier(f" argument {len(self.arguments)}", quoted=True)
                self.arguments.append(exp.Join(this=nodes.Let(this=argument.copy(), alias=name)))
                argument.replace(exp.column(name.copy()))


def _is_aggregate(node: exp.Expr) -> bool:
    while isinstance(node, _AROUND_A_CALL):
        node = node.this
    return isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this.lower() in AGGREGATES


def _expression(key: exp.Expr) -> exp.Expr:
    return key.this if isinstance(key, exp.Alias) else key


def _root(key: exp.Expr) -> str | None:
    """Returns the first name of a path."""
    key = _expression(key)
    while isinstance(key, exp.Dot | exp.Bracket):
        key = key.this
    return key.parts[0].name if isinstance(key, exp.Column) else None


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(_GROUP, quoted=True))
