"""Types as a script writes them → types as records are checked against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tocsin.language.syntax.statements import CollectionText, FieldText, Name, ObjectText, TypeText
from tocsin.language.translate.expressions import TranslationError
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ANY, ArrayType, Field, MultisetType, ObjectType, Primitive, Type

KEY_TYPES: Final = (*t.NUMBERS, t.STRING, t.BOOLEAN, t.DATE, t.TIME, t.DATETIME, t.UUID)


def resolved(text: TypeText, look_up: Callable[[Name], ObjectType | None]) -> Type:
    """The type, with every name it mentions looked up."""
    match text:
        case Primitive():
            return text
        case Name():
            found = look_up(text)
            if found is not None:
                return found
            if text.dataverse is None and text.name.lower() == "any":
                return ANY
            raise TranslationError(
                f"unknown type {text}", text.offset, "create it first, or use one of the built-in types"
            )
        case CollectionText(item, optional, multiset):
            inner = resolved(item, look_up)
            return MultisetType(inner, optional) if multiset else ArrayType(inner, optional)
        case ObjectText(fields, is_open):
            return ObjectType(tuple(_fields(fields, look_up)), is_open)


def _fields(fields: tuple[FieldText, ...], look_up: Callable[[Name], ObjectType | None]) -> list[Field]:
    made: list[Field] = []
    for one in fields:
        same = next((other for other in made if other.name.lower() == one.name.lower()), None)
        if same is not None:
            # Column names differ by more than case in every engine that may read the data.
            how = "is declared twice" if same.name == one.name else f"differs from {same.name} only in case"
            raise TranslationError(f"the field {one.name} {how}", one.offset)
        made.append(Field(one.name, resolved(one.type, look_up), one.optional))
    return made


def key_field(type_: ObjectType, path: tuple[str, ...]) -> Type:
    """The type of a primary key's field; it must be declared, always there, and comparable."""
    current: Type = type_
    for i, name in enumerate(path):
        shown = ".".join(path[: i + 1])
        found = current.find(name) if isinstance(current, ObjectType) else None
        if found is None:
            raise TranslationError(f"the key field {shown} is not declared in {type_}")
        if found.optional:
            raise TranslationError(f"the key field {shown} is optional", hint="declare it without ?")
        current = found.type
    if current not in KEY_TYPES:
        raise TranslationError(f"the key field {'.'.join(path)} has type {current}, which cannot be a key")
    return current
