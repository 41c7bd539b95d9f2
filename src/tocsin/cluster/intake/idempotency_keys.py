"""Remembers recent idempotency keys with their answers, so that a repeated request has no second effect.

The keys are in the log's own entries, durable together with the records, and this index is rebuilt from them. The log
therefore keeps a segment as long as one of its keys is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

# The approximate cost of a key beside its text and its answer.
_KEY_COST_BYTES: Final = 400
# A clock that is set back by less than this is tolerated: keys expire that much later.
_CLOCK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RememberedAnswer:
    first: int
    position: int
    answer: bytes
    at_s: float


class RememberedKeys:
    """Keys in the order of their entries. They expire after `remember_s`, or earlier if they exceed `limit_bytes`.

    If the clock is set back, keys with a time in the future count from now, so that none lives for too long.
    """

    __slots__ = ("_by_key", "_bytes", "_latest_s", "_limit_bytes", "_remember_s")

    def __init__(self, remember_s: float, limit_bytes: int) -> None:
        self._remember_s = remember_s
        self._limit_bytes = limit_bytes
        # Not a dict: deleting the first item of a dict again and again is quadratic.
        self._by_key: OrderedDict[str, RememberedAnswer] = OrderedDict()
        self._bytes = 0
        self._latest_s = 0.0

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, key: str, kept: RememberedAnswer) -> None:
        # Remove and add: the order is that of the entries.
        self._drop(key)
        self._by_key[key] = kept
        self._bytes += _cost(key, kept)
        self._latest_s = max(self._latest_s, kept.at_s)
        while self._bytes > self._limit_bytes and len(self._by_key) > 1:
            self._drop(next(iter(self._by_key)))

    def find(self, key: str, age_s: float) -> RememberedAnswer | None:
        remembered = self._by_key.get(key)
        return remembered if remembered is not None and age_s - remembered.at_s <= self._remember_s else None

    def forget(self, now_s: float, age_s: float) -> None:
        """Drops the keys that are expired at `age_s`, the time of the age clock, which may stand still."""
        if now_s < self._latest_s - _CLOCK_S:
            for key, remembered in self._by_key.items():
                if remembered.at_s > now_s:
                    self._by_key[key] = RememberedAnswer(
                        remembered.first, remembered.position, remembered.answer, now_s
                    )
            self._latest_s = now_s
        while self._by_key:
            key, remembered = next(iter(self._by_key.items()))
            if age_s - remembered.at_s <= self._remember_s:
                return
            self._drop(key)

    @property
    def oldest(self) -> int | None:
        """The position of the oldest entry whose key is remembered."""
        return next(iter(self._by_key.values())).first if self._by_key else None

    def _drop(self, key: str) -> None:
        remembered = self._by_key.pop(key, None)
        if remembered is not None:
            self._bytes -= _cost(key, remembered)


def _cost(key: str, kept: RememberedAnswer) -> int:
    return _KEY_COST_BYTES + len(key) + len(kept.answer)
