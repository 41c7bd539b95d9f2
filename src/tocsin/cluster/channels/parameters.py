"""Checks the values of a channel's parameters and encodes them as canonical text.

Equal values have equal texts, so subscriptions with equal parameters share one interest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from tocsin.rules.model import json_form, open_form
from tocsin.rules.model import types as t
from tocsin.rules.model.type_check import RecordError, checker
from tocsin.rules.model.types import Field, ObjectType, Type
from tocsin.rules.model.values import MISSING, Circle, Line, Point, Polygon, Rectangle
from tocsin.wire.errors import InputError

_Values = tuple[Any, ...]


class ParameterValues:
    """The parameters of one channel."""

    def __init__(self, names: Sequence[str], types: Sequence[Type]) -> None:
        self.names = tuple(names)
        self.types = tuple(types)
        record = ObjectType(tuple(Field(f"p{i}", kind) for i, kind in enumerate(types)), open=False)
        self._check = checker(record)
        self._read = json_form.reader(record)

    def check(self, values: Sequence[Any]) -> _Values:
        """Checks values from a statement. Raises InputError, which names the value that does not fit."""
        return self._with(self._check, values)

    def from_json(self, values: Sequence[Any]) -> _Values:
        """Checks values that come from JSON."""
        return self._with(self._read, values)

    def _with(self, check: Callable[[Any], Any], values: Sequence[Any]) -> _Values:
        if len(values) != len(self.names):
            signature = ", ".join(f"{name}: {kind}" for name, kind in zip(self.names, self.types, strict=True))
            raise InputError(
                f"the channel takes {len(self.names)} parameters, got {len(values)}", hint=signature or "it takes none"
            )
        for name, value in zip(self.names, values, strict=True):
            if value is None or value is MISSING:
                raise InputError(f"{name}: a parameter has a value, got NULL")
        try:
            record = check({f"p{i}": value for i, value in enumerate(values)})
        except RecordError as error:
            index, _, rest = error.field.removeprefix("p").partition(".")
            name = self.names[int(index)] if index.isdigit() else error.field
            raise InputError(f"{name}{'.' if rest else ''}{rest}: {error.reason}") from None
        return tuple(_normal(record[f"p{i}"], kind) for i, kind in enumerate(self.types))

    @staticmethod
    def text(values: _Values) -> str:
        """Returns the canonical text: equal values have equal texts."""
        return open_form.dumps_value(list(values))

    @staticmethod
    def values(text: str) -> _Values:
        return tuple(open_form.loads_value(text))


def _normal(value: Any, kind: Type) -> Any:
    """Maps equal values to the same value: -0 becomes 0, and without a type a whole number becomes an integer."""
    match value:
        case float():
            if kind == t.ANY and math.isfinite(value) and value == int(value) and abs(value) < 2**63:
                return int(value)
            return 0.0 if value == 0 else value
        case list():
            return [_normal(item, _item(kind)) for item in value]
        case Point(x, y):
            return Point(x or 0.0, y or 0.0)
        case Line() | Rectangle() | Circle() | Polygon():
            return type(value)(*(_normal(getattr(value, field.name), t.DOUBLE) for field in fields(value)))
        case tuple():
            return tuple(_normal(coordinate, t.DOUBLE) for coordinate in value)
        case dict():
            return {name: _normal(value[name], t.ANY) for name in sorted(value)}
    return value


def _item(kind: Type) -> Type:
    return kind.item if isinstance(kind, t.ArrayType | t.MultisetType) else t.ANY
