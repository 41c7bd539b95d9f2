"""Compiles a channel's body to one Spark SQL query over all interests and the records that are new to the channel.

The SQL is compiled once. The values that differ from run to run are parameters (`:now`, `:previous`, `:since0` …) and
names of views, which the caller fills in. These names contain a digest of the query's text, so no literal and no field
in the text can be mistaken for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from sqlglot import exp

from tocsin.language.channels import null_on_error
from tocsin.language.channels.joins.decorrelate import import_outer_values
from tocsin.language.channels.joins.rewrite import add_join_keys
from tocsin.language.channels.joins.sides import JoinRequirements, Quantiles, RuntimeArray
from tocsin.language.channels.new_rows import is_watched, mark_watched_datasets, needs_new_rows, translate_is_new
from tocsin.language.channels.per_interest import has_column
from tocsin.language.channels.record_parts import branch_of, find_parted_datasets, mark_branches
from tocsin.language.channels.shared_query import ID, INTERESTS, build_shared_query, parameter_column
from tocsin.language.functions.bounds import like_patterns
from tocsin.language.translate.active_records import active_time, active_variable, check_channel_time
from tocsin.language.translate.expressions import TranslationError, fail
from tocsin.language.translate.from_clause.dataset_scan import scan, version_of
from tocsin.language.translate.interfaces import Dataset, Function, NameLookup, TypeAnalyser
from tocsin.language.translate.rewrites.with_clause import inline_with
from tocsin.language.translate.scope import as_table, column, free_tables, select_query
from tocsin.language.translate.spark_text import render
from tocsin.language.translate.translator import Translator
from tocsin.language.types.output_types import to_output_type
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
_TIMES: Final = {"current_channel_time": NOW, "previous_channel_time": PREVIOUS}


@dataclass(frozen=True, slots=True)
class Scan:
    """A relation that the query reads as `view`: a dataset as of the execution's end, or only its new rows."""

    view: str
    dataset: Dataset
    new: bool
    branch: int | None = None  # the query of a UNION that reads it, if its new rows may be processed in parts


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """A Python function that the query calls under `name`."""

    name: str
    function: Function
    arguments: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class WatchedDataset:
    """A dataset whose new rows the channel reads. The argument `since` is the last commit that is not new."""

    dataset: Dataset
    since: str


@dataclass(frozen=True, slots=True)
class LevelQuery:
    """A query that runs first. Its answer, an array, is the argument `name` of the channel's query.

    `nothing` replaces an empty answer.
    """

    name: str
    sql: str
    arguments: frozenset[str]  # the arguments that this query's own text names
    nothing: int | None
    reads_records: bool  # otherwise the answer is the same until the interests change
    is_filter: bool = False  # the argument is a BINARY, made of the answer's words and their indexes


@dataclass(frozen=True, slots=True)
class SharedQuery:
    """A channel's compiled query. It returns the columns `interest`, `number`, `place` and `result`, in any order.

    Two rows with the same `number` (not NULL) have the same result. `place` orders the results of one interest. If
    `needs_new` is set, the query returns nothing unless a watched dataset has new rows.
    """

    sql: str
    sql_for_many: str  # the same query without broadcast hints, for many new records
    arguments: frozenset[str]  # the arguments that the text names
    type: Type
    parameters: tuple[Type, ...]
    interests_view: str
    keys: tuple[str, ...]
    quantiles: tuple[Quantiles, ...]
    levels: tuple[LevelQuery, ...]
    scans: tuple[Scan, ...]
    calls: tuple[CalledFunction, ...]
    watched: tuple[WatchedDataset, ...]
    needs_new: bool
    depends_on_time: bool
    matched_by: tuple[str, ...]
    remedy: str | None  # advice for the first condition on a parameter that no join can use
    uses: frozenset[tuple[str, str, str]]
    is_numbered: bool = False  # some results have a number, because they do not depend on their interest
    is_placed: bool = False  # some results have a place
    parted_by: tuple[Dataset, ...] = ()  # the query may receive the new rows of these datasets in parts


