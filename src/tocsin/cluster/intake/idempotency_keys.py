"""The idempotency keys of late, each with the answer that its first request got."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

# What a key costs beside its text and its answer, roughly.
_KEY_COST_BYTES: Final = 400
# A clock that is set back by less does no harm: a key is forgotten that much late.
_CLOCK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RememberedAnswer:
    first: int
    position: int
    answer: bytes
    at_s: float


class RememberedKeys:
    """Keys in the order of their entries, for `remember_s`; for less where more than `limit_bytes` came within it.

    A clock that is set back makes no key older than it is: those that would lie in the future count from now on.
    """

    __slots__ = ("_by_key", "_bytes", "_latest_s", "_limit_bytes", "_remember_s")

    def __init__(self, remember_s: float, limit_bytes: int) -> None:
        self._remember_s = remember_s
        self._limit_bytes = limit_bytes
        # Not a dict: finding its first item again and again while taking items out of the front is quadratic.
        self._by_key: OrderedDict[str, RememberedAnswer] = OrderedDict()
        self._bytes = 0
        self._latest_s = 0.0

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, key: str, kept: RememberedAnswer) -> None:
        # Out and in again: the order is that of the entries.
        self._drop(key)
        self._by_key[key] = kept
        self._bytes += _cost(key, kept)
        self._latest_s = max(self._latest_s, kept.at_s)
        while self._bytes > self._limit_bytes and len(self._by_key) > 1:
            self._drop(next(iter(self._by_key)))

    def find(self, key: str, age_s: float) -> RememberedAnswer | None:
        kept = self._by_key.get(key)
        return kept if kept is not None and age_s - kept.at_s <= self._remember_s else None

    def forget(self, now_s: float, age_s: float) -> None:
        """Drop what is too old at `age_s`, the time by which ages are told; it may stand still behind `now_s`."""
        if now_s < self._latest_s - _CLOCK_S:
            for key, kept in self._by_key.items():
                if kept.at_s > now_s:
                    self._by_key[key] = RememberedAnswer(kept.first, kept.position, kept.answer, now_s)
            self._latest_s = now_s
        while self._by_key:
            key, kept = next(iter(self._by_key.items()))
            if age_s - kept.at_s <= self._remember_s:
                return
            self._drop(key)

    @property
    def oldest(self) -> int | None:
        """The position of the oldest entry whose key is remembered."""
        return next(iter(self._by_key.values())).first if self._by_key else None

    def _drop(self, key: str) -> None:
        kept = self._by_key.pop(key, None)
        if kept is not None:
            self._bytes -= _cost(key, kept)


def _cost(key: str, kept: RememberedAnswer) -> int:
    return _KEY_COST_BYTES + len(key) + len(kept.answer)
