"""What LOAD reads: every format, every way to spell a path, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import json_values, same
from tocsin.pipeline.sources.formats import json_text
from tocsin.pipeline.sources.load_files import batches
from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES
from tocsin.rules.model.json_form import reader
from tocsin.rules.model.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DATETIME,
    DOUBLE,
    DURATION,
    INTEGER,
    POINT,
    STRING,
    TIME,
    ArrayType,
    Field,
    ObjectType,
)
from tocsin.rules.model.types import UUID as UUID_TYPE
from tocsin.rules.model.values import Duration, Point
from tocsin.wire.errors import InputError, NotFoundError, StatementError

REPORT = ObjectType(
    (
        Field("id", BIGINT),
        Field("at", DATETIME, optional=True),
        Field("place", POINT, optional=True),
        Field("severity", INTEGER, optional=True),
        Field("score", DOUBLE, optional=True),
        Field("open", BOOLEAN, optional=True),
    ),
    name="Report",
)
CLOSED = ObjectType(REPORT.fields, open=False, name="Report")
ANYTHING = ObjectType()


def load(path: Path | str, kind: ObjectType = ANYTHING, form: str = "json", **options: Any) -> list[dict[str, Any]]:
    generate = options.pop("generate", None)
    batch_rows = options.pop("batch_rows", 20_000)
    said = {"path": str(path), "format": form, **options}
    return [record for batch in batches(said, kind, generate=generate, batch_rows=batch_rows) for record in batch]


def write(folder: Path, content: str | bytes, name: str = "x") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path | str, kind: ObjectType = ANYTHING, form: str = "json", **options: str) -> str:
    with pytest.raises(InputError) as caught:
        load(path, kind, form, **options)
    assert caught.value.status < 500
    return caught.value.message


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1}\n{"id": 2}\n{"id": 3}\n',
        '{"id": 1}\r\n\r\n{"id": 2}\r\n{"id": 3}',
        '{"id": 1}{"id": 2} {"id": 3}',
        '[{"id": 1}, {"id": 2}, {"id": 3}]',
        '\n[\n{"id": 1},\n{"id": 2}\n,{"id": 3}]\n',
        '{"id": 1}\n[{"id": 2}]\n[]\n{"id":\n3}',
        '\ufeff{\n  "id": 1\n}\n{\n  "id": 2\n}\n{"id": 3}\n',
    ],
)
def test_json_may_be_lines_or_running_objects_or_arrays(tmp_path: Path, text: str) -> None:
    assert load(write(tmp_path, text), REPORT) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_json_values_are_read_by_the_declared_types(tmp_path: Path) -> None:
    line = '{"id": 1, "at": "2026-11-15T08:30:00Z", "place": "1,2", "score": 3, "more": {"a": [1, null]}}'
    assert load(write(tmp_path, line), REPORT) == [
        {
            "id": 1,
            "at": datetime(2026, 11, 15, 8, 30, tzinfo=UTC),
            "place": Point(1.0, 2.0),
            "score": 3.0,
            "more": {"a": [1, None]},
        }
    ]


@given(
    records=st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), json_values())),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    window=st.integers(1, 64),
    as_array=st.booleans(),
)
def test_json_of_any_shape_comes_back_equal_wherever_the_window_ends(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, Any]],
    indent: int | None,
    ascii_only: bool,
    window: int,
    as_array: bool,
) -> None:
    def text(value: Any) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ascii_only)

    path = write(tmp_path_factory.mktemp("json"), text(records) if as_array else "\n".join(map(text, records)))
    check = reader(ANYTHING)
    with path.open("rb") as file:
        assert same([check(record) for _, record, _ in json_text.read(file, window)], records)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": 1}\n{"id": tru}', "line 2: is not JSON: Expecting value"),
        ('{"id": 1}\n{"id": 2', "line 2: the file ends inside of the object that begins on this line"),
        ('{"id": 1}\n{"id": 2, "a": "x', "line 2: the file ends inside of the object that begins on this line"),
        ('{"id": 1}\n\n{"id":\n"x" "y"}', "line 4: is not JSON: Expecting ',' delimiter"),
        ('[{"id": 1},\n{"id": 2}', "line 2: the file ends inside of the array that begins on line 1"),
        ('[{"id": 1},\n]', "line 2: is not JSON: expected an object, got ']'"),
        ('[{"id": 1}\n{"id": 2}]', """line 2: is not JSON: expected a "," or "]", got '{'"""),
        ('{"id": 1},\n{"id": 2}', "line 1: is not JSON: expected an object, got ','"),
        ("7", "line 1: is not JSON: expected an object, got '7'"),
        ("[[1]]", "line 1: is not JSON: expected an object, got '['"),
        ('{"id": 1}\n\0', "line 2: is not JSON: expected an object, got '\\x00'"),
        ('{"id": 1, "a": "\0"}', "line 1: is not JSON: Invalid control character at"),
        (b'{"id": 1}\n{"id": 2, "a": "\xff"}', "line 2: is not UTF-8 text"),
        (b'[{"id": 1},\n{"id": 2, "a": "\xc3"}]', "line 2: is not UTF-8 text"),
        (b'{"id": 1}\n{"id": 2, "a": "\xc3', "line 2: is not UTF-8 text"),
        ('{"id": 1}'.encode("utf-16"), "line 1: is not UTF-8 text"),
        ('{"id": ' + "[" * 100_000, "line 1: is nested too deep"),
        ('{"a":' * 100_000 + "\n", "line 1: is nested too deep"),
        ('{"id": 1, "a": ' + "[" * 80 + "]" * 80 + "}", "line 1: a[0][0]"),
        ('{"id": 18446744073709551616}', "line 1: id: the number 18446744073709551616 does not fit into a bigint"),
        ('{"id": 1, "a": -9223372036854775809}', "line 1: a: the number -9223372036854775809 does not fit"),
        ('{"id": 1, "a": ' + "9" * 5_000 + "}", "line 1: holds a number of 5000 digits"),
        ('{"id": 1, "a": 1e999}', "line 1: holds the number 1e999, which does not fit into a double"),
        ('{"id": 1, "a": NaN}', 'line 1: holds NaN, which JSON does not know: write it as the string "NaN"'),
        ('{"id": 1, "a": "\\ud800"}', "line 1: a: the string holds half of a surrogate pair"),
        ('{"id": 1}\n{"id": "x"}', 'line 2: id: expected a bigint, got the string "x"'),
        ('{"id": 1}\n\n{\n"name": 1}', "line 3: id: is required"),
    ],
)
def test_bad_json_is_refused_with_its_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = write(tmp_path, text)
    message = refusal(path, REPORT)
    assert message.startswith(f"{path}, ")
    assert message.removeprefix(f"{path}, ").startswith(said)


def test_a_refusal_names_file_line_and_field_apart_from_the_script(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": 1, "place": "here"}')
    with pytest.raises(StatementError) as caught:
        load(path, REPORT)
    assert (caught.value.line, caught.value.details) == (None, {"file": str(path), "file_line": 1, "field": "place"})


def test_whole_numbers_stay_whole_up_to_64_bits(tmp_path: Path) -> None:
    numbers = [2**63 - 1, -(2**63), 1234567890123456789]
    path = write(tmp_path, "".join(f'{{"n": {number}}}\n' for number in numbers))
    assert [record["n"] for record in load(path)] == numbers


def test_a_record_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"id": 1}\n{"a": "' + b"x" * (3 * RECORD_LIMIT_BYTES) + b'"}')
    assert "line 2: a record is longer than 16 MiB" in refusal(path)
    assert "line 2: a record is longer than 16 MiB" in refusal(path, form="csv")


@pytest.mark.parametrize(("opening", "between", "end"), [("", "\n", ""), ("[", ",", "]"), ("", "", "")])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, opening: str, between: str, end: str) -> None:
    path = tmp_path / "x.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(opening)
        for number in range(40_000):
            file.write(between * bool(number) + json.dumps({"id": number, "text": "x" * 1_000}))
        file.write(end)
    tracemalloc.start()
    try:
        count = sum(len(batch) for batch in batches({"path": str(path), "format": "json"}, REPORT, batch_rows=1_000))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 40_000
    assert most_bytes < 16 << 20  # the file is 40 MB


# ---------------------------------------------------------------- batches


def test_batches_are_bounded_by_rows_and_by_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(f'{{"id": {number}}}\n' for number in range(25)))
    options = {"path": f"{path},{path}", "format": "json"}
    assert [len(batch) for batch in batches(options, REPORT, batch_rows=20)] == [20, 20, 10]
    assert max(len(batch) for batch in batches(options, REPORT, batch_rows=20, batch_bytes=60)) <= 7


def test_generated_keys_fill_only_what_is_absent(tmp_path: Path) -> None:
    kind = ObjectType((Field("id", UUID_TYPE), Field("n", BIGINT)))
    given_key = "5c848e5c-6b6a-498f-8452-8847a2957421"
    path = write(tmp_path, f'{{"n": 1}}\n{{"id": "{given_key}", "n": 2}}\n{{"n": 3}}')
    first, second, third = load(path, kind, generate=("id",))
    assert second["id"] == UUID(given_key)
    assert first["id"].version == third["id"].version == 4
    assert first["id"] != third["id"]


def test_a_generated_key_may_lie_in_a_nested_object(tmp_path: Path) -> None:
    kind = ObjectType((Field("key", ObjectType((Field("id", UUID_TYPE),))),))
    path = write(tmp_path, '{}\n{"key": {"a": 1}}')
    first, second = load(path, kind, generate=("key", "id"))
    assert first["key"].keys() == {"id"}
    assert second["key"].keys() == {"id", "a"}
    assert "key: expected an object" in _message(write(tmp_path, '{"key": 1}'), kind, ("key", "id"))


def _message(path: Path, kind: ObjectType, generate: tuple[str, ...]) -> str:
    with pytest.raises(StatementError) as caught:
        load(path, kind, generate=generate)
    return caught.value.message


# ---------------------------------------------------------------- delimited text


def test_csv_cells_are_read_by_the_declared_types(tmp_path: Path) -> None:
    kind = ObjectType(
        (
            *REPORT.fields,
            Field("day", DATE),
            Field("clock", TIME),
            Field("span", DURATION),
            Field("key", UUID_TYPE),
            Field("tags", ArrayType(STRING)),
            Field("name", STRING),
        )
    )
    text = (
        "id,at,place,severity,score,open,day,clock,span,key,tags,name,more\n"
        '1,2026-11-15T08:30:00Z,"1,2",3,4.5,TRUE,2026-11-15,08:30:00,PT10S,'
        '5c848e5c-6b6a-498f-8452-8847a2957421,"[""a"", ""b""]","two\nlines, ""quoted""",12\n'
        "2,,,,NaN,false,2026-11-15,08:30:00,PT10S,5c848e5c-6b6a-498f-8452-8847a2957421,[],,\n"
    )
    first, second = load(write(tmp_path, text), kind, "csv")
    assert first == {
        "id": 1,
        "at": datetime(2026, 11, 15, 8, 30, tzinfo=UTC),
        "place": Point(1.0, 2.0),
        "severity": 3,
        "score": 4.5,
        "open": True,
        "day": date(2026, 11, 15),
        "clock": time(8, 30),
        "span": Duration(0, 10_000_000),
        "key": UUID("5c848e5c-6b6a-498f-8452-8847a2957421"),
        "tags": ["a", "b"],
        "name": 'two\nlines, "quoted"',
        "more": "12",
    }
    # An empty cell is MISSING unless its field can be an empty string.
    assert second.keys() == {"id", "score", "open", "day", "clock", "span", "key", "tags", "name", "more"}
    assert (second["name"], second["more"], second["tags"]) == ("", "", [])
    assert second["score"] != second["score"]


