"""Splits a JSON body into records with their texts: an array, a record per line, or records one after the other.

Publishers may send any of these forms, and the media type is ignored, so the text itself decides. An array begins with
its bracket; otherwise lines come first, and balanced braces are tried from the first line on that is not a complete
value.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import islice
from typing import Final

from tocsin.pipeline.sources.formats import json_text
from tocsin.pipeline.sources.pieces import UNREAD, BodyLimits, BodyPiece, empty_body, split_body, too_many, unreadable
from tocsin.pipeline.sources.reader_types import BadRecord
from tocsin.rules.model.json_spans import BrokenArrayError, Spans, TooManyItemsError, array_items

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")


def json_pieces(body: bytes, limits: BodyLimits) -> Iterator[BodyPiece]:
    """Yields the records of an array, of lines, or of running text over any lines. If lines and running text both
    leave something broken, lines win if one of them is a record.
    """
    text = body.removeprefix(BOM_UTF8)
    begin = past_space(text, 0)
    if begin == len(text):
        raise empty_body()
    if text[begin : begin + 1] == b"[":
        try:
            spans = array_spans(text, begin, limits)
        except TooManyItemsError:
            raise too_many(limits) from None
        except BadRecord as error:
            raise unreadable(error) from None
        after = past_space(text, spans.end)
        if after == len(text):
            return item_pieces(text, spans, limits)
        if not _is_whole_by_line(text, limits):
            raise unreadable(extra_data(text, after, spans, limits))
    return _running(text, limits)


def array_spans(text: bytes, begin: int, limits: BodyLimits) -> Spans:
    """Finds the items of the array that begins there. Raises BadRecord if it is malformed, or TooManyItemsError."""
    try:
        return array_items(text, begin, most=limits.records)
    except BrokenArrayError as error:
        raise _broken_array(text, error, limits) from None


def extra_data(text: bytes, at: int, spans: Spans, limits: BodyLimits) -> BadRecord:
    """The error for extra text at `at`, behind the array."""
    return _broken_array(text, BrokenArrayError("Extra data", at, spans), limits)


def item_pieces(text: bytes, spans: Spans, limits: BodyLimits, line: int = 1) -> Iterator[BodyPiece]:
    """Yields the items of an array. A broken object is rejected alone. Any other damage rejects the whole array: its
    sender does not expect a part of it to count.
    """
    counted_at = line_begin = 0
    for begin, end in spans:
        piece = _piece(text[begin:end], limits)
        if isinstance(piece.value, BadRecord):
            # Count lines from the last broken item: counting from the beginning each time would take quadratic time.
            line += text.count(b"\n", counted_at, begin)
            line_begin = max(line_begin, text.rfind(b"\n", counted_at, begin) + 1)
            counted_at = begin
            _move(piece.value, line, begin - line_begin)
            if text[begin : begin + 1] != b"{":
                raise piece.value
        yield piece


def _move(error: BadRecord, line: int, columns: int) -> None:
    """Moves an error from a position in an item to the position in the body. Columns shift only on the first line."""
    if error.place == 1:
        error.column += columns
    error.place += line - 1


def _piece(text: bytes, limits: BodyLimits, line: int = 1) -> BodyPiece:
    """Parses a value, unless it is longer than a record may be."""
    if len(text) > limits.record_bytes:
        return BodyPiece(UNREAD, text, len(text))
    try:
        return BodyPiece(json_text.parse_quickly(text), text, len(text))
    except ValueError as error:
        return BodyPiece(_broken(error, line), text, len(text))


def _running(text: bytes, limits: BodyLimits) -> Iterator[BodyPiece]:
    """Reads by lines as long as they are complete. At the first incomplete line, decides how to read the rest."""
    is_plain = True  # only objects so far, or arrays of them: balanced braces would find the same
    begun = False
    for number, begin, end in _lines(text):
        pieces = line_pieces(text[begin:end], number, limits)
        for piece in pieces:
            is_record = piece.value.__class__ is dict
            if not _is_whole(piece) or not (begun or is_record):
                rest = text[begin:]
                by_brace = is_plain and _is_by_brace(rest, limits, has_record=begun)
                yield from _by_brace(rest, limits, number) if by_brace else _by_line(rest, limits, number)
                return
            is_plain, begun = is_plain and is_record, True
            yield piece
            break
        for piece in pieces:
            is_plain = is_plain and piece.value.__class__ is dict
            yield piece


def _is_by_brace(text: bytes, limits: BodyLimits, *, has_record: bool) -> bool:
    """Whether balanced braces find more in the text than its lines."""
    if _is_whole_by_line(text, limits):
        return False
    return _is_whole_by_brace(text, limits) or not (has_record or _has_record_by_line(text, limits))


def _lines(text: bytes, first: int = 1) -> Iterator[tuple[int, int, int]]:
    """The lines that are not blank: number, begin and end of each."""
    begin, number = 0, first
    # Skip all blank lines at once: a step for each would take a minute for a large body of them.
    while (start := past_space(text, begin)) < len(text):
        number += text.count(b"\n", begin, start)
        end = text.find(b"\n", start)
        if end < 0:
            end = len(text)
        yield number, start, end
        begin, number = end + 1, number + 1


def line_pieces(line: bytes, number: int, limits: BodyLimits) -> Iterator[BodyPiece]:
    """The value of a line, or the items of its array. Raises LimitError if there are too many items."""
    if not line.startswith(b"["):
        yield _piece(line, limits, number)
        return
    try:
        spans = array_items(line, 0, most=limits.records)
        if (after := past_space(line, spans.end)) < len(line):
            raise BrokenArrayError("Extra data", after, spans)
    except TooManyItemsError:
        raise too_many(limits) from None
    except BrokenArrayError as error:
        yield BodyPiece(_broken_array(line, error, limits, number), line, len(line))
        return
    try:
        yield from item_pieces(line, spans, limits, number)
    except BadRecord as error:
        yield BodyPiece(error, line, len(line))


def _by_line(text: bytes, limits: BodyLimits, first: int = 1) -> Iterator[BodyPiece]:
    for number, begin, end in _lines(text, first):
        yield from line_pieces(text[begin:end], number, limits)


def _by_brace(text: bytes, limits: BodyLimits, first: int = 1) -> Iterator[BodyPiece]:
    for line, piece in split_body(text):
        if isinstance(line, BadRecord):
            line.place += first - 1
            yield BodyPiece(line, piece, len(piece))
        else:
            yield _piece(piece, limits, line + first - 1)


def _is_whole_by_line(text: bytes, limits: BodyLimits) -> bool:
    return all(_is_whole(piece) for piece in islice(_by_line(text, limits), limits.records + 1))


def _is_whole_by_brace(text: bytes, limits: BodyLimits) -> bool:
    pieces = islice(_by_brace(text, limits), limits.records + 1)
    return all(piece.value is UNREAD or _is_whole(piece) for piece in pieces)


def _has_record_by_line(text: bytes, limits: BodyLimits) -> bool:
    # A body with more lines than records are allowed is refused anyway: what is behind them decides nothing.
    pieces = islice(_by_line(text, limits), limits.records + 1)
    return any(piece.value.__class__ is dict for piece in pieces)


def _is_whole(piece: BodyPiece) -> bool:
    return piece.value is not UNREAD and not isinstance(piece.value, BadRecord)


def past_space(text: bytes, at: int, end: int | None = None) -> int:
    match = _SPACE.match(text, at, len(text) if end is None else end)
    assert match is not None  # the pattern also matches the empty string
    return match.end()


def _broken_array(text: bytes, error: BrokenArrayError, limits: BodyLimits, line: int = 1) -> BadRecord:
    """The first error: in an item, or at the break; if an item has no end, in the parser's words."""
    try:
        for piece in item_pieces(text, error.spans, limits, line):
            if isinstance(piece.value, BadRecord):
                return piece.value
    except BadRecord as broken:
        return broken
    at, reason = error.at, str(error) if error.is_too_deep else f"is not JSON: {error}"
    line += text.count(b"\n", 0, at)
    column = at - text.rfind(b"\n", 0, at)
    if error.is_inside:
        if len(text) - at > limits.record_bytes:
            return BadRecord(line, "the body ends inside of the item that begins here", column=column)
        try:
            json_text.parse(text[at:])
        except ValueError as parse_error:
            broken_item = _broken(parse_error, 1)
            _move(broken_item, line, column - 1)
            return broken_item
    return BadRecord(line, reason, column=column)


def _broken(error: ValueError, line: int) -> BadRecord:
    if isinstance(error, json_text.NotJson):
        return BadRecord(line + error.line - 1, str(error), column=error.column)
    return BadRecord(line, str(error))
