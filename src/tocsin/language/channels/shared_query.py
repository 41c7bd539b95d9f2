"""A channel's body, written for one set of parameters, as one query for all of them.

    SELECT out FROM sources LET … WHERE free AND bound        becomes

    SELECT i.id, e.out FROM (SELECT …, out FROM sources LET … WHERE free) e, interests i WHERE bound

`free` is what no parameter touches: it is computed once for each record, with everything that enriches it. `bound` ties
records to interests. Grouping, order and limits are then each interest's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from tocsin.language.channels.parameter_split import ParameterSplit, SplitLet, let, yielded
from tocsin.language.channels.per_interest import first_of_each, limited_to, of, with_places
from tocsin.language.syntax import dialect
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.subqueries import unwrapped
from tocsin.language.translate.substitution import with_parameters

# Names that nobody can write.
INTERESTS = " interests"
INTEREST, RECORD, OUT, NUMBER = " interest", " record", " out", " number"
_WHOLE = " whole"
_KNOWN = frozenset(
    "expressions from_ joins where group having group_lets order limit offset distinct kind hint".split()
)
_BRANCHES = 64

ID = "interest_id"  # a column of no other relation, so that Spark's plans tell where interests are


def parameter_column(index: int) -> str:
    return f"p{index}"


IsDear = Callable[[str | None, str, int], bool]
"""Whether a function of that dataverse (None: the body's own), name and number of arguments is called once a record."""


def shared(body: exp.Expr, parameters: Sequence[str], is_dear: IsDear, branch: int = 1) -> exp.Query:
    """The shared query. Fails where the body is of a shape that has no such query."""
    body = unwrapped(body)
    if isinstance(body, exp.SetOperation):
        if (
            not isinstance(body, exp.Union)
            or body.args.get("distinct")
            or body.args.get("order")
            or body.args.get("limit")
        ):
            fail("of set operations a channel takes UNION ALL only", body, "write two channels, or SELECT DISTINCT")
        both = [shared(one, parameters, is_dear, 2 * branch + i) for i, one in enumerate((body.this, body.expression))]
        return exp.Union(this=both[0], expression=both[1], distinct=False)
    if not isinstance(body, exp.Select):
        fail("a channel's body is a query", body, "SELECT … FROM …")
    if body.args.get("with_"):
        fail("a channel's body takes no WITH", body, "write the query where its name stands, or as a function")
    _check(body)
    if not parameters and not body.args.get("group") and any(aggregates(one) for one in body.expressions):
        body = _wrapped(body)
    if branch >= _BRANCHES:
        fail(f"a channel takes at most {_BRANCHES // 2} queries in a UNION ALL", body)
    return _Sharing(body, tuple(parameters), is_dear, branch).made()


def _check(body: exp.Select) -> None:
    for clause, value in body.args.items():
        if value and clause not in _KNOWN:
            fail(f"a channel's body takes no {clause.strip('_').upper()}", body, "put it into a subquery in FROM")
    if body.args.get("having") and not body.args.get("group"):
        fail("HAVING needs a GROUP BY", body, "put the condition into WHERE")
    group = body.args.get("group")
    if group is not None and (group.args.get("rollup") or group.args.get("cube")):
        fail("WITH ROLLUP would add up the interests, too", body, "write GROUP BY ROLLUP(…) or CUBE(…)")
    if any(_has_window(one) for one in _own_parts(body)):
        fail(
            "a window function would look at the records of all interests", body,
            "use GROUP BY, or ORDER BY and LIMIT, which are each interest's own, or a subquery in FROM",
        )  # fmt: skip


def _own_parts(body: exp.Select) -> Iterator[exp.Expr]:
    for clause, value in body.args.items():
        if clause not in ("from_", "joins"):
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, exp.Expr))
    yield from (join.this.this for join in body.args.get("joins") or [] if isinstance(join.this, dialect.Let))


def _has_window(node: exp.Expr) -> bool:
    if isinstance(node, exp.Query):
        return False
    return isinstance(node, exp.Window) or any(_has_window(one) for one in node.iter_expressions())


def _wrapped(body: exp.Select) -> exp.Select:
    """An aggregate over everything, whose one row comes also when there is nothing to aggregate."""
    name = exp.to_identifier(_WHOLE, quoted=True)
    value = dialect.ValueOf(this=exp.column(name.copy()))
    return exp.Select(expressions=[value]).from_(exp.Subquery(this=body, alias=exp.TableAlias(this=name)))


