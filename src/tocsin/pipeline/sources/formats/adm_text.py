"""Reads ADM, the original system's text: objects one after the other over any lines, or in arrays."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadRecord, ReadRecord
from tocsin.rules.model import adm
from tocsin.rules.model.record_frames import Braces, FrameError
from tocsin.rules.model.type_check import describe_value

_CHUNK_BYTES: Final = 1 << 18


def read(file: BinaryIO) -> Iterator[ReadRecord]:
    """The objects of a file, each with the line on which it begins."""
    for item in each(file):
        if isinstance(item, BadRecord):
            raise item
        yield item


def each(file: BinaryIO) -> Iterator[ReadRecord | BadRecord]:
    """Like `read`, but yields an unreadable object as a BadRecord and goes on, if the end of the object is visible."""
    for line, text in frame_objects(file):
        if isinstance(line, BadRecord):
            yield line
            continue
        try:
            yield line, parse(text, line), len(text)
        except BadRecord as error:
            yield error


def frame_objects(file: BinaryIO) -> Iterator[tuple[int | BadRecord, bytes]]:
    """The texts between balanced braces, each with its line; the last may be an unrecognisable rest."""
    braces = Braces(RECORD_LIMIT_BYTES)
    mark = file.read(len(codecs.BOM_UTF8))
    chunk = (b"" if mark == codecs.BOM_UTF8 else mark) + file.read(_CHUNK_BYTES)
    while chunk:
        try:
            records = braces.numbered(chunk)
        except FrameError as error:
            yield from error.numbered
            yield BadRecord(error.line, error.reason), b""
            return
        yield from records
        chunk = file.read(_CHUNK_BYTES)
    rest = braces.finish()
    if rest is not None:
        yield BadRecord(braces.begun_on, "the file ends inside of the object that begins on this line", raw=rest), rest


def parse(text: bytes, line: int = 1) -> dict[str, Any]:
    """Parses the object that begins on `line`. The BadRecord says where it is malformed."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(line + text.count(b"\n", 0, error.start), "is not UTF-8 text", raw=text) from None
    try:
        value = adm.loads(decoded)
    except adm.AdmError as error:
        before = decoded[: error.offset]
        column = len(before) - before.rfind("\n")
        raise BadRecord(line + before.count("\n"), f"is not ADM: {error.reason}", column=column, raw=text) from None
    if value.__class__ is not dict:
        raise BadRecord(line, f"expected an object, got {describe_value(value)}", raw=text)
    return value
