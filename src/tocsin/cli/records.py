"""Splits a text into records, so that a long text can be sent in parts.

    json             one record per line if the first line is a record, otherwise as adm
    adm              from each "{" to the "}" that balances it
    csv              one row per line; a quoted cell may span several lines
    delimited-text   as csv
    xml and others   the whole text is one record

Records are neither validated nor changed: the cluster reports what is wrong with them.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final, Literal, Protocol

from tocsin.rules.model.record_frames import Braces, FrameError
from tocsin.wire.errors import InputError, LimitError

RecordFormat = Literal["json", "adm", "csv", "delimited-text", "xml"]

_PIECE_LIMIT_BYTES: Final = 64 << 20


class RecordCutter(Protocol):
    """Yields complete records. Raises InputError at text that is no record, after the records before it."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    def finish(self) -> Iterator[bytes]: ...


def cutter(format: str, quote: str = '"') -> RecordCutter:  # noqa: A002 - the setting of a feed has this name
    """Returns the splitter for a format; `quote` is the quote character of cells, "" if there is none."""
    if format == "json":
        return _Json()
    if format == "adm":
        return _BraceCutter()
    return _LineCutter(quote.encode()) if format in ("csv", "delimited-text") else _Whole()


class _LineCutter:
    def __init__(self, quote: bytes = b"") -> None:
        self._quote = quote
        self._begun: list[bytes] = []  # the first lines of a row whose quoted cell is not closed yet
        self._size_bytes = 0
        self._quotes = 0
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        _check(len(self._rest))
        for line in lines:
            yield from self._line(line)

    def finish(self) -> Iterator[bytes]:
        yield from self._line(self._rest)
        if self._begun:
            yield b"\n".join(self._begun)

    def _line(self, line: bytes) -> Iterator[bytes]:
        self._quotes += line.count(self._quote) if self._quote else 0
        self._begun.append(line)
        self._size_bytes += len(line)
        _check(self._size_bytes)
        if self._quotes % 2 == 0:
            row = b"\n".join(self._begun)
            self._begun, self._size_bytes, self._quotes = [], 0, 0
            if row.strip():
                yield row


class _BraceCutter:
    def __init__(self) -> None:
        self._braces = Braces(_PIECE_LIMIT_BYTES)

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            yield from self._braces.feed(data)
        except FrameError as error:
            yield from (record for _, record in error.numbered)
            raise InputError(str(error), hint="is the format right?") from None

    def finish(self) -> Iterator[bytes]:
        if self._braces.is_begun:
            raise InputError(f"the input ends inside of the record that begins on line {self._braces.start_line}")
        yield from ()


class _Json:
    """Decides by the first line whether records are lines or balanced braces."""

    def __init__(self) -> None:
        self._begun = b""
        self._chosen: RecordCutter | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._chosen is not None:
            yield from self._chosen.feed(data)
            return
        self._begun = (self._begun + data).removeprefix(BOM_UTF8).lstrip()
        _check(len(self._begun))
        if b"\n" in self._begun or self._begun[:1] == b"[":
            yield from self._choose().feed(self._begun)
            self._begun = b""

    def finish(self) -> Iterator[bytes]:
        if self._chosen is None:
            yield from self._choose().feed(self._begun)
        yield from self._choose().finish()

    def _choose(self) -> RecordCutter:
        if self._chosen is None:
            try:
                by_line = isinstance(json.loads(self._begun.partition(b"\n")[0]), dict)
            except (ValueError, RecursionError):
                by_line = False
            self._chosen = _LineCutter() if by_line else _BraceCutter()
        return self._chosen


class _Whole:
    def __init__(self) -> None:
        self._text = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._text += data
        _check(len(self._text))
        yield from ()

    def finish(self) -> Iterator[bytes]:
        if self._text.strip():
            yield bytes(self._text)


def _check(size_bytes: int) -> None:
    if size_bytes > _PIECE_LIMIT_BYTES:
        raise LimitError(f"one record is longer than {_PIECE_LIMIT_BYTES} bytes", hint="is the format right?")
