"""Where one record ends and the next begins, in bytes that arrive in pieces of any size.

    Lines    a record per line
    Braces   a record from its "{" to the "}" that balances it; between records white space, commas, brackets

Promises, for each: the records are the same however the bytes were cut; the time is linear in the bytes, also when they
come one by one; no more is held than one begun record of at most `limit_bytes`. A FrameError is the end: what
follows can no longer be told apart.
"""

from __future__ import annotations

import re
from typing import Final, Protocol


class FrameError(ValueError):
    """The stream cannot be cut any further, from `line` (counted from 1) on. `numbered` are the records that were whole
    before that, in the piece that showed it, each with its line."""

    def __init__(self, line: int, reason: str, numbered: list[tuple[int, bytes]]) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason
        self.numbered = numbered

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class RecordFraming(Protocol):
    @property
    def is_begun(self) -> bool:
        """Whether there are bytes of a record that has not ended."""
        ...

    def feed(self, data: bytes) -> list[bytes]:
        """The records that are whole with these bytes; FrameError where one is longer than the limit."""
        ...

    def finish(self) -> bytes | None:
        """What was begun and not ended."""
        ...


class Lines:
    """A record per line, without its line end; lines of white space alone are none. What `finish` gives is a last line
    without an end: the stream may have broken off in it, or it may be whole."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._begun = bytearray()
        self._line = 1

    @property
    def is_begun(self) -> bool:
        return bool(self._begun)

    def feed(self, data: bytes) -> list[bytes]:
        first, *rest = data.split(b"\n")
        self._begun += first
        lines: list[bytes] = []
        if rest:
            lines += bytes(self._begun), *rest[:-1]
            self._begun = bytearray(rest[-1])
        found: list[tuple[int, bytes]] = []
        for line in lines:
            record = line.strip(_BLANK)
            if len(record) > self._limit_bytes or len(line) > self._limit_bytes + 1:
                raise _too_long(self._line, self._limit_bytes, found)
            if record:
                found.append((self._line, record))
            self._line += 1
        # One more: the "\r" of a line end that is still on its way.
        if len(self._begun) > self._limit_bytes + 1:
            raise _too_long(self._line, self._limit_bytes, found)
        return [record for _, record in found]

    def finish(self) -> bytes | None:
        return bytes(self._begun).strip(_BLANK) or None


class Braces:
    """Records of JSON or ADM, of one or many lines. Braces inside of strings do not count. What `finish` gives is half
    a record."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._begun = bytearray()
        self._begun_on = 1
        self._line = 1
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last byte was a backslash that concerns the next one

    @property
    def is_begun(self) -> bool:
        return bool(self._begun)

    @property
    def begun_on(self) -> int:
        """The line on which the record begins that `finish` would give."""
        return self._begun_on

    def feed(self, data: bytes) -> list[bytes]:
        return [record for _, record in self.numbered(data)]

    def numbered(self, data: bytes) -> list[tuple[int, bytes]]:
        """The same as `feed`, with the line on which each record begins."""
        found: list[tuple[int, bytes]] = []
        start, at = 0, self._rest_of_string(data) if self._in_string else 0
        while at < len(data):
            if not self._depth:
                start = _past(_BETWEEN, data, at)
                self._line += data.count(b"\n", at, start)
                if start == len(data):
                    break
                if data[start] != _OPEN:
                    reason = f"expected a record that begins with {{, got {_shown(data, start)}"
                    raise FrameError(self._line, reason, found)
                self._begun_on = self._line
                self._depth = 1
                at = start + 1
            at = _past(_CALM, data, at)
            if at == len(data):
                break
            sign = data[at]
            at += 1
            if sign == _OPEN:
                self._depth += 1
            elif sign == _CLOSE:
                self._depth -= 1
                if not self._depth:
                    found.append((self._begun_on, self._whole(data[start:at], found)))
                    start = at
            else:
                self._in_string = True
                at = self._rest_of_string(data, at)
        if self._depth:
            self._begin(data[start:] if start else data, found)
        return found

    def finish(self) -> bytes | None:
        return bytes(self._begun) or None

    def _rest_of_string(self, data: bytes, at: int = 0) -> int:
        """Where the string ends in which `at` lies; the end of the data where it does not."""
        if self._escaped and data:
            at += 1
            self._escaped = False
        at = _past(_INSIDE, data, at)
        if at < len(data):
            self._escaped = data[at] == _BACKSLASH
            self._in_string = self._escaped
            at += 1
        return at

    def _begin(self, data: bytes, found: list[tuple[int, bytes]]) -> None:
        self._begun += data
        if len(self._begun) > self._limit_bytes:
            raise _too_long(self._begun_on, self._limit_bytes, found)

    def _whole(self, data: bytes, found: list[tuple[int, bytes]]) -> bytes:
        record = data
        if self._begun:
            record = bytes(self._begun) + data
            self._begun = bytearray()
        if len(record) > self._limit_bytes:
            raise _too_long(self._begun_on, self._limit_bytes, found)
        self._line = self._begun_on + record.count(b"\n")
        return record


_BLANK: Final = b" \t\r\n"
_OPEN, _CLOSE, _BACKSLASH = b"{}\\"
# Possessive throughout: no byte is looked at twice, and no way back is remembered.
_BETWEEN: Final = re.compile(rb"[ \t\r\n,\[\]]*+")
# To the next brace, over every string that ends in these bytes.
_CALM: Final = re.compile(rb'[^{}"]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^{}"]*+)*+', re.DOTALL)
_INSIDE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def _past(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at)
    assert found is not None  # each of them also matches nothing
    return found.end()


def _too_long(line: int, limit_bytes: int, found: list[tuple[int, bytes]]) -> FrameError:
    return FrameError(line, f"a record is longer than {limit_bytes} bytes", found)


def _shown(data: bytes, at: int) -> str:
    return repr(data[at : at + 20].decode("utf-8", "replace"))
