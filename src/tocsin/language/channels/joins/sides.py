"""Describes the two sides of a join, and adds columns of join keys to them.

`JoinRequirements` records what the caller must compute before the query runs: arrays, quantiles and stored key columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from tocsin.language.functions import grid, text_search
from tocsin.language.functions.function_registry import is_computed_once
from tocsin.language.translate.scope import as_table, column, free_tables, select_query
from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values

_SAMPLE_SIZE: Final = 64  # the size of a sample that stands for all values of an expression
_NO_LEVEL: Final = -1  # replaces an empty array of levels


@dataclass(frozen=True, slots=True)
class RuntimeArray:
    """An array that the caller reads before the query runs. `sql` yields it in one row; the query reads it as `:name`.

    It holds the grid levels that regions use, or a sample of an expression's values. `nothing` replaces an empty array.
    If `is_filter` is set, it holds the words of a filter with their indexes, and the query reads it as a BINARY.
    """

    name: str
    sql: exp.Expr
    nothing: int | None
    is_filter: bool = False


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
    quantiles: list[Quantiles] = field(default_factory=list)
    keys: list[exp.Expr] = field(default_factory=list)  # over interests alone; stored with them as columns k0, k1, …
    strategies: list[str] = field(default_factory=list)  # the join strategies in use, for the channel's description
    remedies: list[str] = field(default_factory=list)  # advice for conditions that no join can use
    around: dict[str, exp.Expr] = field(default_factory=dict)  # outer relations that subqueries refer to
    passing: set[str] = field(default_factory=set)  # key columns that exist in this query only
    key_relations: set[str] = field(default_factory=set)  # aliases of relations of keys alone

    def levels_of(self, sql: exp.Expr, nothing: int | None = _NO_LEVEL, *, is_filter: bool = False) -> exp.Expr:
        """Returns the argument that will hold the array of this query; equal queries share an argument."""
        array = next((level for level in self.levels if level.sql == sql), None)
        if array is None:
            array = RuntimeArray(f"levels{len(self.levels)}", sql, nothing, is_filter)
            self.levels.append(array)
        return exp.Placeholder(this=array.name)

    def parameter_of(self, sql: exp.Expr) -> int | None:
        """Returns the index of the parameter that the expression is, or None if it is anything else."""
        is_theirs = isinstance(sql, exp.Column) and sql.table == self.interests
        return self.parameters.get(sql.name) if is_theirs else None

    def quantiles_of(self, parameter: int) -> str:
        """Returns the name of the quantiles of a parameter's values."""
        quantiles = next((known for known in self.quantiles if known.parameter == parameter), None)
        if quantiles is None:
            quantiles = Quantiles(f"quantiles{len(self.quantiles)}", parameter)
            self.quantiles.append(quantiles)
        return quantiles.name

    def find_stored_column(self, sql: exp.Expr, alias: str) -> exp.Expr:
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
    is_wide: bool = False  # whether a row of the left side may have very many keys


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

    def per_row(self, side: str) -> grid.PerRow:
        """Returns a function that computes a value once per row of a side.

        The value becomes a stored column of the interests, or a column of the relation in this query.
        """

        def compute(sql: exp.Expr) -> exp.Expr:
            value = self.matches.find_stored_column(sql, side)
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
        query = _alone(self.made, side, self._lasting_conditions(side))
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

    def sample_of(self, side: str, value: exp.Expr) -> exp.Expr:
        """Returns an array with a sample of the values that the expression has on a side."""
        distinct_values = _alone(self.made, side, self._lasting_conditions(side))
        distinct_values.set("expressions", [exp.alias_(value.copy(), "value", quoted=True)])
        distinct_values.set("distinct", exp.Distinct())
        inner = self.alias("sample")
        not_null, random_order = (build(sql, _v=column(inner, "value")) for sql in ("_v IS NOT NULL", "xxhash64(_v)"))
        sample = (
            exp.Select(expressions=[column(inner, "value")]).from_(as_table(distinct_values, inner)).where(not_null)
        )
        sample = sample.order_by(random_order).limit(_SAMPLE_SIZE)
        outer = self.alias("sample")
        array = exp.alias_(values.call("collect_list", column(outer, "value")), "levels", quoted=True)
        return self.matches.levels_of(exp.Select(expressions=[array]).from_(as_table(sample, outer)), nothing=None)

    def filter_of(self, side: str, keys: exp.Expr) -> exp.Expr:
        """Returns a filter of the keys that a side has."""
        bits = _alone(self.made, side, self._lasting_conditions(side))
        bits.set("expressions", [exp.alias_(values.call("explode", text_search.key_bits(keys)), "value", quoted=True)])
        inner, outer = self.alias("bits"), self.alias("words")
        place = build("_v DIV 64", _v=column(inner, "value"))
        bit = values.call("shiftleft", build("1L"), build("CAST(_v % 64 AS INT)", _v=column(inner, "value")))
        words = select_query([("place", place), ("word", values.call("bit_or", bit))]).from_(as_table(bits, inner))
        words.set("group", exp.Group(expressions=[place.copy()]))
        members = values.call("struct", column(outer, "place"), column(outer, "word"))
        array = exp.alias_(values.call("collect_list", members), "levels", quoted=True)
        query = exp.Select(expressions=[array]).from_(as_table(words, outer))
        return self.matches.levels_of(query, nothing=None, is_filter=True)

    def _lasting_conditions(self, side: str) -> list[exp.Expr]:
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
    return _add(made, alias_, column(inner, "value"), alias, _explode_keys(keys, inner))


