"""Describes the two sides of a join, and adds columns of join keys to them.

`JoinRequirements` records what the caller must compute before the query runs: arrays, quantiles and stored key columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from tocsin.language.functions import grid
from tocsin.language.functions.function_registry import is_computed_once
from tocsin.language.translate.scope import column, derived_table, free_tables
from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values

SOME: Final = 64  # the size of a sample that stands for all values of an expression
_NO_LEVEL: Final = -1  # replaces an empty array of levels


@dataclass(frozen=True, slots=True)
class RuntimeArray:
    """An array that the caller reads before the query runs. `sql` yields it in one row; the query reads it as `:name`.

    It holds the grid levels that regions use, or a sample of an expression's values. `nothing` replaces an empty array.
    """

    name: str
    sql: exp.Expr
    nothing: int | None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Borders between the sorted values of a parameter. The caller passes them as `:name`.

    Each interest has a column of the same name: the number of borders that are not above its own value.
    """

    name: str
    parameter: int  # its index


@dataclass(slots=True)
class JoinRequirements:
    """What the joins of one query need from the caller, and how the query describes its joins."""

    parameters: Mapping[str, int]  # the index of each parameter, by the name of its column of the interests
    interests: str = ""  # the alias of the interests in the query
    levels: list[RuntimeArray] = field(default_factory=list)
    borders: list[Quantiles] = field(default_factory=list)
    keys: list[exp.Expr] = field(default_factory=list)  # over interests alone; stored with them as columns k0, k1, …
    told: list[str] = field(default_factory=list)  # the join strategies in use, for the channel's description
    remedies: list[str] = field(default_factory=list)  # advice for conditions that no join can use
    around: dict[str, exp.Expr] = field(default_factory=dict)  # outer relations that subqueries refer to
    passing: set[str] = field(default_factory=set)  # key columns that exist in this query only

    def levels_of(self, sql: exp.Expr, nothing: int | None = _NO_LEVEL) -> exp.Expr:
        """Returns the argument that will hold the array of this query; equal queries share an argument."""
        array = next((level for level in self.levels if level.sql == sql), None)
        if array is None:
            array = RuntimeArray(f"levels{len(self.levels)}", sql, nothing)
            self.levels.append(array)
        return exp.Placeholder(this=array.name)

    def parameter_of(self, sql: exp.Expr) -> int | None:
        """Returns the index of the parameter that the expression is, or None if it is anything else."""
        is_theirs = isinstance(sql, exp.Column) and sql.table == self.interests
        return self.parameters.get(sql.name) if is_theirs else None

    def borders_of(self, parameter: int) -> str:
        """Returns the name of the borders between the values of a parameter."""
        quantiles = next((border for border in self.borders if border.parameter == parameter), None)
        if quantiles is None:
            quantiles = Quantiles(f"borders{len(self.borders)}", parameter)
            self.borders.append(quantiles)
        return quantiles.name

    def kept(self, sql: exp.Expr, alias: str) -> exp.Expr:
        """Returns a column of the stored interests that holds this value, or else the expression itself.

        An expression cannot be stored if another relation computes it, or if its value may change: it depends on the
        time, or on Python code.
        """
        if alias != self.interests or sql.find(exp.Placeholder) or isinstance(sql, exp.Column) or is_computed_once(sql):
            return sql
        if any(reference.name in self.passing for reference in sql.find_all(exp.Column)):
            return sql
        plain = sql.transform(lambda node: exp.column(node.this, quoted=True) if isinstance(node, exp.Column) else node)
        if plain not in self.keys:
            self.keys.append(plain)
        return column(alias, f"k{self.keys.index(plain)}")


@dataclass(frozen=True, slots=True)
class KeyStrategy:
    """A way to join two relations: the keys of each side, and a test which of several common keys counts."""

    what: str
    left: exp.Expr
    right: exp.Expr
    counts: Callable[[exp.Expr], exp.Expr] | None = None
    same_type: bool = True  # whether equal keys of both sides also have equal hashes