def compile_shared_query(
    body: exp.Expr,
    parameters: Sequence[str],
    declared: Mapping[str, Type],
    *,
    names: NameLookup,
    type_analyser: TypeAnalyser,
    dataverse: str,
    continuous: bool,
) -> SharedQuery:
    """Compiles a channel's body. The first of two passes infers the types of parameters that have no declared type."""
    body = mark_watched_datasets(inline_with(body), continuous=continuous)
    branches = mark_branches(body)
    types = [declared.get(name, t.ANY) for name in parameters]

    def in_python(own: str | None, name: str, arity: int) -> bool:
        function = names.find_function(own or dataverse, name, arity)
        return function is not None and function.language == "PYTHON"

    first_pass = _ChannelTranslation(names, type_analyser, dataverse, types)
    draft = first_pass.translator.statement(build_shared_query(body, parameters, in_python))
    for i, name in enumerate(parameters):
        if name not in declared:
            types[i] = _infer_type(name, first_pass.uses_of.get(i, []))
    # No text contains its own digest, so no literal or field in this query has the name of a view or function of ours.
    token = hashlib.sha256(render(draft.query).encode()).hexdigest()[:32]
    second_pass = _ChannelTranslation(names, type_analyser, dataverse, types, token)
    return second_pass.compile(
        build_shared_query(body, parameters, in_python), needs_new=needs_new_rows(body), branches=branches
    )


def _infer_type(name: str, uses: Sequence[Type]) -> Type:
    """Returns the type that fits all uses of a parameter."""
    types = list(dict.fromkeys(uses))
    if not types:
        return t.ANY
    if len(types) == 1:
        return types[0]
    if set(types) <= set(t.NUMBERS):
        return t.DOUBLE if {t.DOUBLE, t.FLOAT} & set(types) else t.BIGINT
    raise TranslationError(
        f"the parameter {name} is used as {' and as '.join(map(str, types))}", None, "use two parameters"
    )


