"""Estimates how fast a result cache grows: arriving and consumed bytes per second, as moving averages."""

from __future__ import annotations

import math


class GrowthRates:
    """Counts bytes; `look` folds the counts into averages whose past decays with the time constant of the window."""

    __slots__ = ("arrived_bytes", "arriving_bytes_s", "consumed_bytes", "consuming_bytes_s", "estimated", "since_s")

    def __init__(self, now_s: float) -> None:
        self.arrived_bytes = 0
        self.consumed_bytes = 0
        self.arriving_bytes_s = 0.0
        self.consuming_bytes_s = 0.0
        self.estimated = False
        self.since_s = now_s

    def look(self, now_s: float, window_s: float) -> None:
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
