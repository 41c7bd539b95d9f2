"""Generates reports, users and shelters around a place from a seed, and computes distances.

Plain Python without Tocsin, so that tests can compare the answers of queries with it.
`python -m examples.emergency.data` prints the shelters that lie beside this file as `shelters.json`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

EARTH_RADIUS_M: Final = 6_371_008.8
METRES_PER_DEGREE: Final = math.radians(1) * EARTH_RADIUS_M


@dataclass(frozen=True, slots=True)
class Place:
    latitude: float
    longitude: float


WELLINGTON: Final = Place(-41.2866, 174.7756)
SEED: Final = 1855  # the year of the great Wairarapa earthquake

# Type, weight, smallest and largest zone in metres, what the message says.
_KINDS: Final = (
    ("earthquake", 2, 3_000, 9_000, "Shaking felt; expect aftershocks, stay clear of brick walls"),
    ("fire", 5, 300, 1_500, "Smoke and flames; close your windows, keep the road free"),
    ("flood", 4, 500, 2_500, "Water is rising; leave low ground"),
    ("landslide", 3, 200, 900, "The slope is moving; stay away from the road below"),
    ("storm", 3, 2_000, 8_000, "Gusts above 130 km/h; stay indoors"),
    ("outbreak", 1, 800, 3_000, "Boil your water until further notice"),
)
EMERGENCY_TYPES: Final = tuple(kind for kind, *_ in _KINDS)
_FIRST: Final = "Ann Bo Cleo Dev Eru Fay Gil Hana Ivo Jun Kiri Lou Mia Ned Ora Pam Quin Rua Sol Tui".split()
_STREETS: Final = "Bay Beacon Cable Dune Fern Garden Harbour Hill Kelp Mill North Quarry Ridge Sand Tide Valley".split()
_BUILDINGS: Final = ("Hall", "School", "Gym", "Library", "Church", "Marae")


@dataclass(frozen=True, slots=True)
class Report:
    emergency_type: str
    severity: int
    center: Place
    radius_m: float
    timestamp: datetime
    message: str

    def covers(self, place: Place) -> bool:
        return distance_m(self.center, place) <= self.radius_m


@dataclass(frozen=True, slots=True)
class UserLocation:
    user_name: str
    place: Place
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class Shelter:
    """`beds` and `open` are fields that the type of shelters does not declare."""

    name: str
    location: Place
    beds: int
    open: bool


def report(rng: Random, *, at: datetime, around: Place = WELLINGTON, within_m: float = 12_000) -> Report:
    kind, _, smallest_m, largest_m, message = rng.choices(_KINDS, weights=[weight for _, weight, *_ in _KINDS])[0]
    return Report(
        kind,
        severity=rng.randint(1, 10),
        center=near(rng, around, within_m),
        radius_m=float(round(rng.uniform(smallest_m, largest_m))),
        timestamp=at,
        message=message,
    )


def reports(
    rng: Random, count: int, *, until: datetime, minutes: float = 60, around: Place = WELLINGTON
) -> Iterator[Report]:
    """Reports of the `minutes` before `until`, oldest first."""
    ages_s = sorted((rng.uniform(0, minutes * 60) for _ in range(count)), reverse=True)
    for age_s in ages_s:
        yield report(rng, at=until - timedelta(seconds=age_s), around=around)


def locations(rng: Random, count: int, *, at: datetime, around: Place = WELLINGTON) -> Iterator[UserLocation]:
    """Where `count` users are; the first is called Ann."""
    for i in range(count):
        name = _FIRST[i % len(_FIRST)] + (str(i // len(_FIRST) + 1) if i >= len(_FIRST) else "")
        yield UserLocation(name.lower(), near(rng, around, 8_000), at)


def shelters(rng: Random, count: int, *, around: Place = WELLINGTON) -> Iterator[Shelter]:
    """Shelters with different names, some of them closed."""
    names = [f"{street} Street {building}" for street in _STREETS for building in _BUILDINGS]
    if count > len(names):
        names += [f"{name} {i}" for i in range(2, 2 + count // len(names)) for name in names]
    for name in sorted(rng.sample(names, count)):
        yield Shelter(name, near(rng, around, 10_000), beds=rng.randrange(20, 400, 10), open=rng.random() < 0.75)


def near(rng: Random, center: Place, within_m: float) -> Place:
    """A place evenly drawn from a circle, to five digits (about a metre)."""
    away_m, direction = within_m * math.sqrt(rng.random()), rng.uniform(0, 2 * math.pi)
    latitude = center.latitude + away_m * math.cos(direction) / METRES_PER_DEGREE
    east = away_m * math.sin(direction) / (METRES_PER_DEGREE * math.cos(math.radians(center.latitude)))
    return Place(round(latitude, 5), round(center.longitude + east, 5))


def distance_m(a: Place, b: Place) -> float:
    """Along the Earth's surface."""
    up, over = math.radians(b.latitude - a.latitude) / 2, math.radians(b.longitude - a.longitude) / 2
    narrow = math.cos(math.radians(a.latitude)) * math.cos(math.radians(b.latitude))
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(math.sin(up) ** 2 + narrow * math.sin(over) ** 2))


