"""A priority queue that finds the lowest of many changing ranks.

A rank that has risen may stay in the heap as it was: `lowest` notices it at the top and re-queues it. Only a rank that
has fallen is pushed at once. The queued rank of a key is the valid one; `lowest` skips older ones. Most changes
therefore cost a comparison, and the others O(log keys).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

_K = TypeVar("_K")
# Value, tie-breaker, a unique number, and the key. The unique number keeps Python from ever comparing keys.
Rank = tuple[float, float, int, _K]
_SLACK: Final = 64


class RankHeap(Generic[_K]):
    """`current` returns a key's rank now, or None if the key is no candidate."""

    __slots__ = ("_current", "_heap", "_queued")

    def __init__(self, current: Callable[[_K], Rank[_K] | None]) -> None:
        self._current = current
        self._heap: list[Rank[_K]] = []
        self._queued: dict[_K, Rank[_K]] = {}

    def __len__(self) -> int:
        return len(self._queued)

    def update_rank(self, key: _K) -> None:
        """Updates a key whose rank may have fallen, or that may have become a candidate."""
        rank = self._current(key)
        if rank is None:
            return
        queued = self._queued.get(key)
        if queued is None or rank < queued:
            self._queued[key] = rank
            heappush(self._heap, rank)
            self._compact()

    def forget(self, key: _K) -> None:
        """Removes the key."""
        if self._queued.pop(key, None) is not None:
            self._compact()

    def lowest(self, besides: _K | None = None) -> Rank[_K] | None:
        """Returns the lowest rank of all candidates except `besides`."""
        heap, queued = self._heap, self._queued
        skipped: list[Rank[_K]] = []
        lowest: Rank[_K] | None = None
        while heap:
            rank = heap[0]
            key = rank[3]
            if queued.get(key) is not rank:
                heappop(heap)
                continue
            now = self._current(key)
            if now is None:
                heappop(heap)
                del queued[key]
            elif now != rank:
                queued[key] = now
                heapreplace(heap, now)
            elif besides is not None and key == besides:
                skipped.append(heappop(heap))
            else:
                lowest = rank
                break
        for skipped_rank in skipped:
            heappush(heap, skipped_rank)
        return lowest

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._queued) + _SLACK:
            self._heap = list(self._queued.values())
            heapify(self._heap)
