"""A channel's body, written for one set of parameters, as one query for all of them.

    SELECT out FROM sources LET … WHERE free AND bound        becomes

    SELECT i.id, e.out FROM (SELECT …, out FROM sources LET … WHERE free) e, interests i WHERE bound

`free` is what no parameter touches: it is computed once for each record, with everything that enriches it. `bound` ties
records to interests. Grouping, order and limits are then each interest's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tocsin.language import dialect
from tocsin.language.expressions import fail
from tocsin.language.noted import conjuncts
from tocsin.language.placing import first_of_each, limited_to, of, with_places
from tocsin.language.renaming import bound_names, items, mentions, moved, name_of, renamed, with_parameters
from tocsin.language.shaping import aggregates
from tocsin.language.subqueries import unwrapped

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


@dataclass(slots=True)
class _Parts:
    """What goes into a SELECT's FROM and WHERE."""

    sources: list[exp.Join] = field(default_factory=list)
    conditions: list[exp.Expr] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Let:
    """`early`: it is computed with the record. `is_range`: its fields may be named without it."""

    name: str
    value: exp.Expr
    touched: bool
    early: bool
    is_range: bool


class _Sharing:
    def __init__(self, body: exp.Select, parameters: tuple[str, ...], is_dear: IsDear, branch: int) -> None:
        # Under names of their own no variable hides parameters, and no field is called like them.
        self.parameters = {name: f" parameter {i}" for i, name in enumerate(parameters)}
        self.body = with_parameters(body, self.parameters)
        self.is_dear = is_dear
        self.branch = branch
        self.free, self.bound = _Parts(), _Parts()
        self.touched = set(self.parameters.values())
        self.lets: list[_Let] = []
        self.made_early: dict[str, exp.Expr] = {}  # calls that are made once per record, under names of their own
        self.count = 0
        self.repeats = False  # whether a record can meet an interest several times where once is meant
        self.multiplied = False  # whether it can where just that is meant

    def made(self) -> exp.Query:
        self._sort()
        body = self.body
        grouped = bool(body.args.get("group")) or any(aggregates(one) for one in body.expressions)
        if grouped and not body.args.get("group") and self.parameters:
            fail(
                "an aggregate without GROUP BY answers also for interests that nothing matched",
                body, f"write GROUP BY {next(iter(self.parameters))}",
            )  # fmt: skip
        distinct = bool(body.args.get("distinct"))
        limited = bool(body.args.get("limit") or body.args.get("offset"))
        once = not (grouped or distinct) and not self._is_touched(body.expressions)
        self._look_up_versions(once)
        self._call_early(once)
        out = dialect.RowOf(expressions=[one.copy() for one in body.expressions])
        inner = self._inner(out if once else None)
        columns = [exp.alias_(of(INTEREST, ID), "interest", quoted=True)]
        repeats = self.repeats and not distinct
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

    # ------------------------------------------------------------ what the parameters touch

    def _sort(self) -> None:
        """Sources, LETs and conditions into those that parameters touch and those they do not."""
        conditions: list[exp.Expr] = []
        for join in self._flattened(items(self.body), conditions):
            source, name = join.this, name_of(join.this)
            touched = self._is_touched([source, *filter(None, [join.args.get("on")])])
            if isinstance(source, dialect.Let):
                early = not touched and _is_dear(source.this)
                self.lets.append(_Let(name, source.this, touched, early, bool(source.args.get("is_range"))))
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
                self.touched.add(name)
        self.multiplied = bool(self.bound.sources)
        where = self.body.args.get("where")
        conditions += conjuncts(where.this) if where else ()
        for condition in conditions:
            if self._is_touched([condition]):
                self._bind(condition)
            else:
                self.free.conditions.append(condition)

    def _bind(self, condition: exp.Expr) -> None:
        inner = condition.unnest()
        query = unwrapped(inner.this) if isinstance(inner, exp.Exists) else None
        some = self._some(query) if isinstance(query, exp.Select) else None
        among = unwrapped(inner.args["query"]) if isinstance(inner, exp.In) and inner.args.get("query") else None
        if some is not None:
            self.bound.conditions.append(some)
        elif isinstance(query, exp.Select):
            self._exists(query)
        elif isinstance(among, exp.Select) and _is_plain(among) and len(among.expressions) == 1:
            self._exists(among, inner.this)
        else:
            self.bound.conditions.append(condition)

    def _some(self, query: exp.Select) -> exp.Expr | None:
        """EXISTS over an array of a record, which is a matter of that record alone: SOME item IN it SATISFIES …"""
        where, first = query.args.get("where"), query.args.get("from_")
        path = first.this if first is not None and isinstance(first.this, exp.Table) else None
        known = {*self.free.names, *(one.name for one in self.lets)}
        if where is None or path is None or query.args.get("joins") or not _is_plain(query):
            return None
        if path.parts[0].name not in known or not all(isinstance(one, exp.Identifier) for one in path.parts):
            return None
        array = exp.column(*reversed([one.name for one in path.parts[-4:]]), quoted=True)
        return dialect.Quantified(
            this=array, alias=exp.to_identifier(name_of(path), quoted=True), condition=where.this.copy(), every=False
        )

    def _is_touched(self, nodes: Sequence[exp.Expr]) -> bool:
        return any(mentions(one, self.touched) for one in nodes)

    def _flattened(self, items: Sequence[exp.Join], conditions: list[exp.Expr]) -> Iterator[exp.Join]:
        """The sources, where a plain subquery that a parameter stands in is replaced by its own sources."""
        wide = any((join.side or "").upper() in ("RIGHT", "FULL") for join in items)
        for join in items:
            query = unwrapped(join.this.this) if isinstance(join.this, exp.Subquery) else None
            inner = not (join.side or "") and (join.kind or "").upper() in ("", "CROSS", "INNER")
            on = join.args.get("on")
            if inner and not wide and on is not None and self._is_touched([on]):
                # What an inner join says might as well stand in WHERE.
                join = exp.Join(this=join.this)
                conditions += conjuncts(on)
            if not inner or not isinstance(query, exp.Select) or not _is_plain(query) or not self._is_touched([query]):
                yield join
                continue
            names = self._fresh(query)
            value = dialect.RowOf(expressions=[one.copy() for one in query.expressions])
            if len(query.expressions) == 1 and isinstance(query.expressions[0], dialect.ValueOf):
                value = query.expressions[0].this
            yield from self._flattened(moved(query, names), conditions)
            conditions += self._conditions(query, names)
            yield _let(name_of(join.this), renamed(self._qualified(value, query), names), is_range=True)
            if join.args.get("on") is not None:
                conditions += conjuncts(join.args["on"])

    def _fresh(self, query: exp.Select) -> dict[str, str]:
        """Names for a subquery's variables that nobody else has."""
        names = {}
        for name in bound_names(query):
            self.count += 1
            names[name] = f" {name} {self.count}"
        return names

    def _conditions(self, query: exp.Select, names: dict[str, str]) -> list[exp.Expr]:
        where = query.args.get("where")
        return [renamed(self._qualified(one, query), names) for one in (conjuncts(where.this) if where else ())]

    def _qualified(self, node: exp.Expr, query: exp.Select) -> exp.Expr:
        """The node with the query's one source written before every field that stands alone."""
        sources = [one.this for one in items(query) if not isinstance(one.this, dialect.Let)]
        if len(sources) != 1:
            return node
        known = {*self.free.names, *self.bound.names, *(one.name for one in self.lets), *bound_names(query)}
        known.update(self.parameters.values())

        def qualify(one: exp.Expr) -> exp.Expr:
            if isinstance(one, exp.Column) and len(one.parts) == 1 and one.name not in known:
                return of(name_of(sources[0]), one.name)
            return one

        return node.copy() if node.find(exp.Query) else node.transform(qualify)

    def _exists(self, query: exp.Select, value: exp.Expr | None = None) -> None:
        """The sources of an EXISTS become sources beside the others: whoever matches, matches once.

        With a value: of an IN, where what the query yields equals it.
        """
        if not _is_plain(query):
            fail("an EXISTS that a parameter stands in takes sources and conditions only", query,
                 "put the rest into a subquery in its FROM")  # fmt: skip
        if self.multiplied:
            fail("EXISTS with a parameter inside and a source that depends on one do not go together", query,
                 "join its datasets in FROM")  # fmt: skip
        names = self._fresh(query)
        sources = moved(query, names)
        self.bound.sources += sources
        self.bound.names += [name_of(one.this) for one in sources]
        self.bound.conditions += self._conditions(query, names)
        if value is not None:
            item = renamed(self._qualified(_out(query.expressions[0]), query), names)
            self.bound.conditions.append(exp.EQ(this=value.copy(), expression=exp.Paren(this=item)))
        self.repeats = True

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
        self.lets[:0] = [_Let(name, call, False, True, False) for call, name in found.items()]

    def _call_early(self, once: bool) -> None:
        """Dear calls that no parameter touches, among conditions and results that one does, made with the record."""

        def early(node: exp.Expr) -> exp.Expr:
            for call in list(_calls(node)):
                whole = call.parent if isinstance(call.parent, exp.Dot) and call is not node else call
                dataverse = whole.this.name if isinstance(whole, exp.Dot) else None
                name = call.this if isinstance(call.this, str) else call.this.name
                if self._is_touched([whole]) or not self.is_dear(dataverse, name, len(call.expressions)):
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
            _let(one.name, one.value, is_range=one.is_range) for one in self.lets if not one.touched
        ]  # fmt: skip
        calls = [_let(name, call) for name, call in self.made_early.items()]
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
            yield _let(name, of(INTEREST, parameter_column(i)))

    def _again(self) -> Iterator[exp.Join]:
        """The body's own names, over the records as they come out of the inner query."""
        for name in self.free.names:
            yield _let(name, of(RECORD, name), is_range=not name.startswith(" "))
        for name in self.made_early:
            yield _let(name, of(RECORD, name))
        for one in self.lets:
            yield _let(one.name, of(RECORD, one.name) if one.early else one.value, is_range=one.is_range)

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
                key.set("this", _out(picked[0]).copy())
            found.append(key)
        return found

    def _sort_columns(self, order: Sequence[exp.Expr], *, any_key: bool) -> Iterator[exp.Expr]:
        """What DISTINCT rows are ordered by must be the same for all that are one."""
        outputs = [_out(one) for one in self.body.expressions]
        for i, one in enumerate(order):
            if not any_key and one.this not in outputs:
                fail("beside DISTINCT, ORDER BY takes what SELECT yields", one, "put it into the SELECT list")
            yield exp.alias_(one.this.copy(), f"key{i}", quoted=True)


