"""The types of data: what CREATE TYPE declares and what an expression is known to be.

Type ─┬─ Primitive("boolean" | "bigint" | "string" | "datetime" | "circle" | …)
      ├─ ObjectType(fields, open)     a nested or top-level record
      ├─ ArrayType(item)              [item]
      ├─ MultisetType(item)           {{item}}
      └─ ANY                          known only when the data are there
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Primitive:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class AnyType:
    """A value of any type: an undeclared field, or a field declared as `any`."""

    def __str__(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field. An optional field (`?`) may be NULL or MISSING; every other field always has a value."""

    name: str
    type: Type
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{'?' if self.optional else ''}"


@dataclass(frozen=True, slots=True)
class ObjectType:
    """OPEN objects keep undeclared fields; CLOSED objects refuse them."""

    fields: tuple[Field, ...] = ()
    open: bool = True
    name: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        inside = ", ".join(str(declared) for declared in self.fields)
        return self.name or f"{'open' if self.open else 'closed'} {{{inside}}}"

    def find(self, name: str) -> Field | None:
        return next((declared for declared in self.fields if declared.name == name), None)


@dataclass(frozen=True, slots=True)
class ArrayType:
    item: Type
    item_optional: bool = False

    def __str__(self) -> str:
        return f"[{self.item}{'?' if self.item_optional else ''}]"


@dataclass(frozen=True, slots=True)
class MultisetType:
    item: Type
    item_optional: bool = False

    def __str__(self) -> str:
        return f"{{{{{self.item}{'?' if self.item_optional else ''}}}}}"


Type: TypeAlias = Primitive | AnyType | ObjectType | ArrayType | MultisetType

ANY: Final = AnyType()
BOOLEAN: Final = Primitive("boolean")
TINYINT: Final = Primitive("tinyint")
SMALLINT: Final = Primitive("smallint")
INTEGER: Final = Primitive("integer")
BIGINT: Final = Primitive("bigint")
FLOAT: Final = Primitive("float")
DOUBLE: Final = Primitive("double")
STRING: Final = Primitive("string")
DATE: Final = Primitive("date")
TIME: Final = Primitive("time")
DATETIME: Final = Primitive("datetime")
DURATION: Final = Primitive("duration")
UUID: Final = Primitive("uuid")
POINT: Final = Primitive("point")
LINE: Final = Primitive("line")
RECTANGLE: Final = Primitive("rectangle")
CIRCLE: Final = Primitive("circle")
POLYGON: Final = Primitive("polygon")

INTEGERS: Final = (TINYINT, SMALLINT, INTEGER, BIGINT)
NUMBERS: Final = (*INTEGERS, FLOAT, DOUBLE)
SPATIAL: Final = (POINT, LINE, RECTANGLE, CIRCLE, POLYGON)

INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "integer": 32, "bigint": 64}

# Every name a script may write for a primitive type, in lower case. `int` has 64 bits.
PRIMITIVES: Final[dict[str, Primitive]] = {
    "boolean": BOOLEAN,
    "tinyint": TINYINT, "int8": TINYINT,
    "smallint": SMALLINT, "int16": SMALLINT,
    "integer": INTEGER, "int32": INTEGER,
    "int": BIGINT, "bigint": BIGINT, "int64": BIGINT,
    "float": FLOAT, "double": DOUBLE, "double precision": DOUBLE,
    "string": STRING,
    "date": DATE, "time": TIME, "datetime": DATETIME, "timestamp": DATETIME,
    "duration": DURATION, "day_time_duration": DURATION, "year_month_duration": DURATION,
    "uuid": UUID,
    "point": POINT, "line": LINE, "rectangle": RECTANGLE, "circle": CIRCLE, "polygon": POLYGON,
}  # fmt: skip
