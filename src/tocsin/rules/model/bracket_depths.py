"""Counts the levels of brackets in JSON or ADM for many bytes at once.

A step of Python for each bracket takes half a minute for a large body of brackets. Arrays take a few nanoseconds per
byte, whatever the bytes are; but a call costs as much as a hundred such steps, so they pay only for many brackets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

_CHUNK_BYTES: Final = 1 << 16

_BracketTable = npt.NDArray[np.int8]


@cache
def bracket_table(opening: bytes, closing: bytes) -> _BracketTable:
    """How each byte changes the level."""
    table = np.zeros(256, np.int8)
    table[list(opening)] = 1
    table[list(closing)] = -1
    return table


@dataclass(frozen=True, slots=True)
class BracketState:
    """The state between two bytes: the level, and whether they are in a string, behind a backslash."""

    depth: int
    in_string: bool = False
    escaped: bool = False


def follow_brackets(  # noqa: PLR0917
    text: bytes, at: int, state: BracketState, table: _BracketTable, max_depth: int, chunk_bytes: int = _CHUNK_BYTES
) -> tuple[int, BracketState]:
    """Returns where the level first is 0 or above `max_depth` (behind that bracket), or else the end of the text; and
    the state there.
    """
    while at < len(text):
        chunk = np.frombuffer(text, np.uint8, min(chunk_bytes, len(text) - at), at)
        size, state = _follow_chunk(chunk, state, table, max_depth)
        at += size
        if not 0 < state.depth <= max_depth:
            break
    return at, state


def _follow_chunk(
    chunk: npt.NDArray[np.uint8], state: BracketState, table: _BracketTable, max_depth: int
) -> tuple[int, BracketState]:
    quotes = chunk == _QUOTE
    escaped = False
    backslashes = chunk == _BACKSLASH
    if state.escaped or backslashes.any():
        # A byte is escaped if an odd number of backslashes precedes it.
        places = np.arange(len(chunk))
        others = np.maximum.accumulate(np.where(backslashes, -1 - state.escaped, places))
        is_odd = ((places - others) & 1).astype(bool)
        escaped = bool(is_odd[-1])
        quotes[1:] &= ~is_odd[:-1]
        quotes[0] &= not state.escaped
    is_inside = (np.cumsum(quotes, dtype=np.int32) + state.in_string) & 1
    changes = np.where(is_inside, 0, table[chunk])
    depths = state.depth + np.cumsum(changes, dtype=np.int32)
    is_end = (depths <= 0) | (depths > max_depth)
    end = int(is_end.argmax())
    if is_end[end]:
        return end + 1, BracketState(int(depths[end]))
    in_string = bool(is_inside[-1])
    return len(chunk), BracketState(int(depths[-1]), in_string, in_string and escaped)


_QUOTE, _BACKSLASH = b'"\\'