def _out(one: exp.Expr) -> exp.Expr:
    return one.this if isinstance(one, exp.Alias | dialect.ValueOf) else one


def _is_plain(query: exp.Select) -> bool:
    """Sources, conditions and a SELECT list, and nothing else."""
    known = ("expressions", "from_", "joins", "where", "kind")
    outer = any((join.side or "") in ("LEFT", "RIGHT", "FULL") for join in query.args.get("joins") or [])
    extra = any(value for clause, value in query.args.items() if clause not in known)
    return not outer and not extra and not any(aggregates(one) for one in query.expressions)


def _let(name: str, value: exp.Expr, *, is_range: bool = False) -> exp.Join:
    return exp.Join(this=dialect.Let(this=value.copy(), alias=exp.to_identifier(name, quoted=True), is_range=is_range))


def _calls(node: exp.Expr) -> Iterator[exp.Anonymous]:
    """The outermost first. Within queries, and what is said of each item of an array, names may mean other things."""
    if isinstance(node, exp.Query | exp.Lambda | dialect.Quantified):
        return
    if isinstance(node, exp.Anonymous):
        yield node
    for one in node.iter_expressions():
        yield from _calls(one)


def _is_dear(value: exp.Expr) -> bool:
    """Whether it is worth computing once per record."""
    return value.find(exp.Query, exp.Anonymous) is not None
