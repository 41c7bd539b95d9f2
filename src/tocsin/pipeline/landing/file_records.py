"""Reads the records of an arrived file, each checked by itself, in pieces of bounded size.

A file yields the same pieces whenever it is read. A broken record, or one that does not fit, is rejected with its file
and line while its neighbours pass. An unreadable rest of a file, or an unreadable file, is reported the same way.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.pipeline.sources.formats import json_each
from tocsin.pipeline.sources.load_files import FileFormat, read_records
from tocsin.pipeline.sources.reader_types import BadFile, BadRecord
from tocsin.rules.model.json_form import plain, reader
from tocsin.rules.model.type_check import RecordError
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import InputError

_SHOWN_BYTES: Final = 1 << 20  # of a rejected record
# Passing errors of the machine, not of the file: the file is read again.
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some records of a file, in their order, counted from 0 in this part."""

    records: list[DecodedRecord]
    size_bytes: int
    is_last: bool


def parts(
    path: Path, how: FileFormat, kind: ObjectType, *, most_rows: int = 20_000, most_bytes: int = 8 << 20
) -> Iterator[FilePart]:
    """Yields the file in parts; an empty file has none. Memory does not grow with the file."""
    waiting: FilePart | None = None
    records: list[DecodedRecord] = []
    size_bytes = 0
    for decoded, bytes_ in _check_each(path, how, kind):
        if len(records) >= most_rows or size_bytes >= most_bytes:
            if waiting is not None:
                yield waiting
            waiting = FilePart(records, size_bytes, is_last=False)
            records, size_bytes = [], 0
        records.append(decoded._replace(index=len(records)))
        size_bytes += bytes_
    if waiting is not None:
        yield waiting
    if records:
        yield FilePart(records, size_bytes, is_last=True)


def _check_each(path: Path, how: FileFormat, kind: ObjectType) -> Iterator[tuple[DecodedRecord, int]]:
    check = reader(kind)
    unit = how.unit
    try:
        for item in read_records(path, how, kind, json_each.each):
            if isinstance(item, BadRecord):
                reason = f"{path}, {unit} {item.place}: {item.reason}"
                raw = item.raw[:_SHOWN_BYTES]
                yield DecodedRecord(0, None, item.field, reason, raw), len(raw)
                continue
            place, record, size_bytes = item
            try:
                yield DecodedRecord(0, check(record)), size_bytes
            except RecordError as error:
                reason = f"{path}, {unit} {place}: {error.reason}"
                yield DecodedRecord(0, None, error.field, reason, _text(record)[:_SHOWN_BYTES]), size_bytes
    except BadFile as error:
        yield DecodedRecord(0, None, "", f"{path} cannot be read: {error}"), 0
    except InputError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING:
            raise
        yield DecodedRecord(0, None, "", error.message), 0


def _text(record: Any) -> bytes:
    try:
        return orjson.dumps(plain(record))
    except (TypeError, ValueError, RecursionError):  # a value of no type here, a lone surrogate
        return repr(record).encode("utf-8", "replace")
