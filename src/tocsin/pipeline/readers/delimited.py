"""Delimited text: quoted cells, a header or the type's own fields, each cell read as the type of its field."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from tocsin.pipeline.readers.found import RECORD_LIMIT_BYTES, BadFile, BadRecord, Found, not_utf8, too_long
from tocsin.pipeline.readers.json_text import parse
from tocsin.rules.model.checking import RecordError, field_step, shown
from tocsin.rules.model.jsonform import NONFINITE
from tocsin.rules.model.types import (
    BOOLEAN,
    INTEGERS,
    NUMBERS,
    STRING,
    AnyType,
    ArrayType,
    MultisetType,
    ObjectType,
    Type,
)

# The module has one limit for the whole process; its default of 128 KiB is less than a record may have.
csv.field_size_limit(RECORD_LIMIT_BYTES)

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

_Cell = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Form:
    """How the text is written. `null` stands for MISSING in optional and undeclared fields; `quote` "" for none."""

    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    null: str | None = None


def read(file: BinaryIO, kind: ObjectType, form: Form, generated: str | None = None) -> Iterator[Found]:
    """The rows of a file as objects. Without a header the columns are the declared fields in their order, where the
    file may leave out the `generated` one."""
    rows = csv.reader(
        _lines(file),
        delimiter=form.delimiter,
        quotechar=form.quote or None,
        quoting=csv.QUOTE_MINIMAL if form.quote else csv.QUOTE_NONE,
        strict=True,
    )
    columns: list[tuple[str, bool, _Cell]] | None = None
    while True:
        first_line = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise BadRecord(first_line, f"is not delimited text: {error}") from None
        if not row:
            continue
        if columns is None:
            columns = [_column(name, kind, form) for name in _names(row, kind, form, generated)]
            if form.header:
                continue
        if len(row) != len(columns):
            raise BadRecord(first_line, f"has {len(row)} columns, expected {len(columns)}{_hint(row, columns, form)}")
        record: dict[str, Any] = {}
        name = ""
        try:
            for (name, may_lack, convert), text in zip(columns, row, strict=True):
                if may_lack and (text == form.null or (not text and convert is not _text)):
                    continue
                record[name] = convert(text)
        except RecordError as error:
            raise BadRecord(first_line, error.reason, field_step(name)) from None
        yield first_line, record, sum(map(len, row))


def _names(row: Sequence[str], kind: ObjectType, form: Form, generated: str | None) -> Sequence[str]:
    if form.header:
        repeated = next((name for place, name in enumerate(row) if name in row[:place]), None)
        if repeated is not None:
            raise BadFile(f"its header names the column {field_step(repeated)} twice")
        return row
    names = [field.name for field in kind.fields]
    if not names:
        raise BadFile("it has no header, and the type declares no fields that could name its columns")
    if len(row) == len(names) - 1 and generated in names:
        names.remove(generated)
    return names


def _hint(row: Sequence[str], columns: Sequence[object], form: Form) -> str:
    return f' (is "{form.delimiter}" the delimiter?)' if len(row) == 1 < len(columns) else ""


def _column(name: str, kind: ObjectType, form: Form) -> tuple[str, bool, _Cell]:
    field = kind.find(name)
    if field is not None:
        return name, field.optional, _cell(field.type)
    if not kind.open:
        known = ", ".join(declared.name for declared in kind.fields)
        where = "its header names a column" if form.header else "it has a column"
        raise BadFile(f"{where} {field_step(name)}, which is not a field of the closed type; it declares {known}")
    return name, True, _text


def _lines(file: BinaryIO) -> Iterator[str]:
    number = 0
    # One more than the limit, so that a line of exactly the limit is known to be whole.
    while line := file.readline(RECORD_LIMIT_BYTES + 1):
        number += 1
        if len(line) > RECORD_LIMIT_BYTES:
            raise too_long(number)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if b"\0" in line:
            raise BadRecord(number, "holds a NUL byte, which text does not")
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise not_utf8(number) from None


# ---------------------------------------------------------------- the text of one cell → what JSON would have said


def _cell(kind: Type) -> _Cell:
    if kind in INTEGERS:
        return _whole
    if kind in NUMBERS:
        return _number
    if kind == BOOLEAN:
        return _boolean
    if isinstance(kind, ObjectType | ArrayType | MultisetType):
        return _json
    if kind == STRING or isinstance(kind, AnyType):
        return _text
    return _constructor


def _text(text: str) -> str:
    return text


def _constructor(text: str) -> str:
    """Of a type whose JSON form may be the text of its constructor, which is what stands in the cell."""
    return text


def _whole(text: str) -> int:
    if _WHOLE.fullmatch(text.strip()) is None:
        raise RecordError("", f"expected a whole number, got {shown(text)}")
    return int(text)


def _number(text: str) -> float:
    text = text.strip()
    if text in NONFINITE:
        return NONFINITE[text]
    if _NUMBER.fullmatch(text) is None:
        raise RecordError("", f"expected a number, got {shown(text)}")
    number = float(text)
    if number in (NONFINITE["Infinity"], NONFINITE["-Infinity"]):
        raise RecordError("", f"{shown(text)} does not fit into a double")
    return number


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise RecordError("", f"expected true or false, got {shown(text)}")
    return word == "true"


def _json(text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise RecordError("", str(error)) from None
