"""Evaluates constant expressions in Python, without data and without Spark, as INSERT and WITH {…} mostly have them.

Small work avoids Spark: a constant takes milliseconds here. What cannot be evaluated raises NotConstantError, and is
left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any, ClassVar, Final
from uuid import uuid4

from sqlglot import exp

from tocsin.language.syntax import nodes
from tocsin.language.syntax.script import offset_of
from tocsin.rules.model import values as v
from tocsin.rules.model.json_form import NONFINITE


class NotConstantError(Exception):
    """The expression needs Spark."""


class ConstantError(ValueError):
    """A constant is invalid. `offset` is its place in the text."""

    def __init__(self, message: str, offset: int | None) -> None:
        super().__init__(message)
        self.offset = offset


class _ConstantValue(exp.Expression):
    """A value in place of its variable."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


def with_values(node: exp.Expr, values: Mapping[str, Any]) -> exp.Expr:
    """Replaces these variables by their values, for `evaluate` only.

    Expressions that bind their own variables may reuse these names; they are no constants before or after.
    """

    def replace_variable(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and len(part.parts) == 1 and part.name in values:
            return _ConstantValue(this=values[part.name])
        return part

    return node.transform(replace_variable) if values else node


def evaluate(node: exp.Expr, now: datetime) -> Any:
    """Returns the value of a constant expression, as `rules.model.values` represents it."""
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise NotConstantError
    return handler(node, now)


def _literal(node: exp.Literal, _now: datetime) -> Any:
    if node.is_string:
        return str(node.this)
    return int(node.this) if node.this.isdigit() else float(node.this)


def _negative(node: exp.Neg, now: datetime) -> Any:
    value = evaluate(node.this, now)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return -value
    raise NotConstantError


def _object(node: nodes.ObjectOf, now: datetime) -> Any:
    members: dict[str, Any] = {}
    for member in node.expressions:
        name = member.this.name
        if name in members:
            raise ConstantError(f"the field {name} is given twice", offset_of(member))
        members[name] = evaluate(member.expression, now)
    return {name: value for name, value in members.items() if value is not v.MISSING}


def _items(node: exp.Expr, now: datetime) -> list[Any]:
    # A collection cannot contain MISSING, so it becomes NULL.
    return [None if value is v.MISSING else value for value in (evaluate(item, now) for item in node.expressions)]


def _column(node: exp.Column, _now: datetime) -> Any:
    if len(node.parts) == 1 and node.name.upper() == "MISSING" and not node.this.quoted:
        return v.MISSING
    raise NotConstantError


def _cast(node: exp.Cast, now: datetime) -> Any:
    """Evaluates a number with a suffix: 1.5f, 5L."""
    value = evaluate(node.this, now)
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        if node.args["to"].is_type("FLOAT", "DOUBLE"):
            return float(value)
        if node.args["to"].is_type("BIGINT", "SMALLINT", "TINYINT") and isinstance(value, int):
            return value
    raise NotConstantError


def _call(node: exp.Anonymous, now: datetime) -> Any:
    """Evaluates a constructor, such as point("1,2"), or a function of the current time."""
    name = str(node.this).lower() if isinstance(node.this, str) else ""
    if not node.expressions:
        if name in ("current_datetime", "current_timestamp", "now"):
            return now
        if name == "current_date":
            return now.date()
        if name == "current_time":
            return now.time()
        if name in ("uuid", "create_uuid"):
            return uuid4()
        raise NotConstantError
    arguments = [evaluate(argument, now) for argument in node.expressions]
    try:
        if name in _FROM_TEXT and len(arguments) == 1 and isinstance(arguments[0], str):
            return _FROM_TEXT[name](arguments[0])
        if name in _CREATE:
            return _CREATE[name](*arguments)
    except ValueError as error:
        raise ConstantError(str(error), offset_of(node)) from None
    except (TypeError, AttributeError):
        raise NotConstantError from None
    raise NotConstantError


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _double(text: str) -> float:
    """Evaluates `double("NaN")` and similar values that no literal can express; other casts need Spark."""
    if text in NONFINITE:
        return NONFINITE[text]
    raise TypeError


def _polygon(flat: Any) -> v.Polygon:
    if flat and isinstance(flat[0], v.Point):
        return v.polygon(flat)
    numbers = [_number(coordinate) for coordinate in flat]
    if len(numbers) % 2:
        raise ValueError("expected an even number of coordinates")
    return v.polygon(v.Point(x, y) for x, y in zip(numbers[::2], numbers[1::2], strict=True))


def _points(a: Any, b: Any) -> tuple[v.Point, v.Point]:
    if not (isinstance(a, v.Point) and isinstance(b, v.Point)):
        raise TypeError
    return a, b


_FROM_TEXT: Final[dict[str, Callable[[str], Any]]] = {
    "point": v.parse_point, "line": v.parse_line, "rectangle": v.parse_rectangle, "circle": v.parse_circle,
    "polygon": v.parse_polygon, "datetime": v.parse_datetime, "date": v.parse_date, "time": v.parse_time,
    "duration": v.parse_duration, "day_time_duration": v.parse_duration, "year_month_duration": v.parse_duration,
    "uuid": v.parse_uuid, "double": _double,
}  # fmt: skip
_CREATE: Final[dict[str, Callable[..., Any]]] = {
    "create_point": lambda x, y: v.Point(_number(x), _number(y)),
    "create_line": lambda a, b: v.Line(*_points(a, b)),
    "create_rectangle": lambda a, b: v.rectangle(*_points(a, b)),
    "create_circle": lambda center, radius: v.circle(_points(center, center)[0], _number(radius)),
    "create_polygon": _polygon,
}
_HANDLERS: Final[dict[type, Callable[..., Any]]] = {
    exp.Literal: _literal, exp.Neg: _negative, exp.Column: _column, exp.Cast: _cast, exp.TryCast: _cast,
    exp.Boolean: lambda node, _now: bool(node.this), exp.Null: lambda _node, _now: None,
    exp.Paren: lambda node, now: evaluate(node.this, now), nodes.ObjectOf: _object, exp.Array: _items,
    nodes.MultisetOf: lambda node, now: v.Multiset(_items(node, now)), exp.Anonymous: _call,
    # Copy the value: the caller may change it.
    _ConstantValue: lambda node, _now: deepcopy(node.this),
}  # fmt: skip
