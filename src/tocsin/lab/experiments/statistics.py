"""Means with confidence intervals: Student's t from the standard library alone.

There are few replications, for which the normal distribution would make the intervals too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over independent runs and half the width of its confidence interval, infinite for a single run."""

    mean: float
    half_width: float
    runs: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def __str__(self) -> str:
        if math.isinf(self.half_width):
            return f"{self.mean:.4g} (one run)"
        if self.half_width <= 1e-12 * abs(self.mean):
            return f"{self.mean:.4g}"  # all runs agree
        return f"{self.mean:.4g} ± {self.half_width:.2g}"


def estimate(values: Sequence[float], *, confidence: float = _CONFIDENCE) -> Estimate:
    """Returns the mean of independent values with its interval. Raises `ValueError` for no values."""
    runs = len(values)
    if not runs:
        raise ValueError("an estimate needs a value")
    mean = math.fsum(values) / runs
    if runs == 1:
        return Estimate(mean, math.inf, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (runs - 1)
    return Estimate(mean, student_t(confidence, runs - 1) * math.sqrt(variance / runs), runs)


@lru_cache(maxsize=256)
def student_t(confidence: float, freedom: int) -> float:
    """Returns the two-sided quantile of Student's t for this confidence, to about ten digits."""
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"no Student t for confidence {confidence} and {freedom} degrees of freedom")
    low, high = 0.0, 2.0
    while _within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Returns the probability of |T| ≤ t."""
    return 1 - _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges fast on this side only; use the mirror image on the other.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    tiny = 1e-300
    numerator, denominator = 1.0, 0.0
    value = 1.0
    for step in range(500):
        half = step // 2
        if step == 0:
            term = 1.0
        elif step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1 / (1 + term * denominator or tiny)
        numerator = 1 + term / numerator or tiny
        change = numerator * denominator
        value *= change
        if abs(change - 1) < 1e-14:
            break
    return front * (value - 1) / a
