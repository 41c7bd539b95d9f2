"""Resolves the types that a script declares to the types against which records are validated.

Names of types are resolved once, when a type is created, so that a record is validated without the catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tocsin.language.syntax.statements import CollectionText, FieldText, Name, ObjectText, TypeText
from tocsin.language.translate.expressions import TranslationError
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ANY, ArrayType, Field, MultisetType, ObjectType, Primitive, Type

_KEY_TYPES: Final = (*t.NUMBERS, t.STRING, t.BOOLEAN, t.DATE, t.TIME, t.DATETIME, t.UUID)


# The types of AsterixDB that this language lacks, and what to declare instead.
_MISSING_TYPES: Final = {
    "interval": "declare two fields, the start and the end",
    "binary": "declare a string, in base64 or hexadecimal",
    "geometry": "declare a point, line, rectangle, circle or polygon",
}


def resolve_type(text: TypeText, look_up: Callable[[Name], ObjectType | None]) -> Type:
    """Resolves a type and every name inside it."""
    match text:
        case Primitive():
            return text
        case Name():
            named = look_up(text)
            if named is not None:
                return named
            if text.dataverse is None and text.name.lower() == "any":
                return ANY
            remedy = _MISSING_TYPES.get(text.name.lower()) if text.dataverse is None else None
            raise TranslationError(
                f"unknown type {text}", text.offset, remedy or "create it first, or use one of the built-in types"
            )
        case CollectionText(item, optional, multiset):
            inner = resolve_type(item, look_up)
            return MultisetType(inner, optional) if multiset else ArrayType(inner, optional)
        case ObjectText(fields, is_open):
            return ObjectType(tuple(_fields(fields, look_up)), is_open)


def _fields(fields: tuple[FieldText, ...], look_up: Callable[[Name], ObjectType | None]) -> list[Field]:
    resolved_fields: list[Field] = []
    for declared in fields:
        same = next((other for other in resolved_fields if other.name.lower() == declared.name.lower()), None)
        if same is not None:
            # Some engines that may read the data ignore the case of column names.
            how = "is declared twice" if same.name == declared.name else f"differs from {same.name} only in case"
            raise TranslationError(f"the field {declared.name} {how}", declared.offset)
        resolved_fields.append(Field(declared.name, resolve_type(declared.type, look_up), declared.optional))
    return resolved_fields


def key_field(type_: ObjectType, path: tuple[str, ...]) -> Type:
    """Returns the type of a primary key's field. The field must be declared, required and comparable."""
    current: Type = type_
    for i, name in enumerate(path):
        shown = ".".join(path[: i + 1])
        declared = current.find(name) if isinstance(current, ObjectType) else None
        if declared is None:
            raise TranslationError(f"the key field {shown} is not declared in {type_}")
        if declared.optional:
            raise TranslationError(f"the key field {shown} is optional", hint="declare it without ?")
        current = declared.type
    if current not in _KEY_TYPES:
        raise TranslationError(f"the key field {'.'.join(path)} has type {current}, which cannot be a key")
    return current
