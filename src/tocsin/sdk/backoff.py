"""Exponential back-off with jitter."""

from __future__ import annotations

from random import Random
from typing import Final

FIRST_S: Final = 0.2
LONGEST_S: Final = 30.0


class BackOff:
    """The pause doubles with each try and is drawn from its upper half, so that clients do not return at once."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S, rng: Random | None = None) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._rng = rng or Random()
        self._tries = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """The next pause, added to `at_least_s`, which the other side asked for."""
        whole_s = min(self._longest_s, self._first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return max(at_least_s, 0.0) + whole_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._tries = 0