class _ChannelTranslation:
    """Translates a channel's body, and records what the query needs to run: views, functions, keys and arguments.

    It owns a translator and is the hooks of it (`TranslationHooks`).
    """

    defines_function = False

    def __init__(
        self,
        names: NameLookup,
        type_analyser: TypeAnalyser,
        dataverse: str,
        types: Sequence[Type],
        token: str = "0" * 32,
    ) -> None:
        self.calls: list[CalledFunction] = []
        self._prefix = f"tocsin_channel_{token}"
        self.parameters = tuple(types)
        self.matches = JoinRequirements({parameter_column(i): i for i in range(len(types))})
        self.uses_of: dict[int, list[Type]] = {}
        self.read: list[Scan] = []
        self.watched: dict[tuple[str, str], WatchedDataset] = {}
        self.tables: dict[str, Dataset] = {}
        self.depends_on_time = False
        fields = [Field(ID, t.BIGINT), *(Field(parameter_column(i), type_) for i, type_ in enumerate(types))]
        self._interests = _Interests(ObjectType(tuple(fields), open=False), f"{self._prefix}_interests")
        self.own_datasets: Mapping[str, Dataset] = {INTERESTS: self._interests}
        self.translator = translator = Translator(names, type_analyser, self, dataverse)
        # A subscriber's value must not fail the shared query: where it makes one of these expressions fail, the
        # expression is NULL, and the interest matches nothing there.
        translator.handlers |= {
            exp.Add: self._add,
            exp.Sub: self._add,
            exp.Mul: self._add,
            exp.Div: self._divide,
            exp.Mod: self._divide,
            exp.IntDiv: self._divide,
            exp.Neg: self._negate,
            exp.Cast: self._cast,
            exp.Anonymous: self._call,
            exp.Dot: self._path,
            exp.RegexpLike: self._match_regular_expression,
        }

    def compile(self, query: exp.Query, *, needs_new: bool, branches: int) -> SharedQuery:
        """Translates the shared query and collects all that its execution needs."""
        is_numbered, is_placed = has_column(query, "number"), has_column(query, "place")
        relation = self.translator.statement(query)
        assert isinstance(relation.type, ObjectType)
        result = relation.type.find("result")
        assert result is not None
        alias = self.translator.alias("out")
        output = to_output_type(TypedSql(column(alias, "result"), result.type))
        columns: list[tuple[str, exp.Expr]] = [(name, column(alias, name)) for name in ("interest", "number", "place")]
        columns.append(("result", encoder.to_answer(output)))
        select = select_query(columns).from_(as_table(relation.query, alias))
        matches = self.matches
        new_scans = [(scan_.dataset, scan_.branch) for scan_ in self.read if scan_.new]
        return SharedQuery(
            sql=render(select), sql_for_many=render(_without_hints(select)), arguments=_arguments(select),
            type=output.type, parameters=self.parameters,
            interests_view=self._interests.view, keys=tuple(self._over_text(key) for key in matches.keys),
            quantiles=tuple(matches.quantiles), levels=tuple(self._level(level) for level in matches.levels),
            scans=tuple(self.read), calls=tuple(self.calls), watched=tuple(self.watched.values()),
            needs_new=needs_new, depends_on_time=self.depends_on_time,
            matched_by=tuple(dict.fromkeys(matches.strategies)),
            remedy=next(iter(matches.remedies), None), uses=frozenset(self.translator.uses),
            is_numbered=is_numbered, is_placed=is_placed,
            parted_by=find_parted_datasets(new_scans, branches),
        )  # fmt: skip

    def _level(self, level: RuntimeArray) -> LevelQuery:
        names = {scan_.view for scan_ in self.read} | {call.name for call in self.calls}
        reads_records = any(node.name in names for node in level.sql.walk())
        return LevelQuery(
            level.name, render(level.sql), _arguments(level.sql), level.nothing, reads_records, level.is_filter
        )

    def _over_text(self, key: exp.Expr) -> str:
        """Renders a key over the stored interests, which hold untyped parameters as text."""
        kinds = {parameter_column(i): kind for i, kind in enumerate(self.parameters) if values.contains_any(kind)}

        def read(node: exp.Expr) -> exp.Expr:
            return (
                encoder.from_stored(node.copy(), kinds[node.name])
                if isinstance(node, exp.Column) and node.name in kinds
                else node
            )

        return render(key.transform(read))

    # ------------------------------------------------------------ datasets

    def scan_dataset(self, dataset: Dataset, node: exp.Table, alias: str) -> exp.Expr:
        """Gives every scan its own view, which the caller fills for each execution."""
        if dataset is self._interests:
            # This view holds untyped parameters as variants, so it needs no conversion.
            self.matches.interests = alias
            return exp.Table(
                this=exp.to_identifier(self._interests.view, quoted=True),
                alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)),
            )
        if dataset.active is None:
            # Metadata and virtual datasets have no commits, so an execution could not record which state it read.
            described = dataset.dataverse == "Metadata"
            fail(
                f"{'Metadata.' if described else ''}{dataset.name} cannot be read in a channel", node,
                "it has no commits of its own: let a procedure with a PERIOD copy what you need into a dataset"
                if described else "it shows what a channel has: only queries read it",
            )  # fmt: skip
        if version_of(node) != (None, None):
            fail("a channel reads datasets as they are", node, "leave AS OF out")
        scanned = Scan(f"{self._prefix}_scan_{len(self.read)}", dataset, is_watched(node), branch_of(node))
        self.read.append(scanned)
        self.tables[alias] = dataset
        return scan(scanned.view, dataset.type, alias, (COMMIT, AT) if dataset.active else ())

    def call_name(self, function: Function, arguments: Sequence[Type]) -> str:
        self.calls.append(CalledFunction(f"{self._prefix}_call_{len(self.calls)}", function, tuple(arguments)))
        return self.calls[-1].name

    def import_outer(self, condition: exp.Expr) -> None:
        import_outer_values(condition, self.translator.block, self.matches, self.translator.alias)

    def add_join_keys(self, query: exp.Select) -> exp.Select:
        """Adds join keys, and a broadcast hint for the records if only the interests join them."""
        query = add_join_keys(query, self.matches, self.translator.alias)
        matches = self.matches
        joined = [join.this.alias_or_name for join in query.args.get("joins") or []]
        relations = [query.args["from_"].this.alias_or_name, *joined] if joined else []
        if (
            len([name for name in relations if name not in matches.key_relations]) == 2
            and matches.interests in relations
        ):
            # The new records are few and the interests many. Spark cannot know this.
            records = [exp.to_identifier(name, quoted=True) for name in relations if name != matches.interests]
            query.set("hint", exp.Hint(expressions=[exp.Anonymous(this="BROADCAST", expressions=records)]))
        return query

    # ------------------------------------------------------------ errors that a parameter causes

    def _call(self, node: exp.Anonymous) -> TypedSql:
        name = (node.this if isinstance(node.this, str) else node.this.name).lower()
        if name == "array_contains" and len(node.expressions) == 2:
            array, value = node.expressions
            return self.translator.expression(exp.In(this=value, field=array))
        result = self.translator.calls.call_unqualified(node)
        if name in _REGULAR and self._is_of_interests(result.sql):
            _refuse_regular_expression(node)
        return self._guard_call(name, result)

    def _path(self, node: exp.Dot) -> TypedSql:
        result = self.translator.paths.path(node)
        called = node.expression
        return self._guard_call(str(called.name).lower(), result) if isinstance(called, exp.Anonymous) else result

    def _guard_call(self, name: str, result: TypedSql) -> TypedSql:
        for call in [call for call in result.sql.find_all(exp.Anonymous) if str(call.this).lower() == "raise_error"]:
            if self._is_of_interests(call):
                call.replace(exp.null())
        sql = null_on_error.try_cast(result.sql, self._is_of_interests)
        if name == "abs" and result.type in t.INTEGERS and self._is_theirs(sql):
            sql = null_on_error.without_sign(*sql.expressions)
        return result if sql is result.sql else TypedSql(sql, result.type)

    def _match_regular_expression(self, node: exp.RegexpLike) -> TypedSql:
        result = self.translator.expressions.generic(node)
        if isinstance(result.sql, exp.RegexpLike) and self._is_of_interests(result.sql.expression):
            _refuse_regular_expression(node)
        return result

    def check_pattern(self, sql: exp.Expr, escape: str) -> exp.Expr:
        return like_patterns.readable(sql, escape) if self._is_of_interests(sql) else sql

    def _add(self, node: exp.Expr) -> TypedSql:
        result = self.translator.operators.arithmetic(node)
        if result.type in (t.DOUBLE, t.FLOAT):
            return result  # floating-point overflow yields infinity, which is no error
        return TypedSql(null_on_error.null_on_overflow(result.sql, self._is_theirs), result.type)

    def _negate(self, node: exp.Neg) -> TypedSql:
        result = self.translator.operators.negative(node)
        if isinstance(result.sql, exp.Neg) and result.type in t.INTEGERS and self._is_theirs(result.sql):
            return TypedSql(null_on_error.negate_or_null(result.sql.this), result.type)
        if result.type == t.DOUBLE:
            return result
        return TypedSql(null_on_error.null_on_overflow(result.sql, self._is_theirs), result.type)

    def _divide(self, node: exp.Expr) -> TypedSql:
        result = self.translator.operators.arithmetic(node)
        divisor = result.sql.args.get("expression") if isinstance(result.sql, exp.Div | exp.Mod | exp.IntDiv) else None
        if divisor is not None and self._is_of_interests(divisor):
            result.sql.set("expression", build("nullif(_d, 0)", _d=divisor))
        return result

    def _cast(self, node: exp.Cast) -> TypedSql:
        result = self.translator.operators.cast(node)
        if isinstance(result.sql, exp.Cast) and self._is_of_interests(result.sql):
            return TypedSql(exp.TryCast(**{**result.sql.copy().args, "safe": True}), result.type)
        return result

    def _is_of_interests(self, sql: exp.Expr) -> bool:
        return self.matches.interests in free_tables(sql)

    def _is_theirs(self, sql: exp.Expr) -> bool:
        """Whether the expression reads interests alone.

        An overflow that also depends on a record must fail, so that the error can name the interest.
        """
        return free_tables(sql) == {self.matches.interests}

    # ------------------------------------------------------------ functions that only channels have

    def instant(self, kind: Type) -> TypedSql:
        """Returns the argument `:now`, because the SQL serves many executions."""
        self.depends_on_time = True
        now = exp.Placeholder(this=NOW)
        if kind == t.DATETIME:
            return TypedSql(now, t.DATETIME)
        if kind == t.DATE:
            return TypedSql(exp.cast(now, "DATE"), t.DATE)
        return TypedSql(build("pmod(unix_micros(_n), 86400000000L)", _n=now), t.TIME)

    def call_channel_function(self, name: str, node: exp.Anonymous, translator: Translator) -> TypedSql:
        """Translates is_new(v), active_timestamp(v) and the times of the channel's executions."""
        if name in _TIMES:
            check_channel_time(name, node, translator)
            self.depends_on_time = True
            return TypedSql(exp.Placeholder(this=_TIMES[name]), t.DATETIME)
        value, dataset = active_variable(name, node, translator, self.tables)
        if name in ("active_timestamp", "meta"):
            return active_time(name, value)
        watched = self.watched.setdefault(
            (dataset.dataverse, dataset.name), WatchedDataset(dataset, f"since{len(self.watched)}")
        )
        return translate_is_new(value, watched.since)

    # ------------------------------------------------------------ inference of parameter types

    def note_use(self, value: TypedSql, type_: Type) -> None:
        """Records the type with which the body uses a parameter."""
        sql = value.sql
        while isinstance(sql, exp.Paren):
            sql = sql.this
        parameter = self.matches.parameter_of(sql)
        if parameter is not None:
            self.uses_of.setdefault(parameter, []).append(type_)


@dataclass(frozen=True, slots=True)
class _Interests:
    """The interests as a dataset: their ids and parameter values."""

    type: ObjectType
    view: str
    dataverse: str = ""
    name: str = "the interests"
    active: None = None


def _refuse_regular_expression(node: exp.Expr) -> NoReturn:
    fail("a parameter cannot be a regular expression: a wrong one would fail for everybody", node, "use LIKE")


def _arguments(tree: exp.Expr) -> frozenset[str]:
    return frozenset(placeholder.name for placeholder in tree.find_all(exp.Placeholder))


def _without_hints(tree: exp.Expr) -> exp.Expr:
    tree = tree.copy()
    for select in tree.find_all(exp.Select):
        select.set("hint", None)
    return tree
