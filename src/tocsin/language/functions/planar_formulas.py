"""Tests whether two shapes of the plane meet: one SQL template per pair of types, over the parts `_a` and `_b`.

A boundary belongs to its shape, and rectangles, circles and polygons contain their inside. A polygon is simple, convex
or not, and closes itself. The side of a line on which a point lies allows for rounding errors, so (0.1, 0.3) lies on
the line from the origin to (0.3, 0.9). No template divides, because Spark would fail on a zero.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tocsin.rules.model.types import CIRCLE, LINE, POINT, POLYGON, RECTANGLE, Type

# The largest rounding error of a difference of two products, relative to their sum.
_ROUNDING: Final = "1E-15"


class _Dot(NamedTuple):
    x: str
    y: str


class _Segment(NamedTuple):
    """A line segment, or a box whose first corner is the lower left."""

    x1: str
    y1: str
    x2: str
    y2: str

    @property
    def start(self) -> _Dot:
        return _Dot(self.x1, self.y1)

    @property
    def end(self) -> _Dot:
        return _Dot(self.x2, self.y2)


def _dot(part: str) -> _Dot:
    return _Dot(f"{part}.x", f"{part}.y")


def _segment(part: str) -> _Segment:
    return _Segment(f"{part}.x1", f"{part}.y1", f"{part}.x2", f"{part}.y2")


def edges(polygon: str) -> str:
    """Returns the polygon's edges as an array of segments, the closing edge last."""
    following = f"concat(slice({polygon}, 2, size({polygon}) - 1), slice({polygon}, 1, 1))"
    edge = "named_struct('x1', __p.x, 'y1', __p.y, 'x2', __q.x, 'y2', __q.y)"
    return f"zip_with({polygon}, {following}, (__p, __q) -> {edge})"


def _side(of: _Segment, p: _Dot) -> str:
    """Returns 1 if p lies to the left of the line, -1 to the right, 0 on the line."""
    u = f"({of.x2} - {of.x1}) * ({p.y} - {of.y1})"
    v = f"({p.x} - {of.x1}) * ({of.y2} - {of.y1})"
    return f"IF(abs({u} - {v}) <= {_ROUNDING} * (abs({u}) + abs({v})), 0E0, signum({u} - {v}))"


def _span(segment: _Segment) -> _Segment:
    """Returns the segment's bounding box."""
    return _Segment(f"least({segment.x1}, {segment.x2})", f"least({segment.y1}, {segment.y2})",
                    f"greatest({segment.x1}, {segment.x2})", f"greatest({segment.y1}, {segment.y2})")  # fmt: skip


def _in_box(p: _Dot, box: _Segment) -> str:
    return f"({box.x1} <= {p.x} AND {p.x} <= {box.x2} AND {box.y1} <= {p.y} AND {p.y} <= {box.y2})"


def _boxes_meet(a: _Segment, b: _Segment) -> str:
    return f"({a.x1} <= {b.x2} AND {b.x1} <= {a.x2} AND {a.y1} <= {b.y2} AND {b.y1} <= {a.y2})"


def _on_segment(p: _Dot, segment: _Segment) -> str:
    return f"({_in_box(p, _span(segment))} AND {_side(segment, p)} = 0E0)"


def _segments_meet(a: _Segment, b: _Segment) -> str:
    """Whether the boxes meet, and each segment has its ends on different sides of the other, or on it."""
    apart_a = f"{_side(b, a.start)} * {_side(b, a.end)} <= 0E0"
    apart_b = f"{_side(a, b.start)} * {_side(a, b.end)} <= 0E0"
    return f"({_boxes_meet(_span(a), _span(b))} AND {apart_a} AND {apart_b})"


def _segment_meets_box(segment: _Segment, box: _Segment) -> str:
    """Whether the boxes meet, and the corners do not all lie strictly on one side."""
    corners = (box.start, box.end, _Dot(box.x1, box.y2), _Dot(box.x2, box.y1))
    sides = ", ".join(_side(segment, corner) for corner in corners)
    return f"({_boxes_meet(_span(segment), box)} AND greatest({sides}) >= 0E0 AND least({sides}) <= 0E0)"


def _within(p: _Dot, q: _Dot, radius: str) -> str:
    dx, dy = f"({p.x} - {q.x})", f"({p.y} - {q.y})"
    return f"({dx} * {dx} + {dy} * {dy} <= {radius} * {radius})"


