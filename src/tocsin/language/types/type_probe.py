"""Finds the result type of a Spark function for our own types.

Spark sees a `time` as BIGINT and a `point` as STRUCT, and reports the result in the same terms. So we let Spark analyse
the call with stand-ins: structs with a unique field name in place of our types. A stand-in in the result means that our
type came back. If Spark rejects a stand-in, the function would compute with the number inside of our type, and we
refuse the call. Only the analysed query contains stand-ins; the SQL that runs does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.translate.interfaces import TypeAnalyser
from tocsin.language.translate.spark_text import render_for_analysis
from tocsin.language.types.typed_sql import FunctionError, MapType, TypedSql, constant_integer
from tocsin.language.types.variant import values
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ArrayType, Field, MultisetType, ObjectType, Type

_OPAQUE: Final = (t.TIME, t.DURATION, *t.SPATIAL)  # users must not see how Spark holds these types

_REMEDIES: Final[dict[Type, str]] = {
    t.TIME: "print_time, get_hour, get_minute or unix_time_from_time_in_ms",
    t.DURATION: "ms_from_day_time_duration or months_from_year_month_duration",
    t.POINT: "get_x and get_y",
    t.CIRCLE: "get_center and get_radius",
    t.LINE: "get_points",
    t.RECTANGLE: "get_points",
    t.POLYGON: "get_points",
}

_ABOUT_TYPES: Final = re.compile("a value of type|has the type|argument must be|have an order")
_ENCODED: Final = re.compile(r"_x((?:[0-9a-f]{2})*)")
_STAND_IN: Final = re.compile(r"_t(\d+)")  # none of our fields has such a column name: see `physical`


def map_of(key: Type, value: Type) -> MapType:
    return MapType(f"map<{values.spark_type(key)},{values.spark_type(value)}>", key, value)


def opaque(type_: Type) -> Type | None:
    """Returns the first type inside this type that is opaque."""
    if type_ in _OPAQUE:
        return type_
    match type_:
        case ArrayType(item) | MultisetType(item):
            return opaque(item)
        case ObjectType(fields):
            return next((inner for field in fields if (inner := opaque(field.type)) is not None), None)
        case MapType():
            return opaque(type_.key) or opaque(type_.value)
    return None


def needs_stand_in(type_: Type) -> bool:
    """Whether the Spark type would lose a part of the type's meaning."""
    match type_:
        case ArrayType(item):
            return needs_stand_in(item)
        case MultisetType():
            return True
        case ObjectType(fields):
            return _is_encoded(type_) or any(needs_stand_in(field.type) for field in fields)
        case MapType():
            return needs_stand_in(type_.key) or needs_stand_in(type_.value)
    return type_ in _OPAQUE or type_ == t.UUID


def _is_encoded(type_: ObjectType) -> bool:
    return keeps_open(type_) or any(physical(field.name) != field.name for field in type_.fields)


class _StandInTypes:
    """The stand-ins of one analysed query.

    With `everything`, types that a function may inspect get a stand-in too: a multiset (array), a uuid (string), and an
    open object (struct).
    """

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._types: list[Type] = []

    def null(self, type_: Type) -> exp.Expr:
        if type_ == VOID:
            return exp.null()
        return exp.cast(exp.null(), self.spark_type(type_), dialect="spark")

    def spark_type(self, type_: Type) -> str:
        if type_ in _OPAQUE or (self._everything and self._is_whole(type_)):
            if type_ not in self._types:
                self._types.append(type_)
            return f"STRUCT<`_t{self._types.index(type_)}`: {values.spark_type(type_)}>"
        match type_:
            case ArrayType(item) | MultisetType(item):
                return f"ARRAY<{self.spark_type(item)}>"
            case ObjectType(fields):
                columns = [f"`{physical(field.name)}`: {self.spark_type(field.type)}" for field in fields]
                columns += [f"`{OPEN}`: STRING"] if keeps_open(type_) else []
                return f"STRUCT<{', '.join(columns)}>"
            case MapType():
                return f"MAP<{self.spark_type(type_.key)}, {self.spark_type(type_.value)}>"
        return values.spark_type(type_)

    def _is_whole(self, type_: Type) -> bool:
        if isinstance(type_, ObjectType):
            return _is_encoded(type_)
        return isinstance(type_, MultisetType) or type_ == t.UUID

    def restore_types(self, found: Type) -> Type:
        """Replaces the stand-ins in Spark's answer by our types."""
        match found:
            case ArrayType(item):
                return ArrayType(self.restore_types(item))
            case ObjectType((Field(name=name),)) if (stand_in := _STAND_IN.fullmatch(name)) is not None:
                return self._types[int(stand_in[1])]
            case ObjectType(fields):
                declared = [
                    Field(_field(field.name), self.restore_types(field.type)) for field in fields if field.name != OPEN
                ]
                return ObjectType(tuple(declared), open=len(declared) < len(fields))
            case MapType():
                return map_of(self.restore_types(found.key), self.restore_types(found.value))
        return found


