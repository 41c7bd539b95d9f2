"""Cursors and positions: the place of a result among its interest's results, and of a broker among all results.

Both begin with the epoch, so that numbers from before a restore are never mistaken for numbers of the present store.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

# The limit on an interest's results in one execution; it makes (execution, ordinal) fit 63 bits.
ORDINAL_BITS: Final = 28
LAST_ORDINAL: Final = (1 << ORDINAL_BITS) - 1


InterestId = NewType("InterestId", int)
SubscriptionId = NewType("SubscriptionId", int)
"""Identifies an interest in its cluster, in stores, on the wire and in brokers."""


class Cursor(NamedTuple):
    """Orders the results of an interest; fetches and acknowledgements refer to it."""

    epoch: int
    execution: int
    ordinal: int


class Position(NamedTuple):
    """How far a broker has followed a cluster's announcements. `number` grows with every result of any channel."""

    epoch: int
    number: int


# The bytes that a result counts in byte limits besides its payload: its cursor and its time.
RESULT_BYTES: Final = 100


class Range(NamedTuple):
    """The results of one interest in `(after, to]`, cut after `limit` results or at the result that reaches
    `limit_bytes`, whichever comes first. Each result counts RESULT_BYTES besides its payload.
    """

    interest: InterestId
    after: Cursor
    to: Cursor | None = None
    limit: int | None = None
    limit_bytes: int | None = None


# Before every cursor and every position.
START: Final = Cursor(0, 0, 0)
BEGINNING: Final = Position(0, 0)
