"""Max-min fair sharing: a demand below the equal share is met in full, and the others share the rest."""

from __future__ import annotations

from collections.abc import Iterable


def fair_level(wants: Iterable[float], capacity: float) -> float:
    """The max-min fair level: the most that each may have so that all together fit the capacity; infinite if all
    fit.
    """
    ordered = sorted(wants)
    remaining = capacity
    for index, want in enumerate(ordered):
        equal_share = remaining / (len(ordered) - index)
        if want > equal_share:
            return max(0.0, equal_share)
        remaining -= want
    return float("inf")
