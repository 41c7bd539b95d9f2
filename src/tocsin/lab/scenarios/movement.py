"""Movement of people: a path is a list of places with times of arrival, straight and even in between.

Generated walks and the movement traces of the ONE simulator both have this form, so it makes no difference to a city
where a path comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.lab.scenarios.roads import PointM, RoadMap


@dataclass(frozen=True, slots=True)
class MovementPace:
    """Speed and pauses, uniform between the two values of each."""

    speed_m_per_s: tuple[float, float] = (0.8, 1.8)
    pause_s: tuple[float, float] = (0.0, 120.0)

    def __post_init__(self) -> None:
        # A speed near zero never arrives: the random waypoint model would slow down for ever.
        if not 0 < self.speed_m_per_s[0] <= self.speed_m_per_s[1]:
            raise ValueError(f"speed_m_per_s: must be > 0 and in order, got {self.speed_m_per_s}")
        if not 0 <= self.pause_s[0] <= self.pause_s[1]:
            raise ValueError(f"pause_s: must be 0 or more and in order, got {self.pause_s}")


@dataclass(frozen=True, slots=True)
class MovementPath:
    """The position at any moment; before the first moment at the first place, after the last at the last."""

    at_s: tuple[float, ...]
    east_m: tuple[float, ...]
    north_m: tuple[float, ...]

    def place(self, now_s: float) -> tuple[float, float]:
        return float(np.interp(now_s, self.at_s, self.east_m)), float(np.interp(now_s, self.at_s, self.north_m))


# Returns the places on the way from here to the next goal.
_NextWay = Callable[[PointM], Sequence[PointM]]


def random_waypoint(stream: np.random.Generator, *, area_m: PointM, pace: MovementPace, span_s: float) -> MovementPath:
    """Walks straight to a random place of the area, pauses, and goes on to the next."""

    def anywhere() -> PointM:
        return float(stream.uniform(0, area_m[0])), float(stream.uniform(0, area_m[1]))

    return _walk(stream, anywhere(), lambda _here: (anywhere(),), pace, span_s)


def along_roads(stream: np.random.Generator, *, roads: RoadMap, pace: MovementPace, span_s: float) -> MovementPath:
    """Walks along the shortest way over the roads to a random crossing, pauses, and goes on to the next."""
    crossings = roads.places

    def onward(here: PointM) -> Sequence[PointM]:
        goal = crossings[int(stream.integers(len(crossings)))]
        return roads.shortest(here, goal)[1:] or (here,)

    return _walk(stream, crossings[int(stream.integers(len(crossings)))], onward, pace, span_s)


def _walk(
    stream: np.random.Generator, start: PointM, onward: _NextWay, pace: MovementPace, span_s: float
) -> MovementPath:
    points: list[tuple[float, PointM]] = [(0.0, start)]
    while points[-1][0] < span_s:
        points += _leg(stream, points[-1], onward, pace)
    return MovementPath(
        tuple(at_s for at_s, _ in points),
        tuple(place[0] for _, place in points),
        tuple(place[1] for _, place in points),
    )


def _leg(
    stream: np.random.Generator, begun: tuple[float, PointM], onward: _NextWay, pace: MovementPace
) -> Iterator[tuple[float, PointM]]:
    now_s, here = begun
    speed = float(stream.uniform(*pace.speed_m_per_s))
    for place in onward(here):
        now_s += math.dist(here, place) / speed
        here = place
        yield now_s, here
    # Pause at least for a moment, so that time advances even for a walk to the same place.
    now_s += max(float(stream.uniform(*pace.pause_s)), 1e-3)
    yield now_s, here
