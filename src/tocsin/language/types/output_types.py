"""Converts values that leave a query: a type that only Spark has becomes the nearest of our types.

Spark's functions return types that the language does not have, such as decimals and maps; nothing outside of a query
needs to know them.
"""

from __future__ import annotations

from sqlglot import exp

from tocsin.language.functions.temporal_text import duration_text, time_text
from tocsin.language.types.type_probe import needs_stand_in
from tocsin.language.types.typed_sql import SPARK_TYPES, FunctionError, MapType, TypedSql, build, enclose, guard_nulls
from tocsin.language.types.variant import encoder, values
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import keeps_open, physical
from tocsin.rules.model.types import ArrayType, Field, MultisetType, ObjectType


def to_output_type(value: TypedSql) -> TypedSql:
    """Converts a value to one of our types, if it has a type that only Spark has."""
    match value.type:
        case t.Primitive(name) if value.type not in SPARK_TYPES:
            if value.type == VOID:
                return TypedSql(encoder.to_any(value), t.ANY)
            upper = name.upper()
            if isinstance(value.type, MapType):
                return TypedSql(_map_leaving(value.sql, value.type), t.ANY)
            if upper.startswith("DECIMAL"):
                return TypedSql(exp.cast(value.sql.copy(), "DOUBLE"), t.DOUBLE)
            if upper == "BINARY":
                return TypedSql(values.call("base64", value.sql), t.STRING)
            if upper.startswith("TIMESTAMP"):
                return TypedSql(exp.cast(value.sql.copy(), "TIMESTAMP", dialect="spark"), t.DATETIME)
            return TypedSql(exp.cast(value.sql.copy(), "STRING"), t.STRING)
        case ArrayType(item, optional) | MultisetType(item, optional):
            inner = to_output_type(TypedSql(exp.column("__item"), item))
            if inner.type == item:
                return value
            return TypedSql(
                build("transform(_v, __item -> _i)", _v=value.sql, _i=inner.sql), type(value.type)(inner.type, optional)
            )
        case ObjectType(fields) if not keeps_open(value.type):
            parts = [
                to_output_type(TypedSql(exp.Dot(this=enclose(value.sql), expression=_column(field)), field.type))
                for field in fields
            ]
            types = tuple(
                Field(field.name, part.type, field.optional) for field, part in zip(fields, parts, strict=True)
            )
            if types == fields:
                return value
            record = values.record(
                [(physical(field.name), part.sql) for field, part in zip(fields, parts, strict=True)]
            )
            return TypedSql(guard_nulls((value.sql,), record), ObjectType(types, open=False))
    return value


def _column(field: Field) -> exp.Identifier:
    return exp.to_identifier(physical(field.name), quoted=True)


def _map_leaving(sql: exp.Expr, type_: MapType) -> exp.Expr:
    """Converts a map to an untyped object: its keys become text, its values have the open form."""
    if not needs_stand_in(type_):
        return values.call("parse_json", values.call("to_json", sql))
    key, value = exp.column("__key"), exp.column("__value")
    match type_.key:
        case t.TIME:
            key_text = time_text(key)
        case t.DURATION:
            key_text = duration_text(key)
        case t.Primitive() if type_.key not in t.SPATIAL:
            key_text = exp.cast(key, "STRING")
        case _:
            raise FunctionError(f"a map with keys of type {type_.key} cannot leave a query")
    renamed = build("transform_keys(_m, (__key, __value) -> _named)", _m=sql, _named=key_text)
    opened = encoder.to_any(TypedSql(value, type_.value))
    return values.call(
        "to_variant_object", build("transform_values(_m, (__key, __value) -> _open)", _m=renamed, _open=opened)
    )
