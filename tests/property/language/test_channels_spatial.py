"""The shared query of a channel with shapes against exact geometry, and on the globe against vectors in space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from hypothesis import given
from pyspark.sql import SparkSession

from tests.support.channel_compiler import GLOBE, REPORTS, SHELTERS, USERS, Case, FakeDatasets, check, shown
from tests.support.channel_worlds import (
    KINDS,
    USER_NAMES,
    box,
    cap,
    circle,
    coordinate,
    seeds,
    spot,
    triangle,
    tried,
    world,
    zone_of_globe,
)  # fmt: skip
from tests.support.reference import geodesy, geometry
from tocsin.rules.model import types as t
from tocsin.rules.model.values import Circle, Point, Rectangle


def run(spark: SparkSession, seed: int, cases: Sequence[Case], **sizes: int) -> None:
    made = world(seed, **sizes)
    with shown(spark, made):
        for case in cases:
            check(spark, case, made, seed)


def meets(a: Any, b: Any) -> bool:
    return a is not None and b is not None and geometry.intersect(a, b)


def many(made: Callable[[Random], tuple[Any, ...]], count: int = 40) -> Callable[[Random, FakeDatasets], Sequence[Any]]:
    return lambda rng, _world: [made(rng) for _ in range(count)]


def ids(test: Callable[..., bool]) -> Callable[..., list[Any]]:
    return lambda world, *values: [r["id"] for r in world.new(REPORTS) if test(r, *values)]


def _apart(a: Point | None, b: Point | None) -> float:
    return float("inf") if a is None or b is None else ((a.x - b.x) ** 2 + (a.y - b.y) ** 2) ** 0.5


PLANE = [
    Case(["x", "y"], "select value r.id from Reports r where spatial_intersect(r.zone, create_point(x, y))",
         many(lambda rng: (coordinate(rng), coordinate(rng))), ids(lambda r, x, y: meets(r["zone"], Point(x, y)))),
    Case(["c"], "select value r.id from Reports r where spatial_intersect(r.place, c)",
         many(lambda rng: (circle(rng),)), ids(lambda r, c: meets(r.get("place"), c)), declared={"c": t.CIRCLE}),
    Case(["c"], "select value r.id from Reports r where spatial_intersect(c, r.zone)",
         many(lambda rng: (circle(rng),)), ids(lambda r, c: meets(r["zone"], c)), declared={"c": t.CIRCLE}),
    Case(["c"], "select value r.id from Reports r where spatial_intersect(r.box, c)",
         many(lambda rng: (circle(rng),)), ids(lambda r, c: meets(r.get("box"), c)), declared={"c": t.CIRCLE}),
    Case(["b"], "select value r.id from Reports r where spatial_intersect(r.area, b) and r.severity > 2",
         many(lambda rng: (box(rng),)), ids(lambda r, b: r["severity"] > 2 and meets(r["area"], b)),
         declared={"b": t.RECTANGLE}),
    Case(["p"], "select value r.id from Reports r where spatial_intersect(r.area, p)",
         many(lambda rng: (triangle(rng),), 25), ids(lambda r, p: meets(r["area"], p)), declared={"p": t.POLYGON}),
]  # fmt: skip

DISTANCES = [
    Case(["x", "y", "d"], "select value r.id from Reports r where spatial_distance(r.place, create_point(x, y)) < d",
         many(lambda rng: (coordinate(rng), coordinate(rng), rng.choice((0.0, 0.5, 4.0, 100.0, -1.0)))),
         ids(lambda r, x, y, d: _apart(r.get("place"), Point(x, y)) < d)),
    Case(["x", "y"], "select value r.id from Reports r where get_radius(r.zone) >="
         " spatial_distance(create_point(x, y), get_center(r.zone))",
         many(lambda rng: (coordinate(rng), coordinate(rng))),
         ids(lambda r, x, y: _apart(r["zone"].center, Point(x, y)) <= r["zone"].radius)),
    Case(["k", "x", "y"], "select value r.id from Reports r where r.kind = k or"
         " spatial_intersect(r.zone, create_point(x, y))",
         many(lambda rng: (rng.choice(KINDS), coordinate(rng), coordinate(rng))),
         ids(lambda r, k, x, y: r["kind"] == k or meets(r["zone"], Point(x, y)))),
    Case(["k", "c"], "select value r.id from Reports r where r.kind = k or spatial_intersect(r.zone, c)"
         " or spatial_intersect(c, r.box)",
         many(lambda rng: (rng.choice(KINDS), circle(rng))), declared={"c": t.CIRCLE},
         told=ids(lambda r, k, c: r["kind"] == k or meets(r["zone"], c) or meets(r.get("box"), c))),
    Case(["k", "c"], "select value r.id from Reports r where r.kind = k and spatial_intersect(r.zone, c)",
         many(lambda rng: (rng.choice(KINDS), circle(rng)), 100),
         ids(lambda r, k, c: r["kind"] == k and meets(r["zone"], c)), declared={"c": t.CIRCLE}),
]  # fmt: skip


def _users(w: FakeDatasets) -> list[Any]:
    return [u for u in w.rows[USERS.name] if u.record.get("place") is not None]


RECORDS = [
    Case(["u"], "select value [r.id, p.name] from Reports r, Users p where spatial_intersect(r.zone, p.place)"
         " and p.name = u and (is_new(r) or is_new(p))", many(lambda rng: (rng.choice(USER_NAMES),), 15),
         lambda w, u: [[r.record["id"], u] for r in w.rows[REPORTS.name] for p in _users(w)
                       if p.record["name"] == u and (r.commit > w.since or p.commit > w.since)
                       and meets(r.record["zone"], p.record["place"])]),
    Case(["u"], "select r.id, near from Reports r let near = (select value s.name from Shelters s"
         " where spatial_intersect(r.zone, s.place) order by s.name) where exists (select value p from Users p"
         " where p.name = u and spatial_distance(p.place, r.place) <= 40.0)",
         many(lambda rng: (rng.choice(USER_NAMES),), 15),
         lambda w, u: [{"id": r["id"],
                        "near": sorted(s["name"] for s in w.all(SHELTERS) if meets(r["zone"], s["place"]))}
                       for r in w.new(REPORTS)
                       if any(p.record["name"] == u and _apart(p.record["place"], r.get("place")) <= 40
                              for p in _users(w))]),
    Case(["k"], "select value [a.id, b.id] from Reports a, Reports b where spatial_intersect(a.zone, b.box)"
         " and a.kind = k and is_new(a)", many(lambda rng: (rng.choice(KINDS),), 13),
         lambda w, k: [[a["id"], b["id"]] for a in w.new(REPORTS) if a["kind"] == k for b in w.all(REPORTS)
                       if meets(a["zone"], b.get("box"))]),
]  # fmt: skip


def _sheltering(w: FakeDatasets, r: Any) -> list[str]:
    return sorted(s["name"] for s in w.all(SHELTERS) if meets(r["zone"], s["place"]))


# What stands around a subquery meets its rows by cells as well.
AROUND = [
    Case([], "select r.id, (select value s.name from Shelters s where spatial_intersect(s.place, r.zone)"
         " and s.kind != r.kind order by s.name desc limit 2 offset 1) as some,"
         " (select count(*) as n from Shelters s where spatial_intersect(r.zone, s.place)) as many,"
         " (select value b.id from Reports b where spatial_intersect(r.area, b.box) order by b.id) as boxes"
         " from Reports r", lambda _rng, _w: [()],
         lambda w: [{"id": r["id"], "many": [{"n": len(_sheltering(w, r))}],
                     "some": sorted((s["name"] for s in w.all(SHELTERS) if meets(r["zone"], s["place"])
                                     and s["kind"] != r["kind"]), reverse=True)[1:3],
                     "boxes": sorted(b["id"] for b in w.all(REPORTS) if meets(r["area"], b.get("box")))}
                    for r in w.new(REPORTS)]),
    Case(["k"], "select value [r.id, x] from Reports r, (select value s.name from Shelters s"
         " where spatial_distance(s.place, r.place) < 7.0) x where r.kind = k and"
         " exists (select value s from Shelters s where spatial_intersect(s.place, r.zone))"
         " and not exists (select value p from Users p where spatial_intersect(p.place, r.box))",
         many(lambda rng: (rng.choice(KINDS),), 13),
         lambda w, k: [[r["id"], s["name"]] for r in w.new(REPORTS) if r["kind"] == k and _sheltering(w, r)
                       and not any(meets(p.record["place"], r.get("box")) for p in _users(w))
                       for s in w.all(SHELTERS) if _apart(s["place"], r.get("place")) < 7]),
]  # fmt: skip


@tried
@given(seed=seeds)
def test_rows_of_subqueries_meet_the_records_around_them(spark: SparkSession, seed: int) -> None:
    run(spark, seed, AROUND, reports=80, shelters=60)


def _either(a: Any, b: Any) -> bool:
    """Shapes of two reports: pairs may meet by both alternatives, by any one of them, or by none."""
    return meets(a["zone"], b.get("box")) or meets(a.get("place"), b["zone"])


# Two records that meet in any of several ways are one pair.
EITHER = [
    Case(["k"], "select value [a.id, b.id] from Reports a, Reports b where a.kind = k and is_new(a)"
         " and (spatial_intersect(a.zone, b.box) or spatial_intersect(b.zone, a.place))",
         many(lambda rng: (rng.choice(KINDS),), 13),
         lambda w, k: [[a["id"], b["id"]] for a in w.new(REPORTS) if a["kind"] == k for b in w.all(REPORTS)
                       if _either(a, b)]),
    Case(["k"], "select value [a.id, b.id] from Reports a, Reports b where b.kind = k and is_new(a) and"
         " (spatial_intersect(a.area, b.box) and a.severity > 2 or a.note = b.note or a.level = b.big"
         " or spatial_distance(a.place, b.place) < 1.0 or spatial_intersect(b.zone, a.zone))",
         many(lambda rng: (rng.choice(KINDS),), 13),
         lambda w, k: [[a["id"], b["id"]] for a in w.new(REPORTS) for b in w.all(REPORTS) if b["kind"] == k
                       and ((meets(a["area"], b.get("box")) and a["severity"] > 2)
                            or (a.get("note") is not None and a.get("note") == b.get("note"))
                            or a["level"] == float(b["big"])
                            or _apart(a.get("place"), b.get("place")) < 1 or meets(b["zone"], a["zone"]))]),
    Case(["u"], "select value r.id from Reports r where exists (select value p from Users p where p.name = u and"
         " (spatial_intersect(r.zone, p.place) or spatial_intersect(p.place, r.area) or r.kind = p.name"
         " or (regexp_like(p.name, '^user [0-9]+$') and cast(substr(p.name, 6) as int) = r.severity)))",
         many(lambda rng: (rng.choice(USER_NAMES),), 15),
         lambda w, u: [r["id"] for r in w.new(REPORTS) if any(
             meets(r["zone"], p.get("place")) or meets(p.get("place"), r["area"]) or r["kind"] == u
             or u == f"user {r['severity']}" for p in w.all(USERS) if p["name"] == u)]),
    Case([], "select r.id, near, boxes from Reports r"
         " let near = (select value s.name from Shelters s where (spatial_intersect(r.zone, s.place)"
         " or s.kind = r.kind or spatial_distance(s.place, r.place) <= 7.0) and s.kind != r.note order by s.name),"
         " boxes = (select value b.id from Reports b where spatial_intersect(r.zone, b.box)"
         " or spatial_intersect(b.zone, r.place) order by b.id)", lambda _rng, _w: [()],
         lambda w: [{"id": r["id"],
                     "near": sorted(s["name"] for s in w.all(SHELTERS)
                                    if (meets(r["zone"], s["place"]) or s["kind"] == r["kind"]
                                        or _apart(s["place"], r.get("place")) <= 7)
                                    and r.get("note") is not None and s["kind"] != r["note"]),
                     "boxes": sorted(b["id"] for b in w.all(REPORTS) if _either(r, b))} for r in w.new(REPORTS)]),
]  # fmt: skip


@tried
@given(seed=seeds)
def test_two_records_that_meet_in_several_ways_are_told_once(spark: SparkSession, seed: int) -> None:
    run(spark, seed, EITHER, reports=80, shelters=60)


@tried
@given(seed=seeds)
def test_shapes_of_any_size_meet_as_in_exact_geometry(spark: SparkSession, seed: int) -> None:
    run(spark, seed, PLANE)


@tried
@given(seed=seeds)
def test_distances_and_shapes_beside_other_conditions(spark: SparkSession, seed: int) -> None:
    run(spark, seed, DISTANCES)


@tried
@given(seed=seeds)
def test_two_records_and_an_interest_meet(spark: SparkSession, seed: int) -> None:
    run(spark, seed, RECORDS, reports=60)


# ---------------------------------------------------------------- on the globe

_DOUBT_M = 0.01  # so near to a border two ways to compute a distance may disagree


def _sure(made: Callable[[Random], tuple[Any, ...]], distance: Callable[..., float], count: int = 60) -> Any:
    """Interests of which no record lies on a border; `distance` is how far outside of it a record is."""

    def draw(rng: Random, w: FakeDatasets) -> list[tuple[Any, ...]]:
        drawn = [made(rng) for _ in range(count)]
        return [item for item in drawn if all(abs(distance(r, *item)) > _DOUBT_M for r in w.all(GLOBE))]

    return draw


def _within(distance: Callable[..., float]) -> Callable[..., list[Any]]:
    return lambda w, *values: [r["id"] for r in w.all(GLOBE) if distance(r, *values) < 0]


def _to_zone(r: Any, lat: float, lon: float) -> float:
    return geodesy.distance_m(r["zone"].center, Point(lat, lon)) - r["zone"].radius


def _to_place(r: Any, c: Circle) -> float:
    return geodesy.distance_m(r["place"], c.center) - c.radius


def _between(r: Any, c: Circle) -> float:
    return geodesy.distance_m(r["zone"].center, c.center) - c.radius - r["zone"].radius


def _to_bound(r: Any, lat: float, lon: float, d: float) -> float:
    return geodesy.distance_m(r["place"], Point(lat, lon)) - d


def _box_to_place(r: Any, b: Rectangle) -> float:
    return -1.0 if geodesy.in_box(r["place"], b) else 1.0


def _box_to_zone(r: Any, b: Rectangle) -> float:
    found, doubt = geodesy.distance_to_box_m(r["zone"].center, b, 1000)
    away = found - r["zone"].radius
    return 0.0 if -_DOUBT_M < away < doubt + _DOUBT_M else away


def _spot(rng: Random) -> tuple[float, float]:
    found = spot(rng)
    return found.x, found.y


ON_THE_GLOBE = [
    Case(["lat", "lon"], "select value g.id from Globe g where geo_intersect(g.zone, create_point(lat, lon))",
         _sure(_spot, _to_zone), _within(_to_zone)),
    Case(["c"], "select value g.id from Globe g where geo_intersect(g.place, c)",
         _sure(lambda rng: (cap(rng),), _to_place),
         _within(_to_place), declared={"c": t.CIRCLE}),
    Case(["c"], "select value g.id from Globe g where geo_intersect(c, g.zone)",
         _sure(lambda rng: (cap(rng),), _between),
         _within(_between), declared={"c": t.CIRCLE}),
    Case(["lat", "lon", "d"], "select value g.id from Globe g where geo_distance(create_point(lat, lon), g.place) <= d",
         _sure(lambda rng: (*_spot(rng), rng.choice((1e3, 1e5, 3e6, 1.9e7))), _to_bound), _within(_to_bound)),
    Case(["b"], "select value g.id from Globe g where geo_intersect(g.place, b)",
         _sure(lambda rng: (zone_of_globe(rng),), _box_to_place), _within(_box_to_place), declared={"b": t.RECTANGLE}),
    Case(["b"], "select value g.id from Globe g where geo_intersect(g.zone, b)",
         _sure(lambda rng: (zone_of_globe(rng),), _box_to_zone, 12), _within(_box_to_zone),
         declared={"b": t.RECTANGLE}),
]  # fmt: skip


@tried
@given(seed=seeds)
def test_great_circles_meet_across_poles_and_the_antimeridian(spark: SparkSession, seed: int) -> None:
    run(spark, seed, ON_THE_GLOBE, reports=0, users=0, shelters=0, globe=60)


@tried
@given(seed=seeds)
def test_rows_of_subqueries_meet_the_records_around_them_on_the_globe(spark: SparkSession, seed: int) -> None:
    made = world(seed, reports=0, users=0, shelters=0, globe=60)
    kept: list[Any] = []
    for row in made.rows[GLOBE.name]:
        pairs = [pair for other in [*kept, row] for pair in ((row, other), (other, row))]
        away = (geodesy.distance_m(a.record["zone"].center, b.record["place"]) - a.record["zone"].radius
                for a, b in pairs)  # fmt: skip
        if all(abs(metres) > _DOUBT_M for metres in away):
            kept.append(row)
    made.rows = {**made.rows, GLOBE.name: kept}
    either = Case(["n"], "select value [g.id, h.id] from Globe g, Globe h where g.id = n and"
                  " (geo_intersect(g.zone, h.place) or geo_intersect(g.place, h.zone) or g.id = h.id)",
                  lambda _rng, w: [(g["id"],) for g in w.all(GLOBE)],
                  lambda w, n: [[g["id"], h["id"]] for g in w.new(GLOBE) if g["id"] == n for h in w.all(GLOBE)
                                if _to_zone(g, h["place"].x, h["place"].y) < 0
                                or _to_zone(h, g["place"].x, g["place"].y) < 0 or g is h])  # fmt: skip
    near = Case([], "select g.id, near from Globe g let near = (select value h.id from Globe h"
                " where geo_intersect(g.zone, h.place) order by h.id)", lambda _rng, _w: [()],
                lambda w: [{"id": g["id"], "near": sorted(
                    h["id"] for h in w.all(GLOBE) if _to_zone(g, h["place"].x, h["place"].y) < 0)}
                    for g in w.new(GLOBE)])  # fmt: skip
    with shown(spark, made):
        for case in (near, either):
            check(spark, case, made, seed)
