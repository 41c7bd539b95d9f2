"""Queries → Spark SQL.

Every variable gets an alias of its own, so that nothing an inlined function names can capture a name of its caller.
A subquery that yields an array becomes a LATERAL join with a collected list; ORDER BY and LIMIT inside it become
operations on that list, because Spark answers a LIMIT under a correlated equality wrongly.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlglot import exp

from tocsin.language import dialect, dynamic
from tocsin.language.calls import AGGREGATES, NONDETERMINISTIC, VOID
from tocsin.language.expressions import Expressions, TranslationError, fail
from tocsin.language.names import Dataset, Function, Names, Oracle, Scans
from tocsin.language.scope import VALUE, Block, Frame, Relation, Row, column, row, variable
from tocsin.language.script import offset_of, parsed_body
from tocsin.language.sources import Sources, localized
from tocsin.language.typed import FunctionError, Typed, build, enclosed
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ArrayType, Field, MultisetType, ObjectType, Type

# Clauses of sqlglot's grammar that this language does not have; anything else unknown is refused, too.
_KNOWN_CLAUSES = {
    "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "distinct", "with_", "kind",
    "hint", "windows", "operation_modifiers",
}  # fmt: skip
DEPTH_LIMIT = 32  # functions that call functions


@dataclass(frozen=True, slots=True)
class Translated:
    """A query in Spark's SQL, and what its answer looks like: one column `value`, or an object's fields as columns."""

    sql: str
    type: Type
    is_value: bool


@dataclass(slots=True)
class _Output:
    """What a SELECT list yields."""

    columns: list[tuple[str, exp.Expression]]
    type: Type
    is_value: bool


class Queries(Sources, Expressions):
    def __init__(
        self, names: Names, oracle: Oracle, scans: Scans, dataverse: str, now: datetime
    ) -> None:
        super().__init__(names, oracle, dataverse, now)
        self.scans = scans
        self.block = Block(None)
        self.relations: dict[str, tuple[str, Relation]] = {}
        self.uses: set[tuple[str, str, str]] = set()
        self.depth = 0
        self._aliases = 0

    # ------------------------------------------------------------ entry

    def translate(self, node: exp.Expression) -> Translated:
        """A whole statement: a query, or an expression, which is a query of one value."""
        relation = self.statement(node)
        query, type_ = self._exported(relation)
        return Translated(query.sql(dialect="spark"), type_, relation.is_value)

    def statement(self, node: exp.Expression) -> Relation:
        inner = _unwrapped(node)
        if isinstance(inner, exp.Query):
            return self.query(inner, None)
        return self.query(exp.Select(expressions=[dialect.ValueOf(this=inner)]), None)

    def _exported(self, relation: Relation) -> tuple[exp.Query, Type]:
        alias = self.alias("out")
        whole = variable(relation, alias)
        if isinstance(whole, Row):
            assert isinstance(relation.type, ObjectType)
            fields = [(one, _leaving(Typed(column(alias, physical(one.name)), one.type))) for one in relation.type.fields]
            if all(made.type == one.type and not dynamic.contains_any(one.type) for one, made in fields):
                return relation.query, relation.type
            type_: Type = ObjectType(
                tuple(Field(one.name, made.type, one.optional) for one, made in fields), relation.type.open, relation.type.name
            )
            columns = [(physical(one.name), dynamic.exported(made)) for one, made in fields]
            if keeps_open(relation.type):
                columns.append((OPEN, column(alias, OPEN)))
        else:
            left = _leaving(whole)
            if left.type == relation.type and not dynamic.contains_any(left.type):
                return relation.query, relation.type
            type_, columns = left.type, [(VALUE, dynamic.exported(left))]
        return _select(columns).from_(_derived(relation.query, alias)), type_

    def alias(self, name: str) -> str:
        self._aliases += 1
        kept = "".join(letter for letter in name if letter.isascii() and letter.isalnum())[:20] or "v"
        return f"{kept}_{self._aliases}"

    # ------------------------------------------------------------ queries

    def query(self, node: exp.Expression, outer: Block | None) -> Relation:
        node = _unwrapped(node)
        with self._with(node) as tables:
            if isinstance(node, exp.SetOperation):
                relation = self._set_operation(node, outer)
            elif isinstance(node, exp.Select):
                relation = self._select(node, outer)
            else:
                fail("a query was expected here", node)
        if tables:
            relation.query.set("with_", exp.With(expressions=tables))
        return relation

    @contextmanager
    def _with(self, node: exp.Expression) -> Iterator[list[exp.Expression]]:
        before = dict(self.relations)
        tables: list[exp.Expression] = []
        clause = node.args.get("with_")
        if clause is not None and clause.args.get("recursive"):
            fail("WITH RECURSIVE is not supported", clause)
        for one in clause.expressions if clause is not None else []:
            if one.args["alias"].args.get("columns"):
                fail("name the columns of a WITH in its SELECT list", one, "WITH x AS (SELECT a AS b …)")
            alias = self.alias(one.alias)
            relation = self.query(one.this, None)
            tables.append(exp.CTE(this=relation.query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True))))
            self.relations[one.alias] = (alias, relation)
        try:
            yield tables
        finally:
            self.relations = before

    def _set_operation(self, node: exp.SetOperation, outer: Block | None) -> Relation:
        left, right = self.query(node.this, outer), self.query(node.expression, outer)
        if node.args.get("by_name") or node.args.get("side"):
            fail("only UNION, INTERSECT and EXCEPT by position are supported", node)
        left, right = self._matched(left, right, node)
        made = type(node)(this=left.query, expression=right.query, distinct=node.args.get("distinct"))
        self._ordered(made, node, self._by_output(left))
        return Relation(made, left.type, left.is_value)

    def _matched(self, left: Relation, right: Relation, node: exp.Expression) -> tuple[Relation, Relation]:
        """Both sides with the same columns; types that differ become the wider number or untyped."""
        sides = []
        for one in (left, right):
            alias = self.alias("side")
            whole = variable(one, alias)
            if isinstance(whole, Row):
                assert isinstance(one.type, ObjectType)
                if keeps_open(one.type):
                    whole_values = [Typed(whole.sql, one.type)]
                else:
                    whole_values = [Typed(column(alias, physical(part.name)), part.type) for part in one.type.fields]
            else:
                whole_values = [whole]
            sides.append((one, alias, whole_values))
        (one, a, mine), (other, b, theirs) = sides
        if one.type == other.type and one.is_value == other.is_value:
            return one, other
        if len(mine) != len(theirs) or one.is_value != other.is_value:
            fail("both sides of a set operation need the same number of columns", node)
        types, first, second = [], [], []
        for x, y in zip(mine, theirs, strict=True):
            type_, (p, q) = self.aligned([x, y])
            types.append(type_)
            first.append(p)
            second.append(q)
        if not one.is_value and isinstance(one.type, ObjectType) and not keeps_open(one.type):
            fields = [part.name for part in one.type.fields]
            result: Type = ObjectType(tuple(Field(n, k) for n, k in zip(fields, types, strict=True)), open=False)
            names, is_value = [physical(name) for name in fields], False
        else:
            result, names, is_value = types[0], [VALUE], True
        return (
            Relation(_select(list(zip(names, first, strict=True))).from_(_derived(one.query, a)), result, is_value),
            Relation(_select(list(zip(names, second, strict=True))).from_(_derived(other.query, b)), result, is_value),
        )

    @contextmanager
    def _inside(self, block: Block) -> Iterator[Frame]:
        kept = self.block, self.frame
        self.block, self.frame = block, Frame(parent=self.frame)
        try:
            yield self.frame
        finally:
            self.block, self.frame = kept

    def _select(self, node: exp.Select, outer: Block | None, collected: list[_SortKey] | None = None) -> Relation:
        """A SELECT; with `collected`, its sort keys are put there and into columns k0, k1, … instead of being applied."""
        for clause, value in node.args.items():
            if value and clause not in _KNOWN_CLAUSES:
                fail(f"{clause.strip('_').upper()} is not supported", value if isinstance(value, exp.Expr) else node)
        block = Block(outer)
        with self._inside(block):
            self.sources(node)
            where = node.args.get("where")
            condition = self.boolean(where.this) if where else None
            group = self._group(node)
            block.grouped = group is not None or any(_aggregates(one) for one in node.expressions)
            output = self._projected(node, as_value=collected is not None)
            having = self.boolean(node.args["having"].this) if node.args.get("having") else None
            made = _select(output.columns)
            if collected is None:
                self._ordered(made, node, self._by_output(output))
            else:
                for i, key in enumerate(self._sort_keys(node, self._by_output(output))):
                    collected.append(key)
                    made = made.select(exp.alias_(key.sql, f"k{i}", quoted=True), copy=False)
            if block.imports or block.source is not None:
                made = made.from_(self.from_clause(block), copy=False)
                made.set("joins", block.joins or None)
            if condition is not None:
                made.set("where", exp.Where(this=condition))
            if group is not None:
                made.set("group", self._ungrouped_keys(made, group))
            if having is not None:
                made.set("having", exp.Having(this=having))
            if node.args.get("hint"):
                made.set("hint", node.args["hint"].copy())
        relation = Relation(made, output.type, output.is_value)
        return self._distinct(relation, node) if node.args.get("distinct") else relation

    def _distinct(self, relation: Relation, node: exp.Select) -> Relation:
        if node.args["distinct"].args.get("on"):
            fail("DISTINCT ON is not supported", node)
        if not dynamic.contains_any(relation.type):
            relation.query.set("distinct", exp.Distinct())
            return relation
        # Spark cannot compare untyped values: their text can be.
        inner, outer = self.alias("all"), self.alias("once")
        wholes = [variable(relation, inner), variable(relation, outer)]
        if isinstance(wholes[0], Row):
            assert isinstance(relation.type, ObjectType)
            pairs = [(physical(one.name), one.type) for one in relation.type.fields]
            pairs += [(OPEN, t.STRING)] if keeps_open(relation.type) else []
        else:
            pairs = [(VALUE, relation.type)]
        texts = _select([(name, dynamic.exported(Typed(column(inner, name), kind))) for name, kind in pairs])
        texts = texts.from_(_derived(relation.query, inner))
        texts.set("distinct", exp.Distinct())
        back = _select([(name, dynamic.stored(column(outer, name), kind)) for name, kind in pairs])
        return Relation(back.from_(_derived(texts, outer)), relation.type, relation.is_value)

    # ------------------------------------------------------------ SELECT list

    def _projected(self, node: exp.Select, as_value: bool) -> _Output:
        if len(node.expressions) == 1 and isinstance(node.expressions[0], dialect.ValueOf):
            value = self._kept(self.expression(node.expressions[0].this))
            return _Output([(VALUE, value.sql)], value.type, True)
        members: list[tuple[str, Typed, exp.Expression]] = []
        fields: list[Field] = []
        opens: list[exp.Expression] = []
        is_open = False
        for i, one in enumerate(node.expressions, start=1):
            if isinstance(one, dialect.ValueOf):
                fail("SELECT VALUE takes one expression", one)
            spread = self._spread(one)
            if spread is None:
                name = one.alias_or_name or f"${i}"
                value = self._kept(self.expression(one.this if isinstance(one, exp.Alias) else one))
                members.append((name, value, one))
                fields.append(Field(name, value.type))
                continue
            for whole in spread:
                if not isinstance(whole.type, ObjectType):
                    fail(f"* needs objects, not {whole.type}", one, "select the value itself with SELECT VALUE")
                for declared in whole.type.fields:
                    part = Typed(self._part(whole, physical(declared.name)), declared.type)
                    members.append((declared.name, part, one))
                    fields.append(declared)
                if keeps_open(whole.type):
                    is_open = is_open or whole.type.open
                    opens.append(self._part(whole, OPEN))
        names = [name for name, _, _ in members]
        twice = next((m for i, m in enumerate(members) if m[0] in names[:i]), None)
        if twice is not None:
            fail(f"two columns are called {twice[0]}", twice[2], "give one of them another name with AS")
        type_ = ObjectType(tuple(fields), open=is_open)
        columns = [(physical(name), value.sql) for name, value, _ in members]
        if keeps_open(type_):
            columns.append((OPEN, _merged(opens)))
        if as_value:
            return _Output([(VALUE, dynamic.record(columns))], type_, True)
        return _Output(columns, type_, False)

    def _kept(self, value: Typed) -> Typed:
        # Behind GROUP BY only the key itself can be named, not the column that tells NULL from MISSING.
        return self.settled(Typed(value.sql, value.type) if self.block.grouped else value)

    def _spread(self, node: exp.Expression) -> list[Typed] | None:
        if isinstance(node, exp.Star):
            if any(node.args.get(option) for option in ("except_", "replace", "rename")):
                fail("* takes no EXCEPT or REPLACE", node)
            ranges = [self.frame.names[name] for name in self.frame.ranges]
            if not ranges:
                fail("* needs a FROM", node)
            return ranges
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            return [self._path(exp.column(node.args["table"].copy()))]
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Star):
            return [self._path(node.this)]
        return None

    # ------------------------------------------------------------ GROUP BY, ORDER BY, LIMIT

    def _group(self, node: exp.Select) -> exp.Group | None:
        clause = node.args.get("group")
        if clause is None:
            return None
        named = [one for one in clause.find_all(exp.Alias) if one.parent is clause]
        keys: dict[str, Typed] = {}

        def translated(one: Any) -> Any:
            if isinstance(one, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
                return type(one)(expressions=[translated(part) for part in one.expressions])
            ordinal = _ordinal(one, node)
            key = self.expression(ordinal if ordinal is not None else one.this if isinstance(one, exp.Alias) else one)
            if key.type == t.ANY:
                self._untyped_keys.append(key.sql)
            if one in named:
                keys[one.alias] = Typed(key.sql, key.type)
            return dynamic.key(key.sql) if key.type == t.ANY else key.sql.copy()

        self._untyped_keys: list[exp.Expression] = []
        made = exp.Group(expressions=[translated(one) for one in clause.expressions])
        for option in ("rollup", "cube"):
            if clause.args.get(option):
                made.set(option, [one.copy() for one in clause.args[option]])
        if clause.args.get("totals"):
            rows = self.object_of([(name, self.frame.names[name], clause) for name in self.frame.ranges])
            keys[clause.args["totals"].name] = Typed(dynamic.call("collect_list", rows.sql), ArrayType(rows.type))
        self.frame.names.update(keys)
        return made

    def _ungrouped_keys(self, made: exp.Select, group: exp.Group) -> exp.Group:
        """Untyped keys are grouped by their text; where they are named, any value of the group stands for them."""
        for key in self._untyped_keys:
            for place in list(made.find_all(type(key))):
                if place == key:
                    place.replace(dynamic.call("any_value", key))
        return group

    def _by_output(self, output: _Output | Relation) -> Callable[[exp.Expression], Typed | None]:
        """Finds a column of the answer by its name or number, as ORDER BY may."""
        parts = output.type.fields if not output.is_value and isinstance(output.type, ObjectType) else ()

        def find(node: exp.Expression) -> Typed | None:
            found = None
            if isinstance(node, exp.Column) and len(node.parts) == 1:
                found = next((one for one in parts if one.name == node.name), None)
            elif isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit():
                if not 1 <= int(node.this) <= max(len(parts), 1):
                    fail(f"there is no column {node.this}", node)
                found = parts[int(node.this) - 1] if parts else Field(VALUE, output.type)
            if found is None:
                return None
            if isinstance(output, _Output):
                sql = next(sql for name, sql in output.columns if name in (physical(found.name), VALUE))
                return Typed(sql, found.type)
            return Typed(exp.column(physical(found.name), quoted=True), found.type)

        return find

    def _sort_keys(self, node: exp.Expression, find: Callable[[exp.Expression], Typed | None]) -> Iterator[_SortKey]:
        order = node.args.get("order")
        for one in order.expressions if order else []:
            key = find(one.this) or self.expression(one.this)
            descending, nulls_first = bool(one.args.get("desc")), bool(one.args.get("nulls_first"))
            for sql in dynamic.sort_keys(key.sql) if key.type == t.ANY else [key.sql]:
                yield _SortKey(sql, descending, nulls_first)

    def _ordered(
        self, made: exp.Query, node: exp.Expression, find: Callable[[exp.Expression], Typed | None]
    ) -> None:
        keys = list(self._sort_keys(node, find))
        if keys:
            ordered = [exp.Ordered(this=key.sql.copy(), desc=key.descending, nulls_first=key.nulls_first) for key in keys]
            made.set("order", exp.Order(expressions=ordered))
        limit, offset = self._bounds(node)
        if limit is not None:
            made.set("limit", exp.Limit(expression=limit))
        if offset is not None:
            made.set("offset", exp.Offset(expression=offset))

    def _bounds(self, node: exp.Expression) -> tuple[exp.Expression | None, exp.Expression | None]:
        def bound(clause: exp.Expression | None) -> exp.Expression | None:
            if clause is None:
                return None
            if isinstance(clause, exp.Fetch) or clause.expression is None:
                fail("write LIMIT and a number", clause)
            if isinstance(clause.expression, exp.Literal) and not clause.expression.is_string and clause.expression.this.isdigit():
                number = int(clause.expression.this)
                return exp.Literal.number(min(number, 2**31 - 1))
            value = self.expression(clause.expression)
            return exp.cast(self._as(value, t.BIGINT).copy(), "INT")

        return bound(node.args.get("limit")), bound(node.args.get("offset"))

    # ------------------------------------------------------------ subqueries as values

    def subquery(self, node: exp.Query) -> Typed:
        """An array of what the subquery yields; a bare scalar where only one can stand, as in `x = (SELECT max(y) …)`."""
        inner = _unwrapped(node)
        collected = self._collected(inner)
        whole = node
        while isinstance(whole.parent, exp.Subquery | exp.Paren):
            whole = whole.parent
        if (
            isinstance(inner, exp.Select)
            and len(inner.expressions) == 1
            and not isinstance(inner.expressions[0], dialect.ValueOf)
            and isinstance(whole.parent, exp.Binary | exp.Between | exp.Neg | exp.In)
            and not isinstance(whole.parent, exp.Dot | exp.Connector)
        ):
            return self._only(collected, inner)
        return collected

    def _only(self, collected: Typed, node: exp.Expression) -> Typed:
        assert isinstance(collected.type, ArrayType)
        assert isinstance(collected.type.item, ObjectType)
        one = build(
            "if(size(_a) > 1, raise_error('a subquery that stands for one value yields several'), get(_a, 0))", _a=collected.sql
        )
        return self.field(Typed(one, collected.type.item), collected.type.item.fields[0].name, node)

    def _collected(self, node: exp.Expression) -> Typed:
        keys: list[_SortKey] = []
        outer = self.block
        limit = offset = None
        if isinstance(node, exp.Select) and not node.args.get("distinct") and not node.args.get("with_"):
            relation = self._select(node, outer, keys)
            limit, offset = self._bounds(node)
        else:
            if node.args.get("order") or node.args.get("limit"):
                fail("ORDER BY and LIMIT beside DISTINCT, UNION or WITH need a query of their own here", node, "SELECT VALUE x FROM (…) x ORDER BY …")
            relation = self.query(node, outer)
        alias = self.alias("each")
        whole = variable(relation, alias)
        # collect_list leaves NULLs out, a struct around them keeps them.
        parts = [(f"k{i}", column(alias, f"k{i}")) for i in range(len(keys))] + [("v", whole.sql)]
        plain = not keys and isinstance(whole.type, ObjectType)
        listed = dynamic.call("collect_list", whole.sql if plain else dynamic.record(parts))
        if keys:
            listed = exp.Anonymous(this="array_sort", expressions=[listed, _comparator(keys)])
        if limit is not None or offset is not None:
            start = exp.Add(this=offset.copy(), expression=exp.Literal.number(1)) if offset is not None else exp.Literal.number(1)
            length = limit.copy() if limit is not None else exp.Literal.number(2**31 - 2)
            listed = dynamic.call("slice", listed, start, length)
        if not plain:
            listed = build("transform(_l, __e -> __e.v)", _l=listed)
        query = _select([(VALUE, listed)]).from_(_derived(relation.query, alias))
        return Typed(self.hoisted(query), ArrayType(whole.type))

    def exists_query(self, node: exp.Query) -> Typed:
        relation = self.query(node, self.block)
        return Typed(exp.Exists(this=localized(relation.query, self.block, self.alias)), t.BOOLEAN)

    def in_query(self, value: Typed, node: exp.In) -> Typed:
        relation = self.query(node.args["query"], self.block)
        alias = self.alias("among")
        whole = variable(relation, alias)
        if isinstance(whole, Row):
            assert isinstance(relation.type, ObjectType)
            if len(relation.type.fields) != 1:
                fail("IN needs a subquery of one column", node)
            whole = Typed(column(alias, physical(relation.type.fields[0].name)), relation.type.fields[0].type)
        mine, theirs = value.sql, whole.sql
        if t.ANY in (value.type, whole.type):
            mine, theirs = (dynamic.key(dynamic.to_any(one)) for one in (value, whole))
        elif value.type != whole.type:
            self.compare(exp.EQ, value, whole)  # Spark says whether the two can be compared
        query = localized(_select([(VALUE, theirs)]).from_(_derived(relation.query, alias)), self.block, self.alias)
        return Typed(exp.Paren(this=exp.In(this=enclosed(mine), query=exp.Subquery(this=query))), t.BOOLEAN)

    # ------------------------------------------------------------ functions of the catalog

    @contextmanager
    def _body(self, function: Function, arguments: Sequence[Typed], node: exp.Expression) -> Iterator[exp.Expression]:
        if self.depth == 0:
            self.uses.add(("function", function.dataverse, f"{function.name}@{len(function.parameters)}"))
        if self.depth >= DEPTH_LIMIT:
            fail(f"functions call each other more than {DEPTH_LIMIT} deep at {function.name}", node)
        kept = self.frame, self.dataverse, self.relations
        self.frame = Frame(dict(zip(function.parameters, arguments, strict=True)))
        self.dataverse, self.relations = function.dataverse, {}
        self.depth += 1
        try:
            yield _unwrapped(parsed_body(function.body))
        except TranslationError as error:
            raise TranslationError(f"in function {function.name}: {error.message}", offset_of(node), error.hint) from None
        finally:
            self.depth -= 1
            self.frame, self.dataverse, self.relations = kept

    def inlined(self, function: Function, arguments: Sequence[Typed], node: exp.Expression) -> Typed:
        with self._body(function, arguments, node) as body:
            return self._collected(body) if isinstance(body, exp.Query) else self.expression(body)

    def inlined_rows(self, function: Function, arguments: Sequence[Typed], node: exp.Expression) -> Relation | Typed:
        """A function in FROM: the rows of its query, or the value of its expression, to be unnested."""
        with self._body(function, arguments, node) as body:
            return self.query(body, self.block) if isinstance(body, exp.Query) else self.expression(body)

    def find_dataset(self, parts: Sequence[str], node: exp.Expression) -> Dataset:
        dataverse = parts[0] if len(parts) == 2 else self.dataverse
        found = self.names.find_dataset(dataverse, parts[-1]) if len(parts) <= 2 else None
        if found is None:
            near = difflib.get_close_matches(parts[-1], self.names.suggestions(dataverse), 1)
            fail(f"unknown dataset {'.'.join(parts)}", node, f"did you mean {near[0]}?" if near else f"the dataverse is {dataverse}")
        if self.depth == 0:
            self.uses.add(("dataset", found.dataverse, found.name))
        return found


@dataclass(frozen=True, slots=True)
class _SortKey:
    sql: exp.Expression
    descending: bool
    nulls_first: bool


def _comparator(keys: Sequence[_SortKey]) -> exp.Lambda:
    def side(name: str, i: int) -> exp.Expression:
        return exp.Dot(this=exp.to_identifier(name), expression=exp.to_identifier(f"k{i}"))

    ifs = []
    for i, key in enumerate(keys):
        a, b = side("__a", i), side("__b", i)
        absent = [exp.Is(this=one.copy(), expression=exp.null()) for one in (a, b)]
        first, last = (-1, 1) if key.nulls_first else (1, -1)
        less, more = (1, -1) if key.descending else (-1, 1)
        both = exp.And(this=absent[0].copy(), expression=exp.Not(this=absent[1].copy()))
        other = exp.And(this=exp.Not(this=absent[0].copy()), expression=absent[1].copy())
        for test, result in (
            (both, first), (other, last),
            (exp.LT(this=a.copy(), expression=b.copy()), less), (exp.GT(this=a.copy(), expression=b.copy()), more),
        ):  # fmt: skip
            ifs.append(exp.If(this=test, true=exp.Literal.number(result) if result >= 0 else exp.Neg(this=exp.Literal.number(1))))
    body = exp.Case(ifs=ifs, default=exp.Literal.number(0))
    return exp.Lambda(this=body, expressions=[exp.to_identifier("__a"), exp.to_identifier("__b")])


def _unwrapped(node: exp.Expression) -> exp.Expression:
    while (isinstance(node, exp.Subquery) and not node.alias and not node.args.get("with_")) or isinstance(node, exp.Paren):
        if any(node.args.get(clause) for clause in ("order", "limit", "offset", "joins", "where")):
            fail("put the clause behind the parentheses into a query of its own", node)
        node = node.this
    return node


def _ordinal(node: exp.Expression, select: exp.Select) -> exp.Expression | None:
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit():
        if not 1 <= int(node.this) <= len(select.expressions):
            fail(f"there is no column {node.this}", node)
        one = select.expressions[int(node.this) - 1]
        return one.this if isinstance(one, exp.Alias | dialect.ValueOf) else one
    return None


def _aggregates(node: exp.Expression) -> bool:
    """Whether an aggregate stands here, outside of subqueries and windows."""
    if isinstance(node, exp.Query | exp.Window):
        return False
    if isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this.lower() in AGGREGATES:
        return True
    return any(_aggregates(one) for one in node.iter_expressions())


def is_deterministic(node: exp.Expression) -> bool:
    return not any(str(one.this).lower() in NONDETERMINISTIC for one in node.find_all(exp.Anonymous))


def _select(columns: Sequence[tuple[str, exp.Expression]]) -> exp.Select:
    return exp.Select(expressions=[exp.alias_(sql.copy(), name, quoted=True) for name, sql in columns])


def _derived(query: exp.Query, alias: str) -> exp.Subquery:
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def _merged(opens: Sequence[exp.Expression]) -> exp.Expression:
    """The undeclared fields of several records as one text."""
    if not opens:
        return dynamic.null(t.STRING)
    merged = opens[0]
    for one in opens[1:]:
        merged = build(
            "CASE WHEN _a IS NULL THEN _b WHEN _b IS NULL THEN _a"
            " ELSE concat(substring(_a, 1, length(_a) - 1), ',', substring(_b, 2)) END",
            _a=merged, _b=one,
        )  # fmt: skip
    return merged


def _leaving(value: Typed) -> Typed:
    """A value as the answer holds it: types of Spark that are none of ours become the nearest of ours."""
    match value.type:
        case t.Primitive(name) if value.type not in dynamic.SPARK_TYPES:
            if value.type == VOID:
                return Typed(dynamic.to_any(value), t.ANY)
            upper = name.upper()
            if upper.startswith("DECIMAL"):
                return Typed(exp.cast(value.sql.copy(), "DOUBLE"), t.DOUBLE)
            if upper.startswith("MAP"):
                return Typed(dynamic.call("parse_json", dynamic.call("to_json", value.sql)), t.ANY)
            if upper == "BINARY":
                return Typed(dynamic.call("base64", value.sql), t.STRING)
            if upper.startswith("TIMESTAMP"):
                return Typed(exp.cast(value.sql.copy(), "TIMESTAMP", dialect="spark"), t.DATETIME)
            return Typed(exp.cast(value.sql.copy(), "STRING"), t.STRING)
        case ArrayType(item, optional) | MultisetType(item, optional):
            inner = _leaving(Typed(exp.column("__item"), item))
            if inner.type == item:
                return value
            return Typed(build("transform(_v, __item -> _i)", _v=value.sql, _i=inner.sql), type(value.type)(inner.type, optional))
    return value


__all__ = ["Queries", "Translated", "row"]
