"""A heap that always knows the lowest of many ranks that keep changing.

A rank that has risen may stay in the heap as it was: it is noticed when it comes up, and takes its new place then. Only
a rank that has fallen is pushed at once. What is queued for a key is the version that counts; older ones are passed
over. So most changes cost a comparison, and the rest O(log keys).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

K = TypeVar("K")
# Value, tie, a number of its own, and the key: two keys never compare equal, so keys themselves are never compared.
Rank = tuple[float, float, int, K]
_SLACK: Final = 64


class RankHeap(Generic[K]):
    """`current` tells a key's rank now, or None when it is no candidate."""

    __slots__ = ("_current", "_heap", "_queued")

    def __init__(self, current: Callable[[K], Rank[K] | None]) -> None:
        self._current = current
        self._heap: list[Rank[K]] = []
        self._queued: dict[K, Rank[K]] = {}

    def __len__(self) -> int:
        return len(self._queued)

    def changed(self, key: K) -> None:
        """To be called after whatever may have lowered a key's rank or made it a candidate."""
        rank = self._current(key)
        if rank is None:
            return
        queued = self._queued.get(key)
        if queued is None or rank < queued:
            self._queued[key] = rank
            heappush(self._heap, rank)
            self._compact()

    def forget(self, key: K) -> None:
        """The key is gone for good."""
        if self._queued.pop(key, None) is not None:
            self._compact()

    def lowest(self, besides: K | None = None) -> Rank[K] | None:
        """The lowest rank of all candidates; `besides` is passed over."""
        heap, queued = self._heap, self._queued
        aside: list[Rank[K]] = []
        found: Rank[K] | None = None
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
                aside.append(heappop(heap))
            else:
                found = rank
                break
        for one in aside:
            heappush(heap, one)
        return found

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._queued) + _SLACK:
            self._heap = list(self._queued.values())
            heapify(self._heap)
