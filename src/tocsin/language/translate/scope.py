"""Keeps track of names: what each name means at a place in a query, and from which relation each column comes.

Spark correlates a subquery over one level only. A block therefore imports the columns of outer blocks, level by level,
and must know which relation each column comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tocsin.language.types.typed_sql import TypedSql
from tocsin.language.types.variant import values
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ANY, ObjectType, Type


def hidden_name(name: str) -> str:
    """Returns a name for a variable or relation of ours that no script can write: no name of a script begins with a
    space."""
    return f" {name}"


def is_hidden(name: str) -> bool:
    """Whether `hidden_name` made the name, so that it is no variable of the script's author."""
    return name.startswith(" ")


@dataclass(frozen=True, slots=True)
class RowVariable(TypedSql):
    """A range variable whose fields are columns of `alias`; its `sql` is the whole record as a struct.

    If an outer join may find no record, `present` is TRUE where there is one; elsewhere all of it is MISSING.
    """

    alias: str
    present: exp.Expr | None = None


@dataclass(frozen=True, slots=True)
class OptionalVariable(TypedSql):
    """A declared optional field: SQL NULL where it is NULL or MISSING, `explicit` TRUE where it is NULL."""

    explicit: exp.Expr


@dataclass(slots=True)
class NameScope:
    """Names in scope, innermost first. The body of a function sees its parameters, but no name of its caller."""

    names: dict[str, TypedSql] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)  # FROM variables; a query may name their fields without prefix
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
    """A SELECT under construction. Its subqueries refer to it directly, and to outer blocks through `imported`."""

    outer: QueryBlock | None
    aliases: set[str] = field(default_factory=set)
    joins: list[exp.Join] = field(default_factory=list)
    source: exp.Expr | None = None
    imports: dict[tuple[str, str], str] = field(default_factory=dict)
    import_alias: str = ""
    has_outer_join: bool = False
    presence: dict[str, exp.Expr] = field(default_factory=dict)  # by variable: is there a row, or did a join find none?
    grouped: bool = False
    group_sets: bool = False  # ROLLUP, CUBE or GROUPING SETS: not every row has every grouping key
    untyped_keys: list[exp.Expr] = field(default_factory=list)
    optional_keys: list[exp.Expr] = field(default_factory=list)  # grouping keys that are declared optional fields
    untyped_columns: dict[tuple[str, str], Type] = field(default_factory=dict)  # those that contain variants
    texts: dict[tuple[str, str], str] = field(default_factory=dict)  # the relations with their texts

    def note_columns(self, value: TypedSql, alias: str) -> None:
        """Notes which columns of a new relation contain variants."""
        if isinstance(value, RowVariable) and isinstance(value.type, ObjectType):
            columns = [(physical(declared.name), declared.type) for declared in value.type.fields]
        else:
            columns = [(VALUE, value.type)]
        self.untyped_columns.update({(alias, name): type_ for name, type_ in columns if values.contains_any(type_)})

    def import_column(self, column: exp.Column, alias: str) -> exp.Column:
        """Imports a column of an outer block as a column of this block: Spark correlates over one level only."""
        self.import_alias = self.import_alias or alias
        name = self.imports.setdefault((column.table, column.name), f"i{len(self.imports)}")
        block = self.outer
        while block is not None:
            type_ = block.untyped_columns.get((column.table, column.name))
            if type_ is not None:
                self.untyped_columns[self.import_alias, name] = type_
            block = block.outer
        return exp.column(name, table=self.import_alias, quoted=True)


@dataclass(frozen=True, slots=True)
class Relation:
    """A translated query: one column `value`, or the fields of an object as columns."""

    query: exp.Query
    type: Type
    is_value: bool


@dataclass(frozen=True, slots=True)
class WithTable:
    """A table of WITH: its alias and query, and the names that were in scope where it was written."""

    alias: str
    relation: Relation
    node: exp.Expr
    frame: NameScope
    relations: dict[str, WithTable]

    @property
    def is_correlated(self) -> bool:
        """Whether it refers to variables outside of it. Spark's WITH cannot, so each use gets a copy of the query."""
        return bool(free_tables(self.relation.query))


VALUE = "value"


def column(alias: str, name: str) -> exp.Column:
    return exp.column(name, table=alias, quoted=True)


def select_query(columns: Sequence[tuple[str, exp.Expr]]) -> exp.Select:
    return exp.Select(expressions=[exp.alias_(sql.copy(), name, quoted=True) for name, sql in columns])


def as_table(query: exp.Query, alias: str) -> exp.Subquery:
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def free_tables(query: exp.Expr) -> set[str]:
    """Returns the aliases that a query refers to but does not define.

    A field of a lambda's variable looks like a column of a table. Only our templates make such fields, and their
    variables begin with two underscores, as no alias does.
    """
    defined = {alias.name for alias in query.find_all(exp.TableAlias)}
    tables = {reference.table for reference in query.find_all(exp.Column)}
    return {table for table in tables - defined if table and not table.startswith("__")}


def row(alias: str, type_: ObjectType) -> RowVariable:
    """Returns the range variable over a relation whose columns are the fields of an object."""
    names = [physical(declared.name) for declared in type_.fields] + ([OPEN] if keeps_open(type_) else [])
    return RowVariable(values.record([(name, column(alias, name)) for name in names]), type_, alias)


def nullable_side(value: TypedSql, present: exp.Expr) -> TypedSql:
    """Makes a variable MISSING where an outer join finds no partner, so that `present` is not TRUE."""
    if isinstance(value, RowVariable):
        there = exp.If(this=present.copy(), true=value.sql, false=exp.null())
        return RowVariable(there, value.type, value.alias, present)
    if value.type == ANY or isinstance(value, OptionalVariable):
        return value  # its SQL NULL is MISSING
    return OptionalVariable(value.sql, value.type, present)


def find_required_column(alias: str, type_: ObjectType) -> exp.Expr | None:
    """Returns a column of a dataset's record that is never NULL."""
    required = (declared for declared in type_.fields if not declared.optional and declared.type != ANY)
    first = next(required, None)
    return None if first is None else column(alias, physical(first.name))


def optional(value: TypedSql) -> TypedSql:
    """Returns a record that may be MISSING as an optional value."""
    if isinstance(value, RowVariable) and value.present is not None:
        return OptionalVariable(value.sql, value.type, exp.false())
    return value


def column_names(relation: Relation) -> list[str]:
    """Returns the names of the columns that `variable` reads."""
    if relation.is_value or not isinstance(relation.type, ObjectType):
        return [VALUE]
    names = [physical(declared.name) for declared in relation.type.fields]
    return [*names, OPEN] if keeps_open(relation.type) else names


def variable(relation: Relation, alias: str) -> TypedSql:
    """Returns the range variable over a relation with this alias."""
    if relation.is_value or not isinstance(relation.type, ObjectType):
        return TypedSql(column(alias, VALUE), relation.type)
    return row(alias, relation.type)
