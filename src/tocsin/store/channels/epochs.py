"""Orders the numbers of all epochs of a store: maps a number from an earlier epoch into the present numbering.

A restore takes a store back in time, and then the store gives out the same numbers a second time. Brokers still have
cursors from before the restore; this order says which of the present results such a cursor has passed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, Cursor

HIGHEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of a store in order, and the first number of each. Numbers continue from one epoch to the next.

    A restored store repeats the numbers that were given out between the backup and the restore, under a new epoch. A
    number alone is therefore ambiguous; the pair (epoch, number) is ordered.
    """

    epochs: list[int]
    firsts: list[int]

    @staticmethod
    def of(rows: Iterable[tuple[int, int]]) -> Epochs:
        ordered = sorted(rows)
        return Epochs([epoch for epoch, _ in ordered], [first for _, first in ordered])

    def epoch_of(self, number: int) -> int:
        """The epoch in which this store gave out the number."""
        return self.epochs[max(0, bisect_right(self.firsts, number) - 1)]

    def bound(self, epoch: int, number: int) -> int:
        """The highest number of this store that is not after (epoch, number), or a number between it and the next."""
        later = bisect_right(self.epochs, epoch)
        end = self.firsts[later] - 1 if later < len(self.epochs) else HIGHEST
        if later == 0 or self.epochs[later - 1] != epoch:
            # The epoch is later than ours and unknown: another restore of the same backup made it, and the clock was
            # set back since. Its reader has not seen what we gave out in the present epoch.
            return end if later < len(self.epochs) else self.firsts[-1] - 1
        return min(max(number, self.firsts[later - 1] - 1), end)

    def place(self, cursor: Cursor) -> int:
        """`bound` for a cursor, as a place: execution and ordinal in one number."""
        epoch, execution, ordinal = cursor
        if epoch == self.epochs[-1] and 0 <= ordinal <= LAST_ORDINAL and 0 <= execution <= HIGHEST >> ORDINAL_BITS:
            # The usual case, as a fast path: a fetch calls this a thousand times.
            return max(execution << ORDINAL_BITS | ordinal, self.firsts[-1] - 1)
        ordinal = min(max(cursor.ordinal, 0), LAST_ORDINAL)
        return self.bound(cursor.epoch, min(max(cursor.execution, 0) << ORDINAL_BITS | ordinal, HIGHEST))

    def cursor(self, place: int) -> Cursor:
        epoch = self.epochs[-1] if place >= self.firsts[-1] else self.epoch_of(place)
        return Cursor(epoch, place >> ORDINAL_BITS, place & LAST_ORDINAL)


def end_of(execution: int) -> int:
    """The last place of an execution."""
    return execution << ORDINAL_BITS | LAST_ORDINAL
