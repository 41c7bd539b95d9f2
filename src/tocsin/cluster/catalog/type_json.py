"""Encodes types as JSON for the catalog."""

from __future__ import annotations

from typing import Any, Final

from tocsin.rules.model.types import ANY, AnyType, ArrayType, Field, MultisetType, ObjectType, Primitive, Type
from tocsin.wire.errors import LimitError

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
