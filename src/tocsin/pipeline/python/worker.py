"""Runs in Spark's Python workers: Arrow columns in, model values through the function, Arrow columns out.

Spark hands over whole columns, while a function gets the values of one row. With `each`, a failure becomes a value of
the result, so that a feed can set one record aside and land the others of its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.python import import_function
from tocsin.pipeline.python.protocol import CallError, Code, Signature
from tocsin.pipeline.python.sandbox import describe_error, limit_time, listen
from tocsin.rules.model.type_check import RecordError, check_value
from tocsin.rules.model.types import ANY, STRING, AnyType, ArrayType, Field, MultisetType, ObjectType, Type
from tocsin.rules.model.values import MISSING


def gives(signature: Signature) -> Type:
    """The type of the column that a call returns."""
    if not signature.each:
        return signature.returns
    return ObjectType((Field("value", signature.returns), Field("failed", STRING)), open=False)


@dataclass(frozen=True)
class WorkerCall:
    """A function over columns. NULL and MISSING arguments are None; a field that is MISSING is left out."""

    code: Code
    signature: Signature

    def __call__(self, *columns: pa.Array) -> pa.Array:
        listen(self.code.said)
        code = self.code.placed()
        function = import_function.function(code)
        rows = len(columns[0])
        # Spark has no calls without arguments: such a call gets a column that is not read.
        arguments = [_values(column, kind) for column, kind in zip(columns, self.signature.arguments, strict=False)]
        values: list[Any] = []
        failed: list[str | None] = []
        for row in zip(*arguments, strict=True) if arguments else [()] * rows:
            try:
                values.append(self._called(function, row, code))
                failed.append(None)
            except CallError as error:
                if not self.signature.each:
                    raise
                values.append(MISSING)
                failed.append(error.message)
        results = _column(values, self.signature.returns)
        if not self.signature.each:
            return results
        return pa.StructArray.from_arrays([results, pa.array(failed, pa.string())], names=["value", "failed"])

    def _called(self, function: Callable[..., Any], arguments: tuple[Any, ...], code: Code) -> Any:
        name, returns = self.signature.name, self.signature.returns
        try:
            with limit_time(code.timeout_s):
                result = function(*arguments)
        except BaseException as error:
            raise CallError(f"the function {name} failed: {describe_error(error, code)}") from None
        if result is None or result is MISSING:
            if self.signature.optional:
                return result
            raise CallError(f"the function {name} gave nothing, and RETURNS {returns}", f"write RETURNS {returns}?")
        try:
            return check_value(result, returns)
        except RecordError as error:
            raise CallError(f"the function {name} gave what does not fit {returns}: {error}") from None


@dataclass(frozen=True)
class FunctionLookUp:
    """Checks whether the function can be called with this many arguments. Returns a column of empty texts."""

    code: Code
    arity: int

    def __call__(self, column: pa.Array) -> pa.Array:
        listen(self.code.said)
        import_function.check(self.code.placed(), self.arity)
        return pa.array([""] * len(column), pa.string())


def _values(column: pa.Array, kind: Type) -> list[Any]:
    decode = layout.decoder(kind)
    try:
        values = [decode(item) for item in column.to_pylist()]
    except (OverflowError, ValueError) as error:
        raise CallError(f"a value is outside of what Python can hold: {error}") from None
    if isinstance(kind, AnyType):
        return [None if value is MISSING else value for value in values]
    return [_without_missing(value) for value in values] if _has_untyped_items(kind) else values


def _has_untyped_items(kind: Type) -> bool:
    match kind:
        case ArrayType(item) | MultisetType(item):
            return item == ANY or _has_untyped_items(item)
        case ObjectType(fields):
            return any(_has_untyped_items(field.type) for field in fields)
    return False


def _without_missing(value: Any) -> Any:
    """Replaces MISSING by NULL in arrays."""
    if isinstance(value, list):
        return type(value)(None if item is MISSING else _without_missing(item) for item in value)
    if isinstance(value, dict):
        return {name: _without_missing(item) for name, item in value.items()}
    return value


def _column(values: list[Any], kind: Type) -> pa.Array:
    if isinstance(kind, AnyType):
        return layout.untyped_column(values)
    return layout.column(kind, [None if value is MISSING else value for value in values])
