"""How a type of ours stays itself through a function of Spark's.

Spark knows a time as a BIGINT and a point as a STRUCT, and of what a function yields it can only say that. So it is
asked about stand-ins, structs of a field that nothing else has: what comes out as the stand-in is the type that went
in, and what Spark does not do with a stand-in it would do with the number inside of a time. Only the question has
them; the SQL that runs does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.translate.name_lookup import TypeAnalyser
from tocsin.language.translate.spark_text import render_question
from tocsin.language.types.typed_sql import FunctionError, MapType, TypedSql, constant_integer
from tocsin.language.types.variant import values
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ArrayType, Field, MultisetType, ObjectType, Type

OPAQUE: Final = (t.TIME, t.DURATION, *t.SPATIAL)  # what stands for them in Spark means nothing to people

REMEDIES: Final[dict[Type, str]] = {
    t.TIME: "print_time, get_hour, get_minute or unix_time_from_time_in_ms",
    t.DURATION: "ms_from_day_time_duration or months_from_year_month_duration",
    t.POINT: "get_x and get_y",
    t.CIRCLE: "get_center and get_radius",
    t.LINE: "get_points",
    t.RECTANGLE: "get_points",
    t.POLYGON: "get_points",
}

_ENCODED: Final = re.compile(r"_x((?:[0-9a-f]{2})*)")
_STAND_IN: Final = re.compile(r"_t(\d+)")  # no field of ours has such a column: see `physical`


def map_of(key: Type, value: Type) -> MapType:
    return MapType(f"map<{values.spark_type(key)},{values.spark_type(value)}>", key, value)


def opaque(type_: Type) -> Type | None:
    """The first type in there whose inner form must not be seen."""
    if type_ in OPAQUE:
        return type_
    match type_:
        case ArrayType(item) | MultisetType(item):
            return opaque(item)
        case ObjectType(fields):
            return next((found for one in fields if (found := opaque(one.type)) is not None), None)
        case MapType():
            return opaque(type_.key) or opaque(type_.value)
    return None


def special(type_: Type) -> bool:
    """Whether Spark's own word for the type would lose something of it."""
    match type_:
        case ArrayType(item):
            return special(item)
        case MultisetType():
            return True
        case ObjectType(fields):
            return _is_encoded(type_) or any(special(one.type) for one in fields)
        case MapType():
            return special(type_.key) or special(type_.value)
    return type_ in OPAQUE or type_ == t.UUID


def _is_encoded(type_: ObjectType) -> bool:
    return keeps_open(type_) or any(physical(one.name) != one.name for one in type_.fields)


class StandInTypes:
    """The stand-ins of one question. `everything`: also for what a function may well look into (a multiset is an
    array, a uuid a string, an open object a struct)."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._types: list[Type] = []

    def null(self, type_: Type) -> exp.Expr:
        if type_ == VOID:
            return exp.null()
        return exp.cast(exp.null(), self.spark_type(type_), dialect="spark")

    def spark_type(self, type_: Type) -> str:
        if type_ in OPAQUE or (self._everything and self._is_whole(type_)):
            if type_ not in self._types:
                self._types.append(type_)
            return f"STRUCT<`_t{self._types.index(type_)}`: {values.spark_type(type_)}>"
        match type_:
            case ArrayType(item) | MultisetType(item):
                return f"ARRAY<{self.spark_type(item)}>"
            case ObjectType(fields):
                columns = [f"`{physical(one.name)}`: {self.spark_type(one.type)}" for one in fields]
                columns += [f"`{OPEN}`: STRING"] if keeps_open(type_) else []
                return f"STRUCT<{', '.join(columns)}>"
            case MapType():
                return f"MAP<{self.spark_type(type_.key)}, {self.spark_type(type_.value)}>"
        return values.spark_type(type_)

    def _is_whole(self, type_: Type) -> bool:
        if isinstance(type_, ObjectType):
            return _is_encoded(type_)
        return isinstance(type_, MultisetType) or type_ == t.UUID

    def restored(self, found: Type) -> Type:
        """An answer of Spark's with our types in place of the stand-ins."""
        match found:
            case ArrayType(item):
                return ArrayType(self.restored(item))
            case ObjectType((Field(name=name),)) if (stand_in := _STAND_IN.fullmatch(name)) is not None:
                return self._types[int(stand_in[1])]
            case ObjectType(fields):
                kept = [Field(_named(one.name), self.restored(one.type)) for one in fields if one.name != OPEN]
                return ObjectType(tuple(kept), open=len(kept) < len(fields))
            case MapType():
                return map_of(self.restored(found.key), self.restored(found.value))
        return found


