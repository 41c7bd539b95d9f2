"""Reads XML: the elements of one name become records.

    <reports><report id="7"><place>1,2</place><tag>a</tag><tag>b</tag></report></reports>
    → {"id": 7, "place": point("1,2"), "tag": ["a", "b"]}

Attributes and nested elements become fields, under their names without a namespace; a repeated name becomes an array,
in the order of the file. An element with neither is its text, white space included; text beside fields becomes the
field `_text`. An array may also have an enclosing element (`<tags><tag>a</tag></tags>` for `tags: [string]`). Declared
fields are read like delimited text; undeclared fields stay text. `xsi:nil="true"` is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from tocsin.pipeline.sources.formats.delimited_text import cell
from tocsin.pipeline.sources.formats.xml_elements import Element, elements
from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadRecord, ReadRecord
from tocsin.rules.model.type_check import RecordError, field_step
from tocsin.rules.model.types import STRING, AnyType, ArrayType, MultisetType, ObjectType, Type
from tocsin.rules.model.values import MISSING, Multiset

TEXT_FIELD: Final = "_text"
_NIL: Final = ("http://www.w3.org/2001/XMLSchema-instance", "nil")


def each(file: BinaryIO, kind: ObjectType, record: str = "") -> Iterator[ReadRecord | BadRecord]:
    """Yields the records of a file, each with the line on which it begins. An element that is no record becomes a
    BadRecord. The reader ends if the file is not XML."""
    try:
        for element in find_elements(file, record):
            try:
                yield element.line, parse(element, kind), element.size_bytes
            except BadRecord as error:
                yield error
    except BadRecord as error:
        yield error


def find_elements(file: BinaryIO, record: str = "", limit_bytes: int = RECORD_LIMIT_BYTES) -> Iterator[Element]:
    """The elements named `record` at any depth; without a name the elements directly in the root."""
    return elements(file, lambda _, name, depth: name == record if record else depth == 2, limit_bytes)


def parse(element: Element, kind: ObjectType) -> dict[str, Any]:
    """Converts an element to a record. The BadRecord names the field that does not fit its type."""
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
    """Converts an element to text, lists and dicts."""
    if element.attributes.get(_NIL) in ("true", "1"):
        return None
    text = element.text
    fields: dict[str, Any] = {}
    repeated: set[str] = set()
    attributes = [(name, value) for (space, name), value in element.attributes.items() if (space, name) != _NIL]
    for name, value in (*attributes, *((child.name, _plain(child)) for child in element.children)):
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


# ---------------------------------------------------------------- plain → what JSON would contain


def _object(value: dict[str, Any], kind: ObjectType) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, member in value.items():
        declared = kind.find(name)
        if declared is None:
            record[name] = member
            continue
        try:
            converted = _converted(member, declared.type, may_lack=declared.optional)
        except RecordError as error:
            raise error.within(field_step(name)) from None
        if converted is not MISSING:
            record[name] = converted
    return record


def _converted(value: Any, kind: Type, *, may_lack: bool) -> Any:
    if value is None:
        return None
    if isinstance(kind, ArrayType | MultisetType):
        items = [_item(item, kind.item, index) for index, item in enumerate(_wrapped(value, kind.item))]
        return Multiset(items) if isinstance(kind, MultisetType) else items
    if isinstance(kind, ObjectType):
        return _object(value, kind) if isinstance(value, dict) else {} if value == "" else value
    if not isinstance(value, str) or kind == STRING or isinstance(kind, AnyType):
        return value
    # An empty element counts like an empty cell of delimited text.
    return MISSING if may_lack and not value.strip() else cell(kind)(value)


def _item(value: Any, kind: Type, place: int) -> Any:
    try:
        return _converted(value, kind, may_lack=False)
    except RecordError as error:
        raise error.within(f"[{place}]") from None


def _wrapped(value: Any, item: Type) -> list[Any]:
    """The items of a declared array: repeated elements, a single element, or the children of an enclosing element."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((name, items),) = value.items()
        if not isinstance(item, ObjectType) or item.find(name) is None:
            return items if isinstance(items, list) else [items]
    return [] if value == "" else [value]
