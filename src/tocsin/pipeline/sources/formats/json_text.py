"""Reads JSON: an object per line, objects one after the other over any lines, or arrays of objects.

An object per line is the fast way and tried first. From the first line that is no object, the rest of the file is read
as running text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from math import isinf
from typing import Any, BinaryIO, Final

import orjson

from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadRecord, ReadRecord, not_utf8, too_long
from tocsin.rules.model.constructors import DIGITS_LIMIT

_SPACE: Final = re.compile(r"[ \t\r\n]*")

# orjson turns whole numbers beyond 64 bits into doubles, which changes them: the standard library reads lines with so
# many digits in a row. (A translation and a search cost a tenth of a regular expression.)
_AS_DIGITS: Final = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else ord(" ") for byte in range(256))
_MANY_DIGITS: Final = b"0" * 19


def read(file: BinaryIO, window_bytes: int = 1 << 20) -> Iterator[ReadRecord]:
    """The objects of a file, each with the line on which it begins. Reads `window_bytes` at a time, or the length of a
    longer object."""
    number = 0
    while line := file.readline(window_bytes):
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        record = _whole_line(line)
        if record is not None:
            yield number, record, len(line)
        elif line.strip(b" \t\r\n"):
            yield from _RunningText(file, line, number, window_bytes).records()
            return


class NotJson(ValueError):
    """The text is not JSON at this line and column, counted from 1."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(reason)
        self.line = line
        self.column = column


def parse(text: str | bytes) -> Any:
    """Parses a JSON value exactly: whole numbers of any size, nothing beyond JSON. The ValueError says why not."""
    try:
        return _EXACT.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("is nested too deep") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"is not JSON: {error.msg}", error.lineno, error.colno) from None


def parse_quickly(text: bytes) -> Any:
    """Like `parse`, but many times faster where possible."""
    try:
        return parse(text) if _MANY_DIGITS in text.translate(_AS_DIGITS) else orjson.loads(text)
    except orjson.JSONDecodeError:
        # orjson also refuses lone surrogates, for which the type check has a better message.
        return parse(text)


def _whole_line(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse_quickly(line)
    except ValueError:
        return None
    return value if value.__class__ is dict else None


def _whole_number(text: str) -> int:
    if len(text) > DIGITS_LIMIT:
        raise ValueError(f"holds a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"holds the number {text[:40]}, which does not fit into a double")
    return number


def _constant(text: str) -> float:
    raise ValueError(f'holds {text}, which JSON does not know: write it as the string "{text}"')


_EXACT: Final = json.JSONDecoder(parse_int=_whole_number, parse_float=_number, parse_constant=_constant)


class _RunningText:
    """A window on the rest of the file, where its line structure no longer helps."""

    def __init__(self, file: BinaryIO, begun: bytes, line: int, window_bytes: int) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._line = line
        self._ended = False
        self._take(begun)

    def records(self) -> Iterator[ReadRecord]:
        # The state between records: "" outside arrays, otherwise the last token of the array: "[", "{" (an object) or
        # ",".
        state, opened_on = "", 0
        while character := self._sign():
            if character == "{" and state != "{":
                yield self._object()
                state = "{" if state else ""
            elif character == "[" and not state:
                state, opened_on = self._step("["), self._line
            elif character == "]" and state in ("[", "{"):
                state = self._step("")
            elif character == "," and state == "{":
                state = self._step(",")
            else:
                expected = 'a "," or "]"' if state == "{" else "an object"
                raise BadRecord(self._line, f"is not JSON: expected {expected}, got {character!r}")
        if state:
            raise BadRecord(self._line, f"the file ends inside of the array that begins on line {opened_on}")

    def _step(self, state: str) -> str:
        self._at += 1
        return state

    def _sign(self) -> str:
        """The next character that is not white space; "" at the end."""
        while True:
            self._move(_SPACE.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _object(self) -> ReadRecord:
        while True:
            try:
                record, end = _EXACT.raw_decode(self._text, self._at)
                break
            except RecursionError:
                raise BadRecord(self._line, "is nested too deep") from None
            except ValueError as error:
                # Perhaps only the window ends here.
                if not self._more():
                    raise self._explained(error) from None
        line, length = self._line, end - self._at
        self._move(end)
        return line, record, length

    def _explained(self, error: ValueError) -> BadRecord:
        if not isinstance(error, json.JSONDecodeError):
            return BadRecord(self._line, str(error))
        if error.pos >= len(self._text.rstrip()) or error.msg.startswith("Unterminated string"):
            return BadRecord(self._line, "the file ends inside of the object that begins on this line")
        line = self._line + self._text.count("\n", self._at, error.pos)
        return BadRecord(line, f"is not JSON: {error.msg}")

    def _move(self, to: int) -> None:
        self._line += self._text.count("\n", self._at, to)
        self._at = to

    def _more(self) -> bool:
        """Widens the window. Returns whether there was more."""
        waiting = len(self._text) - self._at
        if self._ended:
            return False
        if waiting > RECORD_LIMIT_BYTES:
            raise too_long(self._line)
        # The window doubles, because an object that exceeds it is parsed again from its beginning.
        self._take(self._file.read(max(self._window_bytes, waiting)))
        return True

    def _take(self, chunk: bytes) -> None:
        self._ended = not chunk
        rest = self._text[self._at :]
        try:
            self._text = rest + self._decoder.decode(chunk, final=self._ended)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].count(b"\n")
            raise not_utf8(self._line + rest.count("\n") + before) from None
        self._at = 0
