"""Records keep every value, whatever their type, on every way they take: columns, Parquet, JSON, open text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.strategies import (
    durations,
    json_values,
    object_types,
    open_values,
    same,
    typed_records,
    types,
    values_of,
)
from tocsin.pipeline.datasets.layout import arrow_type, decoder, from_arrow, record_schema, spark_schema, to_arrow
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.json_form import plain, reader
from tocsin.rules.model.open_form import dumps, dumps_value, loads, loads_value
from tocsin.rules.model.type_check import RecordError, check_value, checker, field_step
from tocsin.rules.model.types import ANY, ArrayType, Field, MultisetType, ObjectType, Primitive, Type
from tocsin.rules.model.values import (
    MISSING,
    Circle,
    Duration,
    Line,
    Multiset,
    Point,
    Polygon,
    Rectangle,
    duration_text,
    parse_duration,
)

quick = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(typed_records())
def test_a_record_that_fits_is_given_back_as_it_is(case: tuple[ObjectType, list[dict[str, Any]]]) -> None:
    kind, records = case
    check = checker(kind)
    assert same([check(record) for record in records], records)


@quick
@given(typed_records())
def test_records_come_back_from_a_parquet_file(case: tuple[ObjectType, list[dict[str, Any]]]) -> None:
    kind, records = case
    file = io.BytesIO()
    pq.write_table(to_arrow(records, kind), file)
    table = pq.read_table(file)
    assert table.schema.equals(record_schema(kind))
    assert same(from_arrow(table, kind), records)


@quick
@given(types().flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind), max_size=3))))
def test_a_decoder_reads_single_values_of_any_type(case: tuple[Type, list[Any]]) -> None:
    kind, values = case
    column = to_arrow([{"v": value} for value in values], ObjectType((Field("v", kind),), open=False)).column("v")
    assert column.type.equals(arrow_type(kind))
    assert same([decoder(kind)(found) for found in column.to_pylist()], values)


@quick
@given(typed_records())
def test_open_holds_only_what_no_column_can(case: tuple[ObjectType, list[dict[str, Any]]]) -> None:
    kind, records = case
    if not keeps_open(kind):
        return
    declared = {field.name for field in kind.fields}
    for record, text in zip(records, to_arrow(records, kind).column(OPEN).to_pylist(), strict=True):
        rest = {name: value for name, value in record.items() if name not in declared or value is None}
        assert (text is None) if not rest else same(loads(text), rest)


@quick
@given(typed_records(undeclared=json_values()))
def test_the_json_of_a_record_reads_back_as_the_record(case: tuple[ObjectType, list[dict[str, Any]]]) -> None:
    kind, records = case
    read = reader(kind)
    for record in records:
        assert same(read(json.loads(json.dumps(plain(record)))), record)


@quick
@given(open_values())
def test_any_value_comes_back_from_its_open_text(value: Any) -> None:
    text = dumps_value(value)
    assert same(loads_value(text), value)
    assert text == dumps_value(loads_value(text))
    assert same(check_value(value, ANY), value)


@quick
@given(st.dictionaries(st.sampled_from(("$point", "$$point", "$", "$x", "a")), open_values(), max_size=3))
def test_objects_that_look_like_tags_stay_objects(fields: dict[str, Any]) -> None:
    assert same(loads(dumps(fields)), fields)
    assert same(loads_value(dumps_value([fields])), [fields])


@quick
@given(open_values())
def test_every_float_in_open_text_shows_an_exponent(value: Any) -> None:
    floats: list[str] = []
    json.loads(dumps_value(value), parse_float=floats.append)
    assert all("e" in text for text in floats)


@quick
@given(durations())
def test_every_duration_has_a_text_that_reads_back(value: Duration) -> None:
    assert parse_duration(duration_text(value)) == value


@quick
@given(object_types())
def test_every_object_type_has_columns_of_its_own(kind: ObjectType) -> None:
    columns = record_schema(kind).names
    assert columns
    assert len({name.lower() for name in columns}) == len(columns)
    assert [column for column in columns if column != OPEN] == [physical(field.name) for field in kind.fields]
    assert spark_schema(kind).startswith(f"`{columns[0]}` ")


@quick
@given(object_types().filter(lambda kind: any(field.optional for field in kind.fields)), st.data())
def test_null_and_missing_stay_different(kind: ObjectType, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from([field for field in kind.fields if field.optional]))
    record = data.draw(values_of(kind, json_values()))
    without = {name: value for name, value in record.items() if name != field.name}
    check, read = checker(kind), reader(kind)
    for given_record, kept in (
        ({**without, field.name: None}, {**without, field.name: None}),
        ({**without, field.name: MISSING}, without),
        (without, without),
    ):
        assert same(check(given_record), kept)
        (stored,) = from_arrow(to_arrow([check(given_record)], kind), kind)
        assert same(stored, kept)
        assert same(read(plain(given_record)), kept)


# ---------------------------------------------------------------- what does not fit is refused, where it does not

_SAMPLES: tuple[Any, ...] = (
    True, 5, 1.5, "text", date(2026, 1, 2), time(3, 4), datetime(2026, 1, 2, tzinfo=UTC), Duration(1, 2), UUID(int=7),
    Point(1.0, 2.0), Line(Point(0.0, 0.0), Point(1.0, 1.0)), Rectangle(Point(0.0, 0.0), Point(1.0, 1.0)),
    Circle(Point(0.0, 0.0), 1.0), Polygon((Point(0.0, 0.0), Point(1.0, 0.0), Point(0.0, 1.0))),
    {}, [], Multiset(), object(), "\ud800", 2**63,
)  # fmt: skip
_FITTING: dict[str, set[type]] = {
    "boolean": {bool}, "float": {int, float}, "double": {int, float}, "string": {str},
    "tinyint": {int}, "smallint": {int}, "integer": {int}, "bigint": {int},
    "date": {date}, "time": {time}, "datetime": {datetime}, "duration": {Duration}, "uuid": {UUID}, "point": {Point},
    "line": {Line}, "rectangle": {Rectangle}, "circle": {Circle}, "polygon": {Polygon},
}  # fmt: skip


def _does_not_fit(kind: Type, sample: Any) -> bool:
    if sample == "\ud800" or (sample.__class__ is int and sample == 2**63):
        return not (isinstance(kind, Primitive) and kind.name in ("float", "double") and sample == 2**63)
    match kind:
        case Primitive(name=name):
            return type(sample) not in _FITTING[name]
        case ObjectType():
            return not isinstance(sample, dict)
        case ArrayType():
            return type(sample) is not list
        case MultisetType():
            return not isinstance(sample, list)
        case _:
            return type(sample) is object


def _places(value: Any, kind: Type, path: str = "") -> Iterator[tuple[str, Any, Any, Type]]:
    """Every declared place in a value that has a value: its path, the container and key it is at, and its type."""
    if isinstance(kind, ObjectType):
        for field in kind.fields:
            if value.get(field.name) is not None:
                place = f"{path}.{field_step(field.name)}" if path else field_step(field.name)
                yield place, value, field.name, field.type
                yield from _places(value[field.name], field.type, place)
    elif isinstance(kind, (ArrayType, MultisetType)):
        for at, item in enumerate(value):
            if item is not None:
                yield f"{path}[{at}]", value, at, kind.item
                yield from _places(item, kind.item, f"{path}[{at}]")


@quick
@given(typed_records(), st.data())
def test_a_value_of_the_wrong_type_is_refused_by_its_path(
    case: tuple[ObjectType, list[dict[str, Any]]], data: st.DataObject
) -> None:
    kind, records = case
    places = [place for record in records for place in _places(record, kind)]
    assume(places)
    path, container, key, declared = data.draw(st.sampled_from(places))
    container[key] = data.draw(st.sampled_from([sample for sample in _SAMPLES if _does_not_fit(declared, sample)]))
    with pytest.raises(RecordError) as refused:
        [checker(kind)(record) for record in records]
    assert refused.value.field == path
    str(refused.value).encode()


@quick
@given(object_types(types(any_type=False)).filter(lambda kind: kind.fields), st.data())
def test_wrong_json_is_refused_by_its_path_and_never_breaks_the_reader(kind: ObjectType, data: st.DataObject) -> None:
    record = plain(data.draw(values_of(kind, json_values())))
    field = data.draw(st.sampled_from(kind.fields))
    record[field.name] = data.draw(json_values())
    refused: str | None = None
    try:
        read = reader(kind)(record)
    except RecordError as error:
        refused = error.field
    if refused is None:
        assert same(checker(kind)(read), read)
        assert to_arrow([read], kind).num_rows == 1
    else:
        step = field_step(field.name)
        assert refused.startswith(step)
        assert refused.removeprefix(step)[:1] in ("", ".", "[")


@quick
@given(typed_records(), st.sampled_from(["there is no such field", "Ä", "$x"]))
def test_only_open_types_take_undeclared_fields(case: tuple[ObjectType, list[dict[str, Any]]], name: str) -> None:
    kind, records = case
    for record in records:
        if kind.open:
            assert checker(kind)({**record, name: 1})[name] == 1
        else:
            assume(kind.find(name) is None)
            with pytest.raises(RecordError) as refused:
                checker(kind)({**record, name: 1})
            assert refused.value.field == field_step(name)


def test_columns_that_differ_only_in_case_are_refused() -> None:
    kind = ObjectType((Field("name", Primitive("string")), Field("Name", Primitive("string"))))
    with pytest.raises(ValueError, match="differ only in case"):
        record_schema(kind)


def test_an_empty_closed_object_still_has_a_column() -> None:
    inner = ObjectType((), open=False)
    kind = ObjectType((Field("o", inner),), open=False)
    assert arrow_type(inner) == pa.struct([(OPEN, pa.string())])
    assert from_arrow(to_arrow([{"o": {}}], kind), kind) == [{"o": {}}]
