"""Random worlds for channels: rows in versions, with the values that are hard to get right, all from one seed."""

from __future__ import annotations

import os
from datetime import timedelta
from random import Random
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

from tests.support.channel_compiler import GLOBE, NOW, REPORTS, SHELTERS, USERS, FakeDatasets, Record, Version
from tocsin.rules.model.values import Circle, Duration, Point, Polygon, Rectangle, rectangle

# A world is hundreds of rows and interests already. A build machine, which draws the same each time, draws one.
tried = settings(
    max_examples=1 if os.environ.get("CI") else 2, phases=(Phase.explicit, Phase.reuse, Phase.generate), print_blob=True
)
seeds = st.integers(0, 2**32 - 1)

KINDS = ("fire", "flood", "Fire", "fi", "", "名前", "nä", "na\u0308", "a%b", "a_b", "a\\b", "x" * 40, "x" * 39 + "y")
TAGS = ("a", "b", "名", "", "a b")
LEVELS = (0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 0.1, 1e15, 2.0**53)
BIGS = (0, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, -(2**53) - 1, 7)
USER_NAMES = (*(f"user {i}" for i in range(12)), "名前", "", "User 1")


def coordinate(rng: Random) -> float:
    """In 64ths, so that squares of distances are exact; mostly near each other, sometimes far away."""
    reach = rng.choice((64, 640, 640, 6400, 64 << 14))
    return rng.randint(-reach, reach) / 64


def point(rng: Random) -> Point:
    return Point(coordinate(rng), coordinate(rng))


def circle(rng: Random) -> Circle:
    """From a dot to half the world."""
    return Circle(point(rng), rng.choice((0, 1, 7, 64, 200, 640, 64 * 40, 64 << 13)) / 64)


def box(rng: Random) -> Rectangle:
    a = point(rng)
    reach = rng.choice((0, 3, 64, 640, 64 << 12))
    return rectangle(a, Point(a.x + rng.randint(0, reach) / 64, a.y + rng.randint(0, reach) / 64))


def triangle(rng: Random) -> Polygon:
    a, reach = point(rng), rng.choice((64, 64, 640, 6400)) / 64
    return Polygon((a, Point(a.x + reach, a.y + reach / 4), Point(a.x + reach / 2, a.y + reach)))


def level(rng: Random) -> float:
    return rng.choice((rng.choice(LEVELS), rng.uniform(-10, 10), rng.uniform(-1e6, 1e6)))


def big(rng: Random) -> int:
    return rng.choice((rng.choice(BIGS), rng.randint(-20, 20), rng.randint(-(2**63), 2**63 - 1)))


def report(rng: Random, identity: int) -> Record:
    low = level(rng)
    made: Record = {
        "id": identity, "kind": rng.choice(KINDS), "severity": rng.randint(-3, 12), "big": big(rng),
        "level": level(rng), "tags": rng.choices(TAGS, k=rng.randint(0, 3)),
        "numbers": [rng.randint(0, 12) for _ in range(rng.randint(0, 3))], "zone": circle(rng), "area": triangle(rng),
        "low": low, "high": low + rng.choice((0.0, 0.5, 3.0, 1e6)),
        "at": NOW - timedelta(microseconds=rng.choice((0, 1, 19_999_999, 20_000_000, 20_000_001, 30_000_000, 10**9))),
    }  # fmt: skip
    made["lasts"] = Duration(abs(made["severity"]) % 3, abs(made["severity"]) * 7 * 86_400_000_000 + 1_000_000)
    for name, value in (("note", rng.choice(KINDS)), ("place", point(rng)), ("box", box(rng))):
        presence = rng.random()
        if presence < 0.8:
            made[name] = value
        elif presence < 0.9:
            made[name] = None
    if rng.random() < 0.8:
        made["extra"] = rng.choice((1, 1.0, "1", True, 2**53 + 1, 2.0**53, "名", None, [1, "x"], {"b": 2, "a": 1.0}))
    return made


def user(rng: Random, name: str) -> Record:
    made: Record = {"name": name, "kind": rng.choice(KINDS)}
    if rng.random() < 0.85:
        made["place"] = point(rng)
    return made


def shelter(rng: Random, number: int) -> Record:
    return {"name": f"shelter {number}", "kind": rng.choice(KINDS), "place": point(rng)}


def latitude(rng: Random) -> float:
    return rng.choice((90.0, -90.0, 89.9999, -89.99, 0.0, rng.uniform(-90, 90), rng.uniform(-90, 90)))


def longitude(rng: Random) -> float:
    near = (180.0, -180.0, 179.999, -179.999, 0.0, 360.0, 190.0)
    return rng.choice((rng.choice(near), rng.uniform(-180, 180), rng.uniform(-180, 180), rng.uniform(-400, 400)))


def spot(rng: Random) -> Point:
    return Point(latitude(rng), longitude(rng))


def cap(rng: Random) -> Circle:
    """Metres: from nothing to the whole globe."""
    return Circle(spot(rng), rng.choice((0.0, 10.0, 1e3, 1e5, 1e6, 5e6, 1.2e7, 2.1e7)) * rng.choice((1, rng.random())))


def zone_of_globe(rng: Random) -> Rectangle:
    south = rng.choice((-90.0, rng.uniform(-90, 80), rng.uniform(-90, 80)))
    west = rng.choice((-180.0, 170.0, rng.uniform(-180, 180)))
    north = rng.choice((90.0, min(90.0, south + rng.choice((0.01, 1, 30)))))
    return Rectangle(Point(south, west), Point(north, west + rng.choice((0.01, 5, 40, 359, 360))))


def history(rng: Random, records: list[Record], key: str, again: Any) -> list[Version]:
    """Some rows are old, some came with the commits that are new, some of the old ones were upserted, some deleted."""
    current: dict[Any, Version] = {record[key]: Version(record, 1) for record in records if rng.random() < 0.5}
    for commit in (2, 3):
        for record in records:
            drawn = rng.random()
            if record[key] not in current:
                if drawn < 0.5:
                    current[record[key]] = _version(rng, record, commit)
            elif drawn < 0.15:
                current[record[key]] = _version(rng, again(rng, record[key]), commit)
            elif drawn < 0.2:
                del current[record[key]]
    rows = list(current.values())
    rng.shuffle(rows)
    return rows


def _version(rng: Random, record: Record, commit: int) -> Version:
    return Version(record, commit, NOW - timedelta(seconds=rng.randint(0, 40)))


def world(
    seed: int, *, reports: int = 120, users: int = len(USER_NAMES), shelters: int = 25, globe: int = 0
) -> FakeDatasets:
    rng = Random(seed)
    rows = {
        REPORTS.name: history(rng, [report(rng, i) for i in range(reports)], "id", report),
        USERS.name: history(rng, [user(rng, name) for name in USER_NAMES[:users]], "name", user),
        SHELTERS.name: [Version(shelter(rng, i), 1) for i in range(shelters)],
        GLOBE.name: [
            Version({"id": i, "place": spot(rng), "zone": cap(rng), "box": zone_of_globe(rng)}, 2) for i in range(globe)
        ],
    }
    return FakeDatasets(rows)
