"""Estimates how long a fetch from the cluster takes, for each interest and for all interests together."""

from __future__ import annotations


class LatencyEstimate:
    """An exponentially weighted average. Before the first fetch it is the configured value."""

    __slots__ = ("_measured", "_share", "all_s")

    def __init__(self, first_s: float, share: float) -> None:
        self.all_s = first_s
        self._share = share
        self._measured = False

    def measured(self, before_s: float | None, took_s: float) -> float:
        """Returns the new estimate of an interest whose estimate was `before_s` (None before its first fetch)."""
        self.all_s = self.all_s + self._share * (took_s - self.all_s) if self._measured else took_s
        self._measured = True
        return took_s if before_s is None else before_s + self._share * (took_s - before_s)
