"""Turns a channel's body, written for one set of parameters, into one query for all interests.

    SELECT out FROM sources LET … WHERE free AND bound        becomes

    SELECT i.id, e.out FROM (SELECT …, out FROM sources LET … WHERE free) e, interests i WHERE bound

`free` is the part that depends on no parameter. The inner query computes it once per record, with every enrichment.
`bound` is the part that depends on parameters and joins records to interests. Grouping, order and limits apply to each
interest separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from tocsin.language.channels.parameter_split import ParameterSplit, SplitLet, let, strip_alias
from tocsin.language.channels.per_interest import add_places, column_of, keep_first_of_each, limit_results
from tocsin.language.syntax import nodes
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.rewrites.substitution import FIRST_LETS, rename_parameters, unwrap_query
from tocsin.language.translate.rewrites.with_clause import place_first_lets
from tocsin.language.translate.scope import hidden_name, is_hidden

INTERESTS: Final = hidden_name("interests")
INTEREST: Final = hidden_name("interest")
RECORD: Final = hidden_name("record")
OUT: Final = hidden_name("out")
NUMBER: Final = hidden_name("number")
_WHOLE: Final = hidden_name("whole")
_KNOWN = frozenset(
    f"expressions {FIRST_LETS} from_ joins where group having group_lets order limit offset distinct kind hint".split()
)
_BRANCHES = 64

ID = "interest_id"  # no other relation has a column of this name, so Spark's plans show where interests are


def parameter_column(index: int) -> str:
    return f"p{index}"


_IsExpensive = Callable[[str | None, str, int], bool]
"""Whether a function is so expensive that the query calls it once per record. The function is given by dataverse
(None: the body's own), name and number of arguments."""


def build_shared_query(
    body: exp.Expr, parameters: Sequence[str], is_expensive: _IsExpensive, branch: int = 1
) -> exp.Query:
    """Returns the shared query. Fails if the body has a shape that no shared query can express."""
    body = unwrap_query(body)
    if isinstance(body, exp.SetOperation):
        if (
            not isinstance(body, exp.Union)
            or body.args.get("distinct")
            or body.args.get("order")
            or body.args.get("limit")
        ):
            fail("of set operations a channel takes UNION ALL only", body, "write two channels, or SELECT DISTINCT")
        both = [
            build_shared_query(side, parameters, is_expensive, 2 * branch + i)
            for i, side in enumerate((body.this, body.expression))
        ]
        return exp.Union(this=both[0], expression=both[1], distinct=False)
    if not isinstance(body, exp.Select):
        fail("a channel's body is a query", body, "SELECT … FROM …")
    _check(body)
    if not parameters and not body.args.get("group") and any(aggregates(output) for output in body.expressions):
        body = _wrap_aggregate(body)
    if branch >= _BRANCHES:
        fail(f"a channel takes at most {_BRANCHES // 2} queries in a UNION ALL", body)
    return _SharedQueryBuilder(body, tuple(parameters), is_expensive, branch).build()


def _check(body: exp.Select) -> None:
    """Refuses clauses that a shared query cannot express."""
    for clause, value in body.args.items():
        if value and clause not in _KNOWN:
            fail(f"a channel's body takes no {clause.strip('_').upper()}", body, "put it into a subquery in FROM")
    if body.args.get("having") and not body.args.get("group"):
        fail("HAVING needs a GROUP BY", body, "put the condition into WHERE")
    group = body.args.get("group")
    if group is not None and (group.args.get("rollup") or group.args.get("cube")):
        fail("WITH ROLLUP would add up the interests, too", body, "write GROUP BY ROLLUP(…) or CUBE(…)")
    if any(_has_window(part) for part in _own_parts(body)):
        fail(
            "a window function would look at the records of all interests", body,
            "use GROUP BY, or ORDER BY and LIMIT, which are each interest's own, or a subquery in FROM",
        )  # fmt: skip


def _own_parts(body: exp.Select) -> Iterator[exp.Expr]:
    for clause, value in body.args.items():
        if clause not in ("from_", "joins"):
            yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, exp.Expr))
    yield from (join.this.this for join in body.args.get("joins") or [] if isinstance(join.this, nodes.Let))


