"""Where a number that an earlier life of a store gave out stands among the numbers of the present one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, Cursor

HIGHEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of a store in order, and the first number of each. Numbers go on from one epoch to the next.

    A restored store repeats numbers that were given out between the backup and the restore, under a new epoch; hence
    a number alone says nothing, and (epoch, number) is ordered.
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
        """The highest number of this store that is not after (epoch, number), or one between it and the next."""
        later = bisect_right(self.epochs, epoch)
        end = self.firsts[later] - 1 if later < len(self.epochs) else HIGHEST
        if later == 0 or self.epochs[later - 1] != epoch:
            # A later life than ours that we know nothing of: of the same backup, with the clock set back since. What
            # it read is not what we have given out in the present life.
            return end if later < len(self.epochs) else self.firsts[-1] - 1
        return min(max(number, self.firsts[later - 1] - 1), end)

    def place(self, cursor: Cursor) -> int:
        """The same for a cursor, as a place: execution and ordinal in one number."""
        epoch, execution, ordinal = cursor
        if epoch == self.epochs[-1] and 0 <= ordinal <= LAST_ORDINAL and 0 <= execution <= HIGHEST >> ORDINAL_BITS:
            # Nearly always; this is asked a thousand times in a fetch.
            return max(execution << ORDINAL_BITS | ordinal, self.firsts[-1] - 1)
        ordinal = min(max(cursor.ordinal, 0), LAST_ORDINAL)
        return self.bound(cursor.epoch, min(max(cursor.execution, 0) << ORDINAL_BITS | ordinal, HIGHEST))

    def cursor(self, place: int) -> Cursor:
        epoch = self.epochs[-1] if place >= self.firsts[-1] else self.epoch_of(place)
        return Cursor(epoch, place >> ORDINAL_BITS, place & LAST_ORDINAL)


def end_of(execution: int) -> int:
    """The last place of an execution."""
    return execution << ORDINAL_BITS | LAST_ORDINAL
