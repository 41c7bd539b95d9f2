"""Decides which statement to stop when the engine's heap is so full that collections stop everybody.

Spark shares out the memory of sorts and joins, but not that of aggregates that collect values, nor of large values. One
statement can hold nearly the whole heap without an error. Then the JVM spends its time in collections, and all others
wait. Java does not say who holds the memory; the statement whose tasks have allocated the most is the best guess.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.running_tasks import EngineLoad

COLLECTION_SHARE: Final = 0.3
"""Stops a statement if collections took more than this share of the time since the last look."""
HEAP_SHARE: Final = 0.7
_LEAST_SHARE: Final = 0.125  # of the heap, that a statement must have allocated


@dataclass(frozen=True, slots=True)
class HeavyStatement:
    group: str
    asker: str


class HeapWatch:
    """Compares each look at the engine with the previous one."""

    def __init__(self) -> None:
        self._previous: tuple[int, int, float] | None = None

    def find_heaviest(self, generation: int, load: EngineLoad, now_s: float) -> HeavyStatement | None:
        """Returns the statement to stop, or None if the heap suffices or no statement is to blame."""
        previous, self._previous = self._previous, (generation, load.collection_ms, now_s)
        if previous is None or previous[0] != generation or now_s <= previous[2]:
            return None
        share = (load.collection_ms - previous[1]) / 1_000 / (now_s - previous[2])
        if share < COLLECTION_SHARE or load.heap_bytes < HEAP_SHARE * load.heap_limit_bytes:
            return None
        allocated: Counter[HeavyStatement] = Counter()
        for task in load.tasks:
            if task.asker and not task.is_over:
                allocated[HeavyStatement(task.group, task.asker)] += task.allocated_bytes
        for statement, allocated_bytes in allocated.most_common(1):
            if allocated_bytes >= _LEAST_SHARE * load.heap_limit_bytes:
                return statement
        return None
