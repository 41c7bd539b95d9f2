"""The sphere as unit vectors in space: the angle between two is atan2(|u × v|, u · v)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tocsin.rules.model.values import Circle, Point, Rectangle

RADIUS_M = 6371008.8


def vectors(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> NDArray[np.float64]:
    # Whole turns go in degrees, where they are exact.
    phi, lam = np.radians(lat), np.radians(np.fmod(lon, 360.0))
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=-1)


def distance_m(p: Point, q: Point) -> float:
    u, v = (vectors(np.float64(a.x), np.float64(a.y)) for a in (p, q))
    return float(RADIUS_M * np.arctan2(np.linalg.norm(np.cross(u, v)), np.dot(u, v)))


def in_box(p: Point, box: Rectangle) -> bool:
    turned = any(box.low.y <= p.y + 360 * turns <= box.high.y for turns in range(-4, 5))
    return box.low.x <= p.x <= box.high.x and (turned or abs(p.x) == 90)


def distance_to_box_m(p: Point, box: Rectangle, steps: int = 4000) -> tuple[float, float]:
    """The least distance to densely sampled sides, and by how much it may be too large."""
    if in_box(p, box):
        return 0.0, 0.0
    width = min(box.high.y - box.low.y, 360.0)
    lats = np.linspace(box.low.x, box.high.x, steps)
    lons = np.linspace(box.low.y, box.low.y + width, steps)
    sides = [(lats, np.full(steps, box.low.y)), (lats, np.full(steps, box.low.y + width)),
             (np.full(steps, box.low.x), lons), (np.full(steps, box.high.x), lons)]  # fmt: skip
    u = vectors(np.float64(p.x), np.float64(p.y))
    nearest = math.inf
    for lat, lon in sides:
        v = vectors(lat, lon)
        angle = np.arctan2(np.linalg.norm(np.cross(np.broadcast_to(u, v.shape), v), axis=-1), v @ u)
        nearest = min(nearest, float(angle.min()))
    spacing = math.radians(max(box.high.x - box.low.x, width) / (steps - 1))
    return RADIUS_M * nearest, RADIUS_M * spacing


def cap_area_m2(circle: Circle) -> float:
    """Archimedes: as large as the cylinder of the cap's height."""
    return 2 * math.pi * RADIUS_M**2 * (1 - math.cos(min(circle.radius / RADIUS_M, math.pi)))
