"""Two relations of a query and what brings their rows together: keys beside them, and what these need to be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from tocsin.language.functions import grid
from tocsin.language.functions.calls import is_made_once
from tocsin.language.translate.scope import column, derived, free_tables
from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values

SOME: Final = 64  # values that stand for all of an expression's
NO_LEVEL: Final = -1  # in place of levels where there are none


@dataclass(frozen=True, slots=True)
class RuntimeArray:
    """The query needs, as the parameter `:name`, what `sql` then yields in one row: the levels that regions use, or
    some values of an expression. Where it yields none, `nothing` stands for them."""

    name: str
    sql: exp.Expr
    nothing: int | None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The query needs, as the parameter `:name`, borders between values of one parameter in their order, and beside
    each interest, as a column of the same name, how many of them are not above its own value."""

    name: str
    parameter: str


@dataclass(slots=True)
class JoinRequirements:
    """What the matching of one query asks of whoever runs it, and what it says about itself."""

    interests: str = ""  # their alias in the query
    levels: list[RuntimeArray] = field(default_factory=list)
    borders: list[Quantiles] = field(default_factory=list)
    keys: list[exp.Expr] = field(default_factory=list)  # over interests alone; kept with them as columns k0, k1, …
    told: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)  # for conditions that bring nothing together
    around: dict[str, exp.Expr] = field(default_factory=dict)  # relations that subqueries refer to
    passing: set[str] = field(default_factory=set)  # columns beside the interests in this query, not kept with them

    def levels_of(self, sql: exp.Expr, nothing: int | None = NO_LEVEL) -> exp.Expr:
        found = next((one for one in self.levels if one.sql == sql), None)
        if found is None:
            found = RuntimeArray(f"levels{len(self.levels)}", sql, nothing)
            self.levels.append(found)
        return exp.Placeholder(this=found.name)

    def borders_of(self, parameter: str) -> str:
        found = next((one for one in self.borders if one.parameter == parameter), None)
        if found is None:
            found = Quantiles(f"borders{len(self.borders)}", parameter)
            self.borders.append(found)
        return found.name

    def kept(self, sql: exp.Expr, alias: str) -> exp.Expr:
        """A column of the interests that holds this; elsewhere, and where it may be another the next time, the same
        again: it depends on the moment, or on code in Python, which may change."""
        if alias != self.interests or sql.find(exp.Placeholder) or isinstance(sql, exp.Column) or is_made_once(sql):
            return sql
        if any(one.name in self.passing for one in sql.find_all(exp.Column)):
            return sql
        plain = sql.transform(lambda node: exp.column(node.this, quoted=True) if isinstance(node, exp.Column) else node)
        if plain not in self.keys:
            self.keys.append(plain)
        return column(alias, f"k{self.keys.index(plain)}")


@dataclass(frozen=True, slots=True)
class KeyStrategy:
    """How a condition brings two relations together: keys of each side, and which of several common keys counts."""

    what: str
    left: exp.Expr
    right: exp.Expr
    counts: Callable[[exp.Expr], exp.Expr] | None = None
    same_type: bool = True  # keys of both sides: equal ones have the same hash, too


