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
Rank = tuple[float, float, int]
_SLACK: Final = 64


class RankHeap(Generic[K]):
    """`current` tells a key's rank now, or None when it is no candidate. Ranks of two keys are never equal."""

    __slots__ = ("_current", "_heap", "_queued")

    def __init__(self, current: Callable[[K], Rank | None]) -> None:
        self._current = current
        self._heap: list[tuple[Rank, K]] = []
        self._queued: dict[K, Rank] = {}

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
            heappush(self._heap, (rank, key))
            self._compact()

    def forget(self, key: K) -> None:
        """The key is gone for good."""
        if self._queued.pop(key, None) is not None:
            self._compact()

    def lowest(self, besides: K | None = None) -> tuple[Rank, K] | None:
        """The candidate with the lowest rank; `besides` is passed over."""
        aside: list[tuple[Rank, K]] = []
        found: tuple[Rank, K] | None = None
        while self._heap:
            rank, key = self._heap[0]
            if self._queued.get(key) != rank:
                heappop(self._heap)
                continue
            now = self._current(key)
            if now is None:
                heappop(self._heap)
                del self._queued[key]
            elif now != rank:
                self._queued[key] = now
                heapreplace(self._heap, (now, key))
            elif besides is not None and key == besides:
                aside.append(heappop(self._heap))
            else:
                found = (rank, key)
                break
        for one in aside:
            heappush(self._heap, one)
        return found

    def _compact(self) -> None:
        if len(self._heap) <= 2 * len(self._queued) + _SLACK:
            return
        self._heap = [(rank, key) for key, rank in self._queued.items()]
        heapify(self._heap)
