"""Reads delimited text: quoted cells, a header or the type's own fields, each cell read as the type of its field.

A row that cannot be read is rejected alone. The lines therefore come from an iterator of our own: a generator would end
at the first line that is not text.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from tocsin.pipeline.sources.formats.json_text import parse
from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadFile, BadRecord, ReadRecord, not_utf8, too_long
from tocsin.rules.model import types
from tocsin.rules.model.json_form import NONFINITE
from tocsin.rules.model.type_check import RecordError, describe_value, field_step
from tocsin.rules.model.values import NUMBER
from tocsin.wire.errors import InputError

# The csv module has one limit for the whole process; its default of 128 KiB is less than a record may have.
csv.field_size_limit(RECORD_LIMIT_BYTES)

_CHUNK_BYTES: Final = 1 << 16
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,400}")

_Cell = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class DelimitedFormat:
    """The options. `null` means MISSING in optional and undeclared fields; a `quote` of "" means no quoting."""

    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    null: str | None = None


def form_of(options: Mapping[str, str], *, header: bool) -> DelimitedFormat:
    """Parses the options `delimiter`, `quote`, `header` and `null`. Raises InputError if an option makes no sense."""
    delimiter = options.get("delimiter", ",").replace("\\t", "\t")
    quote = options.get("quote", '"')
    if len(delimiter) != 1 or delimiter in "\r\n\0":
        raise InputError(f"the delimiter must be one character, got {delimiter!r}")
    if len(quote) > 1 or (quote and quote in "\r\n\0"):
        raise InputError(f"the quote must be one character, or empty for none, got {quote!r}")
    if quote == delimiter:
        raise InputError(f"the quote and the delimiter are both {quote!r}")
    header_text = options.get("header", str(header)).strip().lower()
    if header_text not in ("true", "false"):
        raise InputError(f"the option header must be true or false, got {options['header']!r}")
    return DelimitedFormat(delimiter, header_text == "true", quote, options.get("null"))


def each(
    file: BinaryIO,
    kind: types.ObjectType,
    form: DelimitedFormat,
    generated: str | None = None,
    limit_bytes: int = RECORD_LIMIT_BYTES,
) -> Iterator[ReadRecord | BadRecord]:
    """Yields the rows of a file as objects. An unreadable row becomes a BadRecord.

    Without a header the columns are the declared fields in order; the file may leave out the `generated` field.
    """
    lines = _LineIterator(file, limit_bytes)
    rows = csv.reader(
        lines,
        delimiter=form.delimiter,
        quotechar=form.quote or None,
        quoting=csv.QUOTE_MINIMAL if form.quote else csv.QUOTE_NONE,
        strict=True,
    )
    columns: list[tuple[str, bool, _Cell]] | None = None
    while True:
        first_line = lines.number + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield BadRecord(first_line, f"is not delimited text: {error}", raw=lines.last)
            continue
        except BadRecord as error:
            error.raw = lines.last
            yield error
            continue
        if not row:
            continue
        if columns is None:
            columns = [_column(name, kind, form) for name in _names(row, kind, form, generated)]
            if form.header:
                continue
        if len(row) != len(columns):
            reason = f"has {len(row)} columns, expected {len(columns)}{_hint(row, columns, form)}"
            yield BadRecord(first_line, reason, raw=lines.last)
            continue
        record: dict[str, Any] = {}
        name = ""
        try:
            for (name, may_lack, convert), text in zip(columns, row, strict=True):
                if may_lack and (text == form.null or (not text and convert is not _text)):
                    continue
                record[name] = convert(text)
        except RecordError as error:
            yield BadRecord(first_line, error.reason, field_step(name), raw=lines.last)
            continue
        yield first_line, record, sum(map(len, row))


def _names(row: Sequence[str], kind: types.ObjectType, form: DelimitedFormat, generated: str | None) -> Sequence[str]:
    if form.header:
        repeated = next((name for position, name in enumerate(row) if name in row[:position]), None)
        if repeated is not None:
            raise BadFile(f"its header names the column {field_step(repeated)} twice")
        return row
    names = [field.name for field in kind.fields]
    if not names:
        raise BadFile("it has no header, and the type declares no fields that could name its columns")
    if len(row) == len(names) - 1 and generated in names:
        names.remove(generated)
    return names


def _hint(row: Sequence[str], columns: Sequence[object], form: DelimitedFormat) -> str:
    return f' (is "{form.delimiter}" the delimiter?)' if len(row) == 1 < len(columns) else ""


def _column(name: str, kind: types.ObjectType, form: DelimitedFormat) -> tuple[str, bool, _Cell]:
    field = kind.find(name)
    if field is not None:
        return name, field.optional, cell(field.type)
    if not kind.open:
        known = ", ".join(declared.name for declared in kind.fields)
        where = "its header names a column" if form.header else "it has a column"
        raise BadFile(f"{where} {field_step(name)}, which is not a field of the closed type; it declares {known}")
    return name, True, _text


class _LineIterator:
    """The lines of a file. Not a generator, which would end at the first line that is not text."""

    def __init__(self, file: BinaryIO, limit_bytes: int) -> None:
        self._file = file
        self._limit_bytes = limit_bytes
        self.number = 0
        self.last = b""
        self._is_inside = False  # within a line that is too long

    def __iter__(self) -> _LineIterator:
        return self

    def __next__(self) -> str:
        while self._is_inside:
            rest = self._file.readline(_CHUNK_BYTES)
            self._is_inside = bool(rest) and not rest.endswith(b"\n")
        # One byte more than the limit shows whether a line of exactly the limit is complete.
        line = self._file.readline(self._limit_bytes + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.last = line
        if len(line) > self._limit_bytes:
            self._is_inside = not line.endswith(b"\n")
            raise too_long(self.number, self._limit_bytes)
        if self.number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if b"\0" in line:
            raise BadRecord(self.number, "holds a NUL byte, which text does not")
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise not_utf8(self.number) from None


# ---------------------------------------------------------------- the text of one cell → what JSON would contain


def cell(kind: types.Type) -> _Cell:
    """Returns the function that parses a cell of this type. Its RecordError says what was expected."""
    if kind in types.INTEGERS:
        return _whole
    if kind in types.NUMBERS:
        return _number
    if kind == types.BOOLEAN:
        return _boolean
    if isinstance(kind, types.ObjectType | types.ArrayType | types.MultisetType):
        return _json
    if kind == types.STRING or isinstance(kind, types.AnyType):
        return _text
    return _constructor


def _text(text: str) -> str:
    return text


def _constructor(text: str) -> str:
    """For a type whose JSON form may be the text of its constructor: the cell has that text."""
    return text


def _whole(text: str) -> int:
    if _WHOLE.fullmatch(text.strip()) is None:
        raise RecordError("", f"expected a whole number, got {describe_value(text)}")
    return int(text)


def _number(text: str) -> float:
    text = text.strip()
    if text in NONFINITE:
        return NONFINITE[text]
    if NUMBER.fullmatch(text) is None:
        raise RecordError("", f"expected a number, got {describe_value(text)}")
    number = float(text)
    if number in (NONFINITE["Infinity"], NONFINITE["-Infinity"]):
        raise RecordError("", f"{describe_value(text)} does not fit into a double")
    return number


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise RecordError("", f"expected true or false, got {describe_value(text)}")
    return word == "true"


def _json(text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise RecordError("", str(error)) from None