@dataclass(frozen=True, slots=True)
class JoinSides:
    """Two of a query's relations, and what the query says of each alone."""

    made: exp.Select
    conditions: Sequence[exp.Expr]
    left: str
    right: str
    matches: JoinRequirements
    alias: Callable[[str], str]

    def of(self, sql: exp.Expr) -> str | None:
        tables = free_tables(sql)
        return next(iter(tables)) if len(tables) == 1 and tables <= {self.left, self.right} else None

    def beside(self, side: str) -> grid.Beside:
        """Computes something once per row of a side: kept with the interests, or in a column of the relation."""

        def compute(sql: exp.Expr) -> exp.Expr:
            kept = self.matches.kept(sql, side)
            if isinstance(kept, exp.Column):
                return kept
            name = _add(self.made, side, kept, self.alias)
            self.matches.passing.add(name)
            return column(side, name)

        return compute

    def levels(self, side: str, region: grid.Region) -> exp.Expr:
        source = _source(self.made, side)
        if source is not None and (beyond := free_tables(source)):
            return self._levels_around(source.copy(), beyond, region)
        query = _alone(self.made, side, self._lasting(side))
        query.set("expressions", [exp.alias_(values.call("collect_set", region.level), "levels", quoted=True)])
        return self.matches.levels_of(query)

    def _levels_around(self, source: exp.Expr, beyond: set[str], region: grid.Region) -> exp.Expr:
        """Of what a subquery brings in: of all that it may be, or, where that is hard to tell, all there are."""
        brought = next((one for one in source.find_all(exp.Select) if one.args.get("from_") is None), None)
        found = self.matches.around.get(next(iter(beyond))) if len(beyond) == 1 else None
        if brought is None or found is None:
            return grid.array_of(grid.ALL_LEVELS)
        brought.from_(found.copy(), copy=False)
        level = exp.alias_(values.call("collect_set", region.level), "levels", quoted=True)
        return self.matches.levels_of(exp.Select(expressions=[level]).from_(source))

    def some_of(self, side: str, value: exp.Expr) -> exp.Expr:
        """An array of some of the values that this has on a side, from everywhere."""
        each = _alone(self.made, side, self._lasting(side))
        each.set("expressions", [exp.alias_(value.copy(), "value", quoted=True)])
        each.set("distinct", exp.Distinct())
        inner = self.alias("some")
        known, chance = (build(sql, _v=column(inner, "value")) for sql in ("_v IS NOT NULL", "xxhash64(_v)"))
        some = exp.Select(expressions=[column(inner, "value")]).from_(derived(each, inner)).where(known)
        some = some.order_by(chance).limit(SOME)
        outer = self.alias("some")
        found = exp.alias_(values.call("collect_list", column(outer, "value")), "levels", quoted=True)
        return self.matches.levels_of(exp.Select(expressions=[found]).from_(derived(some, outer)), nothing=None)

    def _lasting(self, side: str) -> list[exp.Expr]:
        # What is found out of interests is remembered, so what holds only for now is left out. More does no harm.
        return [one for one in self.conditions if side != self.matches.interests or not one.find(exp.Placeholder)]


# ---------------------------------------------------------------- the query's relations


def pair_of(condition: exp.Expr, made: exp.Select) -> tuple[str, str] | None:
    tables = free_tables(condition)
    if len(tables) != 2 or not all(_source(made, one) is not None for one in tables):
        return None
    first, second = sorted(tables)
    return first, second


def _source(made: exp.Select, alias: str) -> exp.Expr | None:
    """The relation of that name, where keys can be put beside its rows."""
    from_ = made.args.get("from_")
    joins = made.args.get("joins") or []
    for one in ([from_.this] if from_ is not None else []) + [
        join.this for join in joins if (join.side or "") not in ("LEFT", "FULL") and (join.kind or "") != "ANTI"
    ]:
        if one.alias_or_name == alias and isinstance(one, exp.Table | exp.Subquery) and not _is_call(one):
            return one
    return None


def _is_call(source: exp.Expr) -> bool:
    return isinstance(source, exp.Table) and isinstance(source.this, exp.Anonymous)


def explode(made: exp.Select, alias_: str, keys: exp.Expr, alias: Callable[[str], str]) -> str:
    """Puts each of a row's keys beside it; the name of their column."""
    inner = alias("keys")
    each = exp.Lateral(
        this=values.call("explode", keys),
        alias=exp.TableAlias(
            this=exp.to_identifier(inner, quoted=True), columns=[exp.to_identifier("value", quoted=True)]
        ),
    )
    return _add(made, alias_, column(inner, "value"), alias, exp.Join(this=each, kind="CROSS"))


def _add(
    made: exp.Select, alias_: str, value: exp.Expr, alias: Callable[[str], str], join: exp.Join | None = None
) -> str:
    """Puts a value beside each row of a relation; the name of its column."""
    source = _source(made, alias_)
    assert source is not None
    name = alias("key")
    rows = exp.Column(this=exp.Star(), table=exp.to_identifier(alias_, quoted=True))
    query = exp.Select(expressions=[rows, exp.alias_(value.copy(), name, quoted=True)]).from_(source.copy())
    query.set("joins", [join] if join is not None else None)
    source.replace(exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias_, quoted=True))))
    return name


def _alone(made: exp.Select, alias: str, conditions: Sequence[exp.Expr]) -> exp.Select:
    """`SELECT … FROM` one of the relations, with what the query says of it alone."""
    source = _source(made, alias)
    assert source is not None
    query = exp.Select().from_(source.copy())
    own = [one.copy() for one in conditions if free_tables(one) == {alias} and not one.find(exp.Query)]
    if own:
        query.set("where", exp.Where(this=exp.and_(*own)))
    return query


def equalities(conditions: Sequence[exp.Expr]) -> set[frozenset[str]]:
    """The pairs that Spark joins by itself."""
    found = set()
    for one in conditions:
        if isinstance(one, exp.EQ):
            sides = free_tables(one.this), free_tables(one.expression)
            if all(len(side) == 1 for side in sides) and sides[0] != sides[1]:
                found.add(frozenset((*sides[0], *sides[1])))
    return found
