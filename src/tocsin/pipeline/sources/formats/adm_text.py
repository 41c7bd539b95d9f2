"""Reads ADM, the original system's text: objects one after the other over any lines, or in arrays.

Balanced braces show where an object ends before it is parsed. So a malformed object is rejected alone, and the reader
finds the next one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

from tocsin.pipeline.sources.pieces import split_records
from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadRecord, ReadRecord
from tocsin.rules.model import adm
from tocsin.rules.model.record_frames import Braces
from tocsin.rules.model.type_check import describe_value


def each(file: BinaryIO, chunk_bytes: int = 1 << 18) -> Iterator[ReadRecord | BadRecord]:
    """Yields the objects of a file, each with the line on which it begins. An unreadable object becomes a BadRecord,
    and the reader goes on if the end of the object is visible."""
    for line, text in frame_objects(file, chunk_bytes):
        if isinstance(line, BadRecord):
            yield line
            continue
        try:
            yield line, parse(text, line), len(text)
        except BadRecord as error:
            yield error


def frame_objects(file: BinaryIO, chunk_bytes: int = 1 << 18) -> Iterator[tuple[int | BadRecord, bytes]]:
    """The texts between balanced braces, each with its line; the last may be an unrecognisable rest."""
    mark = file.read(len(codecs.BOM_UTF8))
    chunks = chain((mark.removeprefix(codecs.BOM_UTF8),), iter(partial(file.read, chunk_bytes), b""))
    at_end = "the file ends inside of the object that begins on this line"
    return split_records(chunks, Braces(RECORD_LIMIT_BYTES), at_end)


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
