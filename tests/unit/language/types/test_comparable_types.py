"""Which types can be compared: numbers with numbers, and every other type with itself."""

from __future__ import annotations

import itertools

import pytest
from sqlglot import exp

from tocsin.language.types.comparable_types import is_comparable, never
from tocsin.language.types.typed_sql import TypedSql, literal
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Type

_KINDS: list[Type] = [
    t.BIGINT, t.STRING, t.BOOLEAN, t.DATE, t.DATETIME, t.TIME, t.DURATION, t.UUID, *t.SPATIAL, ArrayType(t.BIGINT),
    MultisetType(t.BIGINT), ObjectType((), open=True),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(_KINDS, 2)))
def test_different_types_are_neither_equal_nor_ordered(left: Type, right: Type) -> None:
    assert not is_comparable(left, right, by_order=False)
    assert not is_comparable(left, right, by_order=True)


@pytest.mark.parametrize("type_", _KINDS)
def test_every_type_can_be_equal_to_itself_to_an_untyped_value_and_to_null(type_: Type) -> None:
    for other in (type_, t.ANY, VOID):
        assert is_comparable(type_, other, by_order=False)
        assert is_comparable(other, type_, by_order=False)


def test_shapes_arrays_and_objects_have_no_order() -> None:
    ordered = {str(type_) for type_ in _KINDS if is_comparable(type_, type_, by_order=True)}
    assert ordered == {"bigint", "string", "boolean", "date", "datetime", "time", "duration", "uuid"}


def test_numbers_of_all_types_can_be_compared() -> None:
    assert all(is_comparable(*pair, by_order=True) for pair in itertools.product(t.NUMBERS, repeat=2))


def test_arrays_of_different_items_can_be_equal() -> None:
    assert is_comparable(ArrayType(t.BIGINT), ArrayType(t.STRING), by_order=False)


def test_a_comparison_of_incompatible_types_is_null_and_a_null_safe_one_compares_nulls() -> None:
    one, text = literal(1), literal("1")
    assert never(exp.EQ, one, text).sql.sql() == "CAST(NULL AS BOOLEAN)"
    left, right = (TypedSql(exp.column(name), t.STRING) for name in "ab")
    assert never(exp.NullSafeEQ, left, right).sql.sql() == "(a IS NULL AND b IS NULL)"
    assert never(exp.NullSafeNEQ, left, right).sql.sql() == "NOT (a IS NULL AND b IS NULL)"
