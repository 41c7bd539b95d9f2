"""Reads JSON whose records are checked one by one: a broken record is reported while its neighbours pass.

The file has a record per line, or records one after the other (in arrays or not) between balanced braces. The
beginning of the file decides which: if both leave something broken, lines win if one of them is a record.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from tocsin.pipeline.sources.formats import adm_text
from tocsin.pipeline.sources.formats.json_text import NotJson, parse_quickly
from tocsin.pipeline.sources.json_body import line_pieces
from tocsin.pipeline.sources.pieces import BodyLimits
from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadRecord, ReadRecord, too_long
from tocsin.rules.model.record_frames import Braces, FrameError
from tocsin.rules.model.type_check import describe_value

_HEAD_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 16


def each(file: BinaryIO, limit_bytes: int = RECORD_LIMIT_BYTES) -> Iterator[ReadRecord | BadRecord]:
    """The objects of a seekable file, each with the line on which it begins, or what is wrong there."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    return _lines(file, limit_bytes) if _is_by_line(head) else _framed(file)


def _is_by_line(head: bytes) -> bool:
    lines = head.removeprefix(codecs.BOM_UTF8).splitlines()
    if len(head) == _HEAD_BYTES and len(lines) > 1:
        lines.pop()  # the last line may be incomplete
    are_records = [isinstance(_parsed(line), dict | list) for line in lines if line.strip()]
    if not any(are_records):
        return False
    if are_records[0]:
        return True
    return not _is_framed(head.removeprefix(codecs.BOM_UTF8))


def _parsed(line: bytes) -> Any:
    try:
        return parse_quickly(line)
    except ValueError:
        return None


def _is_framed(head: bytes) -> bool:
    """Whether all records that end in these bytes are complete."""
    try:
        texts = Braces(len(head)).feed(head)
    except FrameError:
        return False
    return bool(texts) and all(isinstance(_parsed(text), dict) for text in texts)


def _lines(file: BinaryIO, limit_bytes: int) -> Iterator[ReadRecord | BadRecord]:
    number = 0
    # One byte more than the limit shows whether a line of exactly the limit is complete.
    while line := file.readline(limit_bytes + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > limit_bytes:
            yield too_long(number, limit_bytes)
            while line and not line.endswith(b"\n"):
                line = file.readline(_CHUNK_BYTES)
            continue
        line = line.strip()
        if not line:
            continue
        if line.startswith(b"["):
            # Items are parsed one by one: all values at once would take many times the bytes of the line.
            for piece in line_pieces(line, number, BodyLimits(record_bytes=limit_bytes, records=len(line))):
                yield _item(piece.value, number, piece.text or b"")
            continue
        try:
            value = parse_quickly(line)
        except ValueError as error:
            yield _broken(error, number, line)
            continue
        yield _item(value, number, line)


def _item(value: Any, number: int, text: bytes) -> ReadRecord | BadRecord:
    if value.__class__ is dict:
        return number, value, len(text)
    if isinstance(value, BadRecord):
        value.raw = text
        return value
    return BadRecord(number, f"expected an object, got {describe_value(value)}", raw=text)


def _framed(file: BinaryIO) -> Iterator[ReadRecord | BadRecord]:
    for line, text in adm_text.frame_objects(file):
        if isinstance(line, BadRecord):
            yield line
            continue
        try:
            value = parse_quickly(text)
        except ValueError as error:
            yield _broken(error, line, text)
            continue
        yield line, value, len(text)


def _broken(error: ValueError, line: int, raw: bytes) -> BadRecord:
    if isinstance(error, NotJson):
        return BadRecord(line + error.line - 1, str(error), column=error.column, raw=raw)
    return BadRecord(line, str(error), raw=raw)
