"""What a publisher sent, as records that fit a type, each judged by itself.

    decode = decoder("json", kind)
    decode(b'{"id": 1}\\n{"id": "x"}\\n')
    → [Decoded(0, {"id": 1}), Decoded(1, None, "id", "expected a bigint, got …", b'{"id": "x"}')]

A record that is broken or does not fit is refused with the field and the reason, and its neighbours pass, as long as it
can be seen where it ends: a line, balanced braces, an item of an array, a row, an element. A body in which no record at
all can be found is an InputError that names the place. Nothing here waits, reads or writes.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, NamedTuple

import orjson

from tocsin.pipeline.readers import adm_text, delimited, json_text, xml_text
from tocsin.pipeline.readers.found import BadFile, BadRecord, too_long
from tocsin.rules.model.checking import RecordError
from tocsin.rules.model.framing import Braces, FrameError
from tocsin.rules.model.jsonform import reader
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import InputError, LimitError

_TEXT_OPTIONS: Final = ("delimiter", "header", "quote", "null")
FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "json": (),
    "adm": (),
    "csv": _TEXT_OPTIONS,
    "delimited-text": _TEXT_OPTIONS,
    "xml": ("record",),
}
"""Each format, and the options that it takes."""


class Decoded(NamedTuple):
    """A record that fits (`record`), or what is wrong (`reason`, at `field`, which is "" for the whole) with `raw`, the
    text that was sent or as near to it as can be had."""

    index: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs here
    record: dict[str, Any] | None
    field: str = ""
    reason: str = ""
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Limits:
    """A longer record is refused by itself; with more records the body is refused."""

    record_bytes: int = 1 << 20
    records: int = 100_000


Decode = Callable[[bytes], list[Decoded]]
# A value and its text, or why there is none and the text. The text of a value may be left out (None).
_Piece = tuple[Any, bytes | None] | tuple[BadRecord, bytes]


def decoder(
    format: str,  # noqa: A002 - what it is everywhere
    type: ObjectType,  # noqa: A002
    *,
    options: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Decode:
    """A function from a body to its records, in their order. Make once, use often, from any thread."""
    name = format.lower()
    given = options or {}
    if name not in FORMATS:
        raise InputError(f"there is no format {format!r}", hint=f"known: {', '.join(FORMATS)}")
    for option in given:
        if option not in FORMATS[name]:
            known = ", ".join(FORMATS[name]) or "none"
            raise InputError(f"the format {name} has no option {option!r}", hint=f"known: {known}")
    bounds = limits or Limits()
    check = reader(type)
    if name == "json":
        return lambda body: _judged(_json(body, bounds), check, bounds)
    if name == "adm":
        return lambda body: _judged(_adm(body), check, bounds)
    if name == "xml":
        record = given.get("record", "").strip()
        return lambda body: _judged(_xml(body, type, record, bounds), check, bounds)
    form = delimited.form_of(given, header=name == "csv")
    return lambda body: _judged(_delimited(body, type, form, bounds), check, bounds)


def _judged(
    pieces: Iterator[_Piece] | list[_Piece], check: Callable[[Any], dict[str, Any]], limits: Limits
) -> list[Decoded]:
    decoded: list[Decoded] = []
    broken: BadRecord | None = None  # the first one, as long as there was nothing better
    found_any = False
    for index, (value, text) in enumerate(pieces):
        if index == limits.records:
            raise LimitError(f"the body holds more than {limits.records} records", hint="send it in parts")
        field = ""
        if isinstance(value, BadRecord):
            broken = broken or value
            found_any = found_any or bool(value.field)
            field, reason = value.field, value.reason
        elif text is not None and len(text) > limits.record_bytes:
            found_any = True
            reason = too_long(0, limits.record_bytes).reason
        else:
            found_any = True
            try:
                decoded.append(Decoded(index, check(value)))
                continue
            except RecordError as error:
                field, reason = error.field, error.reason
        decoded.append(Decoded(index, None, field, reason, _raw(value, text)[: limits.record_bytes]))
    if broken is not None and not found_any:
        raise _unreadable(broken)
    return decoded


def _raw(value: Any, text: bytes | None) -> bytes:
    if text is not None:
        return text
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:  # a number beyond 64 bits, half of a surrogate pair, too many levels
        return b""


def _unreadable(error: BadRecord) -> InputError:
    return InputError(f"the body cannot be read: {error.reason}", line=error.place, column=error.column)


def _empty() -> InputError:
    return InputError("the body is empty", hint="send one record or more")


# ---------------------------------------------------------------- JSON


def _json(body: bytes, limits: Limits) -> list[_Piece]:
    """An array, or a record per line, or records one after the other over any lines. Where the last two both leave
    something broken, the lines decide if one of them is a record."""
    text = body.removeprefix(BOM_UTF8)
    begun = text.lstrip(b" \t\r\n")
    if not begun:
        raise _empty()
    if begun.startswith(b"["):
        try:
            return _items(json_text.parse_quickly(text), len(text), limits)
        except ValueError as error:
            several = _by_line(text, limits, only_whole=True) or _elements(text)
            if several is None:
                raise _unreadable(_broken(error, 1)) from None
            return several
    whole = _by_line(text, limits, only_whole=True)
    if whole is not None:
        return whole
    by_brace, is_whole = _by_brace(text)
    if is_whole:
        return by_brace
    by_line = _by_line(text, limits) or []
    return by_line if any(value.__class__ is dict for value, _ in by_line) else by_brace


def _by_line(text: bytes, limits: Limits, *, only_whole: bool = False) -> list[_Piece] | None:
    """A value per line; None where one is broken and `only_whole` are wanted."""
    pieces: list[_Piece] = []
    parse = json_text.parse_quickly
    for number, line in enumerate(text.split(b"\n"), 1):
        try:
            value = parse(line)
        except ValueError as error:
            if line.strip():
                if only_whole:
                    return None
                pieces.append((_broken(error, number), line))
            continue
        if value.__class__ is list:
            pieces += _items(value, len(line), limits)
        else:
            pieces.append((value, line))
    return pieces


def _by_brace(text: bytes) -> tuple[list[_Piece], bool]:
    pieces: list[_Piece] = []
    is_whole = True
    for line, piece in _framed(text):
        if isinstance(line, BadRecord):
            is_whole = False
            pieces.append((line, piece))
            continue
        try:
            pieces.append((json_text.parse_quickly(piece), piece))
        except ValueError as error:
            is_whole = False
            pieces.append((_broken(error, line), piece))
    return pieces, is_whole


def _elements(text: bytes) -> list[_Piece] | None:
    """The objects of an array, the broken ones among them; None where the array itself is not whole: who sends one
    that breaks off does not expect that what came through counts."""
    pieces, _ = _by_brace(text)
    around: list[bytes] = []
    at = 0
    for _, piece in pieces:
        if not piece:
            return None
        start = text.index(piece, at)
        around.append(text[at:start])
        at = start + len(piece)
    try:
        shape = json_text.parse_quickly(b"0".join([*around, text[at:]]))
    except ValueError:
        return None
    return pieces if shape == [0] * len(pieces) else None


def _items(values: list[Any], size_bytes: int, limits: Limits) -> list[_Piece]:
    # Their texts are made again only where one of them may be too long.
    if size_bytes <= limits.record_bytes:
        return [(value, None) for value in values]
    return [(value, _raw(value, None)) for value in values]


def _broken(error: ValueError, line: int) -> BadRecord:
    if isinstance(error, json_text.NotJson):
        return BadRecord(line + error.line - 1, str(error), column=error.column)
    return BadRecord(line, str(error))


# ---------------------------------------------------------------- the other formats


def _adm(body: bytes) -> Iterator[_Piece]:
    text = body.removeprefix(BOM_UTF8)
    if not text.strip():
        raise _empty()
    for line, piece in _framed(text):
        if isinstance(line, BadRecord):
            yield line, piece
            continue
        try:
            yield adm_text.parse(piece, line), piece
        except BadRecord as error:
            yield error, piece


def _framed(text: bytes) -> Iterator[tuple[int | BadRecord, bytes]]:
    """The records between balanced braces, each with its line; the last may be what cannot be told apart."""
    braces = Braces(len(text))
    try:
        found = braces.numbered(text)
    except FrameError as error:
        yield from error.numbered
        yield BadRecord(error.line, error.reason), b""
        return
    yield from found
    rest = braces.finish()
    if rest is not None:
        yield BadRecord(braces.begun_on, "the body ends inside of the record that begins here"), rest


def _delimited(body: bytes, kind: ObjectType, form: delimited.Form, limits: Limits) -> Iterator[_Piece]:
    if not body.strip():
        raise _empty()
    try:
        for row in delimited.each(BytesIO(body), kind, form, limit_bytes=limits.record_bytes):
            if isinstance(row, BadRecord):
                yield row, row.raw
            elif row[2] > limits.record_bytes:
                yield too_long(row[0], limits.record_bytes), b""
            else:
                yield row[1], None
    except BadFile as error:
        raise InputError(f"the body cannot be read: {error}") from None


def _xml(body: bytes, kind: ObjectType, record: str, limits: Limits) -> Iterator[_Piece]:
    if not body.strip():
        raise _empty()
    try:
        for element in xml_text.found(BytesIO(body), record, limits.record_bytes):
            if element.size_bytes > limits.record_bytes:
                yield too_long(element.line, limits.record_bytes), b""
                continue
            try:
                yield xml_text.parse(element, kind), None
            except BadRecord as error:
                yield error, error.raw
    except BadRecord as error:
        raise _unreadable(error) from None
