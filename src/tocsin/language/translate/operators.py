"""Translates operators and predicates with SQL's three-valued logic, over typed and untyped values.

Comparisons are annotated (`predicate_notes`), so that a channel can turn them into join keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from sqlglot import exp

from tocsin.language.functions import temporal
from tocsin.language.functions.bounds import like_patterns
from tocsin.language.functions.collections.array_arguments import in_any_order
from tocsin.language.functions.number_arguments import is_no_number
from tocsin.language.syntax import nodes
from tocsin.language.translate import predicate_notes
from tocsin.language.translate.expressions import align, convert, fail, make_self_contained
from tocsin.language.translate.scope import OptionalVariable, RowVariable, optional
from tocsin.language.translate.spark_text import render_for_analysis
from tocsin.language.types import comparable_types, type_probe
from tocsin.language.types.typed_sql import TypedSql, constant_string, enclose, literal, string
from tocsin.language.types.variant import encoder, operators
from tocsin.language.types.variant import values as dynamic
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator

COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.NullSafeNEQ: "<=>",
}  # fmt: skip
ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "div",
}  # fmt: skip


_DECIMAL = t.Primitive("decimal(38,18)")


class Operators:
    """Translates operators and predicates."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self._depth = 0  # of quantifiers around the current expression

    def negative(self, node: exp.Neg) -> TypedSql:
        if isinstance(node.this, exp.Literal) and not node.this.is_string and node.this.this.isdigit():
            return literal(-int(node.this.this))
        value = self.translator.expression(node.this)
        negated = temporal.negate(value)
        if negated is not None:
            return negated
        if value.type == t.ANY:
            return self._untyped_arithmetic(exp.Mul, literal(-1), value)
        if is_no_number(value.type):
            return TypedSql(dynamic.null(t.DOUBLE), t.DOUBLE)
        return self.translator.ask(exp.Neg(this=exp.Paren(this=value.sql.copy())), [value])

    def paren(self, node: exp.Paren) -> TypedSql:
        value = self.translator.expression(node.this)
        return value if isinstance(value, RowVariable | OptionalVariable) else TypedSql(enclose(value.sql), value.type)

    def connective(self, node: exp.Expr) -> TypedSql:
        connective = type(node)(
            this=enclose(self.translator.boolean(node.this)),
            expression=enclose(self.translator.boolean(node.expression)),
        )
        return TypedSql(exp.Paren(this=connective), t.BOOLEAN)

    def negation(self, node: exp.Not) -> TypedSql:
        return TypedSql(exp.Not(this=exp.Paren(this=self.translator.boolean(node.this))), t.BOOLEAN)

    def comparison(self, node: exp.Expr) -> TypedSql:
        left, right = self.translator.expression(node.this), self.translator.expression(node.expression)
        return self.compare(type(node), left, right, filters=predicate_notes.is_filter(node))

    def compare(self, operator: type[exp.Expr], left: TypedSql, right: TypedSql, *, filters: bool = False) -> TypedSql:
        """Translates a comparison, and annotates it for joins and for the inference of parameter types.

        `filters` says that false and NULL have the same effect here.
        """
        for value, other in ((left, right), (right, left)):
            if other.type in (t.ANY, VOID):
                continue
            if value.type == t.ANY:
                self.translator.hooks.note_use(value, other.type)
            if other.type in t.NUMBERS:
                # A number computed from a parameter is an integer if its counterpart is; it may need more bits.
                for operand in value.sql.meta.get(predicate_notes.MADE_OF, ()):
                    self.translator.hooks.note_use(operand, t.BIGINT if other.type in t.INTEGERS else t.DOUBLE)
        compared = self._build_comparison(operator, left, right, filters=filters)
        compared.sql.meta[predicate_notes.COMPARED] = (TypedSql(left.sql, left.type), TypedSql(right.sql, right.type))
        distance, bound = (left, right) if operator in (exp.LT, exp.LTE) else (right, left)
        apart = distance.sql.meta.get(predicate_notes.DISTANCE) if operator in predicate_notes.ORDERS else None
        if apart is not None and bound.type in t.NUMBERS:
            near = predicate_notes.as_circle(apart, bound)
            if near is not None:
                compared.sql.meta[predicate_notes.NEAR] = near
        return compared

    def _build_comparison(
        self, operator: type[exp.Expr], left: TypedSql, right: TypedSql, *, filters: bool
    ) -> TypedSql:
        """Builds the SQL of a comparison by the types of both sides."""

        def test(a: exp.Expr, b: exp.Expr) -> exp.Expr:
            return operator(this=enclose(a), expression=enclose(b))

        by_order = operator in predicate_notes.ORDERS
        if not comparable_types.is_comparable(left.type, right.type, by_order=by_order):
            return comparable_types.never(operator, left, right)
        if t.DURATION in (left.type, right.type):
            a, b = (TypedSql(convert(side, t.DURATION), t.DURATION) for side in (left, right))
            duration_test = temporal.comparison(COMPARISONS[operator], a, b)
            assert duration_test is not None
            return duration_test
        if left.type == right.type == t.ANY:
            if operator is exp.NEQ or (operator is exp.EQ and not filters):
                return TypedSql(operators.equality(test, left.sql, right.sql), t.BOOLEAN)
            if operator in (exp.EQ, exp.NullSafeEQ, exp.NullSafeNEQ):
                # Spark can join by the keys alone.
                return TypedSql(test(dynamic.key(left.sql), dynamic.key(right.sql)), t.BOOLEAN)
            return TypedSql(operators.comparison(test, left.sql, right.sql), t.BOOLEAN)
        if t.ANY in (left.type, right.type):
            typed_, other = (right, left) if left.type == t.ANY else (left, right)
            if typed_.type == VOID and operator in (exp.NullSafeEQ, exp.NullSafeNEQ):
                unknown = exp.Paren(this=_is_unknown(other.sql))
                return TypedSql(unknown if operator is exp.NullSafeEQ else exp.Not(this=unknown), t.BOOLEAN)
            if typed_.type == VOID:
                return TypedSql(dynamic.void_as(typed_.sql, t.BOOLEAN), t.BOOLEAN)

            def against(type_: Type) -> exp.Expr:
                exact = type_ == _DECIMAL
                cast_ = dynamic.number_as(other.sql, _DECIMAL.name) if exact else dynamic.exactly(other.sql, type_)
                return test(cast_, typed_.sql) if typed_ is right else test(typed_.sql, cast_)

            if isinstance(typed_.type, ObjectType | ArrayType | MultisetType):
                sides = [TypedSql(encoder.to_any(make_self_contained(side)), t.ANY) for side in (left, right)]
                return self.compare(operator, *sides, filters=filters)
            if typed_.type in t.INTEGERS:
                # The decimal comparison is exact for 64-bit integers and decimals; the double handles other numbers.
                return TypedSql(dynamic.call("coalesce", against(_DECIMAL), against(t.DOUBLE)), t.BOOLEAN)
            return TypedSql(against(typed_.type), t.BOOLEAN)
        if isinstance(left.type, MultisetType) and isinstance(right.type, MultisetType):
            return TypedSql(test(*(in_any_order(side) for side in (left, right))), t.BOOLEAN)
        if left.type != right.type and comparable_types.is_structured(left.type) and right.type != VOID:
            sides = [TypedSql(encoder.to_any(make_self_contained(side)), t.ANY) for side in (left, right)]
            return self.compare(operator, *sides, filters=filters)
        if left.type == right.type or {left.type, right.type} <= set(t.NUMBERS) | {VOID}:
            return TypedSql(test(left.sql, right.sql), t.BOOLEAN)
        return self.translator.ask(test(left.sql, right.sql), [left, right])

    def arithmetic(self, node: exp.Expr) -> TypedSql:
        left, right = self.translator.expression(node.this), self.translator.expression(node.expression)
        operator = type(node)
        if t.ANY in (left.type, right.type):
            return self._untyped_arithmetic(operator, left, right)
        result = None if _is_interval(left) or _is_interval(right) else temporal.arithmetic(
            ARITHMETIC[operator], left, right)  # fmt: skip
        if result is not None:
            return result
        if is_no_number(left.type) or is_no_number(right.type):
            return TypedSql(dynamic.null(t.DOUBLE), t.DOUBLE)
        # Ask Spark about typed NULLs: with the operands, a long sum would be copied once per term.
        blanks = [TypedSql(type_probe.blank(side, dynamic.null), side.type) for side in (left, right)]
        type_ = self.translator.ask(operator(this=enclose(blanks[0].sql), expression=enclose(blanks[1].sql)), []).type
        return TypedSql(operator(this=enclose(left.sql), expression=enclose(right.sql)), type_)

    def _untyped_arithmetic(self, operator: type[exp.Expr], left: TypedSql, right: TypedSql) -> TypedSql:
        result = operators.arithmetic(
            ARITHMETIC[operator], left, right, lambda a, b: _number_arithmetic(operator, a, b)
        )
        for operand, other in ((left, right), (right, left)):
            if operand.type == t.ANY and other.type in t.NUMBERS:
                self.translator.hooks.note_use(
                    operand, t.BIGINT if other.type in t.INTEGERS and operator is not exp.Div else t.DOUBLE
                )
        result.sql.meta[predicate_notes.MADE_OF] = predicate_notes.operands(left, right)
        return result

    def concatenation(self, node: exp.DPipe) -> TypedSql:
        """Translates `a || b || …` as concat(a, b, …), so that both join texts and arrays alike."""
        operands: list[exp.Expr] = []
        part: exp.Expr = node
        while isinstance(part, exp.DPipe):
            operands.insert(0, part.expression)
            part = part.this
        return self.translator.calls.concat([self.translator.expression(operand) for operand in [part, *operands]])

    def positive(self, node: nodes.Positive) -> TypedSql:
        value = self.translator.expression(node.this)
        if value.type == t.ANY:
            return self._untyped_arithmetic(exp.Mul, literal(1), value)
        if is_no_number(value.type):
            return TypedSql(dynamic.null(t.DOUBLE), t.DOUBLE)
        return TypedSql(value.sql, value.type)

    def caret(self, node: exp.Expr) -> NoReturn:
        fail("^ means a power in SQL++, and XOR in Spark", node, "write power(a, b), or (a | b) - (a & b) for XOR")

    def between(self, node: exp.Between) -> TypedSql:
        value = self.translator.expression(node.this)
        low = self.compare(exp.GTE, value, self.translator.expression(node.args["low"]))
        high = self.compare(exp.LTE, value, self.translator.expression(node.args["high"]))
        return TypedSql(exp.Paren(this=exp.And(this=low.sql, expression=high.sql)), t.BOOLEAN)

    def is_kind(self, node: nodes.IsKind) -> TypedSql:
        """Translates IS [NOT] NULL, MISSING, UNKNOWN and VALUED."""
        value, kind = optional(self.translator.expression(node.this)), node.args["kind"]
        unknown = exp.Is(this=enclose(value.sql), expression=exp.null())
        if value.type == t.ANY:
            null = _is_null(value.sql)
            tests = {"MISSING": unknown, "NULL": null, "UNKNOWN": _is_unknown(value.sql)}
        elif isinstance(value, OptionalVariable):
            explicit = value.explicit.copy()
            tests = {
                "MISSING": exp.And(this=unknown, expression=exp.Not(this=exp.Paren(this=explicit))),
                "NULL": exp.And(this=unknown, expression=explicit),
                "UNKNOWN": unknown,
            }
        else:
            tests = {"MISSING": exp.false(), "NULL": unknown, "UNKNOWN": unknown}
        if kind == "VALUED":
            return TypedSql(exp.Not(this=exp.Paren(this=tests["UNKNOWN"])), t.BOOLEAN)
        return TypedSql(exp.Paren(this=tests[kind].copy()), t.BOOLEAN)

    def like(self, node: exp.Expr) -> TypedSql:
        like = node.this if isinstance(node, exp.Escape) else node
        if not isinstance(like, exp.Like | exp.ILike):
            fail("ESCAPE belongs to LIKE", node)
        if like.args.get("negate"):
            positive = node.copy()  # sqlglot keeps NOT LIKE as one node
            (positive.this if isinstance(positive, exp.Escape) else positive).set("negate", None)
            return self.negation(exp.Not(this=positive))
        if isinstance(like.expression, exp.Any | exp.All):
            fail("LIKE takes one pattern", node, "write LIKE for each of them, with OR or AND between them")
        escape = like_patterns.escape_of(node)
        result = self.translator.expressions.generic(like)
        constant = constant_string(result.sql.expression)
        if constant is not None:
            list(like_patterns.split_pattern(constant, escape))  # raises if the pattern is invalid
        result.sql.set("expression", self.translator.hooks.check_pattern(result.sql.expression, escape))
        return (
            TypedSql(exp.Escape(this=result.sql, expression=string(escape)), t.BOOLEAN) if node is not like else result
        )

    def member(self, node: exp.In) -> TypedSql:
        value = self.translator.expression(node.this)
        if node.args.get("query"):
            return self.translator.subqueries.in_query(value, node)
        if node.args.get("field"):
            collection = self.translator.expression(node.args["field"])
            if collection.type == t.ANY and value.type != t.ANY:
                self.translator.hooks.note_use(collection, ArrayType(value.type))
            items = dynamic.items(collection)
        else:
            candidates = [self.translator.expression(candidate) for candidate in node.expressions]
            if not candidates:
                return TypedSql(exp.false(), t.BOOLEAN)
            if all(candidate.type == value.type for candidate in candidates) and value.type in (
                *t.NUMBERS,
                t.STRING,
                t.UUID,
            ):
                return TypedSql(
                    exp.Paren(
                        this=exp.In(this=enclose(value.sql), expressions=[candidate.sql for candidate in candidates])
                    ),
                    t.BOOLEAN,
                )
            filters = predicate_notes.is_filter(node)
            tests = [self.compare(exp.EQ, value, candidate, filters=filters).sql for candidate in candidates]
            return TypedSql(exp.Paren(this=exp.or_(*tests)), t.BOOLEAN)
        filters = predicate_notes.is_filter(node)
        return self._quantify(
            "exists", items, "__one", lambda item: self.compare(exp.EQ, item, value, filters=filters).sql
        )

    def translate_quantifier(self, node: nodes.Quantified) -> TypedSql:
        """Translates SOME and EVERY to Spark's exists and forall over an array."""

        def condition(item: TypedSql) -> exp.Expr:
            self._depth += 1
            try:
                with self.translator.inner_scope({node.args["alias"].name: item}):
                    return self.translator.boolean(node.args["condition"])
            finally:
                self._depth -= 1

        items = dynamic.items(self.translator.expression(node.this))
        # Name the variable by its depth: nested quantifiers never clash, and equal expressions have equal texts.
        name = "forall" if node.args.get("every") else "exists"
        return self._quantify(name, items, f"__q{self._depth}", condition)

    def _quantify(
        self, name: str, items: TypedSql, variable: str, condition: Callable[[TypedSql], exp.Expr]
    ) -> TypedSql:
        assert isinstance(items.type, ArrayType)
        body = condition(TypedSql(exp.column(variable), items.type.item))
        test = exp.Lambda(this=body, expressions=[exp.to_identifier(variable)])
        return TypedSql(exp.Anonymous(this=name, expressions=[items.sql.copy(), test]), t.BOOLEAN)

    def exists(self, node: exp.Exists) -> TypedSql:
        if isinstance(node.this, exp.Query):
            return self.translator.subqueries.exists_query(node.this)
        items = dynamic.items(self.translator.expression(node.this))
        return TypedSql(exp.GT(this=dynamic.call("size", items.sql), expression=exp.Literal.number(0)), t.BOOLEAN)

    def case(self, node: exp.Case) -> TypedSql:
        subject = self.translator.expression(node.this) if node.this else None
        tests = [
            self.compare(exp.EQ, subject, self.translator.expression(branch.this), filters=True).sql
            if subject
            else self.translator.boolean(branch.this)
            for branch in node.args["ifs"]
        ]
        default = node.args.get("default")
        branches = [self.translator.expression(branch.args["true"]) for branch in node.args["ifs"]]
        branches.append(self.translator.expression(default) if default else TypedSql(exp.null(), VOID))
        type_, values = align(branches)
        ifs = [exp.If(this=test, true=value) for test, value in zip(tests, values[:-1], strict=True)]
        return TypedSql(exp.Case(ifs=ifs, default=values[-1]), type_)

    def cast(self, node: exp.Cast) -> TypedSql:
        value = self.translator.expression(node.this)
        if node.args.get("format"):
            fail("CAST takes no FORMAT", node, "use to_date or to_timestamp")
        target = render_for_analysis(node.args["to"])
        if value.type == t.ANY and node.args["to"].is_type("STRING", "TEXT", "VARCHAR"):
            return TypedSql(operators.text(value.sql), t.STRING)
        if value.type == t.ANY and node.args["to"].is_type("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "DATE"):
            value = TypedSql(operators.moment(value.sql), t.DATETIME)
        if value.type == t.ANY:
            return self.translator.ask(
                dynamic.call("try_variant_get", value.sql, exp.Literal.string("$"), exp.Literal.string(target)), [value]
            )
        cast = type(node)(this=value.sql.copy(), to=node.args["to"].copy(), safe=node.args.get("safe"))
        return self.translator.ask(cast, [value])


def _number_arithmetic(operator: type[exp.Expr], left: TypedSql, right: TypedSql) -> TypedSql:
    """Keeps integers exact if both operands are integers, as for declared types."""

    def double(operand: TypedSql) -> exp.Expr:
        return dynamic.exactly(operand.sql, t.DOUBLE) if operand.type == t.ANY else convert(operand, t.DOUBLE)

    real = operator(this=enclose(double(left)), expression=enclose(double(right)))
    if operator is exp.Div or not all(side.type in (t.ANY, *t.INTEGERS) for side in (left, right)):
        return TypedSql(real, t.DOUBLE)

    def whole(operand: TypedSql) -> exp.Expr:
        if operand.type != t.ANY:
            return operand.sql
        is_whole = exp.EQ(this=dynamic.call("schema_of_variant", operand.sql), expression=exp.Literal.string("BIGINT"))
        return exp.If(this=is_whole, true=dynamic.as_type(operand.sql, t.BIGINT), false=exp.null())

    exact = operator(this=enclose(whole(left)), expression=enclose(whole(right)))
    both = [exp.cast(number, "VARIANT", dialect="spark") for number in (exact, real)]
    return TypedSql(dynamic.call("coalesce", *both), t.ANY)


def _is_null(untyped: exp.Expr) -> exp.Expr:
    """Whether an untyped value is NULL, and not MISSING."""
    return dynamic.call("coalesce", dynamic.is_explicit_null(untyped), exp.false())


def _is_unknown(untyped: exp.Expr) -> exp.Expr:
    return exp.Or(this=exp.Is(this=enclose(untyped), expression=exp.null()), expression=_is_null(untyped))


def _is_interval(value: TypedSql) -> bool:
    return isinstance(value.type, t.Primitive) and value.type.name.lower().startswith("interval")