def explode_apart(made: exp.Select, records: str, keys: exp.Expr, matches: JoinRequirements,
                  alias: Callable[[str], str]) -> exp.Column | None:  # fmt: skip
    """Adds a relation of the records' keys and numbers, so that a record is not copied for each of its keys.

    Returns the key column, or None if the records have no numbers. The query reads the records twice, and Spark keeps
    what a WITH computes from the numbers, which differ each time. The interests come first: they meet the keys, and
    then the records.
    """
    source = _source(made, records)
    number = _number_of(source)
    if number is None or made.args.get("with_"):
        return None
    assert source is not None
    name, keyed, inner = alias("records"), alias("keyed"), alias("keys")
    numbered = exp.Table(
        this=exp.to_identifier(name, quoted=True), alias=exp.TableAlias(this=exp.to_identifier(records, quoted=True))
    )
    made.set("with_", exp.With(expressions=[
        exp.CTE(this=source.this.copy(), alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
    ]))  # fmt: skip
    query = select_query([("number", column(records, number)), ("key", column(inner, "value"))]).from_(numbered.copy())
    query.set("joins", [_explode_keys(keys, inner)])
    others = [join for join in made.args["joins"] if join.this.alias_or_name != matches.interests]
    (interests,) = (join.this for join in made.args["joins"] if join.this.alias_or_name == matches.interests)
    made.set("from_", exp.From(this=interests))
    made.set("joins", [*(exp.Join(this=each, kind="CROSS") for each in (as_table(query, keyed), numbered)), *others])
    made.set("where", exp.Where(this=exp.and_(
        made.args["where"].this, exp.EQ(this=column(keyed, "number"), expression=column(records, number))
    )))  # fmt: skip
    matches.key_relations.add(keyed)
    return column(keyed, "key")


def _number_of(source: exp.Expr | None) -> str | None:
    """Returns the name of the column that numbers the rows of a relation."""
    query = source.this if isinstance(source, exp.Subquery) else None
    for output in query.expressions if isinstance(query, exp.Select) else ():
        if any(str(call.this).lower() == "monotonically_increasing_id" for call in output.find_all(exp.Anonymous)):
            return str(output.alias)
    return None


def _explode_keys(keys: exp.Expr, alias: str) -> exp.Join:
    lateral = exp.Lateral(
        this=values.call("explode", keys),
        alias=exp.TableAlias(
            this=exp.to_identifier(alias, quoted=True), columns=[exp.to_identifier("value", quoted=True)]
        ),
    )
    return exp.Join(this=lateral, kind="CROSS")


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