class _Sharing:
    def __init__(self, body: exp.Select, parameters: tuple[str, ...], is_dear: IsDear, branch: int) -> None:
        # Under names of their own no variable hides parameters, and no field is called like them.
        self.parameters = {name: f" parameter {i}" for i, name in enumerate(parameters)}
        self.body = with_parameters(body, self.parameters)
        self.is_dear = is_dear
        self.branch = branch
        self.divided = ParameterSplit(self.body, self.parameters.values())
        self.free, self.bound, self.lets = self.divided.free, self.divided.bound, self.divided.lets
        self.made_early: dict[str, exp.Expr] = {}  # calls that are made once per record, under names of their own

    def made(self) -> exp.Query:
        body = self.body
        grouped = bool(body.args.get("group")) or any(aggregates(one) for one in body.expressions)
        if grouped and not body.args.get("group") and self.parameters:
            fail(
                "an aggregate without GROUP BY answers also for interests that nothing matched",
                body, f"write GROUP BY {next(iter(self.parameters))}",
            )  # fmt: skip
        distinct = bool(body.args.get("distinct"))
        limited = bool(body.args.get("limit") or body.args.get("offset"))
        once = not (grouped or distinct) and not self.divided.is_touched(body.expressions)
        self._look_up_versions(once)
        self._call_early(once)
        out = dialect.RowOf(expressions=[one.copy() for one in body.expressions])
        inner = self._inner(out if once else None)
        columns = [exp.alias_(of(INTEREST, ID), "interest", quoted=True)]
        repeats = self.divided.repeats and not distinct
        if repeats and grouped:
            fail("EXISTS with a parameter inside and GROUP BY do not go together", body, "join its datasets in FROM")
        number = of(RECORD, NUMBER) if once or repeats else exp.cast(exp.null(), "BIGINT")
        columns.append(exp.alias_(number, "number", quoted=True))
        place: exp.Expr = exp.cast(exp.null(), "BIGINT")
        order = self._order()
        placed, late = bool(order or limited), distinct or repeats  # rows that are one have one place
        if placed and not late:
            place = dialect.PlaceOf(this=of(INTEREST, ID), expressions=order)
        columns.append(exp.alias_(place, "place", quoted=True))
        columns.append(exp.alias_(of(RECORD, OUT) if once else out, "result", quoted=True))
        if late:
            columns += self._sort_columns(order, any_key=not distinct)
        query = exp.Select(expressions=columns).from_(
            exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(RECORD, quoted=True)))
        )
        query.set("joins", [*self._interests(), *self._again(), *self.bound.sources])
        if self.bound.conditions:
            query.set("where", exp.Where(this=exp.and_(*(one.copy() for one in self.bound.conditions))))
        if body.args.get("group"):
            query.set("group", self._group())
            for clause in ("having", "group_lets"):
                if body.args.get(clause):
                    query.set(clause, body.args[clause])
        if distinct:
            query.set("distinct", exp.Distinct())
        if repeats:
            query = first_of_each(query, len(order), numbered=once)
        if late and placed:
            query = with_places(query, order)
        return limited_to(query, body) if limited else query

    def _look_up_versions(self, once: bool) -> None:
        """`active_timestamp(v)` and `is_new(v)` where parameters are, taken from where the dataset's rows are."""
        found: dict[exp.Expr, str] = {}

        def looked_up(node: exp.Expr) -> exp.Expr:
            for call in list(node.find_all(exp.Anonymous)):
                argument = call.expressions[0] if len(call.expressions) == 1 else None
                of_version = str(call.this).lower() in ("active_timestamp", "is_new")
                if of_version and isinstance(argument, exp.Column) and argument.name in self.free.names:
                    name = found.setdefault(call.copy(), f" version {len(found)}")
                    made = exp.column(exp.to_identifier(name, quoted=True))
                    if call is node:
                        node = made
                    else:
                        call.replace(made)
            return node

        body = self.body
        self.bound.conditions = [looked_up(one.copy()) for one in self.bound.conditions]
        self.lets = [replace(one, value=looked_up(one.value.copy())) if one.touched else one for one in self.lets]
        if not once:
            body.set("expressions", [looked_up(one) for one in body.expressions])
        for clause in ("group", "having", "order"):
            if body.args.get(clause):
                looked_up(body.args[clause])
        self.lets[:0] = [SplitLet(name, call, False, True, False) for call, name in found.items()]

    def _call_early(self, once: bool) -> None:
        """Dear calls that no parameter touches, among conditions and results that one does, made with the record."""

        def early(node: exp.Expr) -> exp.Expr:
            for call in list(_calls(node)):
                whole = call.parent if isinstance(call.parent, exp.Dot) and call is not node else call
                dataverse = whole.this.name if isinstance(whole, exp.Dot) else None
                name = call.this if isinstance(call.this, str) else call.this.name
                if self.divided.is_touched([whole]) or not self.is_dear(dataverse, name, len(call.expressions)):
                    continue
                known = next((one for one, value in self.made_early.items() if value == whole), None)
                made = known or f" call {len(self.made_early)}"
                self.made_early.setdefault(made, whole.copy())
                # In parentheses it gives its name to no field of a result.
                column = exp.Paren(this=exp.column(exp.to_identifier(made, quoted=True)))
                if whole is node:
                    return column
                whole.replace(column)
            return node

        body = self.body
        self.bound.conditions = [early(one) for one in self.bound.conditions]
        if not once:
            body.set("expressions", [early(one) for one in body.expressions])
        for clause in ("group", "having", "order"):
            if body.args.get(clause):
                early(body.args[clause])

    # ------------------------------------------------------------ the two halves

    def _inner(self, out: exp.Expr | None) -> exp.Select:
        """The records with all that enriches them, each once."""
        if not self.free.sources:
            fail(
                "every source of this channel depends on a parameter",
                self.body,
                "name a dataset in FROM and tie it to the parameters in WHERE, or make the channel USING the function",
            )
        needed = [*self.free.names, *(one.name for one in self.lets if one.early), *self.made_early]
        columns = [exp.alias_(exp.column(exp.to_identifier(one, quoted=True)), one, quoted=True) for one in needed]
        if out is not None:
            columns.append(exp.alias_(out, OUT, quoted=True))
        # Records of two queries never have the same number.
        number = exp.Add(
            this=exp.Anonymous(this="monotonically_increasing_id"), expression=exp.Literal.number(self.branch << 56)
        )
        columns.append(exp.alias_(number, NUMBER, quoted=True))
        first, *others = self.free.sources
        query = exp.Select(expressions=columns).from_(first.this.copy())
        lets = [
            let(one.name, one.value, is_range=one.is_range) for one in self.lets if not one.touched
        ]  # fmt: skip
        calls = [let(name, call) for name, call in self.made_early.items()]
        query.set("joins", [*others, *lets, *calls])
        if self.free.conditions:
            query.set("where", exp.Where(this=exp.and_(*(one.copy() for one in self.free.conditions))))
        return query

    def _interests(self) -> Iterator[exp.Join]:
        table = exp.Table(
            this=exp.to_identifier(INTERESTS, quoted=True),
            alias=exp.TableAlias(this=exp.to_identifier(INTEREST, quoted=True)),
        )
        yield exp.Join(this=table)
        for i, name in enumerate(self.parameters.values()):
            yield let(name, of(INTEREST, parameter_column(i)))

    def _again(self) -> Iterator[exp.Join]:
        """The body's own names, over the records as they come out of the inner query."""
        for name in self.free.names:
            yield let(name, of(RECORD, name), is_range=not name.startswith(" "))
        for name in self.made_early:
            yield let(name, of(RECORD, name))
        for one in self.lets:
            yield let(one.name, of(RECORD, one.name) if one.early else one.value, is_range=one.is_range)

    def _group(self) -> exp.Group:
        group: exp.Group = self.body.args["group"].copy()
        own = [of(INTEREST, ID), *(of(INTEREST, parameter_column(i)) for i in range(len(self.parameters)))]
        group.set("expressions", [*group.expressions, *own])
        return group

    def _order(self) -> list[exp.Expr]:
        order = self.body.args.get("order")
        named = {one.alias: one.this for one in self.body.expressions if isinstance(one, exp.Alias)}
        found = []
        for one in order.expressions if order else []:
            key = one.copy()
            if isinstance(key.this, exp.Column) and len(key.this.parts) == 1 and key.this.name in named:
                key.set("this", named[key.this.name].copy())
            elif isinstance(key.this, exp.Literal) and not key.this.is_string:
                picked = self.body.expressions[int(key.this.this) - 1 : int(key.this.this)]
                if not picked:
                    fail(f"there is no column {key.this.this}", one)
                key.set("this", yielded(picked[0]).copy())
            found.append(key)
        return found

    def _sort_columns(self, order: Sequence[exp.Expr], *, any_key: bool) -> Iterator[exp.Expr]:
        """What DISTINCT rows are ordered by must be the same for all that are one."""
        outputs = [yielded(one) for one in self.body.expressions]
        for i, one in enumerate(order):
            if not any_key and one.this not in outputs:
                fail("beside DISTINCT, ORDER BY takes what SELECT yields", one, "put it into the SELECT list")
            yield exp.alias_(one.this.copy(), f"key{i}", quoted=True)


def _calls(node: exp.Expr) -> Iterator[exp.Anonymous]:
    """The outermost first. Within queries, and what is said of each item of an array, names may mean other things."""
    if isinstance(node, exp.Query | exp.Lambda | dialect.Quantified):
        return
    if isinstance(node, exp.Anonymous):
        yield node
    for one in node.iter_expressions():
        yield from _calls(one)
