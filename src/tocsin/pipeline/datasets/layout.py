"""Maps records to columns: which Arrow (and Parquet, Delta, Spark) column holds which field.

A declared field has a typed column. `_open` holds, as `open_form` text, exactly what typed columns cannot: undeclared
fields, and declared optional fields that are explicitly NULL (`"name":null`). A NULL column whose name is not in
`_open` therefore means MISSING. Nested objects are structs under the same rule. `rules.model.columns` names the
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from tocsin.clock import from_us
from tocsin.rules.model import values as model_values
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.open_form import dumps, dumps_value, loads, loads_value
from tocsin.rules.model.types import DATETIME, AnyType, ArrayType, MultisetType, ObjectType, Primitive, Type
from tocsin.rules.model.values import MISSING, Circle, Duration, Line, Multiset, Point, Polygon, Rectangle

# ---------------------------------------------------------------- types


def _struct(*names: str) -> pa.DataType:
    return pa.struct([(name, pa.float64()) for name in names])


def _list(item: pa.DataType) -> pa.DataType:
    # Parquet and Delta name it "element"; Arrow's default name would come back renamed.
    return pa.list_(pa.field("element", item))


_POINT: Final = _struct("x", "y")
_CORNERS: Final = _struct("x1", "y1", "x2", "y2")
_CIRCLE: Final = _struct("x", "y", "radius")
_DURATION: Final = pa.struct([("months", pa.int32()), ("micros", pa.int64())])

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(), "smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(),
    "date": pa.date32(), "time": pa.int64(), "datetime": pa.timestamp("us", "UTC"),
    "duration": _DURATION, "uuid": pa.string(),
    "point": _POINT, "line": _CORNERS, "rectangle": _CORNERS, "circle": _CIRCLE, "polygon": _list(_POINT),
}  # fmt: skip


@lru_cache(maxsize=512)
def arrow_type(kind: Type) -> pa.DataType:
    match kind:
        case Primitive(name=name):
            return _ARROW[name]
        case ObjectType():
            return pa.struct(_arrow_fields(kind))
        case ArrayType(item=item) | MultisetType(item=item):
            return _list(arrow_type(item))
        case AnyType():
            return pa.string()


def record_schema(kind: ObjectType) -> pa.Schema:
    """The columns of a dataset's records, without those of its commits."""
    return pa.schema(_arrow_fields(kind))


def _arrow_fields(kind: ObjectType) -> list[pa.Field]:
    fields = [pa.field(physical(field.name), arrow_type(field.type)) for field in kind.fields]
    if keeps_open(kind):
        fields.append(pa.field(OPEN, pa.string()))
    names = {field.name.lower() for field in fields}
    if len(names) != len(fields):
        raise ValueError(f"{kind} declares fields whose names differ only in case, which Spark cannot keep apart")
    return fields


def spark_type(kind: Type) -> str:
    """The Spark type that reads a column of `arrow_type(kind)`."""
    return _spark(arrow_type(kind))


def spark_schema(kind: ObjectType) -> str:
    """The columns of `record_schema(kind)` as Spark DDL."""
    return ", ".join(f"`{field.name}` {_spark(field.type)}" for field in record_schema(kind))


_SPARK: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING", pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
}  # fmt: skip


def _spark(arrow: pa.DataType) -> str:
    if pa.types.is_struct(arrow):
        return f"STRUCT<{', '.join(f'`{field.name}`: {_spark(field.type)}' for field in arrow.fields)}>"
    if pa.types.is_list(arrow):
        return f"ARRAY<{_spark(arrow.value_type)}>"
    return _SPARK[arrow]


# ---------------------------------------------------------------- records → columns


def to_arrow(records: Sequence[dict[str, Any]], kind: ObjectType) -> pa.Table:
    """Converts records, already checked against `kind`, to a table of `record_schema(kind)`."""
    return pa.Table.from_arrays(_object_columns(records, kind), schema=record_schema(kind))


