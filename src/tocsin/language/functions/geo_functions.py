"""Implements great-circle functions, in metres on a sphere of the Earth's mean radius.

A point is (latitude, longitude) in degrees, as applications write `create_point(latitude, longitude)`. A circle has
its radius in metres. A rectangle is a box of latitudes (x) and longitudes (y); across the antimeridian its longitudes
exceed 180, as in `rectangle("-10,170 10,190")`. Longitudes that differ by a multiple of 360 are the same place. At a
pole all longitudes are the same place. Boundaries belong to their shape.

    geo_distance(p, q)    geo_intersect(a, b) of points, circles and boxes    geo_area(circle)
"""

from __future__ import annotations

import math
from typing import Final

from sqlglot import exp

from tocsin.language.types import typed_sql
from tocsin.language.types.typed_sql import Overload, TypedSql, build, field, guard_nulls, number
from tocsin.rules.model.types import BOOLEAN, CIRCLE, DOUBLE, POINT, RECTANGLE, Type

EARTH_RADIUS_M: Final = 6_371_008.8
_DIAMETER: Final = repr(2 * EARTH_RADIUS_M) + "E0"
_METRES_PER_DEGREE: Final = repr(math.radians(1) * EARTH_RADIUS_M) + "E0"


def _cos(lat: str) -> str:
    """Returns the cosine of a latitude, exactly 0 at the poles, where cos(radians(90)) is not 0."""
    return f"sin(radians(90E0 - abs({lat})))"


def _distance(lat1: str, lat2: str, turn: str) -> str:
    """Returns the metres between two latitudes that are `turn` degrees of longitude apart.

    It computes sin² and cos² of half the angle, each as a sum of squares, so neither tiny nor antipodal distances lose
    digits. The usual 1 - sin² would lose digits for antipodal points.
    """
    cosines = f"{_cos(lat1)} * {_cos(lat2)}"
    half_turn = f"radians({turn}) * 0.5E0"
    sin2 = f"(pow(sin(radians({lat1} - {lat2}) * 0.5E0), 2E0) + {cosines} * pow(sin({half_turn}), 2E0))"
    cos2 = f"(pow(sin(radians({lat1} + {lat2}) * 0.5E0), 2E0) + {cosines} * pow(cos({half_turn}), 2E0))"
    return f"({_DIAMETER} * atan2(sqrt({sin2}), sqrt({cos2})))"


def _turn(lon1: str, lon2: str) -> str:
    """Returns the difference modulo 360. The result is exact, because multiples of 360 are exact."""
    return f"(({lon1} - {lon2}) - 360E0 * rint(({lon1} - {lon2}) / 360E0))"


def _apart(p: str, q: str) -> str:
    return _distance(f"{p}.x", f"{q}.x", _turn(f"{p}.y", f"{q}.y"))


def _in_longitudes(lon: str, box: str) -> str:
    return f"(pmod({lon} - {box}.y1, 360E0) <= {box}.y2 - {box}.y1)"


def _to_box(p: str, box: str) -> str:
    """Returns the metres from a point to a box.

    Within the box's longitudes, and from a pole, only the latitude counts. Elsewhere the nearest point lies on the
    nearer side meridian: at one of its ends, or at the foot of the perpendicular. The clamp changes the foot only if it
    is outside of the side.
    """
    north_south = f"({_METRES_PER_DEGREE} * greatest({p}.x - {box}.x2, {box}.x1 - {p}.x, 0E0))"
    turn = f"least(abs({_turn(f'{p}.y', f'{box}.y1')}), abs({_turn(f'{p}.y', f'{box}.y2')}))"
    foot = f"degrees(atan2(sin(radians({p}.x)), {_cos(f'{p}.x')} * cos(radians({turn}))))"
    nearest = f"least(greatest({foot}, {box}.x1), {box}.x2)"
    side = ", ".join(_distance(f"{p}.x", lat, turn) for lat in (f"{box}.x1", f"{box}.x2", nearest))
    return f"IF({_in_longitudes(f'{p}.y', box)} OR abs({p}.x) >= 90E0, {north_south}, least({side}))"


_POINT_IN_BOX: Final = f"(_a.x BETWEEN _b.x1 AND _b.x2 AND ({_in_longitudes('_a.y', '_b')} OR abs(_a.x) >= 90E0))"
_BOXES_MEET: Final = (
    "(_a.x1 <= _b.x2 AND _b.x1 <= _a.x2"
    f" AND ({_in_longitudes('_b.y1', '_a')} OR {_in_longitudes('_a.y1', '_b')}"
    " OR (_a.x2 >= 90E0 AND _b.x2 >= 90E0) OR (_a.x1 <= -90E0 AND _b.x1 <= -90E0)))"
)

_INTERSECT: Final[dict[tuple[Type, Type], str]] = {
    (POINT, CIRCLE): f"({_apart('_a', '_b')} <= _b.radius)",
    (CIRCLE, CIRCLE): f"({_apart('_a', '_b')} <= _a.radius + _b.radius)",
    (POINT, RECTANGLE): _POINT_IN_BOX,
    (CIRCLE, RECTANGLE): f"({_to_box('_a', '_b')} <= _a.radius)",
    (RECTANGLE, RECTANGLE): _BOXES_MEET,
}


def _intersect(a: TypedSql, b: TypedSql) -> exp.Expr:
    first, second = (a, b) if (a.type, b.type) in _INTERSECT else (b, a)
    test = build(_INTERSECT[first.type, second.type], _a=first.sql, _b=second.sql)
    # `least`, `greatest` and OR would return an answer for a box that is NULL.
    return guard_nulls((a.sql, b.sql), test) if second.type == RECTANGLE else test


def _intersections() -> list[Overload]:
    pairs = dict.fromkeys(pair for a, b in _INTERSECT for pair in ((a, b), (b, a)))
    return [Overload(pair, BOOLEAN, _intersect) for pair in pairs]


def _cap_area(circle: TypedSql) -> exp.Expr:
    """Returns the area of a circle. A circle that reaches the antipode covers the whole sphere."""
    half_turn_m = math.pi * EARTH_RADIUS_M
    area = build(
        f"_whole * pow(sin(least(_radius, _half) / {_DIAMETER}), 2E0)",
        _whole=number(4 * math.pi * EARTH_RADIUS_M**2), _half=number(half_turn_m), _radius=field(circle.sql, "radius"),
    )  # fmt: skip
    return guard_nulls((circle.sql,), exp.Paren(this=area))


FUNCTIONS: Final = typed_sql.table({
    "geo_distance": [Overload((POINT, POINT), DOUBLE, lambda p, q: build(_apart("_a", "_b"), _a=p.sql, _b=q.sql))],
    "geo_intersect": _intersections(),
    "geo_area": [Overload((CIRCLE,), DOUBLE, _cap_area)],
})  # fmt: skip
