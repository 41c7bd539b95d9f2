"""The least that an event loop under virtual time can do: a heap of tuples and a clock, nothing checked."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def bare_heap(timers: int, delays_s: Sequence[float], events: int) -> float:
    """Runs timers that restart themselves, until enough of them have gone off. Returns the time at the end."""
    heap = [(delays_s[number % len(delays_s)], number) for number in range(timers)]
    heapq.heapify(heap)
    now_s = 0.0
    sequence = timers

    def happen(number: int) -> None:
        nonlocal sequence
        sequence += 1
        heapq.heappush(heap, (now_s + delays_s[number % len(delays_s)], sequence))

    for _ in range(events):
        now_s, number = heapq.heappop(heap)
        happen(number)
    return now_s