def _named(column: str) -> str:
    """The field whose column it is."""
    encoded = _ENCODED.fullmatch(column)
    return bytes.fromhex(encoded[1]).decode() if encoded is not None else column


def _has_foreign_names(found: Type) -> bool:
    """Whether Spark has named a field as we would not name its column: arrays_zip calls them 0 and 1."""
    match found:
        case ArrayType(item):
            return _has_foreign_names(item)
        case ObjectType(fields):
            known = all(one.name == OPEN or physical(_named(one.name)) == one.name for one in fields)
            is_ours = len(fields) == 1 and _STAND_IN.fullmatch(fields[0].name) is not None
            return not is_ours and (not known or any(_has_foreign_names(one.type) for one in fields))
    return False


Null = Callable[[Type], exp.Expr]


def blank(part: TypedSql, null: Null) -> exp.Expr:
    """What stands for it when only types matter: literals stand for themselves, since Spark looks at some."""
    is_text = isinstance(part.sql, exp.Literal) and part.type != t.UUID
    is_number = part.type in t.INTEGERS and constant_integer(part.sql) is not None
    return part.sql.copy() if is_text or is_number else null(part.type)


def blanked(made: exp.Expr, parts: Sequence[TypedSql]) -> Callable[[Null], exp.Expr]:
    """The expression with typed NULLs in place of its parts."""
    by_sql = {part.sql: part for part in parts if not isinstance(part.sql, exp.Literal) or part.type == t.UUID}

    def question(null: Null) -> exp.Expr:
        return made.transform(lambda node: blank(by_sql[node], null) if node in by_sql else node) if by_sql else made

    return question


def told(
    oracle: TypeAnalyser, made: exp.Expr, what: str, question: Callable[[Null], exp.Expr], of: Sequence[Type]
) -> TypedSql:
    """What was made of values of these types, with its type: that of what the question makes of typed NULLs.

    Refused where Spark would compute with what only stands for a value: a time is no number, whatever holds it.
    """

    def asked(null: Null) -> Type:
        return oracle.columns(f"SELECT {render_question(question(null))} AS c")[0][1]

    hidden = next((inner for one in of if (inner := opaque(one)) is not None), None)
    phantoms = StandInTypes(everything=True)
    try:
        found = asked(phantoms.null)
    except FunctionError:
        if not any(map(special, of)):
            raise
        phantoms = StandInTypes(everything=False)
        try:
            found = asked(phantoms.null)
        except FunctionError:
            # Spark's reason, if there is one, should speak of what it knows; but not of a BIGINT that is a time.
            try:
                found = asked(values.null)
            except FunctionError as error:
                if hidden is None or not re.search("a value of type|has the type", str(error)):
                    raise
            if hidden is not None:
                raise refusal(what, hidden) from None
    type_ = phantoms.restored(found)
    if _has_foreign_names(found):
        return TypedSql(exp.cast(made, values.spark_type(type_), dialect="spark"), type_)
    return TypedSql(made, type_)


def refusal(what: str, hidden: Type) -> FunctionError:
    return FunctionError(f"{what} cannot take a value of type {hidden}; use {REMEDIES[hidden]}")
