"""Channels → Spark SQL: the body of a channel as one query over all interests and the records that are new to it.

The SQL is made once. What differs from run to run stands in it as parameters (`:now`, `:previous`, `:since0` …) and as
names of views that whoever runs it fills in. Nothing else in it can be taken for one of these names: they hold a digest
of the text that they stand in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final, NoReturn

from sqlglot import exp

from tocsin.language.channels import null_on_error
from tocsin.language.channels.joins.decorrelate import bring_in
from tocsin.language.channels.joins.rewrite import matched
from tocsin.language.channels.joins.sides import JoinRequirements, Quantiles, RuntimeArray
from tocsin.language.channels.new_rows import needs_new, wants_new, watching
from tocsin.language.channels.per_interest import is_numbered
from tocsin.language.channels.record_parts import branch_of, mark_branches, parted_datasets
from tocsin.language.channels.shared_query import ID, INTERESTS, parameter_column, shared
from tocsin.language.functions import like_patterns
from tocsin.language.translate.expressions import TranslationError, fail
from tocsin.language.translate.name_lookup import Dataset, Function, NameLookup, TypeAnalyser
from tocsin.language.translate.queries import Queries
from tocsin.language.translate.scope import RowVariable, column, derived, free_tables, selected
from tocsin.language.translate.sources import scan
from tocsin.language.translate.spark_text import render
from tocsin.language.types.output_types import leaving
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.language.types.variant import encoder, values
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import AT, COMMIT
from tocsin.rules.model.types import Field, ObjectType, Type

NOW: Final = "now"
PREVIOUS: Final = "previous"
_REGULAR: Final = frozenset(
    "rlike regexp regexp_like regexp_contains regexp_count regexp_extract regexp_extract_all regexp_instr"
    " regexp_replace regexp_substr split".split()
)
_ANCIENT: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Scan:
    """A relation the query reads under the name `view`: a dataset as of the execution's end, or its new rows alone."""

    view: str
    dataset: Dataset
    new: bool
    branch: int | None = None  # the query of a UNION it stands in, where its new rows may be parted


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """A function in Python that the query calls under the name `name`."""

    name: str
    function: Function
    arguments: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class WatchedDataset:
    """A dataset of which new rows count; `:since` is the last commit that is not new."""

    dataset: Dataset
    since: str


@dataclass(frozen=True, slots=True)
class LevelQuery:
    """Its answer, one array, is the argument `name` of the channel's query; an empty one is replaced by `nothing`."""

    name: str
    sql: str
    arguments: frozenset[str]  # that its own text names
    nothing: int | None


@dataclass(frozen=True, slots=True)
class SharedQuery:
    """A channel's query. Its answer has the columns `interest`, `number`, `place` and `result`, in no order.

    Results with the same number (not NULL) are the same. `place` orders those of one interest. With `needs_new` there
    is no answer where none of the watched datasets has new rows.
    """

    sql: str
    sql_for_many: str  # the same for records that are too many to be sent to every interest
    arguments: frozenset[str]  # that the text names
    type: Type
    parameters: tuple[Type, ...]
    interests_view: str
    keys: tuple[str, ...]
    borders: tuple[Quantiles, ...]
    levels: tuple[LevelQuery, ...]
    scans: tuple[Scan, ...]
    calls: tuple[CalledFunction, ...]
    watched: tuple[WatchedDataset, ...]
    needs_new: bool
    depends_on_time: bool
    matched_by: tuple[str, ...]
    remedy: str | None  # for the first condition on parameters that ties them to nothing, where there is one
    uses: frozenset[tuple[str, str, str]]
    is_numbered: bool = False  # every result has a number: none depends on the interest
    parted_by: tuple[Dataset, ...] = ()  # whose new rows, one after another, may be given to it in parts

    def grouped(self, sql: str, *, in_one_task: bool) -> str:
        """The same with each result once, beside all its `matches`: whose it is, and at which place. Matches that one
        task has found need no exchange between tasks."""
        match = "named_struct('interest', `interest`, 'place', `place`)"
        columns = f"`number`, any_value(`result`) AS `result`, collect_list({match}) AS `matches`"
        assert sql.startswith("SELECT ")
        found = f"SELECT /*+ COALESCE(1) */ {sql.removeprefix('SELECT ')}" if in_one_task else sql
        return f"SELECT {columns} FROM ({found}) GROUP BY `number`"  # noqa: S608 - our own query