def test_delimited_text_has_no_header_and_its_columns_are_the_declared_fields(tmp_path: Path) -> None:
    kind = ObjectType((Field("id", BIGINT), Field("name", STRING, optional=True), Field("n", DOUBLE, optional=True)))
    path = write(tmp_path, '1|a"b|0.5\n\n2|\\N|\\N\n')
    records = [{"id": 1, "name": 'a"b', "n": 0.5}, {"id": 2}]
    assert load(path, kind, "delimited-text", delimiter="|", null="\\N", quote="") == records
    tabs = write(tmp_path, "1\tx\t\n")
    assert load(tabs, kind, "delimited-text", delimiter="\\t") == [{"id": 1, "name": "x"}]


def test_the_null_text_of_a_required_field_is_text(tmp_path: Path) -> None:
    kind = ObjectType((Field("name", STRING), Field("other", STRING, optional=True)))
    assert load(write(tmp_path, "name,other\nNA,NA\n"), kind, "csv", null="NA") == [{"name": "NA"}]


def test_a_file_without_header_may_leave_out_the_generated_key(tmp_path: Path) -> None:
    kind = ObjectType((Field("id", UUID_TYPE), Field("n", BIGINT), Field("m", BIGINT)))
    (record,) = load(write(tmp_path, "1,2\n"), kind, "delimited-text", generate=("id",))
    assert (record["n"], record["m"], record["id"].version) == (1, 2, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,score\n1,2\nx,2", 'line 3: id: expected a whole number, got the string "x"'),
        ("id,score\n1,two", 'line 2: score: expected a number, got the string "two"'),
        ("id,score\n1,1e999", 'line 2: score: the string "1e999" does not fit into a double'),
        ("id,severity\n1,3000000000", "line 2: severity: the number 3000000000 does not fit into an integer"),
        ("id,open\n1,yes", 'line 2: open: expected true or false, got the string "yes"'),
        ("id,place\n1,here", 'line 2: place: expected a point such as "1.0,2.0", got "here"'),
        ("id,at\n1,now", 'line 2: at: expected a datetime such as "2026-11-15T08:30:00Z", got "now"'),
        ("id,score\n1,2,3", "line 2: has 3 columns, expected 2"),
        ("id,score\n1;2", 'line 2: has 1 columns, expected 2 (is "," the delimiter?)'),
        ("score\n2", "line 2: id: is required"),
        ('id,score\n1,"2', "line 2: is not delimited text: unexpected end of data"),
        ('id,score\n"1"x,2', "line 2: is not delimited text: ',' expected after '\"'"),
        ("id,score\n1,2\0", "line 2: holds a NUL byte, which text does not"),
        (b"id,score\n1,\xff", "line 2: is not UTF-8 text"),
        ('id,score\n"1\n2",2', "line 2: id: expected a whole number"),
    ],
)
def test_bad_delimited_text_is_refused_with_line_and_field(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = write(tmp_path, text)
    assert refusal(path, REPORT, "csv").removeprefix(f"{path}, ").startswith(said)


def test_a_column_that_a_closed_type_does_not_declare_is_refused(tmp_path: Path) -> None:
    assert "names a column other, which is not a field" in refusal(write(tmp_path, "id,other\n"), CLOSED, "csv")
    assert "names the column id twice" in refusal(write(tmp_path, "id,id\n1,2"), REPORT, "csv")
    assert "declares no fields" in refusal(write(tmp_path, "1,2"), ANYTHING, "delimited-text")


# ---------------------------------------------------------------- Parquet


def test_parquet_values_become_those_of_the_model(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 15, 8, 30, 0, 123456, tzinfo=UTC)
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "at": pa.array([moment, None], pa.timestamp("ns", "UTC")),
            "place": pa.array([[1.0, 2.0], None]),
            "score": pa.array([Decimal("2.50"), None], pa.decimal128(9, 2)),
            "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("ms")),
            "clock": pa.array([time(8, 30), None], pa.time64("ns")),
            "span": pa.array([timedelta(seconds=10), None], pa.duration("ns")),
            "nested": pa.array(
                [{"a": [Decimal("1.5")], "t": [moment]}, None],
                pa.struct([("a", pa.list_(pa.decimal128(5, 1))), ("t", pa.list_(pa.timestamp("ns", "UTC")))]),
            ),
            "bag": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "old": pa.array([b"text", None], pa.binary()),
            "word": pa.array(["x", "x"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    first, second = load(tmp_path / "x.parquet", REPORT, "parquet")
    assert first == {
        "id": 1,
        "at": moment,
        "place": Point(1.0, 2.0),
        "score": 2.5,
        "local": moment.replace(microsecond=123000),
        "clock": time(8, 30),
        "span": Duration(0, 10_000_000),
        "nested": {"a": [1.5], "t": [moment]},
        "bag": {"k": 1},
        "old": "text",
        "word": "x",
    }
    assert {name for name, value in second.items() if value is None} == first.keys() - {"id", "word"}


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": ["1"]}), path)
    assert f"{path}, record 1: id: expected a bigint" in refusal(path, REPORT, "parquet")
    pq.write_table(pa.table({"id": [1], "a": [b"\xff"]}), path)
    assert f"{path}, record 1: a: is binary" in refusal(path, REPORT, "parquet")
    pq.write_table(pa.table({"id": [1], "a": pa.array([2**62], pa.timestamp("us"))}), path)
    assert f"{path}, record 1: a: has a value that cannot be kept" in refusal(path, REPORT, "parquet")
    whole = path.read_bytes()
    for damaged in (b"", b"PAR1", whole[:-9], b"{}", whole[: len(whole) // 2]):
        assert "it is not Parquet, or damaged" in refusal(write(tmp_path, damaged), REPORT, "parquet")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("host", ["", "localhost://", "127.0.0.1://", "file://", "asterix_nc1://", "://"])
def test_a_host_before_the_path_is_dropped(tmp_path: Path, host: str) -> None:
    write(tmp_path, '{"id": 1}')
    assert load(f"{host}{tmp_path}/x") == [{"id": 1}]


def test_several_paths_folders_and_patterns_are_read_in_their_order(tmp_path: Path) -> None:
    for number, name in enumerate(["b.json", "a.json", "c.json", "_SUCCESS", ".c.json.crc"]):
        write(tmp_path, f'{{"id": {number}}}\n', name)
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner", '{"id": 9}', "z.json")
    names = {"a": 1, "b": 0, "c": 2}
    assert [record["id"] for record in load(f"{tmp_path}/c.json, localhost://{tmp_path}/a.json")] == [2, 1]
    assert [record["id"] for record in load(tmp_path)] == [names["a"], names["b"], names["c"], 9]
    assert [record["id"] for record in load(f"{tmp_path}/[ab].json")] == [1, 0]


def test_gzip_is_unpacked_whatever_the_name(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"id": 1}\n{"id": 2}\n')
    assert len(load(write(tmp_path, packed, "x.json.gz"))) == 2
    assert len(load(write(tmp_path, packed, "x.json"))) == 2
    assert "it is not gzip, or damaged" in refusal(write(tmp_path, packed[:-9]))
    assert "it is not gzip, or damaged" in refusal(write(tmp_path, packed[:15] + b"\xff\xff" + packed[17:]))


def test_what_is_not_a_readable_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    good = write(tmp_path, '{"id": 1}')
    with pytest.raises(NotFoundError, match="there is no file /nowhere/x"):
        batches({"path": f"{good},/nowhere/x", "format": "json"}, ANYTHING)
    for path, said in (
        (tmp_path / "pipe", "is not a file"),
        ("/dev/zero", "is not a file"),
        (tmp_path / "empty", "there is no file in the folder"),
        (f"{tmp_path}/*.nothing", "no file matches"),
        (f"{good}/below", "there is no file"),
        ("/" + "x" * 5_000, "cannot be read"),
        ("localhost://relative/x", "after the host the path must be absolute"),
        (" , ", "names no file"),
        ("/a\0b", "cannot contain NUL"),
        ("/\ud800", "must be Unicode text"),
    ):
        assert said in refusal(path)


def test_a_file_that_vanishes_while_reading_is_told(tmp_path: Path) -> None:
    first, second = (write(tmp_path, '{"id": 1}', name) for name in ("a", "b"))
    reading = batches({"path": f"{first},{second}", "format": "json"}, ANYTHING, batch_rows=1)
    assert next(reading) == [{"id": 1}]
    second.unlink()
    with pytest.raises(NotFoundError, match=str(second)):
        list(reading)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("adapter", "options", "said", "hint"),
    [
        ("hdfs", {"path": "x", "format": "json"}, "there is no adapter 'hdfs'", "localfs"),
        ("localfs", {"format": "json"}, 'the option "path" is missing', "path"),
        ("localfs", {"path": "x"}, 'the option "format" is missing', "format"),
        (
            "localfs",
            {"path": "x", "format": "avro"},
            "there is no format 'avro'",
            "json, adm, csv, delimited-text, xml, parquet",
        ),
        ("localfs", {"path": "x", "format": "adm", "record": "r"}, "adm has no option 'record'", "path, format"),
        ("localfs", {"path": "x", "format": "json", "header": "true"}, "json has no option 'header'", "path, format"),
        ("localfs", {"path": "x", "format": "csv", "sep": ";"}, "csv has no option 'sep'", "delimiter"),
    ],
)
def test_unknown_options_are_refused_and_the_known_ones_named(
    adapter: str, options: dict[str, str], said: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        batches(options, ANYTHING, adapter=adapter)
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("option", "value"), [("delimiter", ""), ("delimiter", "ab"), ("delimiter", "\n"), ("quote", "ab"), ("quote", ","),
                          ("header", "yes")]
)  # fmt: skip
def test_a_wrong_option_value_is_refused(tmp_path: Path, option: str, value: str) -> None:
    assert option in refusal(write(tmp_path, "a\n1"), form="csv", **{option: value})