def _has_window(node: exp.Expr) -> bool:
    if isinstance(node, exp.Query):
        return False
    return isinstance(node, exp.Window) or any(_has_window(child) for child in node.iter_expressions())


def _wrap_aggregate(body: exp.Select) -> exp.Select:
    """Wraps an aggregate without GROUP BY, so that its single row also comes when there are no rows to aggregate."""
    name = exp.to_identifier(_WHOLE, quoted=True)
    value = nodes.ValueOf(this=exp.column(name.copy()))
    return exp.Select(expressions=[value]).from_(exp.Subquery(this=body, alias=exp.TableAlias(this=name)))


class _SharedQueryBuilder:
    """Rewrites one SELECT: the inner half runs once per record, the outer half once per record and interest."""

    def __init__(self, body: exp.Select, parameters: tuple[str, ...], is_expensive: _IsExpensive, branch: int) -> None:
        # Parameters get names that no user can write, so no variable hides them and no field has the same name.
        self.parameters = {name: f" parameter {i}" for i, name in enumerate(parameters)}
        self.body = place_first_lets(rename_parameters(body, self.parameters))
        self.is_expensive = is_expensive
        self.branch = branch
        self.split = ParameterSplit(self.body, self.parameters.values())
        self.free, self.bound, self.lets = self.split.free, self.split.bound, self.split.lets
        self.early_calls: dict[str, exp.Expr] = {}  # calls that the inner half makes once per record, by name

    def build(self) -> exp.Query:
        """Returns the shared query of this SELECT."""
        body = self.body
        grouped = bool(body.args.get("group")) or any(aggregates(output) for output in body.expressions)
        if grouped and not body.args.get("group") and self.parameters:
            fail(
                "an aggregate without GROUP BY answers also for interests that nothing matched",
                body, f"write GROUP BY {next(iter(self.parameters))}",
            )  # fmt: skip
        distinct = bool(body.args.get("distinct"))
        limited = bool(body.args.get("limit") or body.args.get("offset"))
        # A result that depends on no parameter, and on no other record, is computed once per record.
        per_record = not (grouped or distinct) and not self.split.is_touched(body.expressions)
        self._look_up_versions(per_record)
        self._call_early(per_record)
        out = nodes.RowOf(expressions=[output.copy() for output in body.expressions])
        inner = self._inner(out if per_record else None)
        columns = [exp.alias_(column_of(INTEREST, ID), "interest", quoted=True)]
        repeats = self.split.repeats and not distinct
        if repeats and grouped:
            fail("EXISTS with a parameter inside and GROUP BY do not go together", body, "join its datasets in FROM")
        number = column_of(RECORD, NUMBER) if per_record or repeats else exp.cast(exp.null(), "BIGINT")
        columns.append(exp.alias_(number, "number", quoted=True))
        place: exp.Expr = exp.cast(exp.null(), "BIGINT")
        order = self._order()
        placed, ranked_last = bool(order or limited), distinct or repeats  # merge duplicates before counting places
        if placed and not ranked_last:
            place = nodes.PlaceOf(this=column_of(INTEREST, ID), expressions=order)
        columns.append(exp.alias_(place, "place", quoted=True))
        columns.append(exp.alias_(column_of(RECORD, OUT) if per_record else out, "result", quoted=True))
        if ranked_last:
            columns += self._sort_columns(order, any_key=not distinct)
        query = exp.Select(expressions=columns).from_(
            exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(RECORD, quoted=True)))
        )
        query.set("joins", [*self._interests(), *self._bind_inner_columns(), *self.bound.sources])
        if self.bound.conditions:
            query.set("where", exp.Where(this=exp.and_(*(condition.copy() for condition in self.bound.conditions))))
        if body.args.get("group"):
            query.set("group", self._group())
            for clause in ("having", "group_lets"):
                if body.args.get(clause):
                    query.set(clause, body.args[clause])
        if distinct:
            query.set("distinct", exp.Distinct())
        if repeats:
            query = keep_first_of_each(query, len(order), numbered=per_record)
        if ranked_last and placed:
            query = add_places(query, order)
        return limit_results(query, body) if limited else query

    def _look_up_versions(self, once: bool) -> None:
        """Moves `active_timestamp(v)` and `is_new(v)` to the inner half, which has the version columns of `v`."""
        versions: dict[exp.Expr, str] = {}

        def look_up(node: exp.Expr) -> exp.Expr:
            for call in list(node.find_all(exp.Anonymous)):
                argument = call.expressions[0] if len(call.expressions) == 1 else None
                of_version = str(call.this).lower() in ("active_timestamp", "is_new", "meta")
                if of_version and isinstance(argument, exp.Column) and argument.name in self.free.names:
                    name = versions.setdefault(call.copy(), f" version {len(versions)}")
                    column = exp.column(exp.to_identifier(name, quoted=True))
                    if call is node:
                        node = column
                    else:
                        call.replace(column)
            return node

        body = self.body
        self.bound.conditions = [look_up(condition.copy()) for condition in self.bound.conditions]
        self.lets = [replace(let_, value=look_up(let_.value.copy())) if let_.touched else let_ for let_ in self.lets]
        if not once:
            body.set("expressions", [look_up(output) for output in body.expressions])
        for clause in ("group", "having", "order"):
            if body.args.get(clause):
                look_up(body.args[clause])
        self.lets[:0] = [SplitLet(name, call, False, True, False) for call, name in versions.items()]

    def _call_early(self, once: bool) -> None:
        """Moves expensive calls that depend on no parameter to the inner half."""

        def early(node: exp.Expr) -> exp.Expr:
            for call in list(_calls(node)):
                full_call = call.parent if isinstance(call.parent, exp.Dot) and call is not node else call
                dataverse = full_call.this.name if isinstance(full_call, exp.Dot) else None
                name = call.this if isinstance(call.this, str) else call.this.name
                if self.split.is_touched([full_call]) or not self.is_expensive(dataverse, name, len(call.expressions)):
                    continue
                existing = next(
                    (early_name for early_name, value in self.early_calls.items() if value == full_call), None
                )
                column_name = existing or f" call {len(self.early_calls)}"
                self.early_calls.setdefault(column_name, full_call.copy())
                # The parentheses keep this internal name from becoming a field name of the result.
                column = exp.Paren(this=exp.column(exp.to_identifier(column_name, quoted=True)))
                if full_call is node:
                    return column
                full_call.replace(column)
            return node

        body = self.body
        self.bound.conditions = [early(condition) for condition in self.bound.conditions]
        if not once:
            body.set("expressions", [early(output) for output in body.expressions])
        for clause in ("group", "having", "order"):
            if body.args.get(clause):
                early(body.args[clause])

    # ------------------------------------------------------------ the two halves

    def _inner(self, out: exp.Expr | None) -> exp.Select:
        """Returns the inner half: each record once, with its enrichments, and `out` if it depends on no parameter."""
        if not self.free.sources:
            fail(
                "every source of this channel depends on a parameter",
                self.body,
                "name a dataset in FROM and tie it to the parameters in WHERE, or make the channel USING the function",
            )
        needed = [*self.free.names, *(let_.name for let_ in self.lets if let_.early), *self.early_calls]
        columns = [exp.alias_(exp.column(exp.to_identifier(name, quoted=True)), name, quoted=True) for name in needed]
        if out is not None:
            columns.append(exp.alias_(out, OUT, quoted=True))
        # The branch occupies the high bits, so records of two branches never share a number.
        number = exp.Add(
            this=exp.Anonymous(this="monotonically_increasing_id"), expression=exp.Literal.number(self.branch << 56)
        )
        columns.append(exp.alias_(number, NUMBER, quoted=True))
        first, *others = self.free.sources
        query = exp.Select(expressions=columns).from_(first.this.copy())
        lets = [
            let(let_.name, let_.value, is_range=let_.is_range) for let_ in self.lets if not let_.touched
        ]  # fmt: skip
        calls = [let(name, call) for name, call in self.early_calls.items()]
        query.set("joins", [*others, *lets, *calls])
        if self.free.conditions:
            query.set("where", exp.Where(this=exp.and_(*(condition.copy() for condition in self.free.conditions))))
        return query

    def _interests(self) -> Iterator[exp.Join]:
        """Yields the relation of interests, and a LET for each parameter."""
        table = exp.Table(
            this=exp.to_identifier(INTERESTS, quoted=True),
            alias=exp.TableAlias(this=exp.to_identifier(INTEREST, quoted=True)),
        )
        yield exp.Join(this=table)
        for i, name in enumerate(self.parameters.values()):
            yield let(name, column_of(INTEREST, parameter_column(i)))

    def _bind_inner_columns(self) -> Iterator[exp.Join]:
        """Binds the body's own names to the columns of the inner query."""
        for name in self.free.names:
            yield let(name, column_of(RECORD, name), is_range=not is_hidden(name))
        for name in self.early_calls:
            yield let(name, column_of(RECORD, name))
        for let_ in self.lets:
            yield let(let_.name, column_of(RECORD, let_.name) if let_.early else let_.value, is_range=let_.is_range)

    def _group(self) -> exp.Group:
        group: exp.Group = self.body.args["group"].copy()
        interest_keys = [
            column_of(INTEREST, ID),
            *(column_of(INTEREST, parameter_column(i)) for i in range(len(self.parameters))),
        ]
        group.set("expressions", [*group.expressions, *interest_keys])
        return group

    def _order(self) -> list[exp.Expr]:
        """Returns the sort keys; replaces names and numbers of output columns by their expressions."""
        order = self.body.args.get("order")
        named = {output.alias: output.this for output in self.body.expressions if isinstance(output, exp.Alias)}
        keys = []
        for ordered in order.expressions if order else []:
            key = ordered.copy()
            if isinstance(key.this, exp.Column) and len(key.this.parts) == 1 and key.this.name in named:
                key.set("this", named[key.this.name].copy())
            elif isinstance(key.this, exp.Literal) and not key.this.is_string:
                picked = self.body.expressions[int(key.this.this) - 1 : int(key.this.this)]
                if not picked:
                    fail(f"there is no column {key.this.this}", ordered)
                key.set("this", strip_alias(picked[0]).copy())
            keys.append(key)
        return keys

    def _sort_columns(self, order: Sequence[exp.Expr], *, any_key: bool) -> Iterator[exp.Expr]:
        """Yields the sort keys as columns. Rows that DISTINCT merges must have equal sort keys."""
        outputs = [strip_alias(output) for output in self.body.expressions]
        for i, ordered in enumerate(order):
            if not any_key and ordered.this not in outputs:
                fail("beside DISTINCT, ORDER BY takes what SELECT yields", ordered, "put it into the SELECT list")
            yield exp.alias_(ordered.this.copy(), f"key{i}", quoted=True)


def _calls(node: exp.Expr) -> Iterator[exp.Anonymous]:
    """Yields the calls in an expression, outermost first. Skips subqueries and lambdas, which bind their own names."""
    if isinstance(node, exp.Query | exp.Lambda | nodes.Quantified):
        return
    if isinstance(node, exp.Anonymous):
        yield node
    for child in node.iter_expressions():
        yield from _calls(child)
