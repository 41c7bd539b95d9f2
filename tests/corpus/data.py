# ruff: noqa: E501 (a record reads best in one line)
"""The corpus's data: small, the same every time, and with something of every kind in it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, Final

from tests.support.literals import literal
from tocsin.rules.model.values import MISSING, Circle, Line, Multiset, Point, Polygon, Rectangle

Record = dict[str, Any]

TYPES: Final = """
CREATE TYPE Address AS CLOSED { city: string, zip: int?, geo: point? };
CREATE TYPE Person AS OPEN {
    id: int, name: string, age: int?, score: double?, born: date, seen: datetime?, active: boolean,
    address: Address, tags: [string], marks: {{ int }}, big: int
};
CREATE TYPE Visit AS OPEN {
    id: int, person: int, place: string, at: datetime, cost: double, minutes: int,
    items: [{ sku: string, n: int, price: double? }]
};
CREATE TYPE Zone AS CLOSED { name: string, area: circle, box: rectangle, path: line, shape: polygon };
CREATE TYPE Thing AS OPEN { `key`: { a: int, b: string }, n: int };
CREATE DATASET People(Person) PRIMARY KEY id;
CREATE DATASET Visits(Visit) PRIMARY KEY id;
CREATE DATASET Zones(Zone) PRIMARY KEY name;
CREATE ACTIVE DATASET Things(Thing) PRIMARY KEY `key`.a, `key`.b;
CREATE INDEX byCity ON People(address.city);
"""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _person(id_: int, name: str, born: str, city: str, **rest: Any) -> Record:
    address = {"city": city, **{key: rest.pop(key) for key in ("zip", "geo") if key in rest}}
    declared = {"id": id_, "name": name, "born": date.fromisoformat(born), "active": rest.pop("active", True)}
    shape = {"address": address, "tags": rest.pop("tags", []), "marks": Multiset(rest.pop("marks", []))}
    return {**declared, **shape, "big": rest.pop("big", id_), **rest}


PEOPLE: Final[list[Record]] = [
    _person(1, "Ada", "1990-02-28", "Köln", zip=50667, geo=Point(6.96, 50.94), age=36, score=1.5, tags=["x", "y"],
            marks=[3, 1, 2], big=2**63 - 1, seen=at("2026-03-01T10:00:00"), mixed=7, nick="ad",
            extra={"level": 3, "list": [{"c": 1}, {"c": 2, "d": [10, 20]}], "名": "ü"}),
    _person(2, "Ben", "1985-12-31", "Köln", zip=None, age=None, score=2.25, tags=["y"], marks=[5], big=-(2**63),
            seen=None, mixed="seven", nick=None, extra={"level": None, "list": []}),
    _person(3, "Çelik", "2000-02-29", "Paris", age=26, tags=[], active=False, mixed=7.5, extra={"level": 5.5}),
    _person(4, "dora", "1970-01-01", "Paris", zip=75001, geo=None, age=56, score=-0.5, tags=["x", "x", "z"], marks=[2, 2],
            seen=at("1969-12-31T23:59:59.999999"), mixed=True, nick="d"),
    _person(5, "Eve \"E\" O'Neil", "1999-07-15", "", zip=0, age=0, score=0.0, tags=[""], marks=[-1, 0, 1], active=False,
            mixed=None, nick="", when=at("2026-05-05T05:05:05"), place=Point(1.0, 2.0)),
    _person(6, "名前", "1990-02-28", "東京", age=36, score=1.5, tags=["y", "x"], mixed=[1, "a", None], extra={"level": 1}),
]  # fmt: skip


def _visit(
    id_: int, person: int, place: str, moment: str, cost: float, minutes: int, *items: tuple[Any, ...]
) -> Record:
    made = [{"sku": sku, "n": n, **({} if price is MISSING else {"price": price})} for sku, n, price in items]
    return {
        "id": id_,
        "person": person,
        "place": place,
        "at": at(moment),
        "cost": cost,
        "minutes": minutes,
        "items": made,
    }


VISITS: Final[list[Record]] = [
    _visit(1, 1, "park", "2026-01-01T08:00:00", 10.0, 60, ("a", 1, 2.5), ("b", 2, None)),
    _visit(2, 1, "shop", "2026-01-02T09:30:00", 0.5, 15, ("a", 4, 2.0)),
    _visit(3, 2, "park", "2026-01-02T09:30:00", 20.25, 90),
    _visit(4, 3, "zoo", "2026-02-28T23:59:59.999999", 7.0, 240, ("c", 1, MISSING), ("a", 1, 1.0), ("c", 3, 9.0)),
    _visit(5, 3, "park", "2026-03-01T00:00:00", 10.0, 60, ("b", 7, 0.25)),
    _visit(6, 9, "nowhere", "2025-12-31T23:00:00", 0.0, 0, ("z", 0, 0.0)),
    {**_visit(7, 4, "zoo", "2026-06-15T12:00:00", 3.0, 45), "note": "rain", "rating": 4},
    {**_visit(8, 6, "shop", "2026-06-15T18:00:00", 99.99, 5, ("a", 10, 0.1)), "note": None, "rating": "good"},
]

ZONES: Final[list[Record]] = [
    {
        "name": "near", "area": Circle(Point(0.0, 0.0), 5.0), "box": Rectangle(Point(0.0, 0.0), Point(4.0, 3.0)),
        "path": Line(Point(0.0, 0.0), Point(3.0, 4.0)),
        "shape": Polygon((Point(0.0, 0.0), Point(4.0, 0.0), Point(4.0, 4.0), Point(0.0, 4.0))),
    },
    {
        "name": "far", "area": Circle(Point(100.0, 100.0), 1.0), "box": Rectangle(Point(90.0, 90.0), Point(95.0, 99.0)),
        "path": Line(Point(100.0, 100.0), Point(101.0, 100.0)),
        "shape": Polygon((Point(100.0, 100.0), Point(110.0, 100.0), Point(105.0, 110.0))),
    },
]  # fmt: skip

THINGS: Final[list[Record]] = [
    {"key": {"a": a, "b": b}, "n": n} for a, b, n in ((1, "x", 10), (1, "y", 20), (2, "x", 30), (2, "y", 40))
]

FUNCTIONS: Final = """
CREATE FUNCTION visitsOf(person) { SELECT VALUE v FROM Visits v WHERE v.person = person };
CREATE FUNCTION costOf(person) { SELECT VALUE sum(v.cost) FROM Visits v WHERE v.person = person };
CREATE FUNCTION double_it(n) { n * 2 };
CREATE FUNCTION quadruple(n) { double_it(double_it(n)) };
CREATE FUNCTION named(name) { SELECT VALUE p.id FROM People p WHERE p.name = name };
CREATE FUNCTION hidden(x) { SELECT VALUE [p.id, x] FROM People p WHERE p.id < 3 };
CREATE FUNCTION inTown(city, lowest) {
    SELECT p.name AS name, visits AS visits FROM People p
    LET visits = (SELECT VALUE v.place FROM visitsOf(p.id) v WHERE v.cost >= lowest)
    WHERE p.address.city = city
};
CREATE FUNCTION label(person) { CASE WHEN person.age >= 30 THEN "old" ELSE "young" END };
CREATE FUNCTION pair(a, b) { {"a": a, "b": b} };
CREATE FUNCTION none() { 42 };
CREATE FUNCTION dearest(n) { SELECT v.id, v.cost AS c FROM Visits v ORDER BY c DESC LIMIT n };
CREATE FUNCTION flagged(t) { SELECT t.*, t.c > 1 AS flag };
"""


def script() -> str:
    """Everything above as one script. Things has four commits: its records, a change, a removal, and one more record."""
    inserts = [
        f"INSERT INTO {name} {literal(records)};"
        for name, records in (("People", PEOPLE), ("Visits", VISITS), ("Zones", ZONES), ("Things", THINGS))
    ]
    changes = [
        f"UPSERT INTO Things {literal({**THINGS[0], 'n': 11})};",
        "DELETE FROM Things t WHERE t.`key`.b = 'y' AND t.`key`.a = 1;",
        f"INSERT INTO Things {literal({'key': {'a': 3, 'b': 'x'}, 'n': 50, 'open': 1})};",
    ]
    return "\n".join([TYPES, *inserts, *changes, FUNCTIONS])
