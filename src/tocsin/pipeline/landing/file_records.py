"""Reads the records of an arrived file, each checked by itself, in pieces of bounded size.

A file yields the same pieces whenever it is read. A broken record, or one that does not fit, is rejected with its file
and line while its neighbours pass. An unreadable rest of a file, or an unreadable file, is reported the same way.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tocsin.pipeline.sources import load_files
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.pipeline.sources.formats import adm_text, delimited_text, json_each, parquet, xml_text
from tocsin.pipeline.sources.reader_types import BadFile, BadRecord, ReadRecord
from tocsin.rules.model.json_form import plain, reader
from tocsin.rules.model.type_check import RecordError
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import InputError

FORMATS: Final = load_files.FORMATS
_SHOWN_BYTES: Final = 1 << 20  # of a rejected record
# Passing errors of the machine, not of the file: the file is read again.
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The format of the files, with its options."""

    format: str
    form: delimited_text.DelimitedFormat
    record: str = ""  # the element of a record in XML


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some records of a file, in their order, counted from 0 in this part."""

    records: list[DecodedRecord]
    size_bytes: int
    is_last: bool


def check_format(format: str, options: Mapping[str, str]) -> FileFormat:  # noqa: A002 - what it is everywhere
    """Parses the options of the format. Raises InputError if an option makes no sense."""
    return FileFormat(
        format, delimited_text.form_of(options, header=format == "csv"), options.get("record", "").strip()
    )


def parts(
    path: Path, how: FileFormat, kind: ObjectType, *, most_rows: int = 20_000, most_bytes: int = 8 << 20
) -> Iterator[FilePart]:
    """Yields the file in parts; an empty file has none. Memory does not grow with the file."""
    waiting: FilePart | None = None
    records: list[DecodedRecord] = []
    size_bytes = 0
    for decoded, bytes_ in _judged(path, how, kind):
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


def _judged(path: Path, how: FileFormat, kind: ObjectType) -> Iterator[tuple[DecodedRecord, int]]:
    check = reader(kind)
    unit = "record" if how.format == "parquet" else "line"
    try:
        for item in _each(path, how, kind):
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


def _each(path: Path, how: FileFormat, kind: ObjectType) -> Iterator[ReadRecord | BadRecord]:
    if how.format == "parquet":
        with load_files.open_unpacked(path):
            yield from parquet.each(path)
        return
    with load_files.open_unpacked(path) as file:
        if how.format == "json":
            yield from json_each.each(file)
        elif how.format == "adm":
            yield from adm_text.each(file)
        elif how.format == "xml":
            yield from xml_text.each(file, kind, how.record)
        else:
            yield from delimited_text.each(file, kind, how.form)


def _text(record: Any) -> bytes:
    try:
        return orjson.dumps(plain(record))
    except (TypeError, ValueError, RecursionError):  # a value of no type here, a lone surrogate
        return repr(record).encode("utf-8", "replace")
