"""Shapes of the plane in exact arithmetic: in 64ths, as integers where they can be.

Every shape but a circle is cut into convex pieces (a polygon by ear clipping), and two convex pieces are apart exactly
when a line separates them. A circle meets a piece when the piece's nearest point is within the radius.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from tocsin.rules.model.values import Circle, Line, Point, Polygon, Rectangle

Shape = Point | Line | Rectangle | Circle | Polygon
Exact = int | Fraction
Dot = tuple[Exact, Exact]
_UNIT = 64


def intersect(a: Shape, b: Shape) -> bool:
    if isinstance(a, Circle) and isinstance(b, Circle):
        reach = _exact(a.radius) + _exact(b.radius)
        return _distance2(_dot(a.center), _dot(b.center)) <= reach**2
    if isinstance(a, Circle) or isinstance(b, Circle):
        disc, other = (a, b) if isinstance(a, Circle) else (b, a)
        assert isinstance(disc, Circle)
        return any(_nearest2(_dot(disc.center), piece) <= _exact(disc.radius) ** 2 for piece in pieces(other))
    return any(_meet(p, q) for p, q in product(pieces(a), pieces(b)))


def area(shape: Rectangle | Polygon) -> Fraction:
    doubled = sum(abs(_cross(*triangle)) for piece in pieces(shape) for triangle in _fan(piece))
    return Fraction(doubled) / (2 * _UNIT**2)


def pieces(shape: Shape) -> list[list[Dot]]:
    match shape:
        case Point():
            return [[_dot(shape)]]
        case Line(a, b):
            return [[_dot(a), _dot(b)]]
        case Rectangle(low, high):
            (x1, y1), (x2, y2) = _dot(low), _dot(high)
            return [[(x1, y1), (x2, y1), (x2, y2), (x1, y2)]]
        case Polygon(points):
            return [list(triangle) for triangle in _ears([_dot(p) for p in points])]
    raise TypeError(shape)


def _exact(x: float) -> Exact:
    scaled = float(x) * _UNIT
    return int(scaled) if scaled.is_integer() else Fraction(scaled)


def _dot(p: Point) -> Dot:
    return _exact(p.x), _exact(p.y)


def _cross(o: Dot, a: Dot, b: Dot) -> Exact:
    return (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0])


def _fan(piece: list[Dot]) -> list[tuple[Dot, Dot, Dot]]:
    return [(piece[0], piece[i], piece[i + 1]) for i in range(1, len(piece) - 1)]


def _ears(ring: list[Dot]) -> list[tuple[Dot, Dot, Dot]]:
    ring = [p for i, p in enumerate(ring) if p != ring[i - 1]]
    turning = sum(ring[i - 1][0] * p[1] - p[0] * ring[i - 1][1] for i, p in enumerate(ring))
    if turning < 0:
        ring.reverse()
    triangles = []
    while len(ring) > 3:
        for i, tip in enumerate(ring):
            before, after = ring[i - 1], ring[(i + 1) % len(ring)]
            bend = _cross(before, tip, after)
            inside = [p for p in ring if p not in (before, tip, after) and _in_triangle(p, before, tip, after)]
            if bend == 0 or (bend > 0 and not inside):
                triangles.append((before, tip, after))
                del ring[i]
                break
        else:
            raise ValueError("not a simple polygon")
    return [*triangles, (ring[0], ring[1], ring[2])]


def _in_triangle(p: Dot, a: Dot, b: Dot, c: Dot) -> bool:
    return _cross(a, b, p) >= 0 and _cross(b, c, p) >= 0 and _cross(c, a, p) >= 0


def _meet(p: list[Dot], q: list[Dot]) -> bool:
    """Separating axes: the normals of all edges, and the edges themselves for pieces without an inside."""
    axes: list[Dot] = [(1, 0), (0, 1)]
    for piece in (p, q):
        for i, (x, y) in enumerate(piece):
            dx, dy = x - piece[i - 1][0], y - piece[i - 1][1]
            axes += [(-dy, dx), (dx, dy)]
    for ax, ay in axes:
        on_p, on_q = [x * ax + y * ay for x, y in p], [x * ax + y * ay for x, y in q]
        if max(on_p) < min(on_q) or max(on_q) < min(on_p):
            return False
    return True


def _nearest2(c: Dot, piece: list[Dot]) -> Exact:
    if len(piece) >= 3 and any(_meet([c], list(triangle)) for triangle in _fan(piece)):
        return 0
    best = min(_distance2(c, p) for p in piece)
    for i, (bx, by) in enumerate(piece):
        ax, ay = piece[i - 1]
        length2 = (bx - ax) ** 2 + (by - ay) ** 2
        if length2:
            along = Fraction((c[0] - ax) * (bx - ax) + (c[1] - ay) * (by - ay)) / length2
            if 0 <= along <= 1:
                best = min(best, _distance2(c, (ax + along * (bx - ax), ay + along * (by - ay))))
    return best


def _distance2(a: Dot, b: Dot) -> Exact:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2
