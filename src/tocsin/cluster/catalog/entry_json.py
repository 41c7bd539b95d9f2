"""Encodes the entries of the catalog and their types as JSON for the store.

A row of the store has the entry's Ref in columns, and all other fields of the entry in its body, under their names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any, Final

from tocsin.cluster.catalog.entries import (
    BrokerEntry,
    CatalogEntry,
    ChannelEntry,
    DatasetEntry,
    DataverseEntry,
    FeedConnection,
    FeedEntry,
    FunctionEntry,
    IndexEntry,
    ProcedureEntry,
    ProcedureSchedule,
    TypeEntry,
)
from tocsin.cluster.catalog.refs import Ref, join_names, split_names
from tocsin.rules.model.types import ANY, AnyType, ArrayType, Field, MultisetType, ObjectType, Primitive, Type
from tocsin.rules.model.values import Duration, datetime_text, duration_text, parse_datetime, parse_duration
from tocsin.store.cluster.interface import CatalogRow
from tocsin.wire.errors import LimitError, StoreError

TYPE_DEPTH_LIMIT: Final = 64


def type_to_json(type_: Type, *, depth: int = 0) -> Any:
    """Encodes a type: `"bigint"`, `{"array": …}`, `{"object": [[name, type, optional], …], "open": true}`."""
    if depth > TYPE_DEPTH_LIMIT:
        raise LimitError("the type is nested too deeply", hint=f"at most {TYPE_DEPTH_LIMIT} levels", status=400)
    match type_:
        case Primitive(name=primitive):
            return primitive
        case AnyType():
            return "any"
        case ArrayType(item=item, item_optional=optional):
            return {"array": type_to_json(item, depth=depth + 1), "optional": optional}
        case MultisetType(item=item, item_optional=optional):
            return {"multiset": type_to_json(item, depth=depth + 1), "optional": optional}
        case ObjectType(fields=fields, open=is_open, name=name):
            encoded_fields = [
                [field.name, type_to_json(field.type, depth=depth + 1), field.optional] for field in fields
            ]
            return {"object": encoded_fields, "open": is_open, "name": name}


def type_from_json(value: Any) -> Type:
    """Decodes a type that `type_to_json` encoded."""
    match value:
        case "any":
            return ANY
        case str():
            return Primitive(value)
        case {"array": item, "optional": bool(optional)}:
            return ArrayType(type_from_json(item), optional)
        case {"multiset": item, "optional": bool(optional)}:
            return MultisetType(type_from_json(item), optional)
        case {"object": list(fields), "open": bool(is_open), "name": name}:
            declared = tuple(Field(field, type_from_json(type_), optional) for field, type_, optional in fields)
            return ObjectType(declared, is_open, name)
        case _:
            raise ValueError(f"not a type: {value!r}")


_ENTRIES: Final[dict[str, Callable[..., CatalogEntry]]] = {
    "dataverse": DataverseEntry,
    "type": TypeEntry,
    "dataset": DatasetEntry,
    "feed": FeedEntry,
    "index": IndexEntry,
    "function": FunctionEntry,
    "broker": BrokerEntry,
    "channel": ChannelEntry,
    "procedure": ProcedureEntry,
}
_IN_REF: Final = ("dataverse", "dataset", "name")
_PYTHON_ONLY: Final = ("language", "returns", "optional")  # only functions in Python have these in their bodies


def entry_to_json(entry: CatalogEntry) -> dict[str, Any]:
    """Encodes an entry, except for its Ref."""
    is_sql = isinstance(entry, FunctionEntry) and entry.language == "SQL"
    left_out = _IN_REF + (_PYTHON_ONLY if is_sql else ())
    return {field.name: _to_json(getattr(entry, field.name)) for field in fields(entry) if field.name not in left_out}


def _to_json(value: Any) -> Any:
    match value:
        case Ref():
            return [value.kind, value.dataverse, value.name]
        case FeedConnection() | ProcedureSchedule():
            return {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
        case tuple():
            return [_to_json(item) for item in value]
        case Duration():
            return duration_text(value)
        case datetime():
            return datetime_text(value)
        case Primitive() | AnyType() | ArrayType() | MultisetType() | ObjectType():
            return type_to_json(value)
    return value


def entry_from_json(row: CatalogRow) -> CatalogEntry:
    """Decodes an entry that `entry_to_json` encoded. Raises StoreError if the row is invalid."""
    kind = _ENTRIES.get(row.kind)
    if kind is None:
        raise StoreError(f"the catalog holds a {row.kind} named {row.name}, and this Tocsin does not know what that is")
    try:
        return kind(**_names(row), **_decode_fields(kind, {**_earlier_fields(row), **row.body}))
    except (KeyError, TypeError, ValueError) as problem:
        where = f"{row.kind} {join_names(row.dataverse, row.name)}"
        raise StoreError(
            f"the catalog's entry for {where} cannot be read: {problem!r}", hint="restore a backup"
        ) from problem


def _earlier_fields(row: CatalogRow) -> dict[str, Any]:
    """Returns the values of fields that rows of earlier versions do not have."""
    match row.kind:
        case "channel":
            return {"from_beginning": False}
        case "procedure":
            # A procedure with a period ran from its creation on.
            runs = row.body["period"] is not None and "schedules" not in row.body
            first = {"schedule_id": row.body["procedure_id"], "arguments": "[]", "anchor": row.body["anchor"]}
            return {"schedules": [first] if runs else []}
    return {}


def _names(row: CatalogRow) -> dict[str, str]:
    if row.kind == "dataverse":
        return {"name": row.name}
    if row.kind == "index":
        dataset, name = split_names(row.name)
        return {"dataverse": row.dataverse, "dataset": dataset, "name": name}
    has_arity = row.kind in ("function", "procedure")
    return {"dataverse": row.dataverse, "name": row.name.rpartition("@")[0] if has_arity else row.name}


def _decode_fields(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    left_out = _IN_REF + (_PYTHON_ONLY if body.get("language", "SQL") == "SQL" else ())
    # A row of an older version may lack a field that has a default.
    names = [
        field.name
        for field in fields(kind)
        if field.name not in left_out and (field.name in body or field.default is MISSING)
    ]
    return {name: _FROM_JSON.get(name, _unchanged)(body[name]) for name in names}


def _unchanged(value: Any) -> Any:
    return value


def _object_type(value: Any) -> ObjectType:
    decoded = type_from_json(value)
    if not isinstance(decoded, ObjectType):
        raise TypeError(f"not an object type: {decoded}")
    return decoded


def _tuples(value: Any) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(item) for item in value)


def _ref(value: Any) -> Ref | None:
    return None if value is None else Ref(*value)


def _connections(value: Any) -> tuple[FeedConnection, ...]:
    return tuple(FeedConnection(Ref(*item["dataset"]), _ref(item["function"]), item["since"]) for item in value)


def _schedules(value: Any) -> tuple[ProcedureSchedule, ...]:
    return tuple(
        ProcedureSchedule(item["schedule_id"], item["arguments"], parse_datetime(item["anchor"])) for item in value
    )


_FROM_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "type": _object_type,
    "keys": _tuples,
    "fields": _tuples,
    "field_types": tuple,
    "options": _tuples,
    "connections": _connections,
    "parameters": tuple,
    "types": lambda value: tuple(type_from_json(item) for item in value),
    "function": _ref,
    "uses": lambda value: tuple(Ref(*item) for item in value),
    "returns": type_from_json,
    "period": lambda value: None if value is None else parse_duration(value),
    "anchor": parse_datetime,
    "schedules": _schedules,
}
