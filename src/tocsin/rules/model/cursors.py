"""Where a result stands among its interest's, and where a broker stands among all news.

Both begin with the epoch, so that what an earlier life of a store gave out is never mistaken for the present one's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# An interest has at most so many results in one execution, so that (execution, ordinal) fits 63 bits.
ORDINAL_BITS: Final = 28
LAST_ORDINAL: Final = (1 << ORDINAL_BITS) - 1


class Cursor(NamedTuple):
    """The total order of an interest's results; the marker of fetches and acknowledgements."""

    epoch: int
    execution: int
    ordinal: int


class Position(NamedTuple):
    """How far somebody has followed a cluster's news. `number` grows with every result committed, in any channel."""

    epoch: int
    number: int


# What a result counts for besides its payload where bytes are limited: its cursor and its time.
RESULT_BYTES: Final = 100


class Range(NamedTuple):
    """The results of one interest after `after`, up to and with `to`: the first `limit` of them, or up to and with the
    one that reaches `limit_bytes`, whichever ends sooner. Each counts with RESULT_BYTES besides its payload."""

    interest: int
    after: Cursor
    to: Cursor | None = None
    limit: int | None = None
    limit_bytes: int | None = None


# Before everything.
START: Final = Cursor(0, 0, 0)
BEGINNING: Final = Position(0, 0)
