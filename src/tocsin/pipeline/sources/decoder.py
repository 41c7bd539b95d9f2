"""Decodes a published body into records that fit a type, each checked by itself.

    decode = decoder("json", kind)
    for batch in decode(b'{"id": 1}\\n{"id": "x"}\\n'): …
    → [DecodedRecord(0, {"id": 1}), DecodedRecord(1, None, "id", "expected a bigint, got …", b'{"id": "x"}')]

A broken record, or one that does not fit, is rejected with the field and the reason while its neighbours pass, as long
as its end is visible: a line, balanced braces, an item of an array, a row, an element. A body without any recognisable
record raises an InputError that names the place. Nothing here blocks or does I/O.

A record may take fifty times as much memory as its text. Records therefore come in batches: they are counted before
they are parsed, parsed one batch at a time, and only one batch is in memory.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple

import orjson

from tocsin.pipeline.sources.formats import adm_text, delimited_text, xml_text
from tocsin.pipeline.sources.json_body import json_pieces
from tocsin.pipeline.sources.pieces import UNREAD, BodyLimits, BodyPiece, empty_body, split_body, too_many, unreadable
from tocsin.pipeline.sources.reader_types import BadFile, BadRecord, too_long
from tocsin.rules.model.json_form import reader
from tocsin.rules.model.type_check import RecordError
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import InputError

__all__ = ["FORMATS", "BodyLimits", "Decode", "DecodedRecord", "decoder"]

_TEXT_OPTIONS: Final = ("delimiter", "header", "quote", "null")
FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "json": (),
    "adm": (),
    "csv": _TEXT_OPTIONS,
    "delimited-text": _TEXT_OPTIONS,
    "xml": ("record",),
}
"""Each format, and the options that it takes."""


class DecodedRecord(NamedTuple):
    """A record that fits (`record`), or what is wrong (`reason`, at `field`, "" for the whole record) with `raw`: the
    text that was sent, or the closest available form of it.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used here
    record: dict[str, Any] | None
    field: str = ""
    reason: str = ""
    raw: bytes = b""


BATCH_RECORDS: Final = 1_000
BATCH_BYTES: Final = 1 << 18

Decode = Callable[[bytes], Iterator[list[DecodedRecord]]]


def decoder(
    format: str,  # noqa: A002 - what it is everywhere
    type: ObjectType,  # noqa: A002
    *,
    options: Mapping[str, str] | None = None,
    limits: BodyLimits | None = None,
) -> Decode:
    """Returns a function from a body to its records, in order and in batches. Make it once; any thread may use it."""
    name = format.lower()
    chosen_options = options or {}
    if name not in FORMATS:
        raise InputError(f"there is no format {format!r}", hint=f"known: {', '.join(FORMATS)}")
    for option in chosen_options:
        if option not in FORMATS[name]:
            known = ", ".join(FORMATS[name]) or "none"
            raise InputError(f"the format {name} has no option {option!r}", hint=f"known: {known}")
    bounds = limits or BodyLimits()
    check = reader(type)
    if name == "json":
        return lambda body: _check_each(json_pieces(body, bounds), check, bounds)
    if name == "adm":
        return lambda body: _check_each(_adm(body, bounds), check, bounds)
    if name == "xml":
        record = chosen_options.get("record", "").strip()
        return lambda body: _check_each(_xml(body, type, record, bounds), check, bounds)
    form = delimited_text.form_of(chosen_options, header=name == "csv")
    return lambda body: _check_each(_delimited(body, type, form, bounds), check, bounds)


def _check_each(
    pieces: Iterator[BodyPiece], check: Callable[[Any], dict[str, Any]], limits: BodyLimits
) -> Iterator[list[DecodedRecord]]:
    batch: list[DecodedRecord] = []
    batch_bytes = 0
    broken: BadRecord | None = None  # the first broken record, until a readable one is found
    found_any = False
    for index, (value, text, size_bytes) in enumerate(_explained(pieces)):
        if index == limits.records:
            raise too_many(limits)
        field = ""
        if isinstance(value, BadRecord):
            broken = broken or value
            found_any = found_any or bool(value.field)
            field, reason = value.field, value.reason
        elif value is UNREAD:
            found_any = True
            reason = too_long(0, limits.record_bytes).reason
        else:
            found_any = True
            try:
                batch.append(DecodedRecord(index, check(value)))
                reason = ""
            except RecordError as error:
                field, reason = error.field, error.reason
        if reason:
            batch.append(DecodedRecord(index, None, field, reason, _raw(value, text)[: limits.record_bytes]))
        batch_bytes += size_bytes
        if len(batch) == BATCH_RECORDS or batch_bytes >= BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if broken is not None and not found_any:
        raise unreadable(broken)
    if batch:
        yield batch


def _explained(pieces: Iterator[BodyPiece]) -> Iterator[BodyPiece]:
    """The same pieces. Raises InputError where no further piece can be recognised."""
    try:
        yield from pieces
    except BadRecord as error:
        raise unreadable(error) from None


def _raw(value: Any, text: bytes | None) -> bytes:
    if text is not None:
        return text
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:  # a number beyond 64 bits, a lone surrogate, too many levels
        return b""


# ---------------------------------------------------------------- the other formats


def _adm(body: bytes, limits: BodyLimits) -> Iterator[BodyPiece]:
    text = body.removeprefix(BOM_UTF8)
    if not text.strip():
        raise empty_body()
    for line, piece in split_body(text):
        if isinstance(line, BadRecord):
            yield BodyPiece(line, piece, len(piece))
        elif len(piece) > limits.record_bytes:
            yield BodyPiece(UNREAD, piece, len(piece))
        else:
            try:
                yield BodyPiece(adm_text.parse(piece, line), piece, len(piece))
            except BadRecord as error:
                yield BodyPiece(error, piece, len(piece))


def _delimited(
    body: bytes, kind: ObjectType, form: delimited_text.DelimitedFormat, limits: BodyLimits
) -> Iterator[BodyPiece]:
    if not body.strip():
        raise empty_body()
    try:
        for row in delimited_text.each(BytesIO(body), kind, form, limit_bytes=limits.record_bytes):
            if isinstance(row, BadRecord):
                yield BodyPiece(row, row.raw, len(row.raw))
            elif row[2] > limits.record_bytes:
                yield BodyPiece(too_long(row[0], limits.record_bytes), b"", row[2])
            else:
                yield BodyPiece(row[1], None, row[2])
    except BadFile as error:
        raise InputError(f"the body cannot be read: {error}") from None


def _xml(body: bytes, kind: ObjectType, record: str, limits: BodyLimits) -> Iterator[BodyPiece]:
    if not body.strip():
        raise empty_body()
    for element in xml_text.find_elements(BytesIO(body), record, limits.record_bytes):
        if element.size_bytes > limits.record_bytes:
            yield BodyPiece(too_long(element.line, limits.record_bytes), b"", element.size_bytes)
            continue
        try:
            yield BodyPiece(xml_text.parse(element, kind), None, element.size_bytes)
        except BadRecord as error:
            yield BodyPiece(error, error.raw, element.size_bytes)