def _segment_meets_disc(segment: _Segment, center: _Dot, radius: str) -> str:
    """Tests the nearest point of the segment: one of its ends, or the foot of the perpendicular between the ends."""
    dx, dy = f"({segment.x2} - {segment.x1})", f"({segment.y2} - {segment.y1})"
    cx, cy = f"({center.x} - {segment.x1})", f"({center.y} - {segment.y1})"
    along, length2 = f"({cx} * {dx} + {cy} * {dy})", f"({dx} * {dx} + {dy} * {dy})"
    across = f"({dx} * {cy} - {cx} * {dy})"
    return (
        f"CASE WHEN {along} <= 0E0 THEN {_within(center, segment.start, radius)}"
        f" WHEN {along} >= {length2} THEN {_within(center, segment.end, radius)}"
        f" ELSE {across} * {across} <= {radius} * {radius} * {length2} END"
    )


def _box_meets_disc(box: _Segment, center: _Dot, radius: str) -> str:
    dx = f"greatest({box.x1} - {center.x}, {center.x} - {box.x2}, 0E0)"
    dy = f"greatest({box.y1} - {center.y}, {center.y} - {box.y2}, 0E0)"
    return f"({dx} * {dx} + {dy} * {dy} <= {radius} * {radius})"


def _in_polygon(p: _Dot, polygon: str) -> str:
    """Counts the edges that a ray to the right crosses: 0 is even, 1 is odd; 2, which stays, means p is on an edge."""
    e = _segment("__e")
    u = f"({e.x2} - {e.x1}) * ({p.y} - {e.y1})"
    v = f"({p.x} - {e.x1}) * ({e.y2} - {e.y1})"
    crosses = f"(({e.y1} > {p.y}) <> ({e.y2} > {p.y}) AND ({u} > {v}) = ({e.y2} > {e.y1}))"
    step = f"IF(__n = 2 OR {_on_segment(p, e)}, 2, IF({crosses}, 1 - __n, __n))"
    return f"(aggregate({edges(polygon)}, 0, (__n, __e) -> {step}) <> 0)"


def _any_edge(polygon: str, holds: str, name: str = "__e") -> str:
    return f"exists({edges(polygon)}, {name} -> {holds})"


_A, _B = _segment("_a"), _segment("_b")
_FIRST_A, _FIRST_B = _Dot("get(_a, 0).x", "get(_a, 0).y"), _Dot("get(_b, 0).x", "get(_b, 0).y")
_E, _F = _segment("__e"), _segment("__f")

INTERSECT: Final[dict[tuple[Type, Type], str]] = {
    (POINT, POINT): "(_a.x = _b.x AND _a.y = _b.y)",
    (POINT, LINE): _on_segment(_dot("_a"), _B),
    (POINT, RECTANGLE): _in_box(_dot("_a"), _B),
    (POINT, CIRCLE): _within(_dot("_a"), _dot("_b"), "_b.radius"),
    (POINT, POLYGON): _in_polygon(_dot("_a"), "_b"),
    (LINE, LINE): _segments_meet(_A, _B),
    (LINE, RECTANGLE): _segment_meets_box(_A, _B),
    (LINE, CIRCLE): _segment_meets_disc(_A, _dot("_b"), "_b.radius"),
    (LINE, POLYGON): f"{_any_edge('_b', _segments_meet(_A, _E))} OR {_in_polygon(_A.start, '_b')}",
    (RECTANGLE, RECTANGLE): _boxes_meet(_A, _B),
    (RECTANGLE, CIRCLE): _box_meets_disc(_A, _dot("_b"), "_b.radius"),
    (RECTANGLE, POLYGON): f"{_any_edge('_b', _segment_meets_box(_E, _A))} OR {_in_polygon(_A.start, '_b')}",
    (CIRCLE, CIRCLE): _within(_dot("_a"), _dot("_b"), "(_a.radius + _b.radius)"),
    (CIRCLE, POLYGON): f"{_any_edge('_b', _segment_meets_disc(_E, _dot('_a'), '_a.radius'))}"
                       f" OR {_in_polygon(_dot('_a'), '_b')}",
    (POLYGON, POLYGON): f"{_any_edge('_a', _any_edge('_b', _segments_meet(_E, _F), '__f'))}"
                        f" OR {_in_polygon(_FIRST_A, '_b')} OR {_in_polygon(_FIRST_B, '_a')}",
}  # fmt: skip

# `greatest`, `least` and `IF` do not propagate NULL, so these pairs need an explicit NULL check.
LENIENT: Final = frozenset(pair for pair in INTERSECT if POLYGON in pair) | {(RECTANGLE, CIRCLE)}