def shared_query(
    body: exp.Expr,
    parameters: Sequence[str],
    declared: Mapping[str, Type],
    *,
    names: NameLookup,
    oracle: TypeAnalyser,
    dataverse: str,
    continuous: bool,
) -> SharedQuery:
    """The query of a channel, with the types of its parameters found in its body where they are not declared."""
    body = watching(body, continuous=continuous)
    branches = mark_branches(body)
    types = [declared.get(name, t.ANY) for name in parameters]

    def in_python(own: str | None, name: str, arity: int) -> bool:
        found = names.find_function(own or dataverse, name, arity)
        return found is not None and found.language == "PYTHON"

    listening = ChannelQueries(names, oracle, dataverse, types)
    heard = listening.statement(shared(body, parameters, in_python))
    for i, name in enumerate(parameters):
        if name not in declared:
            types[i] = _agreed(name, listening.uses_of.get(i, []))
    # No text holds its own digest, so nobody's literal or field is named as the views and functions of this query are.
    token = hashlib.sha256(render(heard.query).encode()).hexdigest()[:32]
    final = ChannelQueries(names, oracle, dataverse, types, token)
    return final.shared(shared(body, parameters, in_python), needs_new=needs_new(body), branches=branches)


def _agreed(name: str, found: Sequence[Type]) -> Type:
    """One type for all uses of a parameter."""
    types = list(dict.fromkeys(found))
    if not types:
        return t.ANY
    if len(types) == 1:
        return types[0]
    if set(types) <= set(t.NUMBERS):
        return t.DOUBLE if {t.DOUBLE, t.FLOAT} & set(types) else t.BIGINT
    raise TranslationError(
        f"the parameter {name} is used as {' and as '.join(map(str, types))}", None, "use two parameters"
    )


