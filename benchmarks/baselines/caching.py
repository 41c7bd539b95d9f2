"""Result caches and delivery as one would first write them: a set of subscribers per result, a look at every cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class PlainResult:
    __slots__ = ("needed_by", "number", "payload", "size")

    def __init__(self, number: int, size: int, payload: object, needed_by: set[int]) -> None:
        self.number = number
        self.size = size
        self.payload = payload
        self.needed_by = needed_by


class PlainCaches:
    """One deque per interest, oldest first; the victim is found by looking at all of them."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self.subscribers: dict[int, set[int]] = {}
        self.results: dict[int, deque[PlainResult]] = {}

    def open(self, interest: int, subscribers: Iterable[int]) -> None:
        self.subscribers[interest] = set(subscribers)
        self.results[interest] = deque()

    def put(self, interest: int, number: int, size: int, payload: object = None) -> set[int]:
        """Who gets it."""
        audience = self.subscribers[interest]
        self.results[interest].append(PlainResult(number, size, payload, set(audience)))
        self.used += size
        while self.used > self.budget:
            fewest = min((results for results in self.results.values() if results), key=_needing_the_oldest)
            self.used -= fewest.popleft().size
        return audience

    def ack(self, interest: int, subscriber: int, number: int) -> None:
        results = self.results[interest]
        for result in results:
            if result.number > number:
                break
            result.needed_by.discard(subscriber)
        while results and not results[0].needed_by:
            self.used -= results.popleft().size


def _needing_the_oldest(results: deque[PlainResult]) -> int:
    return len(results[0].needed_by)
