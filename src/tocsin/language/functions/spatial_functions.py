"""Implements AsterixDB's planar spatial functions: coordinates are plain numbers of one unit.

    point("1.0,2.0")  line("0,0 1,1")  rectangle("0,0 1,1")  circle("1.0,2.0 0.5")  polygon("0,0 0,1 1,0")
    create_point(x, y)  create_line(p, q)  create_rectangle(p, q)  create_circle(p, r)  create_polygon([x1, y1, …])
    get_x(p)  get_y(p)  get_center(c)  get_radius(c)  get_points(shape)
    spatial_intersect(a, b)  spatial_distance(p, q)  spatial_area(shape)  spatial_cell(p, origin, dx, dy)

The types of the arguments decide which SQL a call becomes. Spark compiles that SQL; there is no UDF.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

from tocsin.language.functions.planar_formulas import INTERSECT, LENIENT, edges
from tocsin.language.types import typed_sql
from tocsin.language.types.typed_sql import (
    FunctionError,
    Overload,
    TypedSql,
    as_double,
    build,
    field,
    guard_nulls,
    struct,
)
from tocsin.rules.model import values
from tocsin.rules.model.types import (
    BOOLEAN,
    CIRCLE,
    DOUBLE,
    LINE,
    NUMBERS,
    POINT,
    POLYGON,
    RECTANGLE,
    SPATIAL,
    STRING,
    ArrayType,
    Type,
)

# ---------------------------------------------------------------- from text

_NUMBER: Final = "[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?"
_PAIR: Final = rf"{_NUMBER}\\s*,\\s*{_NUMBER}"
_NUMBERS: Final = r"transform(regexp_extract_all(_s, '([^\\s,]+)', 1), __t -> CAST(__t AS DOUBLE))"


def _parser_sql(pattern: str, expected: str, made: str) -> str:
    """Returns SQL that parses the text `_s` and builds `made` from its numbers `__n`.

    A transform of a one-item array binds `__n`, so that Spark parses the numbers only once.
    """
    return (
        rf"CASE WHEN _s IS NULL THEN NULL WHEN _s RLIKE '^\\s*{pattern}\\s*$'"
        f" AND forall({_NUMBERS}, __v -> abs(__v) <= 1.7976931348623157E308)"
        f" THEN get(transform(array({_NUMBERS}), __n -> {made}), 0)"
        f" ELSE raise_error(concat('expected {expected}, got \"', _s, '\"')) END"
    )


_TWO: Final = rf"{_PAIR}\\s+{_PAIR}"
_FROM_FLAT: Final = (
    "transform(sequence(0, CAST(size(__n) DIV 2 AS INT) - 1),"
    " __i -> named_struct('x', get(__n, 2 * __i), 'y', get(__n, 2 * __i + 1)))"
)
_READ_POINT: Final = _parser_sql(_PAIR, 'a point such as "1.0,2.0"', "named_struct('x', get(__n, 0), 'y', get(__n, 1))")
_READ_LINE: Final = _parser_sql(
    _TWO, 'a line such as "1.0,2.0 3.0,4.0"',
    "named_struct('x1', get(__n, 0), 'y1', get(__n, 1), 'x2', get(__n, 2), 'y2', get(__n, 3))",
)  # fmt: skip
_READ_RECTANGLE: Final = _parser_sql(
    _TWO, 'a rectangle such as "1.0,2.0 3.0,4.0"',
    "named_struct('x1', least(get(__n, 0), get(__n, 2)), 'y1', least(get(__n, 1), get(__n, 3)),"
    " 'x2', greatest(get(__n, 0), get(__n, 2)), 'y2', greatest(get(__n, 1), get(__n, 3)))",
)  # fmt: skip
_READ_CIRCLE: Final = _parser_sql(
    rf"{_PAIR}\\s+[+]?{_NUMBER.removeprefix('[+-]?')}", 'a circle such as "1.0,2.0 0.5"',
    "named_struct('x', get(__n, 0), 'y', get(__n, 1), 'radius', get(__n, 2))",
)  # fmt: skip
_READ_POLYGON: Final = _parser_sql(rf"{_PAIR}(\\s+{_PAIR}){{2,}}", 'a polygon such as "0,0 0,1 1,0"', _FROM_FLAT)

# ---------------------------------------------------------------- from parts


def _create_point(x: TypedSql, y: TypedSql) -> exp.Expr:
    parts = {"x": as_double(x), "y": as_double(y)}
    return guard_nulls(parts.values(), struct(**parts))


def _create_line(p: TypedSql, q: TypedSql) -> exp.Expr:
    line = build("named_struct('x1', _a.x, 'y1', _a.y, 'x2', _b.x, 'y2', _b.y)", _a=p.sql, _b=q.sql)
    return guard_nulls((p.sql, q.sql), line)


def _create_rectangle(p: TypedSql, q: TypedSql) -> exp.Expr:
    rectangle = build(
        "named_struct('x1', least(_a.x, _b.x), 'y1', least(_a.y, _b.y),"
        " 'x2', greatest(_a.x, _b.x), 'y2', greatest(_a.y, _b.y))",
        _a=p.sql, _b=q.sql,
    )  # fmt: skip
    return guard_nulls((p.sql, q.sql), rectangle)


def _create_circle(p: TypedSql, r: TypedSql) -> exp.Expr:
    radius = as_double(r)
    constant = typed_sql.constant_number(radius)
    if constant is not None and constant < 0:
        raise FunctionError(f"create_circle expects a radius of at least 0, got {constant}")
    checked = radius if constant is not None else build(
        "IF(_r < 0E0 OR isnan(_r), CAST(_e AS DOUBLE), _r)",
        _r=radius, _e=typed_sql.raise_error("expected a radius of at least 0", exp.cast(radius.copy(), "STRING")),
    )  # fmt: skip
    circle = build("named_struct('x', _p.x, 'y', _p.y, 'radius', _r)", _p=p.sql, _r=checked)
    return guard_nulls((p.sql, radius), circle)


_CHECKED_FLAT: Final = (
    "CASE WHEN exists(_n, __v -> __v IS NULL) THEN NULL"
    " WHEN size(_n) >= 6 AND size(_n) % 2 = 0 THEN "
    f"get(transform(array(_n), __n -> {_FROM_FLAT}), 0)"
    " WHEN _n IS NOT NULL THEN raise_error(concat('expected a polygon of at least three points as"
    " [x1, y1, x2, y2, x3, y3], got ', CAST(size(_n) AS STRING), ' numbers')) END"
)
_CHECKED_POINTS: Final = (
    "CASE WHEN exists(_n, __v -> __v IS NULL) THEN NULL WHEN size(_n) >= 3 THEN _n"
    " WHEN _n IS NOT NULL THEN raise_error(concat('expected a polygon of at least three points, got ',"
    " CAST(size(_n) AS STRING))) END"
)


def _polygon_of_numbers(numbers: TypedSql) -> exp.Expr:
    if isinstance(numbers.sql, exp.Array) and (len(numbers.sql.expressions) < 6 or len(numbers.sql.expressions) % 2):
        raise FunctionError(
            "create_polygon expects at least three points as [x1, y1, x2, y2, x3, y3], "
            f"got {len(numbers.sql.expressions)} numbers"
        )
    return build(_CHECKED_FLAT, _n=exp.cast(numbers.sql.copy(), "ARRAY<DOUBLE>", dialect="spark"))


def _polygon_of_points(points: TypedSql) -> exp.Expr:
    if isinstance(points.sql, exp.Array) and len(points.sql.expressions) < 3:
        raise FunctionError(f"create_polygon expects at least three points, got {len(points.sql.expressions)}")
    return build(_CHECKED_POINTS, _n=points.sql)


# ---------------------------------------------------------------- parts of shapes


def _get(name: str) -> Callable[[TypedSql], exp.Expr]:
    return lambda shape: field(shape.sql, name)


def _get_center(circle: TypedSql) -> exp.Expr:
    # `build` would drop the NULL check of the radius, so take the fields explicitly.
    return guard_nulls((circle.sql,), struct(x=field(circle.sql, "x"), y=field(circle.sql, "y")))


def _points(template: str) -> Callable[[TypedSql], exp.Expr]:
    return lambda shape: guard_nulls((shape.sql,), build(template, _a=shape.sql))


_ENDS: Final = "array(named_struct('x', _a.x1, 'y', _a.y1), named_struct('x', _a.x2, 'y', _a.y2))"
_DISC_BOX: Final = (
    "array(named_struct('x', _a.x - _a.radius, 'y', _a.y - _a.radius),"
    " named_struct('x', _a.x + _a.radius, 'y', _a.y + _a.radius))"
)
# Relative to the first corner, so that a small polygon far from the origin loses no digits.
_SHOELACE: Final = (
    f"abs(aggregate({edges('_a')}, 0E0, (__s, __e) -> __s"
    " + (__e.x1 - get(_a, 0).x) * (__e.y2 - get(_a, 0).y) - (__e.x2 - get(_a, 0).x) * (__e.y1 - get(_a, 0).y))) * 0.5E0"
)


def _formula(template: str) -> Callable[..., exp.Expr]:
    return lambda *shapes: build(
        template, **{name: shape.sql for name, shape in zip(("_a", "_b"), shapes, strict=False)}
    )


def _intersect(a: TypedSql, b: TypedSql) -> exp.Expr:
    """Whether two shapes meet; NULL if one of them is NULL."""
    first, second = (a, b) if (a.type, b.type) in INTERSECT else (b, a)
    pair = (first.type, second.type)
    test = build(INTERSECT[pair], _a=first.sql, _b=second.sql)
    if pair in LENIENT:
        return guard_nulls((first.sql, second.sql), test)
    if pair in ((POINT, CIRCLE), (CIRCLE, CIRCLE)):
        # A single comparison that uses all fields is NULL if one of them is.
        return test
    return guard_nulls(typed_sql.remove_guards(first.sql, second.sql), test)


def _cell(p: TypedSql, origin: TypedSql, dx: TypedSql, dy: TypedSql) -> exp.Expr:
    """Returns the cell of a grid with this origin and cell size in which a point lies."""
    parts = {"_p": p.sql, "_o": origin.sql, "_dx": as_double(dx), "_dy": as_double(dy)}
    for name in ("_dx", "_dy"):
        constant = typed_sql.constant_number(parts[name])
        if constant is not None and constant <= 0:
            raise FunctionError(f"spatial_cell expects cells larger than 0, got {constant}")
        if constant is None:
            failure = typed_sql.raise_error("expected cells larger than 0", exp.cast(parts[name].copy(), "STRING"))
            parts[name] = build("IF(_d <= 0E0 OR isnan(_d), CAST(_e AS DOUBLE), _d)", _d=parts[name], _e=failure)
    x, y = "floor((_p.x - _o.x) / _dx)", "floor((_p.y - _o.y) / _dy)"
    cell = build(
        f"named_struct('x1', _o.x + {x} * _dx, 'y1', _o.y + {y} * _dy,"
        f" 'x2', _o.x + ({x} + 1) * _dx, 'y2', _o.y + ({y} + 1) * _dy)",
        **parts,
    )
    return guard_nulls((p.sql, origin.sql, as_double(dx), as_double(dy)), cell)


_FLAT: Final = tuple(ArrayType(number, optional) for number in NUMBERS for optional in (False, True))
_POINTS: Final = (ArrayType(POINT), ArrayType(POINT, True))


def _same(type_: Type) -> Overload:
    return Overload((type_,), type_, lambda shape: shape.sql)


FUNCTIONS: Final = typed_sql.table({
    "point": [Overload((STRING,), POINT, typed_sql.from_text(values.parse_point, _READ_POINT)), _same(POINT)],
    "line": [Overload((STRING,), LINE, typed_sql.from_text(values.parse_line, _READ_LINE)), _same(LINE)],
    "rectangle": [Overload((STRING,), RECTANGLE, typed_sql.from_text(values.parse_rectangle, _READ_RECTANGLE)),
                  _same(RECTANGLE)],
    "circle": [Overload((STRING,), CIRCLE, typed_sql.from_text(values.parse_circle, _READ_CIRCLE)), _same(CIRCLE)],
    "polygon": [Overload((STRING,), POLYGON, typed_sql.from_text(values.parse_polygon, _READ_POLYGON)), _same(POLYGON)],
    "create_point": [Overload((NUMBERS, NUMBERS), POINT, _create_point)],
    "create_line": [Overload((POINT, POINT), LINE, _create_line)],
    "create_rectangle": [Overload((POINT, POINT), RECTANGLE, _create_rectangle)],
    "create_circle": [Overload((POINT, NUMBERS), CIRCLE, _create_circle)],
    "create_polygon": [Overload((_FLAT,), POLYGON, _polygon_of_numbers),
                       Overload((_POINTS,), POLYGON, _polygon_of_points)],
    "get_x": [Overload((POINT,), DOUBLE, _get("x"))],
    "get_y": [Overload((POINT,), DOUBLE, _get("y"))],
    "get_center": [Overload((CIRCLE,), POINT, _get_center)],
    "get_radius": [Overload((CIRCLE,), DOUBLE, _get("radius"))],
    # As in AsterixDB: the ends of a line, the low and high corner of a rectangle or of a circle's bounding box.
    "get_points": [Overload((POINT,), ArrayType(POINT), _points("array(_a)")),
                   Overload(((LINE, RECTANGLE),), ArrayType(POINT), _points(_ENDS)),
                   Overload((CIRCLE,), ArrayType(POINT), _points(_DISC_BOX)),
                   Overload((POLYGON,), ArrayType(POINT), lambda polygon: polygon.sql)],
    "spatial_intersect": [Overload((SPATIAL, SPATIAL), BOOLEAN, _intersect)],
    "spatial_distance": [Overload((POINT, POINT), DOUBLE, _formula(
        "sqrt((_a.x - _b.x) * (_a.x - _b.x) + (_a.y - _b.y) * (_a.y - _b.y))"))],
    "spatial_area": [Overload((RECTANGLE,), DOUBLE, _formula("((_a.x2 - _a.x1) * (_a.y2 - _a.y1))")),
                     Overload((CIRCLE,), DOUBLE, lambda c: exp.Paren(this=build(
                         "pi() * _a * _a", _a=field(c.sql, "radius")))),
                     Overload((POLYGON,), DOUBLE, lambda p: exp.Paren(this=build(_SHOELACE, _a=p.sql)))],
    "spatial_cell": [Overload((POINT, POINT, NUMBERS, NUMBERS), RECTANGLE, _cell)],
})  # fmt: skip
