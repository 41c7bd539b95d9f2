"""Splits a channel's body by its parameters: what depends on one and what does not; `shared_query` joins them.

What depends on no parameter is computed once per record for all interests, and only the rest once per match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tocsin.language.channels.per_interest import column_of
from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.predicate_notes import conjuncts
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.rewrites.substitution import (
    items,
    mentions,
    move_sources,
    name_of,
    own_names,
    rename_variables,
    unwrap_query,
)
from tocsin.language.translate.scope import hidden_name


@dataclass(slots=True)
class _BodyHalf:
    """The sources and conditions of one half of a SELECT, with the variables that the sources bind."""

    sources: list[exp.Join] = field(default_factory=list)
    conditions: list[exp.Expr] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SplitLet:
    """A LET of the body.

    `touched`: it depends on a parameter. `early`: the inner query computes it, once per record. `is_range`: its fields
    may be named without a prefix.
    """

    name: str
    value: exp.Expr
    touched: bool
    early: bool
    is_range: bool


class ParameterSplit:
    """Splits a SELECT in two: `free` depends on no parameter, `bound` depends on one.

    `lets` has the LETs of both halves, in their order. The split replaces a plain subquery in FROM, or an EXISTS, that
    depends on a parameter by its own sources. After an EXISTS, a record can match an interest several times although
    one match is meant; then `repeats` is set.
    """

    def __init__(self, body: exp.Select, parameters: Collection[str]) -> None:
        self._body = body
        self._parameters = parameters
        self.free, self.bound = _BodyHalf(), _BodyHalf()
        self.lets: list[SplitLet] = []
        self.repeats = False
        self._touched = set(parameters)
        self._count = 0
        self._multiplied = False  # whether a record may match an interest several times, as the body intends
        self._sort()

    def is_touched(self, expressions: Sequence[exp.Expr]) -> bool:
        """Whether a node depends on a parameter, directly or through variables and LETs."""
        return any(mentions(expression, self._touched) for expression in expressions)

    def _sort(self) -> None:
        """Assigns every source, LET and condition to one of the two halves."""
        conditions: list[exp.Expr] = []
        for join in self._flatten_sources(items(self._body), conditions):
            source, name = join.this, name_of(join.this)
            touched = self.is_touched([source, *filter(None, [join.args.get("on")])])
            if isinstance(source, nodes.Let):
                early = not touched and _is_expensive(source.this)
                self.lets.append(SplitLet(name, source.this, touched, early, bool(source.args.get("is_range"))))
            else:
                side = (join.side or "").upper()
                if touched and side in ("LEFT", "RIGHT", "FULL"):
                    fail("a parameter cannot stand in an outer join", source, "put the condition into WHERE")
                if self.bound.sources and side in ("RIGHT", "FULL"):
                    fail(f"a {side} JOIN cannot come after a source that depends on a parameter", source,
                         "write the sources in another order")  # fmt: skip
                parts = self.bound if touched else self.free
                parts.sources.append(join.copy())
                parts.names.append(name)
            if touched:
                self._touched.add(name)
        self._multiplied = bool(self.bound.sources)
        where = self._body.args.get("where")
        conditions += conjuncts(where.this) if where else ()
        for condition in conditions:
            if self.is_touched([condition]):
                self._bind(condition)
            else:
                self.free.conditions.append(condition)

    def _flatten_sources(self, items: Sequence[exp.Join], conditions: list[exp.Expr]) -> Iterator[exp.Join]:
        """Yields the sources; replaces a plain subquery that depends on a parameter by its own sources."""
        has_wide_join = any((join.side or "").upper() in ("RIGHT", "FULL") for join in items)
        for join in items:
            query = unwrap_query(join.this.this) if isinstance(join.this, exp.Subquery) else None
            is_inner = not (join.side or "") and (join.kind or "").upper() in ("", "CROSS", "INNER")
            on = join.args.get("on")
            if is_inner and not has_wide_join and on is not None and self.is_touched([on]):
                # The condition of an inner join means the same in WHERE.
                join = exp.Join(this=join.this)
                conditions += conjuncts(on)
            if (
                not is_inner
                or not isinstance(query, exp.Select)
                or not _is_plain(query)
                or not self.is_touched([query])
            ):
                yield join
                continue
            names = self._fresh(query)
            value = nodes.RowOf(expressions=[output.copy() for output in query.expressions])
            if len(query.expressions) == 1 and isinstance(query.expressions[0], nodes.ValueOf):
                value = query.expressions[0].this
            yield from self._flatten_sources(move_sources(query, names), conditions)
            conditions += self._conditions(query, names)
            yield let(name_of(join.this), rename_variables(self._qualify_fields(value, query), names), is_range=True)
            if join.args.get("on") is not None:
                conditions += conjuncts(join.args["on"])

    def _bind(self, condition: exp.Expr) -> None:
        """Adds a condition that depends on a parameter; rewrites EXISTS and IN, which could not join otherwise."""
        predicate = condition.unnest()
        query = unwrap_query(predicate.this) if isinstance(predicate, exp.Exists) else None
        quantified = self._some(query) if isinstance(query, exp.Select) else None
        subquery = (
            unwrap_query(predicate.args["query"])
            if isinstance(predicate, exp.In) and predicate.args.get("query")
            else None
        )
        if quantified is not None:
            self.bound.conditions.append(quantified)
        elif isinstance(query, exp.Select):
            self._exists(query)
        elif isinstance(subquery, exp.Select) and _is_plain(subquery) and len(subquery.expressions) == 1:
            self._exists(subquery, predicate.this)
        else:
            self.bound.conditions.append(condition)

    def _some(self, query: exp.Select) -> exp.Expr | None:
        """Rewrites EXISTS over an array of a record as SOME … SATISFIES, which needs no join."""
        where, first = query.args.get("where"), query.args.get("from_")
        path = first.this if first is not None and isinstance(first.this, exp.Table) else None
        record_names = {*self.free.names, *(let_.name for let_ in self.lets)}
        if where is None or path is None or query.args.get("joins") or not _is_plain(query):
            return None
        if path.parts[0].name not in record_names or not all(isinstance(part, exp.Identifier) for part in path.parts):
            return None
        array = exp.column(*reversed([part.name for part in path.parts[-4:]]), quoted=True)
        return nodes.Quantified(
            this=array, alias=exp.to_identifier(name_of(path), quoted=True), condition=where.this.copy(), every=False
        )

    def _exists(self, query: exp.Select, value: exp.Expr | None = None) -> None:
        """Moves the sources of an EXISTS to the outer query; `repeats` makes each match count once.

        With `value` it rewrites an IN: the output of the query must equal the value.
        """
        if not _is_plain(query):
            fail("an EXISTS that a parameter stands in takes sources and conditions only", query,
                 "put the rest into a subquery in its FROM")  # fmt: skip
        if self._multiplied:
            fail("EXISTS with a parameter inside and a source that depends on one do not go together", query,
                 "join its datasets in FROM")  # fmt: skip
        names = self._fresh(query)
        sources = move_sources(query, names)
        self.bound.sources += sources
        self.bound.names += [name_of(join.this) for join in sources]
        self.bound.conditions += self._conditions(query, names)
        if value is not None:
            item = rename_variables(self._qualify_fields(strip_alias(query.expressions[0]), query), names)
            self.bound.conditions.append(exp.EQ(this=value.copy(), expression=exp.Paren(this=item)))
        self.repeats = True

    def _fresh(self, query: exp.Select) -> dict[str, str]:
        """Makes unique names for a subquery's variables."""
        names = {}
        for name in own_names(query):
            self._count += 1
            names[name] = hidden_name(f"{name} {self._count}")
        return names

    def _conditions(self, query: exp.Select, names: dict[str, str]) -> list[exp.Expr]:
        where = query.args.get("where")
        return [
            rename_variables(self._qualify_fields(condition, query), names)
            for condition in (conjuncts(where.this) if where else ())
        ]

    def _qualify_fields(self, node: exp.Expr, query: exp.Select) -> exp.Expr:
        """Prefixes every unqualified field with the query's source, if the query has exactly one."""
        sources = [join.this for join in items(query) if not isinstance(join.this, nodes.Let)]
        if len(sources) != 1:
            return node
        known_names = {*self.free.names, *self.bound.names, *(let_.name for let_ in self.lets), *own_names(query)}
        known_names.update(self._parameters)

        def qualify(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and len(part.parts) == 1 and part.name not in known_names:
                return column_of(name_of(sources[0]), part.name)
            return part

        return node.copy() if node.find(exp.Query) else node.transform(qualify)


def let(name: str, value: exp.Expr, *, is_range: bool = False) -> exp.Join:
    """Returns a LET in the form that it has among the sources."""
    return exp.Join(this=nodes.Let(this=value.copy(), alias=exp.to_identifier(name, quoted=True), is_range=is_range))


def strip_alias(output: exp.Expr) -> exp.Expr:
    """Returns the expression of an item in a SELECT list, without its alias."""
    return output.this if isinstance(output, exp.Alias | nodes.ValueOf) else output


def _is_plain(query: exp.Select) -> bool:
    """Whether a query has only sources, conditions and a SELECT list."""
    plain_clauses = ("expressions", "from_", "joins", "where", "kind")
    outer = any((join.side or "") in ("LEFT", "RIGHT", "FULL") for join in query.args.get("joins") or [])
    extra = any(value for clause, value in query.args.items() if clause not in plain_clauses)
    return not outer and not extra and not any(aggregates(output) for output in query.expressions)


def _is_expensive(value: exp.Expr) -> bool:
    """Whether the value is expensive enough to compute it once per record."""
    return value.find(exp.Query, exp.Anonymous) is not None
