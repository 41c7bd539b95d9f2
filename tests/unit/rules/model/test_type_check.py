"""What a checker takes, how it normalises, and what it says about the rest; and the JSON forms of records."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from math import inf, isnan, nan
from typing import Any
from uuid import UUID

import pytest

from tocsin.rules.model.json_form import plain, reader
from tocsin.rules.model.open_form import dumps, dumps_value, loads, loads_value
from tocsin.rules.model.type_check import MAX_OPEN_DEPTH, RecordError, check_value, checker
from tocsin.rules.model.types import (
    ANY,
    BIGINT,
    BOOLEAN,
    CIRCLE,
    DATE,
    DATETIME,
    DOUBLE,
    DURATION,
    FLOAT,
    LINE,
    POINT,
    POLYGON,
    RECTANGLE,
    SMALLINT,
    STRING,
    TIME,
    TINYINT,
    ArrayType,
    Field,
    MultisetType,
    ObjectType,
    Type,
)
from tocsin.rules.model.types import UUID as UUID_TYPE
from tocsin.rules.model.values import MISSING, Circle, Duration, Line, Multiset, Point, Polygon, Rectangle

ADDRESS = ObjectType((Field("city", STRING), Field("lines", ArrayType(STRING))), open=False, name="Address")
PERSON = ObjectType(
    (Field("id", BIGINT), Field("name", STRING, optional=True), Field("address", ADDRESS, optional=True)), name="Person"
)


def refusal(value: Any, kind: Type) -> RecordError:
    with pytest.raises(RecordError) as refused:
        check_value(value, kind)
    return refused.value


def test_a_record_is_copied_not_shared() -> None:
    given = {"id": 1, "address": {"city": "Bonn", "lines": ["a"]}, "extra": {"tags": [1]}}
    checked = checker(PERSON)(given)
    assert checked == given
    checked["address"]["lines"].append("b")
    checked["extra"]["tags"].append(2)
    assert given == {"id": 1, "address": {"city": "Bonn", "lines": ["a"]}, "extra": {"tags": [1]}}


def test_null_is_kept_and_missing_is_dropped() -> None:
    assert checker(PERSON)({"id": 1, "name": None, "address": MISSING, "more": MISSING, "none": None}) == {
        "id": 1,
        "name": None,
        "none": None,
    }


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({}, "id: is required"),
        ({"id": None}, "id: is required, got NULL"),
        ({"id": MISSING}, "id: is required"),
        ({"id": True}, "id: expected a bigint, got the boolean true"),
        ({"id": 1, "name": 5}, "name: expected a string, got the number 5"),
        ({"id": 1, "address": {"city": "Bonn", "lines": ["a", "b", 3]}}, "address.lines[2]: expected a string, got"),
        ({"id": 1, "address": {"city": "Bonn", "lines": [None]}}, "address.lines[0]: an item of an array like this"),
        (
            {"id": 1, "address": {"city": "Bonn", "lines": [], "zip": 1}},
            "address.zip: is not a field of the closed type Address",
        ),
        ({"id": 1, "extra": [{"a b": {1, 2}}]}, "extra[0].`a b`: expected a value, got a Python set"),
        ({"id": 1, "extra": {"deep": {5: 1}}}, "extra.deep.`5`: a field name must be Unicode text, got the number 5"),
        ({"id": 1, "extra": 2**63}, f"extra: the number {2**63} does not fit into a bigint"),
        ([], "expected an object, got an array"),
        (None, "expected an object, got NULL"),
    ],
)
def test_an_error_names_the_field_and_the_reason(record: Any, said: str) -> None:
    with pytest.raises(RecordError) as refused:
        checker(PERSON)(record)
    assert str(refused.value).startswith(said)


def test_case_variants_of_a_declared_name_are_undeclared_fields() -> None:
    assert checker(PERSON)({"id": 1, "ID": "x", "Id": 2}) == {"id": 1, "ID": "x", "Id": 2}
    assert "city" in refusal({"City": "Bonn", "lines": []}, ADDRESS).field


@pytest.mark.parametrize(("kind", "high"), [(TINYINT, 127), (SMALLINT, 32_767), (BIGINT, 2**63 - 1)])
def test_integers_keep_to_their_bits(kind: Type, high: int) -> None:
    assert check_value(high, kind) == high
    assert check_value(-high - 1, kind) == -high - 1
    for value in (high + 1, -high - 2):
        assert "does not fit" in refusal(value, kind).reason
    assert "expected" in refusal(1.0, kind).reason


def test_floats_take_ints_and_a_float_is_rounded_to_its_bits() -> None:
    assert check_value(3, DOUBLE) == 3.0
    assert isinstance(check_value(3, DOUBLE), float)
    assert check_value(0.1, FLOAT) == 0.10000000149011612
    assert check_value(inf, FLOAT) == inf
    assert isnan(check_value(nan, FLOAT))
    assert "32 bits" in refusal(1e39, FLOAT).reason
    assert "does not fit" in refusal(10**400, DOUBLE).reason
    assert "expected a number" in refusal(True, DOUBLE).reason
    assert "expected a boolean" in refusal(1, BOOLEAN).reason


def test_datetimes_are_held_in_utc() -> None:
    moment = datetime(2026, 11, 15, 8, 30, tzinfo=timezone(timedelta(hours=2)))
    assert check_value(moment, DATETIME).isoformat() == "2026-11-15T06:30:00+00:00"
    assert check_value(moment.replace(tzinfo=None), DATETIME).isoformat() == "2026-11-15T08:30:00+00:00"
    assert "years" in refusal(datetime.min.replace(tzinfo=timezone(timedelta(hours=2))), DATETIME).reason
    assert "expected a date, got a datetime" in refusal(moment, DATE).reason
    assert "expected a datetime, got a date" in refusal(date(2026, 1, 1), DATETIME).reason
    assert "without a zone" in refusal(time(1, tzinfo=UTC), TIME).reason


def test_places_are_finite_and_in_order() -> None:
    assert check_value(Point(1, 2), POINT) == Point(1.0, 2.0)
    assert isinstance(check_value(Point(1, 2), POINT).x, float)
    assert check_value(Rectangle(Point(3, 4), Point(1, 2)), RECTANGLE) == Rectangle(Point(1.0, 2.0), Point(3.0, 4.0))
    assert "finite" in refusal(Point(nan, 0.0), POINT).reason
    assert "finite" in refusal(Line(Point(0.0, 0.0), Point(inf, 0.0)), LINE).reason
    assert "radius" in refusal(Circle(Point(0.0, 0.0), -1.0), CIRCLE).reason
    assert "three points" in refusal(Polygon((Point(0.0, 0.0),)), POLYGON).reason


def test_a_list_is_a_multiset_but_a_multiset_is_no_array() -> None:
    checked = check_value([1, 2], MultisetType(BIGINT))
    assert isinstance(checked, Multiset)
    assert checked == [1, 2]
    assert refusal(Multiset([1]), ArrayType(BIGINT)).reason == "expected an array, got a multiset"
    assert check_value([1, None, MISSING], ArrayType(BIGINT, item_optional=True)) == [1, None, None]


def test_text_and_field_names_must_be_unicode() -> None:
    assert check_value("naïve 🔔", STRING) == "naïve 🔔"
    for value in ("\ud800", {"a": ["\udfff"]}, {"\ud800": 1}):
        error = refusal(value, STRING if isinstance(value, str) else ANY)
        assert "Unicode" in error.reason
        str(error).encode()


def test_undeclared_values_nest_only_so_deep() -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for level in range(levels):
            value = [value] if level % 2 else {"a": value}
        return value

    assert check_value(nested(MAX_OPEN_DEPTH), ANY) == nested(MAX_OPEN_DEPTH)
    for levels in (MAX_OPEN_DEPTH + 1, 5_000):
        assert f"more than {MAX_OPEN_DEPTH} levels" in refusal(nested(levels), ANY).reason
    endless: list[Any] = []
    endless.append(endless)
    assert "levels" in refusal(endless, ANY).reason


def test_a_duration_keeps_to_its_bits() -> None:
    assert check_value(Duration(-(2**31) + 1, 5), DURATION) == Duration(-(2**31) + 1, 5)
    for value in (Duration(2**31), Duration(0, -(2**63)), Duration(1.5)):  # type: ignore[arg-type]
        assert "duration" in refusal(value, DURATION).reason


def test_an_error_message_stays_short() -> None:
    assert len(str(refusal("x" * 1_000_000, BIGINT))) < 200
    assert len(str(refusal(10**5000, BIGINT))) < 200


# ---------------------------------------------------------------- JSON

EVERYTHING = ObjectType(
    tuple(
        Field(str(kind), kind)
        for kind in (POINT, LINE, RECTANGLE, CIRCLE, POLYGON, DATE, TIME, DATETIME, DURATION, UUID_TYPE, DOUBLE)
    ),
    open=False,
)
AS_VALUES = {
    "point": Point(1.0, 2.0),
    "line": Line(Point(0.0, 0.0), Point(1.0, 2.0)),
    "rectangle": Rectangle(Point(0.0, 0.0), Point(1.0, 2.0)),
    "circle": Circle(Point(1.0, 2.0), 0.5),
    "polygon": Polygon((Point(0.0, 0.0), Point(0.0, 1.0), Point(1.0, 0.0))),
    "date": date(2026, 11, 15),
    "time": time(8, 30),
    "datetime": datetime(2026, 11, 15, 8, 30, tzinfo=UTC),
    "duration": Duration(0, 10_000_000),
    "uuid": UUID("5c848e5c-6b6a-498f-8452-8847a2957421"),
    "double": -inf,
}
AS_JSON = {
    "point": [1.0, 2.0],
    "line": [[0.0, 0.0], [1.0, 2.0]],
    "rectangle": [[0.0, 0.0], [1.0, 2.0]],
    "circle": {"center": [1.0, 2.0], "radius": 0.5},
    "polygon": [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]],
    "date": "2026-11-15",
    "time": "08:30:00",
    "datetime": "2026-11-15T08:30:00Z",
    "duration": "PT10S",
    "uuid": "5c848e5c-6b6a-498f-8452-8847a2957421",
    "double": "-Infinity",
}
AS_TEXT = {
    **AS_JSON,
    "point": "1.0,2.0",
    "line": "0,0 1,2",
    "rectangle": "1,2 0,0",
    "circle": "1.0,2.0 0.5",
    "polygon": "0,0 0,1 1,0",
}


def test_json_for_people_and_back() -> None:
    assert plain(AS_VALUES) == AS_JSON
    assert reader(EVERYTHING)(AS_JSON) == AS_VALUES
    assert reader(EVERYTHING)(AS_TEXT) == AS_VALUES
    assert plain({"a": MISSING, "b": [MISSING, Multiset([1])], "c": nan}) == {"b": [None, [1]], "c": "NaN"}


@pytest.mark.parametrize(
    ("field", "wrong", "said"),
    [
        ("point", [1.0], 'expected a point as [x, y] or "x,y", got an array of 1'),
        ("point", [1.0, "a"], "expected a number"),
        ("point", {"x": 1}, 'expected a point as [x, y] or "x,y", got an object'),
        ("point", 5, "expected a point, got the number 5"),
        ("line", [[1, 2]], "expected a line as"),
        ("rectangle", [[1, 2], 3], "expected a point as"),
        ("circle", {"center": [1, 2]}, "expected a circle as"),
        ("circle", {"center": [1, 2], "radius": -1}, "expected a radius"),
        ("polygon", [[1, 2]], "expected a polygon of at least three points"),
        ("date", "soon", "expected a date such as"),
        ("time", 5, "expected a time of day"),
        ("datetime", "2026-11-15", "expected a datetime such as"),
        ("duration", "10s", "expected an ISO 8601 duration"),
        ("uuid", "x", "expected a uuid such as"),
        ("double", "1.5", "expected a number, got the string"),
    ],
)
def test_wrong_json_is_refused_with_what_was_expected(field: str, wrong: Any, said: str) -> None:
    with pytest.raises(RecordError) as refused:
        reader(EVERYTHING)({**AS_JSON, field: wrong})
    assert refused.value.field == field
    assert refused.value.reason.startswith(said)


def test_undeclared_json_stays_json() -> None:
    assert reader(PERSON)({"id": 1, "at": "2026-11-15T08:30:00Z", "p": [1.0, 2.0]}) == {
        "id": 1,
        "at": "2026-11-15T08:30:00Z",
        "p": [1.0, 2.0],
    }


# ---------------------------------------------------------------- open text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1, "1"),
        (1.0, "1.0e0"),
        (-0.0, "-0.0e0"),
        (1e16, "1e+16"),
        (nan, '{"$double":"NaN"}'),
        (-inf, '{"$double":"-Infinity"}'),
        ('a"\n🔔', '"a\\"\\n🔔"'),
        ({"b": 1, "a": [1.5, None]}, '{"a":[1.5e0,null],"b":1}'),
        (Point(1.0, 2.0), '{"$point":[1.0e0,2.0e0]}'),
        (Circle(Point(1.0, 2.0), 0.5), '{"$circle":[1.0e0,2.0e0,0.5e0]}'),
        (date(2026, 11, 15), '{"$date":"2026-11-15"}'),
        (datetime(2026, 11, 15, tzinfo=UTC), '{"$datetime":"2026-11-15T00:00:00Z"}'),
        (Duration(1, -2), '{"$duration":[1,-2]}'),
        (Multiset([1, {"a": 1}]), '{"$multiset":[1,{"a":1}]}'),
        ({"$point": [1, 2]}, '{"$$point":[1,2]}'),
        ({"$$a": 1, "b": {"$": 2}}, '{"$$$a":1,"b":{"$$":2}}'),
    ],
)
def test_the_open_text_of_a_value(value: Any, text: str) -> None:
    assert dumps_value(value) == text
    assert repr(loads_value(text)) == repr(dict(sorted(value.items())) if isinstance(value, dict) else value)


def test_open_text_leaves_missing_fields_out() -> None:
    assert dumps({"a": MISSING, "b": [MISSING]}) == '{"b":[null]}'
    with pytest.raises(ValueError, match="MISSING"):
        dumps_value(MISSING)


@pytest.mark.parametrize(
    "text", ["[1]", '{"$point":[1.0,2.0]}', '{"a":{"$point":[1.0]}}', '{"a":{"$double":"1"}}', "{"]
)
def test_damaged_open_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)
