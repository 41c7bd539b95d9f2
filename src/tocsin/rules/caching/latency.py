"""How long a fetch from the cluster takes: a running estimate, for each interest and for all together."""

from __future__ import annotations


class LatencyEstimate:
    """Exponentially weighted; before the first fetch it is what the settings say."""

    __slots__ = ("_measured", "_share", "all_s")

    def __init__(self, first_s: float, share: float) -> None:
        self.all_s = first_s
        self._share = share
        self._measured = False

    def measured(self, before_s: float | None, took_s: float) -> float:
        """The new estimate of an interest whose estimate was `before_s` (None: its first fetch)."""
        self.all_s = self.all_s + self._share * (took_s - self.all_s) if self._measured else took_s
        self._measured = True
        return took_s if before_s is None else before_s + self._share * (took_s - before_s)
