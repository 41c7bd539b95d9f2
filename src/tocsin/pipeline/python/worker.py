"""What runs in Spark's Python workers: Arrow columns in, model values through the function, Arrow columns out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.python import import_function
from tocsin.pipeline.python.protocol import CallError, Code, Signature
from tocsin.pipeline.python.sandbox import limited, listen, told
from tocsin.rules.model.type_check import RecordError, check_value
from tocsin.rules.model.types import ANY, STRING, AnyType, ArrayType, Field, MultisetType, ObjectType, Type
from tocsin.rules.model.values import MISSING


def gives(signature: Signature) -> Type:
    """The type of the column that a call makes."""
    if not signature.each:
        return signature.returns
    return ObjectType((Field("value", signature.returns), Field("failed", STRING)), open=False)


@dataclass(frozen=True)
class WorkerCall:
    """A function over columns. NULL and MISSING are None as arguments; a field that is MISSING is left out."""

    code: Code
    signature: Signature

    def __call__(self, *columns: pa.Array) -> pa.Array:
        listen(self.code.said)
        function = import_function.function(self.code)
        rows = len(columns[0])
        # Spark has no calls without arguments: one without brings a column that nobody reads.
        arguments = [_values(column, kind) for column, kind in zip(columns, self.signature.arguments, strict=False)]
        values: list[Any] = []
        failed: list[str | None] = []
        for given in zip(*arguments, strict=True) if arguments else [()] * rows:
            try:
                values.append(self._called(function, given))
                failed.append(None)
            except CallError as error:
                if not self.signature.each:
                    raise
                values.append(MISSING)
                failed.append(error.message)
        made = _column(values, self.signature.returns)
        if not self.signature.each:
            return made
        return pa.StructArray.from_arrays([made, pa.array(failed, pa.string())], names=["value", "failed"])

    def _called(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        name, returns = self.signature.name, self.signature.returns
        try:
            with limited(self.code.timeout_s):
                made = function(*given)
        except BaseException as error:
            raise CallError(f"the function {name} failed: {told(error, self.code)}") from None
        if made is None or made is MISSING:
            if self.signature.optional:
                return made
            raise CallError(f"the function {name} gave nothing, and RETURNS {returns}", f"write RETURNS {returns}?")
        try:
            return check_value(made, returns)
        except RecordError as error:
            raise CallError(f"the function {name} gave what does not fit {returns}: {error}") from None


@dataclass(frozen=True)
class FunctionLookUp:
    """Whether the function can be called with so many arguments: a column of texts, empty where it can."""

    code: Code
    arity: int

    def __call__(self, column: pa.Array) -> pa.Array:
        listen(self.code.said)
        import_function.check(self.code, self.arity)
        return pa.array([""] * len(column), pa.string())


def _values(column: pa.Array, kind: Type) -> list[Any]:
    decode = layout.decoder(kind)
    try:
        found = [decode(one) for one in column.to_pylist()]
    except (OverflowError, ValueError) as error:
        raise CallError(f"a value is outside of what Python can hold: {error}") from None
    if isinstance(kind, AnyType):
        return [None if one is MISSING else one for one in found]
    return [_without_missing(one) for one in found] if _has_untyped_items(kind) else found


def _has_untyped_items(kind: Type) -> bool:
    match kind:
        case ArrayType(item) | MultisetType(item):
            return item == ANY or _has_untyped_items(item)
        case ObjectType(fields):
            return any(_has_untyped_items(one.type) for one in fields)
    return False


def _without_missing(value: Any) -> Any:
    """In an array, MISSING is NULL."""
    if isinstance(value, list):
        return type(value)(None if one is MISSING else _without_missing(one) for one in value)
    if isinstance(value, dict):
        return {name: _without_missing(one) for name, one in value.items()}
    return value


def _column(values: list[Any], kind: Type) -> pa.Array:
    if isinstance(kind, AnyType):
        return layout.untyped_column(values)
    return layout.column(kind, [None if one is MISSING else one for one in values])
