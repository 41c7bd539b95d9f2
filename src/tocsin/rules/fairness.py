"""Room that several share: whoever wants less than an equal part has all it wants, and the others share the rest."""

from __future__ import annotations

from collections.abc import Iterable


def fair_level(wants: Iterable[float], capacity: float) -> float:
    """The most that anybody may have so that all together have at most the capacity (max-min fairness). Infinite where
    there is room for all."""
    ordered = sorted(wants)
    left = capacity
    for place, want in enumerate(ordered):
        equal = left / (len(ordered) - place)
        if want > equal:
            return max(0.0, equal)
        left -= want
    return float("inf")
