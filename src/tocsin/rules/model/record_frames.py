"""Splits a stream of bytes, which arrives in pieces of any size, into records.

    Lines    a record per line
    Braces   a record from its "{" to the "}" that balances it; between records white space, commas, brackets

Each framing promises: the records do not depend on how the bytes are cut; the time is linear in the bytes, also when
they arrive one by one; it holds at most one incomplete record of `limit_bytes`. A FrameError ends the stream, because
the following records cannot be found.
"""

from __future__ import annotations

import re
import sys
from typing import Final, Protocol


class FrameError(ValueError):
    """The stream cannot be split from `line` (counted from 1) on. `numbered` are the records of the last piece that
    were complete before, each with its line.
    """

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
        """Whether there are bytes of an incomplete record."""
        ...

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the records that these bytes complete. Raises FrameError if a record is longer than the limit."""
        ...

    def finish(self) -> bytes | None:
        """Returns the incomplete record, if any."""
        ...


class Lines:
    """A record per line, without its line end; blank lines are no records. `finish` returns a last line without an
    end: the stream may have broken off in it, or it may be complete.
    """

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
        records: list[tuple[int, bytes]] = []
        for line in lines:
            record = line.strip(_BLANK)
            if len(record) > self._limit_bytes or len(line) > self._limit_bytes + 1:
                raise _too_long(self._line, self._limit_bytes, records)
            if record:
                records.append((self._line, record))
            self._line += 1
        # One byte more, for the "\r" of a line end that is not complete yet.
        if len(self._begun) > self._limit_bytes + 1:
            raise _too_long(self._line, self._limit_bytes, records)
        return [record for _, record in records]

    def finish(self) -> bytes | None:
        return bytes(self._begun).strip(_BLANK) or None


class Braces:
    """Records of JSON or ADM, each of one or many lines; braces inside strings do not count.

    `finish` returns an incomplete record. With `max_depth`, a record with more levels of braces is a FrameError.
    """

    def __init__(self, limit_bytes: int, max_depth: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._max_depth = limit_bytes if max_depth is None else max_depth
        self._begun = bytearray()
        self._begun_on = 1
        self._line = 1
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last byte was a backslash that escapes the next byte

    @property
    def is_begun(self) -> bool:
        return bool(self._begun)

    @property
    def start_line(self) -> int:
        """The line on which the record begins that `finish` returns."""
        return self._begun_on

    def feed(self, data: bytes) -> list[bytes]:
        return [record for _, record in self.feed_numbered(data)]

    def feed_numbered(self, data: bytes) -> list[tuple[int, bytes]]:
        """Like `feed`, with the line on which each record begins."""
        records: list[tuple[int, bytes]] = []
        start, at = 0, self._rest_of_string(data) if self._in_string else 0
        count = 0  # the steps of these bytes within one record
        while at < len(data):
            if not self._depth:
                start = _past(_BETWEEN, data, at)
                self._line += data.count(b"\n", at, start)
                if start == len(data):
                    break
                if data[start] != _OPEN:
                    reason = f"expected a record that begins with {{, got {_excerpt(data, start)}"
                    raise FrameError(self._line, reason, records)
                self._begun_on = self._line
                self._depth = 1
                at, count = start + 1, 0
            count += 1
            if count == _FEW_STEPS:
                at = self._follow_many(data, at)
                if self._depth > self._max_depth:
                    raise self._too_deep(records)
                if self._depth:
                    break
                records.append((self._begun_on, self._whole(data[start:at], records)))
                start = at
                continue
            at = _past(_CALM, data, at)
            if at == len(data):
                break
            byte = data[at]
            at += 1
            if byte == _OPEN:
                self._depth += 1
                if self._depth > self._max_depth:
                    raise self._too_deep(records)
            elif byte == _CLOSE:
                self._depth -= 1
                if not self._depth:
                    records.append((self._begun_on, self._whole(data[start:at], records)))
                    start = at
            else:
                self._in_string = True
                at = self._rest_of_string(data, at)
        if self._depth:
            self._begin(data[start:] if start else data, records)
        return records

    def finish(self) -> bytes | None:
        return bytes(self._begun) or None

    def _follow_many(self, data: bytes, at: int) -> int:
        """The place behind the brace that ends the record or is too deep; the end of the data if there is none."""
        # Load NumPy only where there are many braces: the command line splits records, too, and has to start quickly.
        from tocsin.rules.model.bracket_depths import BracketState, bracket_table, follow_brackets

        at, state = follow_brackets(data, at, BracketState(self._depth), bracket_table(b"{", b"}"), self._max_depth)
        self._depth, self._in_string, self._escaped = state.depth, state.in_string, state.escaped
        return at

    def _rest_of_string(self, data: bytes, at: int = 0) -> int:
        """The end of the string that contains `at`; the end of the data if the string goes on."""
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

    def _too_deep(self, found: list[tuple[int, bytes]]) -> FrameError:
        return FrameError(self._begun_on, f"a record is nested more than {self._max_depth} levels deep", found)

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
_FEW_STEPS: Final = 500  # up to these, steps from brace to brace are faster
# All patterns are possessive: they look at no byte twice and keep no state for backtracking. Python before 3.11.5
# matches possessive groups wrongly; its greedy groups find the same, and keep state.
POSSESSIVE: Final = b"*+" if sys.version_info >= (3, 11, 5) else b"*"
_BETWEEN: Final = re.compile(rb"[ \t\r\n,\[\]]*+")
# Up to the next brace, over all strings that are complete in these bytes.
_INSIDE_STRING: Final = rb'[^"\\]*+(?:\\.[^"\\]*+)' + POSSESSIVE
_CALM: Final = re.compile(rb'[^{}"]*+(?:"' + _INSIDE_STRING + rb'"[^{}"]*+)' + POSSESSIVE, re.DOTALL)
_INSIDE: Final = re.compile(_INSIDE_STRING, re.DOTALL)


def _past(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    assert match is not None  # every pattern here also matches the empty string
    return match.end()


def _too_long(line: int, limit_bytes: int, found: list[tuple[int, bytes]]) -> FrameError:
    return FrameError(line, f"a record is longer than {limit_bytes} bytes", found)


def _excerpt(data: bytes, at: int) -> str:
    return repr(data[at : at + 20].decode("utf-8", "replace"))
