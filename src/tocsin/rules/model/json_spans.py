"""Finds the byte ranges of the items of a JSON array and the fields of an object without parsing them.

    array_items(b'[{"id": 1}, 7]', 0, most=10)  →  Spans(((1, 10), (12, 13)), end=14)

The caller can therefore limit the number of items before it holds any of them. Only the text between the items is
checked: a parser still has to judge the text of each item. The time is linear in the bytes, and a span takes 8 bytes
of memory.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import Final

from tocsin.rules.model.bracket_depths import BracketState, bracket_table, follow_brackets
from tocsin.rules.model.record_frames import POSSESSIVE

MAX_DEPTH: Final = 256
"""Levels of an item. No type has as many, and a text of brackets alone must not be read to its end."""


class TooManyItemsError(ValueError):
    """The array has more items than the caller allows."""


class Spans:
    """The byte range of each item of an array. `end` is the end of the array."""

    def __init__(self) -> None:
        self._borders = array("I")  # a text is far below 4 GiB
        self.end = 0

    def __len__(self) -> int:
        return len(self._borders) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        borders = iter(self._borders)
        return zip(borders, borders, strict=True)

    def add(self, begin: int, end: int) -> None:
        self._borders.append(begin)
        self._borders.append(end)


class _TooDeepError(ValueError):
    """A value has more than MAX_DEPTH levels."""

    def __init__(self) -> None:
        super().__init__(f"is nested more than {MAX_DEPTH} levels deep")


class BrokenArrayError(ValueError):
    """The array is malformed at `at`. If an item has no end, `at` is the item's beginning and `is_inside` is True; if
    it has more than MAX_DEPTH levels, `is_too_deep` is True. `spans` are the items before it.
    """

    def __init__(
        self, reason: str, at: int, spans: Spans, *, is_inside: bool = False, is_too_deep: bool = False
    ) -> None:
        super().__init__(reason)
        self.at = at
        self.spans = spans
        self.is_inside = is_inside
        self.is_too_deep = is_too_deep


def array_items(text: bytes, at: int, *, most: int) -> Spans:
    """Finds the items of the array that begins at `at`."""
    spans = Spans()
    at = _past(_SPACE, text, at + 1)
    if text[at : at + 1] == b"]":
        spans.end = at + 1
        return spans
    if _has_more(text, at, most):
        raise TooManyItemsError(f"more than {most} items")
    while True:
        try:
            end = _value_end(text, at)
        except _TooDeepError as error:
            raise BrokenArrayError(str(error), at, spans, is_too_deep=True) from None
        if end is None:
            raise BrokenArrayError("the text ends inside of an item", at, spans, is_inside=True)
        if end == at:
            raise BrokenArrayError("Expecting value", at, spans)
        if len(spans) == most:
            raise TooManyItemsError(f"more than {most} items")
        spans.add(at, end)
        at = _past(_SPACE, text, end)
        delimiter = text[at : at + 1]
        if delimiter == b"]":
            spans.end = at + 1
            return spans
        if delimiter != b",":
            raise BrokenArrayError("Expecting ',' delimiter", at, spans)
        at = _past(_SPACE, text, at + 1)


def _has_more(text: bytes, at: int, most: int) -> bool:
    """Whether there certainly are more than `most` items from `at` on. Matching many items at once is twenty times as
    fast as matching them one by one. The search goes on only while the rest of the text can hold that many items of
    the average size seen so far.
    """
    begin, count = at, 0
    while count < most:
        pattern, step = (_TOGETHER, _ITEMS_TOGETHER) if count + _ITEMS_TOGETHER <= most else (_ITEM, 1)
        match = pattern.match(text, at)
        if match is None:
            return False
        at, count = match.end(), count + step
        if (len(text) - at) * count < (most - count) * (at - begin):
            return False
    try:
        end = _value_end(text, at)
    except _TooDeepError:
        return True
    return end is not None and end > at


def object_fields(text: bytes, at: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yields the spans of the names and values of the object that begins at `at`, up to the first malformed field."""
    at = _past(_SPACE, text, at + 1)
    while (name := _NAME.match(text, at)) is not None:
        begin = name.end()
        end = _value_end(text, begin)
        if end is None or end == begin:
            return
        yield name.span(1), (begin, end)
        at = _past(_SPACE, text, end)
        if text[at : at + 1] != b",":
            return
        at = _past(_SPACE, text, at + 1)


def _value_end(text: bytes, at: int) -> int | None:
    """The end of the value that begins at `at`; `at` if no value begins there, None if the value does not end. Raises
    _TooDeepError.
    """
    if (flat := _FLAT.match(text, at)) is not None:
        return flat.end()
    if text[at : at + 1] not in (b"[", b"{"):
        return None if text[at : at + 1] == b'"' else at
    depth = count = 0
    while True:
        at = _past(_CALM, text, at)
        if at == len(text) or text[at] == _QUOTE:  # the text ends, or a string does not
            return None
        depth += 1 if text[at] in _OPENING else -1
        at += 1
        count += 1
        if count == _FEW_BRACKETS and depth:
            at, state = follow_brackets(text, at, BracketState(depth), _BRACKETS, MAX_DEPTH)
            if state.depth > MAX_DEPTH:
                raise _TooDeepError
            return None if state.depth else at
        if depth > MAX_DEPTH:
            raise _TooDeepError
        if not depth:
            return at


def _past(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None  # every pattern here also matches the empty string
    return match.end()


_QUOTE: Final = ord('"')
_OPENING: Final = b"[{"
_BRACKETS: Final = bracket_table(_OPENING, b"]}")
_FEW_BRACKETS: Final = 1_000  # up to these, a step for each is faster
# All patterns are possessive: they look at no byte twice and keep no state for backtracking.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)' + POSSESSIVE + b'"'
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_NAME: Final = re.compile(rb"(" + _STRING + rb")[ \t\r\n]*+:[ \t\r\n]*+", re.DOTALL)
# An object without nested objects or arrays, a string, or a value without brackets.
_FLAT: Final = re.compile(
    rb'\{[^{}\[\]"]*+(?:' + _STRING + rb'[^{}\[\]"]*+)' + POSSESSIVE + rb"\}|" + _STRING + rb'|[^{}\[\]", \t\r\n]++',
    re.DOTALL,
)
# Such an item with the comma behind it, and many of them in a row.
_COMMA: Final = rb"[ \t\r\n]*+,[ \t\r\n]*+"
_ITEMS_TOGETHER: Final = 100
_ITEM: Final = re.compile(rb"(?:" + _FLAT.pattern + rb")" + _COMMA, re.DOTALL)
_TOGETHER: Final = re.compile(rb"(?:%s){%d}+" % (_ITEM.pattern, _ITEMS_TOGETHER), re.DOTALL)
# Up to the next bracket, over all complete strings.
_CALM: Final = re.compile(rb'[^{}\[\]"]*+(?:' + _STRING + rb'[^{}\[\]"]*+)' + POSSESSIVE, re.DOTALL)
