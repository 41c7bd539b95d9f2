"""Moving averages: how fast a result cache grows, and how long a fetch from the cluster takes.

They smooth single bursts, and forget the past, so that they follow changes.
"""

from __future__ import annotations

import math


class GrowthRates:
    """Counts bytes; `update` folds the counts into averages whose past decays with the time constant of the window."""

    __slots__ = ("arrived_bytes", "arriving_bytes_s", "consumed_bytes", "consuming_bytes_s", "estimated", "since_s")

    def __init__(self, now_s: float) -> None:
        self.arrived_bytes = 0
        self.consumed_bytes = 0
        self.arriving_bytes_s = 0.0
        self.consuming_bytes_s = 0.0
        self.estimated = False
        self.since_s = now_s

    def update(self, now_s: float, window_s: float) -> None:
        """Updates the averages: the first call takes the measured rate, later calls weigh the past by
        exp(−elapsed/window).
        """
        elapsed_s = now_s - self.since_s
        if elapsed_s <= 0:
            return
        weight = 1.0 - math.exp(-elapsed_s / window_s) if self.estimated else 1.0
        self.arriving_bytes_s += weight * (self.arrived_bytes / elapsed_s - self.arriving_bytes_s)
        self.consuming_bytes_s += weight * (self.consumed_bytes / elapsed_s - self.consuming_bytes_s)
        self.arrived_bytes = self.consumed_bytes = 0
        self.estimated = True
        self.since_s = now_s

    @property
    def growth_bytes_s(self) -> float:
        """ρ = (λ − η)⁺"""
        return max(0.0, self.arriving_bytes_s - self.consuming_bytes_s)


class LatencyEstimate:
    """How long a fetch takes, for each interest and for all; the configured value before the first fetch."""

    __slots__ = ("_measured", "_share", "all_s")

    def __init__(self, first_s: float, share: float) -> None:
        self.all_s = first_s
        self._share = share
        self._measured = False

    def measure(self, before_s: float | None, took_s: float) -> float:
        """Returns the new estimate of an interest whose estimate was `before_s` (None before its first fetch)."""
        self.all_s = self.all_s + self._share * (took_s - self.all_s) if self._measured else took_s
        self._measured = True
        return took_s if before_s is None else before_s + self._share * (took_s - before_s)