def _field(column: str) -> str:
    """Returns the name of the field that has this column."""
    encoded = _ENCODED.fullmatch(column)
    return bytes.fromhex(encoded[1]).decode() if encoded is not None else column


def _has_foreign_names(found: Type) -> bool:
    """Whether Spark has chosen a field name that cannot be one of our columns: arrays_zip names its fields 0 and 1."""
    match found:
        case ArrayType(item):
            return _has_foreign_names(item)
        case ObjectType(fields):
            all_ours = all(field.name == OPEN or physical(_field(field.name)) == field.name for field in fields)
            is_ours = len(fields) == 1 and _STAND_IN.fullmatch(fields[0].name) is not None
            return not is_ours and (not all_ours or any(_has_foreign_names(field.type) for field in fields))
    return False


Null = Callable[[Type], exp.Expr]


def blank(part: TypedSql, null: Null) -> exp.Expr:
    """Returns a typed NULL in place of the part. A literal stays, because some results depend on its value."""
    is_text = isinstance(part.sql, exp.Literal) and part.type != t.UUID
    is_number = part.type in t.INTEGERS and constant_integer(part.sql) is not None
    return part.sql.copy() if is_text or is_number else null(part.type)


def with_typed_nulls(made: exp.Expr, parts: Sequence[TypedSql]) -> Callable[[Null], exp.Expr]:
    """Returns a function that builds the expression with typed NULLs in place of its parts."""
    by_sql = {part.sql: part for part in parts if not isinstance(part.sql, exp.Literal) or part.type == t.UUID}

    def question(null: Null) -> exp.Expr:
        return made.transform(lambda node: blank(by_sql[node], null) if node in by_sql else node) if by_sql else made

    return question


def type_by_spark(
    type_analyser: TypeAnalyser, made: exp.Expr, what: str, question: Callable[[Null], exp.Expr], of: Sequence[Type]
) -> TypedSql:
    """Returns the expression `made`, over values of the types `of`, with the type that Spark's analyser finds.

    Raises an error if Spark would compute with our internal form of a value, for example with the number in a time.
    """

    def ask_spark(null: Null) -> Type:
        return type_analyser.columns(f"SELECT {render_for_analysis(question(null))} AS c")[0][1]

    hidden = next((inner for type_ in of if (inner := opaque(type_)) is not None), None)
    stand_ins = _StandInTypes(everything=True)
    try:
        spark_type = ask_spark(stand_ins.null)
    except FunctionError:
        if not any(map(needs_stand_in, of)):
            raise
        stand_ins = _StandInTypes(everything=False)
        try:
            spark_type = ask_spark(stand_ins.null)
        except FunctionError:
            # Let Spark name the reason in terms of its own types, but never as a BIGINT that is a time for the user.
            try:
                spark_type = ask_spark(values.null)
            except FunctionError as error:
                if hidden is None or not _ABOUT_TYPES.search(str(error)):
                    raise
            if hidden is not None:
                raise refusal(what, hidden) from None
    type_ = stand_ins.restore_types(spark_type)
    if _has_foreign_names(spark_type):
        return TypedSql(exp.cast(made, values.spark_type(type_), dialect="spark"), type_)
    return TypedSql(made, type_)


def refusal(what: str, hidden: Type) -> FunctionError:
    return FunctionError(f"{what} cannot take a value of type {hidden}; use {_REMEDIES[hidden]}")