@dataclass(frozen=True, slots=True)
class JoinSides:
    """Two relations of a query, with the query's conditions."""

    made: exp.Select
    conditions: Sequence[exp.Expr]
    left: str
    right: str
    matches: JoinRequirements
    alias: Callable[[str], str]

    def of(self, sql: exp.Expr) -> str | None:
        """Returns the side that an expression belongs to, or None if it belongs to neither or to both."""
        tables = free_tables(sql)
        return next(iter(tables)) if len(tables) == 1 and tables <= {self.left, self.right} else None

    def beside(self, side: str) -> grid.Beside:
        """Returns a function that computes a value once per row of a side.

        The value becomes a stored column of the interests, or a column of the relation in this query.
        """

        def compute(sql: exp.Expr) -> exp.Expr:
            value = self.matches.kept(sql, side)
            if isinstance(value, exp.Column):
                return value
            name = _add(self.made, side, value, self.alias)
            self.matches.passing.add(name)
            return column(side, name)

        return compute

    def levels(self, side: str, region: grid.Region) -> exp.Expr:
        """Returns the array of grid levels that the regions of a side use."""
        source = _source(self.made, side)
        if source is not None and (beyond := free_tables(source)):
            return self._levels_around(source.copy(), beyond, region)
        query = _alone(self.made, side, self._lasting(side))
        query.set("expressions", [exp.alias_(values.call("collect_set", region.level), "levels", quoted=True)])
        return self.matches.levels_of(query)

    def _levels_around(self, source: exp.Expr, beyond: set[str], region: grid.Region) -> exp.Expr:
        """Collects the levels of an imported relation: from the outer relation if that is a plain scan, else all."""
        imported = next((select for select in source.find_all(exp.Select) if select.args.get("from_") is None), None)
        outer = self.matches.around.get(next(iter(beyond))) if len(beyond) == 1 else None
        if imported is None or outer is None:
            return grid.array_of(grid.ALL_LEVELS)
        imported.from_(outer.copy(), copy=False)
        level = exp.alias_(values.call("collect_set", region.level), "levels", quoted=True)
        return self.matches.levels_of(exp.Select(expressions=[level]).from_(source))

    def some_of(self, side: str, value: exp.Expr) -> exp.Expr:
        """Returns an array with a sample of the values that the expression has on a side."""
        distinct_values = _alone(self.made, side, self._lasting(side))
        distinct_values.set("expressions", [exp.alias_(value.copy(), "value", quoted=True)])
        distinct_values.set("distinct", exp.Distinct())
        inner = self.alias("some")
        not_null, random_order = (build(sql, _v=column(inner, "value")) for sql in ("_v IS NOT NULL", "xxhash64(_v)"))
        sample = (
            exp.Select(expressions=[column(inner, "value")])
            .from_(derived_table(distinct_values, inner))
            .where(not_null)
        )
        sample = sample.order_by(random_order).limit(SOME)
        outer = self.alias("some")
        array = exp.alias_(values.call("collect_list", column(outer, "value")), "levels", quoted=True)
        return self.matches.levels_of(exp.Select(expressions=[array]).from_(derived_table(sample, outer)), nothing=None)

    def _lasting(self, side: str) -> list[exp.Expr]:
        # The caller caches answers about interests, so skip conditions on the time. Extra values do no harm.
        return [
            condition
            for condition in self.conditions
            if side != self.matches.interests or not condition.find(exp.Placeholder)
        ]


# ---------------------------------------------------------------- relations of the query


def pair_of(condition: exp.Expr, made: exp.Select) -> tuple[str, str] | None:
    """Returns the two relations that a condition compares, if both can get key columns."""
    tables = free_tables(condition)
    if len(tables) != 2 or not all(_source(made, table) is not None for table in tables):
        return None
    first, second = sorted(tables)
    return first, second


def _source(made: exp.Select, alias: str) -> exp.Expr | None:
    """Returns the relation of that name, if the rewrite may add key columns to it."""
    from_ = made.args.get("from_")
    joins = made.args.get("joins") or []
    for source in ([from_.this] if from_ is not None else []) + [
        join.this for join in joins if (join.side or "") not in ("LEFT", "FULL") and (join.kind or "") != "ANTI"
    ]:
        if source.alias_or_name == alias and isinstance(source, exp.Table | exp.Subquery) and not _is_call(source):
            return source
    return None


def _is_call(source: exp.Expr) -> bool:
    return isinstance(source, exp.Table) and isinstance(source.this, exp.Anonymous)


def explode(made: exp.Select, alias_: str, keys: exp.Expr, alias: Callable[[str], str]) -> str:
    """Adds a row for each key of a row; returns the name of the key column."""
    inner = alias("keys")
    lateral = exp.Lateral(
        this=values.call("explode", keys),
        alias=exp.TableAlias(
            this=exp.to_identifier(inner, quoted=True), columns=[exp.to_identifier("value", quoted=True)]
        ),
    )
    return _add(made, alias_, column(inner, "value"), alias, exp.Join(this=lateral, kind="CROSS"))


def _add(
    made: exp.Select, alias_: str, value: exp.Expr, alias: Callable[[str], str], join: exp.Join | None = None
) -> str:
    """Adds a column to a relation; returns the column's name."""
    source = _source(made, alias_)
    assert source is not None
    name = alias("key")
    rows = exp.Column(this=exp.Star(), table=exp.to_identifier(alias_, quoted=True))
    query = exp.Select(expressions=[rows, exp.alias_(value.copy(), name, quoted=True)]).from_(source.copy())
    query.set("joins", [join] if join is not None else None)
    source.replace(exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias_, quoted=True))))
    return name


def _alone(made: exp.Select, alias: str, conditions: Sequence[exp.Expr]) -> exp.Select:
    """Returns `SELECT … FROM` one of the relations, with the conditions that involve no other relation."""
    source = _source(made, alias)
    assert source is not None
    query = exp.Select().from_(source.copy())
    own_conditions = [
        condition.copy()
        for condition in conditions
        if free_tables(condition) == {alias} and not condition.find(exp.Query)
    ]
    if own_conditions:
        query.set("where", exp.Where(this=exp.and_(*own_conditions)))
    return query


def equalities(conditions: Sequence[exp.Expr]) -> set[frozenset[str]]:
    """Returns the pairs of relations that Spark can join by an equality without our keys."""
    pairs = set()
    for condition in conditions:
        if isinstance(condition, exp.EQ):
            sides = free_tables(condition.this), free_tables(condition.expression)
            if all(len(side) == 1 for side in sides) and sides[0] != sides[1]:
                pairs.add(frozenset((*sides[0], *sides[1])))
    return pairs