_Column: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""Converts the values of a column (None for no value) to the column."""


def untyped_column(values: Sequence[Any]) -> pa.Array:
    """A column of type `any`, in which None is a value and MISSING is no value."""
    return pa.array([None if value is MISSING else dumps_value(value) for value in values], pa.string())


def column(kind: Type, values: Sequence[Any]) -> pa.Array:
    """Converts values (None for no value), already checked against `kind`, to a column of `arrow_type(kind)`."""
    match kind:
        case Primitive(name=name):
            return _COLUMNS[name](values) if name in _COLUMNS else pa.array(values, _ARROW[name])
        case ObjectType():
            children = _object_columns([value if value is not None else {} for value in values], kind)
            return _masked_struct(values, children, arrow_type(kind))
        case ArrayType(item=item) | MultisetType(item=item):
            return _lists(values, lambda items: column(item, items), arrow_type(kind), null_items=item == AnyType())
        case AnyType():
            return pa.array([None if value is None else dumps_value(value) for value in values], pa.string())


def _object_columns(records: Sequence[dict[str, Any]], kind: ObjectType) -> list[pa.Array]:
    columns = [column(field.type, [record.get(field.name) for record in records]) for field in kind.fields]
    if keeps_open(kind):
        declared = frozenset(field.name for field in kind.fields)
        columns.append(pa.array([_open_text(record, declared) for record in records], pa.string()))
    return columns


def _open_text(record: dict[str, Any], declared: frozenset[str]) -> str | None:
    rest = {name: value for name, value in record.items() if value is None or name not in declared}
    return dumps(rest) if rest else None


def _masked_struct(values: Sequence[Any], children: list[pa.Array], arrow: pa.DataType) -> pa.Array:
    mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
    return pa.StructArray.from_arrays(children, fields=list(arrow.fields), mask=mask)


def _lists(values: Sequence[Any], column: _Column, arrow: pa.DataType, *, null_items: bool = False) -> pa.Array:
    """A list column. `null_items`: None is a value (the text "null"), because NULL would be read as MISSING."""
    items = [item for value in values if value is not None for item in value]
    item_column = pa.array([dumps_value(item) for item in items], pa.string()) if null_items else column(items)
    offsets = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), item_column, type=arrow, mask=mask)


def _parts(arrow: pa.DataType, *parts: Callable[[Any], Any]) -> _Column:
    """A struct column: one child per part of the value."""

    def column(values: Sequence[Any]) -> pa.Array:
        children = [
            pa.array([None if value is None else part(value) for value in values], field.type)
            for part, field in zip(parts, arrow.fields, strict=True)
        ]
        return _masked_struct(values, children, arrow)

    return column


def _mapped(arrow: pa.DataType, convert: Callable[[Any], Any]) -> _Column:
    return lambda values: pa.array([None if value is None else convert(value) for value in values], arrow)


_points: Final = _parts(_POINT, lambda v: v.x, lambda v: v.y)

_COLUMNS: Final[Mapping[str, _Column]] = {
    "time": _mapped(pa.int64(), model_values.micros_of_day),
    "uuid": _mapped(pa.string(), str),
    "duration": _parts(_DURATION, lambda v: v.months, lambda v: v.micros),
    "point": _points,
    "line": _parts(_CORNERS, lambda v: v.start.x, lambda v: v.start.y, lambda v: v.end.x, lambda v: v.end.y),
    "rectangle": _parts(_CORNERS, lambda v: v.low.x, lambda v: v.low.y, lambda v: v.high.x, lambda v: v.high.y),
    "circle": _parts(_CIRCLE, lambda v: v.center.x, lambda v: v.center.y, lambda v: v.radius),
    "polygon": lambda values: _lists(
        [None if value is None else value.points for value in values], _points, _ARROW["polygon"]
    ),
}


# ---------------------------------------------------------------- columns → records


def from_arrow(table: pa.Table, kind: ObjectType) -> list[dict[str, Any]]:
    """Converts a table with (at least) the columns of `record_schema(kind)` to records."""
    records: list[dict[str, Any]] = [{} for _ in range(table.num_rows)]
    for field in kind.fields:
        decode, column = decoder(field.type), table.column(physical(field.name))
        if field.type == DATETIME:
            # Arrow takes 3 µs to make a datetime; a number costs a tenth of it.
            decode, column = from_us, column.cast(_ARROW["datetime"]).cast(pa.int64())
        for record, value in zip(records, column.to_pylist(), strict=True):
            if value is not None:
                record[field.name] = decode(value)
    if keeps_open(kind):
        for record, text in zip(records, table.column(OPEN).to_pylist(), strict=True):
            if text is not None:
                record.update(loads(text))
    return records


@lru_cache(maxsize=512)
def decoder(kind: Type) -> Callable[[Any], Any]:
    """Returns a function that converts an item of pyarrow's to_pylist, of the type `arrow_type(kind)`, to the value.
    NULL becomes None, except for `any`: there NULL is MISSING and the text "null" is NULL.
    """
    match kind:
        case Primitive(name=name):
            convert = _DECODERS.get(name)
            return _same if convert is None else _unless_none(convert)
        case ObjectType():
            return _unless_none(_object_decoder(kind))
        case ArrayType(item=item):
            decode = decoder(item)
            return _unless_none(lambda items: [decode(element) for element in items])
        case MultisetType(item=item):
            decode = decoder(item)
            return _unless_none(lambda items: Multiset(decode(element) for element in items))
        case AnyType():
            return lambda text: MISSING if text is None else loads_value(text)


def _object_decoder(kind: ObjectType) -> Callable[[dict[str, Any]], dict[str, Any]]:
    # An optional field that is NULL in its column is MISSING, unless `_open` says otherwise; any other is NULL.
    plan = tuple(
        (physical(field.name), field.name, decoder(field.type), not (field.optional or isinstance(field.type, AnyType)))
        for field in kind.fields
    )

    def decode(struct: dict[str, Any]) -> dict[str, Any]:
        record = {}
        for column, name, decode_field, keeps_null in plan:
            value = struct.get(column)
            if value is not None:
                record[name] = decode_field(value)
            elif keeps_null:
                record[name] = None
        text = struct.get(OPEN)
        if text is not None:
            record.update(loads(text))
        return record

    return decode


def _same(value: Any) -> Any:
    return value


def _unless_none(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else decode(value)


def _utc(value: datetime) -> datetime:
    # Spark uses the session's time zone, Arrow a UTC object of its own.
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_MIDNIGHT: Final = datetime.combine(date.min, time.min)


def _time(micros: int) -> time:
    return (_MIDNIGHT + timedelta(microseconds=micros)).time()


def _point(xy: dict[str, float]) -> Point:
    return Point(xy["x"], xy["y"])


def _ends(corners: dict[str, float]) -> tuple[Point, Point]:
    return Point(corners["x1"], corners["y1"]), Point(corners["x2"], corners["y2"])


_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "time": _time,
    "datetime": _utc,
    "duration": lambda struct: Duration(struct["months"], struct["micros"]),
    "uuid": UUID,
    "point": _point,
    "line": lambda struct: Line(*_ends(struct)),
    "rectangle": lambda struct: Rectangle(*_ends(struct)),
    "circle": lambda struct: Circle(_point(struct), struct["radius"]),
    "polygon": lambda points: Polygon(tuple(map(_point, points))),
}
