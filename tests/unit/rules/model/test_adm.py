"""ADM text: every literal of the original, and every way in which a text can be wrong."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.strategies import same
from tocsin.pipeline.sources.formats import adm_text
from tocsin.pipeline.sources.load_files import batches
from tocsin.rules.model.adm import MAX_DEPTH, AdmError, dumps, loads
from tocsin.rules.model.json_form import reader
from tocsin.rules.model.types import BIGINT, CIRCLE, DATETIME, FLOAT, STRING, Field, ObjectType
from tocsin.rules.model.values import MISSING, Circle, Duration, Line, Multiset, Point, Polygon, Rectangle
from tocsin.wire.errors import InputError

REPORT = ObjectType(
    (
        Field("severity", BIGINT),
        Field("impactZone", CIRCLE),
        Field("timeoffset", FLOAT),
        Field("timestamp", DATETIME),
        Field("message", STRING),
    )
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-12", -12),
        ("+7", 7),
        ("007", 7),
        ("9223372036854775808", 2**63),
        ("1i8", 1),
        ("-128i8", -128),
        ("2i16", 2),
        ("3i32", 3),
        ("4i64", 4),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-2.5E-1", -0.25),
        ("1.5f", 1.5),
        ("0.1f", 0.10000000149011612),
        ("2.0d", 2.0),
        ("2D", 2.0),
        ("NaN", math.nan),
        ("INF", math.inf),
        ("-INF", -math.inf),
        ("NaNf", math.nan),
        ('double("INF")', math.inf),
        ('double("-INF")', -math.inf),
        ('float("NaN")', math.nan),
        ('float("0.1")', 0.10000000149011612),
        ('double("1.25")', 1.25),
        ('int8("-7")', -7),
        ('int16("300")', 300),
        ('int32("7")', 7),
        ('int64("7")', 7),
        ('int("7")', 7),
        ('boolean("true")', True),
        ('string("a\\"b")', 'a"b'),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("missing", MISSING),
        ('"a"', "a"),
        ('""', ""),
        (r'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"', '"\\/\b\f\n\r\té😀'),
        ('"line\nand\ttab"', "line\nand\ttab"),
        ('point("1.0,2.0")', Point(1.0, 2.0)),
        ('point("1.0, 2.0")', Point(1.0, 2.0)),
        (r'point("1.0,\u0032.0")', Point(1.0, 2.0)),
        ('line("1,2 3,4")', Line(Point(1.0, 2.0), Point(3.0, 4.0))),
        ('rectangle("3,4 1,2")', Rectangle(Point(1.0, 2.0), Point(3.0, 4.0))),
        ('circle("1.0,2.0 0.5")', Circle(Point(1.0, 2.0), 0.5)),
        ('circle ( "1.0,2.0 0.5" )', Circle(Point(1.0, 2.0), 0.5)),
        ('polygon("0,0 0,1 1,0")', Polygon((Point(0.0, 0.0), Point(0.0, 1.0), Point(1.0, 0.0)))),
        ('date("2026-11-15")', date(2026, 11, 15)),
        ('time("08:30:00.250Z")', time(8, 30, 0, 250_000)),
        ('datetime("2026-11-15T08:30:00+01:00")', datetime(2026, 11, 15, 7, 30, tzinfo=UTC)),
        ('duration("P1M-1D")', Duration(1, -86_400_000_000)),
        ('day-time-duration("PT10S")', Duration(0, 10_000_000)),
        ('day_time_duration("PT10S")', Duration(0, 10_000_000)),
        ('year-month-duration("P1Y")', Duration(12, 0)),
        ('uuid("5c848e5c-6b6a-498f-8452-8847a2957421")', UUID("5c848e5c-6b6a-498f-8452-8847a2957421")),
        ("{}", {}),
        ("{ }", {}),
        ("[]", []),
        ("{{}}", Multiset()),
        ("{{ 1, 2 }}", Multiset([1, 2])),
        ("{{ 1 } }", Multiset([1])),
        ("[1,[2] , {{3}}]", [1, [2], Multiset([3])]),
        ("[null, missing]", [None, MISSING]),
        ('{"a":{"b":{{{"c":1}}}}}', {"a": {"b": Multiset([{"c": 1}])}}),
        ('{"a": missing, "b": null}', {"b": None}),
        (' \r\n\t{ "a" : 1 , "b\\n" : [ ] } \n', {"a": 1, "b\n": []}),
    ],
)
def test_every_literal_is_read_as_its_value(text: str, value: Any) -> None:
    assert same(loads(text), value)


def test_a_record_of_the_original_is_read_and_fits_its_type() -> None:
    text = """{ "severity": 3i64, "impactZone": circle("33.64,-117.84 0.5"), "timeoffset": 1.5f,
                "timestamp": datetime("2026-11-15T08:30:00.000Z"), "message": "flood", "tags": {{ "a" }} }"""
    assert reader(REPORT)(loads(text)) == {
        "severity": 3,
        "impactZone": Circle(Point(33.64, -117.84), 0.5),
        "timeoffset": 1.5,
        "timestamp": datetime(2026, 11, 15, 8, 30, tzinfo=UTC),
        "message": "flood",
        "tags": Multiset(["a"]),
    }


@pytest.mark.parametrize(
    ("text", "offset", "said"),
    [
        ("", 0, "expected a value, got the end of the text"),
        ("   ", 3, "expected a value, got the end of the text"),
        ("{", 1, "expected the name of a field in double quotes, got the end of the text"),
        ("{a: 1}", 1, "expected the name of a field in double quotes"),
        ('{"a" 1}', 5, 'expected a ":"'),
        ('{"a": }', 6, "expected a value"),
        ('{"a": 1 "b": 2}', 8, 'expected a "," or "}"'),
        ('{"a": 1,}', 8, "expected the name of a field"),
        ('{"a": 1', 7, 'expected a "," or "}"'),
        ('{"a": 1, "a": 2}', 10, 'the field "a" is there twice'),
        ('{"a": missing, "a": 2}', 16, 'the field "a" is there twice'),
        ('{"a": [1}', 8, 'expected a "," or "]"'),
        ("[1,]", 3, "expected a value"),
        ("{{1}", 3, 'expected a "," or "}}"'),
        ("1 2", 2, "expected the end of the text"),
        ("1x", 1, "expected the end of the text"),
        ("1.5i8", 0, "expected a whole number"),
        ("128i8", 0, "does not fit into a tinyint"),
        ('int16("40000")', 0, "does not fit into a smallint"),
        ('int8("")', 0, 'expected a whole number, got ""'),
        ("1e999", 0, "does not fit into a double"),
        ("1e39f", 0, "does not fit into a float of 32 bits"),
        ("9" * 401, 0, "got one of 401 digits"),
        ('{"a": ' + "9" * 5000 + "}", 6, "got one of 5000 digits"),
        ('"abc', 0, "not a string: Unterminated string"),
        (r'"\x"', 1, "not a string: Invalid \\escape"),
        ("yes", 0, 'expected a value, got "yes"'),
        ("point", 0, 'expected the text of the point in brackets: point("…")'),
        ("point(1,2)", 6, "expected the text of the value in double quotes"),
        ('point("1,2"', 11, 'expected a ")"'),
        ('{"p": point("1;2")}', 6, "expected a point such as"),
        ('interval("a")', 0, 'there is no constructor "interval"; known are bigint, boolean'),
        ('day-time-duration("P1M")', 0, "expected a duration of days and times"),
        ('year_month_duration("PT1S")', 0, "expected a duration of years and months"),
        ('boolean("1")', 0, "expected true or false"),
        ("'a'", 0, "expected a value"),
    ],
)
def test_what_is_not_adm_is_refused_with_the_place_and_what_was_expected(text: str, offset: int, said: str) -> None:
    with pytest.raises(AdmError) as caught:
        loads(text)
    assert said in caught.value.reason
    assert caught.value.offset == offset
    assert str(offset) in str(caught.value)


@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}"), ("{{", "}}")])
def test_nesting_ends_at_a_limit(before: str, after: str) -> None:
    loads(before * MAX_DEPTH + "1" + after * MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(AdmError, match="nested more than 65 levels deep"):
            loads(before * levels + "1" + after * levels)


def test_what_is_missing_is_written_only_where_it_has_a_place() -> None:
    assert dumps({"a": MISSING, "b": [MISSING]}) == '{ "b": [ missing ] }'
    with pytest.raises(TypeError, match="not a value: object"):
        dumps([object()])


# ---------------------------------------------------------------- LOAD


def load(folder: Path, text: str | bytes, **options: str) -> list[dict[str, Any]]:
    path = folder / "x"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    form = options.pop("format", "adm")
    said = {"path": str(path), "format": form, **options}
    return [record for batch in batches(said, ObjectType((Field("id", BIGINT),))) for record in batch]


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1i8}\n{"id": 2i16}\n{"id": 3}',
        '\ufeff{"id": 1}{"id": 2}, {"id":\n3\n}\n',
        '[{"id": 1},\n{"id": 2},{"id": 3}]',
    ],
)
def test_load_reads_adm_over_any_lines(tmp_path: Path, text: str) -> None:
    expected = [{"id": 1}, {"id": 2}, {"id": 3}]
    assert load(tmp_path, text) == expected
    for chunk_bytes in (1, 7, 1 << 16):
        assert [item[1] for item in adm_text.each(BytesIO(text.encode()), chunk_bytes)] == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": 1}\n{"id":\n tru}', "line 3: is not ADM: expected a value"),
        ('{"id": 1}\n{"id": 2', "line 2: the file ends inside of the object that begins on this line"),
        ('{"id": 1}\n\nhello', "line 3: expected a record that begins with {, got 'hello'"),
        ('{"id": 1}\n{"id": "x"}', "line 2: id: expected a bigint"),
        ("{{ 1 }}", "line 1: expected an object, got a multiset"),
        (b'{"id": 1}\n{"id": 1, "a": "\xff"}', "line 2: is not UTF-8 text"),
    ],
)
def test_load_names_the_line_of_what_is_not_adm(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert said in caught.value.message


def test_load_reads_the_elements_of_xml(tmp_path: Path) -> None:
    text = '<all>\n<at>now</at><r id="1"/><r><id>2</id><tag>a</tag><tag>b</tag></r>\n</all>'
    assert load(tmp_path, text, format="xml", record="r") == [{"id": 1}, {"id": 2, "tag": ["a", "b"]}]
    with pytest.raises(InputError, match="line 2: the element at has no fields"):
        load(tmp_path, text, format="xml")
    with pytest.raises(InputError, match="line 3: id: expected a whole number"):
        load(tmp_path, "<all>\n<r id='1'/>\n<r id='x'/></all>", format="xml")


def test_json_is_adm() -> None:
    value = {"a": [1, -2.5e3, None, True, "\u2028\x7f", {"b": {}}], "c": "x\ny"}
    assert same(loads(json.dumps(value)), value)
    assert same(loads(json.dumps(value, ensure_ascii=False, indent=2)), value)