def towards(here: Place, goal: Place, walked_m: float) -> Place:
    """Where somebody is who has walked so far from here; at the goal, if that is nearer."""
    share = min(1.0, walked_m / max(distance_m(here, goal), 1e-6))
    latitude = here.latitude + share * (goal.latitude - here.latitude)
    longitude = here.longitude + share * (goal.longitude - here.longitude)
    return Place(round(latitude, 5), round(longitude, 5))


# ---------------------------------------------------------------- as Tocsin takes them


def report_text(report: Report) -> str:
    """A report as INSERT takes it."""
    zone = f"create_circle({_point(report.center)}, {report.radius_m!r})"
    return (
        f'{{"emergencyType": {json.dumps(report.emergency_type)}, "severity": {report.severity}, "impactZone": {zone},'
        f' "timestamp": {_datetime(report.timestamp)}, "message": {json.dumps(report.message)}}}'
    )


def location_text(location: UserLocation) -> str:
    return (
        f'{{"userName": {json.dumps(location.user_name)}, "place": {_point(location.place)},'
        f' "timestamp": {_datetime(location.timestamp)}}}'
    )


def report_record(report: Report, **more: Any) -> dict[str, Any]:
    """Returns a report as a record of the feed, with further fields."""
    return {
        "emergencyType": report.emergency_type,
        "severity": report.severity,
        "impactZone": {"center": [report.center.latitude, report.center.longitude], "radius": report.radius_m},
        "timestamp": report.timestamp.isoformat(),
        "message": report.message,
        **more,
    }


def location_record(location: UserLocation) -> dict[str, Any]:
    return {
        "userName": location.user_name,
        "place": [location.place.latitude, location.place.longitude],
        "timestamp": location.timestamp.isoformat(),
    }


def records(texts: Sequence[str]) -> str:
    """Several records as INSERT and UPSERT take them."""
    return "[\n  " + ",\n  ".join(texts) + "\n]"


def shelters_json(found: Sequence[Shelter]) -> str:
    """One JSON object per line, as LOAD reads them."""
    lines = (
        {"name": s.name, "location": [s.location.latitude, s.location.longitude], "beds": s.beds, "open": s.open}
        for s in found
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def _point(place: Place) -> str:
    return f"create_point({place.latitude!r}, {place.longitude!r})"


def _datetime(moment: datetime) -> str:
    return f'datetime("{moment.isoformat()}")'


def default_shelters() -> list[Shelter]:
    """Those of `shelters.json`."""
    return list(shelters(Random(SEED), 24))


if __name__ == "__main__":
    sys.stdout.write(shelters_json(default_shelters()))
