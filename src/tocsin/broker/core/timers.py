"""A timer queue: items ordered by due time, then by insertion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """Items with due times. `due_s` is when the first item is due; infinity if there is none."""

    __slots__ = ("_heap", "_set", "due_s")

    def __init__(self) -> None:
        self.due_s = math.inf
        self._heap: list[tuple[float, int, T]] = []
        self._set = 0

    def set(self, due_s: float, what: T) -> None:
        self._set += 1
        heappush(self._heap, (due_s, self._set, what))
        self.due_s = self._heap[0][0]

    def due(self, now_s: float) -> Iterator[T]:
        while self.due_s <= now_s:
            item = heappop(self._heap)[2]
            self.due_s = self._heap[0][0] if self._heap else math.inf
            yield item