class ChannelQueries(Queries):
    def __init__(
        self, names: NameLookup, oracle: TypeAnalyser, dataverse: str, types: Sequence[Type], token: str = "0" * 32
    ) -> None:
        self.calls: list[CalledFunction] = []
        self._prefix = f"tocsin_channel_{token}"
        super().__init__(names, oracle, self, dataverse, _ANCIENT)
        self.parameters = tuple(types)
        self.matches = JoinRequirements()
        self.uses_of: dict[int, list[Type]] = {}
        self.read: list[Scan] = []
        self.watched: dict[tuple[str, str], WatchedDataset] = {}
        self.tables: dict[str, Dataset] = {}
        self.depends_on_time = False
        fields = [Field(ID, t.BIGINT), *(Field(parameter_column(i), one) for i, one in enumerate(types))]
        self._interests = _Interests(ObjectType(tuple(fields), open=False), f"{self._prefix}_interests")

    def shared(self, query: exp.Query, *, needs_new: bool, branches: int) -> SharedQuery:
        numbered = is_numbered(query)
        relation = self.statement(query)
        assert isinstance(relation.type, ObjectType)
        found = relation.type.find("result")
        assert found is not None
        alias = self.alias("out")
        left = leaving(TypedSql(column(alias, "result"), found.type))
        columns: list[tuple[str, exp.Expr]] = [(name, column(alias, name)) for name in ("interest", "number", "place")]
        columns.append(("result", encoder.exported(left)))
        made = selected(columns).from_(derived(relation.query, alias))
        matches = self.matches
        return SharedQuery(
            sql=render(made), sql_for_many=render(_without_hints(made)), arguments=_arguments(made),
            type=left.type, parameters=self.parameters,
            interests_view=self._interests.view, keys=tuple(self._over_text(one) for one in matches.keys),
            borders=tuple(matches.borders), levels=tuple(_levels(one) for one in matches.levels),
            scans=tuple(self.read), calls=tuple(self.calls), watched=tuple(self.watched.values()),
            needs_new=needs_new, depends_on_time=self.depends_on_time, matched_by=tuple(dict.fromkeys(matches.told)),
            remedy=next(iter(matches.remedies), None), uses=frozenset(self.uses),
            is_numbered=numbered,
            parted_by=parted_datasets([(one.dataset, one.branch) for one in self.read if one.new], branches),
        )  # fmt: skip

    def _over_text(self, key: exp.Expr) -> str:
        """A key over interests as they are kept, with untyped parameters as text."""
        kinds = {parameter_column(i): kind for i, kind in enumerate(self.parameters) if values.contains_any(kind)}

        def read(node: exp.Expr) -> exp.Expr:
            return (
                encoder.stored(node.copy(), kinds[node.name])
                if isinstance(node, exp.Column) and node.name in kinds
                else node
            )

        return render(key.transform(read))

    # ------------------------------------------------------------ what a channel reads

    def find_dataset(self, parts: Sequence[str], node: exp.Expr) -> Dataset:
        return self._interests if list(parts) == [INTERESTS] else super().find_dataset(parts, node)

    def scanned(self, dataset: Dataset, node: exp.Table, alias: str) -> exp.Expr:
        if dataset is self._interests:
            # Untyped parameters are untyped values there.
            self.matches.interests = alias
            return exp.Table(
                this=exp.to_identifier(self._interests.view, quoted=True),
                alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)),
            )
        if getattr(dataset, "folder", None) is None:
            # Neither has commits, so that no execution could say which state it has read.
            described = dataset.dataverse == "Metadata"
            fail(
                f"{'Metadata.' if described else ''}{dataset.name} cannot be read in a channel", node,
                "it has no commits of its own: let a procedure with a PERIOD copy what you need into a dataset"
                if described else "it shows what a channel has: only queries read it",
            )  # fmt: skip
        if self._version(node) != (None, None):
            fail("a channel reads datasets as they are", node, "leave AS OF out")
        read = Scan(f"{self._prefix}_scan_{len(self.read)}", dataset, wants_new(node), branch_of(node))
        self.read.append(read)
        self.tables[alias] = dataset
        return scan(read.view, dataset.type, alias, (COMMIT, AT) if getattr(dataset, "active", False) else ())

    def scan(self, *_: object) -> str:
        raise AssertionError("a channel's relations have names of their own")

    def called(self, function: Function, arguments: Sequence[Type]) -> str:
        self.calls.append(CalledFunction(f"{self._prefix}_call_{len(self.calls)}", function, tuple(arguments)))
        return self.calls[-1].name

    def brought_in(self, condition: exp.Expr) -> None:
        bring_in(condition, self.block, self.matches, self.alias)

    def matched(self, made: exp.Select) -> exp.Select:
        made = matched(made, self.matches, self.alias)
        joined = [join.this.alias_or_name for join in made.args.get("joins") or []]
        if joined == [self.matches.interests]:
            # New records are few and interests many, which Spark cannot know.
            records = exp.to_identifier(made.args["from_"].this.alias_or_name, quoted=True)
            made.set("hint", exp.Hint(expressions=[exp.Anonymous(this="BROADCAST", expressions=[records])]))
        return made

    # ------------------------------------------------------------ what a parameter may break

    # One subscriber's value must not fail the query of all: where an interest's own value makes an expression fail, the
    # expression is NULL and the interest meets nothing there.

    def call(self, dataverse: str | None, name: str, node: exp.Anonymous) -> TypedSql:
        if dataverse is None and name.lower() == "array_contains" and len(node.expressions) == 2:
            array, value = node.expressions
            return self.expression(exp.In(this=value, field=array))
        made = super().call(dataverse, name, node)
        if dataverse is None and name.lower() in _REGULAR and self._is_of_interests(made.sql):
            self._no_regular_expression(node)
        raising = [one for one in made.sql.find_all(exp.Anonymous) if str(one.this).lower() == "raise_error"]
        for one in raising:
            if self._is_of_interests(one):
                one.replace(exp.null())
        sql = null_on_error.try_cast(made.sql, self._is_of_interests)
        if name.lower() == "abs" and made.type in t.INTEGERS and self._is_theirs(sql):
            sql = null_on_error.without_sign(*sql.expressions)
        return made if sql is made.sql else TypedSql(sql, made.type)

    def _generic(self, node: exp.Expr) -> TypedSql:
        made = super()._generic(node)
        if isinstance(made.sql, exp.RegexpLike) and self._is_of_interests(made.sql.expression):
            self._no_regular_expression(node)
        return made

    def pattern(self, sql: exp.Expr, escape: str) -> exp.Expr:
        return like_patterns.readable(sql, escape) if self._is_of_interests(sql) else sql

    def _no_regular_expression(self, node: exp.Expr) -> NoReturn:
        fail("a parameter cannot be a regular expression: a wrong one would fail for everybody", node, "use LIKE")

    def _counted(self, node: exp.Expr) -> TypedSql:
        made = self._arithmetic(node)
        if made.type in (t.DOUBLE, t.FLOAT):
            return made  # beyond all numbers is a number, too
        return TypedSql(null_on_error.tried(made.sql, self._is_theirs), made.type)

    def _opposite(self, node: exp.Neg) -> TypedSql:
        made = self._negative(node)
        if isinstance(made.sql, exp.Neg) and made.type in t.INTEGERS and self._is_theirs(made.sql):
            return TypedSql(null_on_error.negated(made.sql.this), made.type)
        return made if made.type == t.DOUBLE else TypedSql(null_on_error.tried(made.sql, self._is_theirs), made.type)

    def _divided(self, node: exp.Expr) -> TypedSql:
        made = self._arithmetic(node)
        divisor = made.sql.args.get("expression") if isinstance(made.sql, exp.Div | exp.Mod | exp.IntDiv) else None
        if divisor is not None and self._is_of_interests(divisor):
            made.sql.set("expression", build("nullif(_d, 0)", _d=divisor))
        return made

    def _converted(self, node: exp.Cast) -> TypedSql:
        made = self._cast(node)
        if isinstance(made.sql, exp.Cast) and self._is_of_interests(made.sql):
            return TypedSql(exp.TryCast(**{**made.sql.copy().args, "safe": True}), made.type)
        return made

    def _is_of_interests(self, sql: exp.Expr) -> bool:
        return self.matches.interests in free_tables(sql)

    def _is_theirs(self, sql: exp.Expr) -> bool:
        """Of interests alone: what records make too large a number is named, with the interest, and not passed over."""
        return free_tables(sql) == {self.matches.interests}

    handlers: ClassVar[dict[type, Callable[..., TypedSql]]] = {
        **Queries.handlers,
        **dict.fromkeys((exp.Div, exp.Mod, exp.IntDiv), _divided),
        **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _counted),
        exp.Neg: _opposite,
        exp.Cast: _converted,
    }

    # ------------------------------------------------------------ its own functions

    def moment(self, kind: Type) -> TypedSql:
        self.depends_on_time = True
        now = exp.Placeholder(this=NOW)
        if kind == t.DATETIME:
            return TypedSql(now, t.DATETIME)
        if kind == t.DATE:
            return TypedSql(exp.cast(now, "DATE"), t.DATE)
        return TypedSql(build("pmod(unix_micros(_n), 86400000000L)", _n=now), t.TIME)

    def of_channel(self, name: str, node: exp.Anonymous) -> TypedSql:
        if name in ("previous_channel_time", "current_channel_time"):
            if node.expressions:
                fail(f"{name} takes no argument", node, f"{name}()")
            self.depends_on_time = True
            return TypedSql(exp.Placeholder(this=NOW if name.startswith("current") else PREVIOUS), t.DATETIME)
        argument = node.expressions[0] if len(node.expressions) == 1 else None
        value = self.expression(argument) if argument is not None else None
        dataset = self.tables.get(value.alias) if isinstance(value, RowVariable) else None
        if dataset is None or not isinstance(value, RowVariable):
            fail(f"{name} takes a variable that ranges over a dataset", node, "write it where FROM names the dataset")
        if not getattr(dataset, "active", False):
            fail(f"{name} needs an active dataset, and {dataset.name} is not", node, "CREATE ACTIVE DATASET")
        if name == "active_timestamp":
            return TypedSql(column(value.alias, AT), t.DATETIME)
        found = self.watched.setdefault(
            (dataset.dataverse, dataset.name), WatchedDataset(dataset, f"since{len(self.watched)}")
        )
        since = exp.Placeholder(this=found.since)
        return TypedSql(exp.Paren(this=exp.GT(this=column(value.alias, COMMIT), expression=since)), t.BOOLEAN)

    # ------------------------------------------------------------ types of parameters

    def taken(self, value: TypedSql, type_: Type) -> None:
        sql = value.sql
        while isinstance(sql, exp.Paren):
            sql = sql.this
        if isinstance(sql, exp.Column) and sql.table == self.matches.interests and sql.name.startswith("p"):
            self.uses_of.setdefault(int(sql.name[1:]), []).append(type_)


@dataclass(frozen=True, slots=True)
class _Interests:
    type: ObjectType
    view: str
    dataverse: str = ""
    name: str = "the interests"


def _levels(levels: RuntimeArray) -> LevelQuery:
    return LevelQuery(levels.name, render(levels.sql), _arguments(levels.sql), levels.nothing)


def _arguments(tree: exp.Expr) -> frozenset[str]:
    return frozenset(placeholder.name for placeholder in tree.find_all(exp.Placeholder))


def _without_hints(tree: exp.Expr) -> exp.Expr:
    tree = tree.copy()
    for select in tree.find_all(exp.Select):
        select.set("hint", None)
    return tree
