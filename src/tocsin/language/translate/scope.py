"""What names mean at a place in a query, and which relation every column comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tocsin.language.types.typed_sql import TypedSql
from tocsin.language.types.variant import values
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ANY, ObjectType, Type


@dataclass(frozen=True, slots=True)
class RowVariable(TypedSql):
    """A range variable whose fields are columns of `alias`; its `sql` is the whole record as a struct."""

    alias: str


@dataclass(frozen=True, slots=True)
class OptionalVariable(TypedSql):
    """A declared optional field: SQL NULL where it is NULL or MISSING, `explicit` TRUE where it is NULL."""

    explicit: exp.Expr


@dataclass(slots=True)
class NameScope:
    """Names in scope, innermost first. A function's body sees its parameters and nothing of its caller."""

    names: dict[str, TypedSql] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)  # the FROM variables, whose fields may be named without them
    parent: NameScope | None = None

    def find(self, name: str) -> TypedSql | None:
        return next((frame.names[name] for frame in self.chain() if name in frame.names), None)

    def chain(self) -> Iterator[NameScope]:
        frame: NameScope | None = self
        while frame is not None:
            yield frame
            frame = frame.parent


@dataclass(slots=True)
class QueryBlock:
    """One SELECT being built. Its subqueries refer to it directly, and to blocks further out through `imported`."""

    outer: QueryBlock | None
    aliases: set[str] = field(default_factory=set)
    joins: list[exp.Join] = field(default_factory=list)
    source: exp.Expr | None = None
    imports: dict[tuple[str, str], str] = field(default_factory=dict)
    import_alias: str = ""
    grouped: bool = False
    group_sets: bool = False  # ROLLUP, CUBE or GROUPING SETS: not every row is grouped by every key
    untyped_keys: list[exp.Expr] = field(default_factory=list)

    def imported(self, column: exp.Column, alias: str) -> exp.Column:
        """The column of a block further out, brought in as one of this block's own: Spark correlates one level only."""
        self.import_alias = self.import_alias or alias
        name = self.imports.setdefault((column.table, column.name), f"i{len(self.imports)}")
        return exp.column(name, table=self.import_alias, quoted=True)


@dataclass(frozen=True, slots=True)
class Relation:
    """A translated query: one column `value`, or the fields of an object as columns."""

    query: exp.Query
    type: Type
    is_value: bool


VALUE = "value"


def column(alias: str, name: str) -> exp.Column:
    return exp.column(name, table=alias, quoted=True)


def selected(columns: Sequence[tuple[str, exp.Expr]]) -> exp.Select:
    return exp.Select(expressions=[exp.alias_(sql.copy(), name, quoted=True) for name, sql in columns])


def derived(query: exp.Query, alias: str) -> exp.Subquery:
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def free_tables(query: exp.Expr) -> set[str]:
    """The aliases a query refers to but does not define."""
    defined = {one.name for one in query.find_all(exp.TableAlias)}
    return {one.table for one in query.find_all(exp.Column) if one.table and one.table not in defined}


def row(alias: str, type_: ObjectType) -> RowVariable:
    names = [physical(one.name) for one in type_.fields] + ([OPEN] if keeps_open(type_) else [])
    return RowVariable(values.record([(name, column(alias, name)) for name in names]), type_, alias)


def perhaps(value: TypedSql) -> TypedSql:
    """A variable on the side of an outer join that may find no partner: then the whole record is NULL."""
    if not isinstance(value, RowVariable) or not isinstance(value.type, ObjectType):
        return value
    always = next((one for one in value.type.fields if not one.optional and one.type != ANY), None)
    if always is None:
        return value
    absent = exp.Is(this=column(value.alias, physical(always.name)), expression=exp.null())
    return RowVariable(exp.If(this=absent, true=exp.null(), false=value.sql), value.type, value.alias)


def variable(relation: Relation, alias: str) -> TypedSql:
    if relation.is_value or not isinstance(relation.type, ObjectType):
        return TypedSql(column(alias, VALUE), relation.type)
    return row(alias, relation.type)
