"""Exponential back-off with jitter: the pauses between the tries of everything that retries.

Jitter keeps clients that failed together from returning together.
"""

from __future__ import annotations

from random import Random


class BackOff:
    """The pauses after failures in a row: `first_s`, then each `factor` times the one before, at most `longest_s`.

    Each is multiplied by a number drawn from the range `jitter`.
    """

    __slots__ = ("_factor", "_first_s", "_jitter", "_longest_s", "_rng", "failures")

    def __init__(
        self,
        first_s: float = 0.2,
        longest_s: float = 30.0,
        rng: Random | None = None,
        *,
        factor: float = 2.0,
        jitter: tuple[float, float] = (0.5, 1.0),
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._rng = rng
        self._factor = factor
        self._jitter = jitter
        self.failures = 0
        """How many pauses there were since the last success."""

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Counts a failure. Returns the pause after it, added to `at_least_s`, which the other side asked for."""
        whole_s = min(self._longest_s, self._first_s * self._factor ** min(self.failures, 30))
        self.failures += 1
        # Failures are rare: make the random numbers only now, so that an idle back-off costs nothing.
        return max(at_least_s, 0.0) + whole_s * (self._rng or Random()).uniform(*self._jitter)

    def reset(self) -> None:
        """The work succeeded: the next pause is the first again."""
        self.failures = 0
