"""Emergencies that travel: a circle with a start, an end, and a straight path in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Zone:
    """An impact zone that moves evenly while it lasts."""

    kind: str
    severity: int
    begin_s: float
    end_s: float
    east_m: float
    north_m: float
    east_m_per_s: float
    north_m_per_s: float
    radius_m: float

    def active(self, now_s: float) -> bool:
        return self.begin_s <= now_s < self.end_s

    def centre(self, now_s: float) -> tuple[float, float]:
        past_s = min(max(now_s, self.begin_s), self.end_s) - self.begin_s
        return self.east_m + self.east_m_per_s * past_s, self.north_m + self.north_m_per_s * past_s

    def covers(self, now_s: float, place: tuple[float, float]) -> bool:
        return self.active(now_s) and math.dist(self.centre(now_s), place) <= self.radius_m


def travelling_zones(
    stream: np.random.Generator,
    kinds: Sequence[str],
    *,
    area_m: tuple[float, float],
    span_s: float,
    every_s: float,
    lasts_s: tuple[float, float] = (300.0, 1800.0),
    speed_m_per_s: tuple[float, float] = (0.0, 10.0),
    radius_m: tuple[float, float] = (200.0, 2000.0),
) -> list[Zone]:
    """Zones that begin as a Poisson process and travel in random directions; the first begins at 0."""
    zones = []
    begin_s = 0.0
    while begin_s < span_s:
        angle = float(stream.uniform(0, 2 * math.pi))
        speed = float(stream.uniform(*speed_m_per_s))
        zones.append(
            Zone(
                kind=kinds[int(stream.integers(len(kinds)))],
                severity=int(stream.integers(1, 11)),
                begin_s=begin_s,
                end_s=begin_s + float(stream.uniform(*lasts_s)),
                east_m=float(stream.uniform(0, area_m[0])),
                north_m=float(stream.uniform(0, area_m[1])),
                east_m_per_s=speed * math.cos(angle),
                north_m_per_s=speed * math.sin(angle),
                radius_m=float(stream.uniform(*radius_m)),
            )
        )
        begin_s += float(stream.exponential(every_s))
    return zones
