"""XML: the elements of one name as records.

    <reports><report id="7"><place>1,2</place><tag>a</tag><tag>b</tag></report></reports>
    → {"id": 7, "place": point("1,2"), "tag": ["a", "b"]}

Attributes and elements within are fields, under their names without a namespace; a name that repeats is an array, in
the order of the file. An element with neither is its text, white space included; text beside fields is the field
`_text`. An array may also have an element around it (`<tags><tag>a</tag></tags>` for `tags: [string]`). Declared fields
are read as delimited text would be; what is undeclared stays text. `xsi:nil="true"` is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from tocsin.pipeline.sources.formats.delimited_text import cell
from tocsin.pipeline.sources.formats.xml_elements import Element, elements
from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadRecord, Found
from tocsin.rules.model.type_check import RecordError, field_step
from tocsin.rules.model.types import (
    STRING,
    AnyType,
    ArrayType,
    MultisetType,
    ObjectType,
    Type,
)
from tocsin.rules.model.values import MISSING, Multiset

TEXT_FIELD: Final = "_text"
_NIL: Final = ("http://www.w3.org/2001/XMLSchema-instance", "nil")


def read(file: BinaryIO, kind: ObjectType, record: str = "") -> Iterator[Found]:
    """The records of a file, each with the line that it begins on."""
    for one in each(file, kind, record):
        if isinstance(one, BadRecord):
            raise one
        yield one


def each(file: BinaryIO, kind: ObjectType, record: str = "") -> Iterator[Found | BadRecord]:
    """The same, but an element that is no record is handed over as what is wrong with it, and the next ones follow;
    where the file is not XML, it ends."""
    try:
        for element in found(file, record):
            try:
                yield element.line, parse(element, kind), element.size_bytes
            except BadRecord as error:
                yield error
    except BadRecord as error:
        yield error


def found(file: BinaryIO, record: str = "", limit_bytes: int = RECORD_LIMIT_BYTES) -> Iterator[Element]:
    """The elements called `record`, wherever they are; without a name those directly in the root."""
    return elements(file, lambda _, name, depth: name == record if record else depth == 2, limit_bytes)


def parse(element: Element, kind: ObjectType) -> dict[str, Any]:
    """One record; BadRecord names the field that is not what its type says."""
    value = _plain(element)
    if value.__class__ is not dict:
        hint = 'name the element of a record with the option "record"'
        raise BadRecord(element.line, f"the element {element.name} has no fields ({hint})", raw=_json(value))
    try:
        return _object(value, kind)
    except RecordError as error:
        raise BadRecord(element.line, error.reason, error.field, raw=_json(value)) from None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _plain(element: Element) -> Any:
    """Nothing but text, lists and dicts."""
    if element.attributes.get(_NIL) in ("true", "1"):
        return None
    text = element.text
    fields: dict[str, Any] = {}
    repeated: set[str] = set()
    inside = [(name, value) for (space, name), value in element.attributes.items() if (space, name) != _NIL]
    for name, value in (*inside, *((child.name, _plain(child)) for child in element.children)):
        if name in repeated:
            fields[name].append(value)
        elif name in fields:
            fields[name] = [fields[name], value]
            repeated.add(name)
        else:
            fields[name] = value
    if not fields:
        return text
    if text.strip():
        fields.setdefault(TEXT_FIELD, text.strip())
    return fields


# ---------------------------------------------------------------- plain → what JSON would have said


def _object(value: dict[str, Any], kind: ObjectType) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, inside in value.items():
        declared = kind.find(name)
        if declared is None:
            record[name] = inside
            continue
        try:
            converted = _converted(inside, declared.type, may_lack=declared.optional)
        except RecordError as error:
            raise error.within(field_step(name)) from None
        if converted is not MISSING:
            record[name] = converted
    return record


def _converted(value: Any, kind: Type, *, may_lack: bool) -> Any:
    if value is None:
        return None
    if isinstance(kind, ArrayType | MultisetType):
        items = [_item(item, kind.item, place) for place, item in enumerate(_wrapped(value, kind.item))]
        return Multiset(items) if isinstance(kind, MultisetType) else items
    if isinstance(kind, ObjectType):
        return _object(value, kind) if isinstance(value, dict) else {} if value == "" else value
    if not isinstance(value, str) or kind == STRING or isinstance(kind, AnyType):
        return value
    # As an empty cell of delimited text.
    return MISSING if may_lack and not value.strip() else cell(kind)(value)


def _item(value: Any, kind: Type, place: int) -> Any:
    try:
        return _converted(value, kind, may_lack=False)
    except RecordError as error:
        raise error.within(f"[{place}]") from None


def _wrapped(value: Any, item: Type) -> list[Any]:
    """The items of a declared array: repeated elements, one alone, or those within one around them."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((name, inside),) = value.items()
        if not isinstance(item, ObjectType) or item.find(name) is None:
            return inside if isinstance(inside, list) else [inside]
    return [] if value == "" else [value]
