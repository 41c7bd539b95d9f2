"""What is due later, by time and then by order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._set = 0

    def set(self, due_s: float, what: T) -> None:
        self._set += 1
        heappush(self._heap, (due_s, self._set, what))

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def due_s(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now_s: float) -> Iterator[T]:
        while self._heap and self._heap[0][0] <= now_s:
            yield heappop(self._heap)[2]
