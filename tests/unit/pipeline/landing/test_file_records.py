"""What is in a file that has arrived: each record judged by itself, in the same pieces each time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.pipeline.landing.file_records import FilePart, parts
from tocsin.pipeline.sources.load_files import check_format
from tocsin.rules.model.types import BIGINT, STRING, Field, ObjectType

KIND = ObjectType((Field("id", BIGINT), Field("said", STRING, optional=True)), open=False)
NONE: Mapping[str, str] = {}


def read(path: Path, format_: str = "json", **limits: int) -> list[FilePart]:
    return list(parts(path, check_format(format_, NONE), KIND, **limits))


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "x"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def seen(path: Path, format_: str = "json") -> tuple[list[int], list[str]]:
    """The ids that pass, and why the others do not, without the name of the file."""
    records = [record for part in read(path, format_) for record in part.records]
    reasons = [record.reason for record in records if record.record is None]
    assert all(reason.startswith((str(path), f"there is no file {path}")) for reason in reasons)
    return [record.record["id"] for record in records if record.record is not None], [
        reason.removeprefix(str(path)) for reason in reasons
    ]


@pytest.mark.parametrize(
    ("content", "ids", "reasons"),
    [
        ('{"id": 1}\n\n{"id": 2}\n', [1, 2], []),
        ('\ufeff{"id": 1}\r\n{"id": 2}', [1, 2], []),
        ('{"id": 1}\n{"id": \n{"id": 3}\n', [1, 3], [", line 2: is not JSON: Expecting value"]),
        # The first line is the broken one, and braces would swallow the rest.
        ('{"id": \n{"id": 2}\n{"id": 3}\n', [2, 3], [", line 1: is not JSON: Expecting value"]),
        ('{"id": 1} {"id": 2}\n{"id":\n 3}', [1, 2, 3], []),
        ('[{"id": 1},\n{"id": "x"},\n{"id": 3}]', [1, 3], [", line 2: expected a bigint, got the string \"x\""]),
        ('[{"id": 1}, {"id": 2}]\n[{"id": 3}, 4]', [1, 2, 3], [", line 2: expected an object, got the number 4"]),
        ('{"id": 1}\n7\n', [1], [", line 2: expected an object, got the number 7"]),
        ('{"id": 1,\n"id2": {}}\n{"id": 2}\n', [2], [', line 1: is not a field of this closed type']),
        ('{\n"id": 1\n}\n{\n"id": 2', [1], [", line 4: the file ends inside of the object that begins on this line"]),
        ("no records at all", [], [", line 1: expected a record that begins with {"]),
        ("", [], []),
    ],
)  # fmt: skip
def test_json_records_pass_and_their_broken_neighbours_do_not(
    tmp_path: Path, content: str, ids: list[int], reasons: list[str]
) -> None:
    passed, told = seen(written(tmp_path, content))
    assert passed == ids
    assert len(told) == len(reasons)
    for item, expected in zip(told, reasons, strict=True):
        assert item.startswith(expected)


def test_a_line_that_is_too_long_is_refused_by_itself(tmp_path: Path) -> None:
    long = json.dumps({"id": 2, "said": "x" * (17 << 20)})
    passed, told = seen(written(tmp_path, f'{{"id": 1}}\n{long}\n{{"id": 3}}\n'))
    assert (passed, told) == ([1, 3], [", line 2: a record is longer than 16 MiB"])


@pytest.mark.parametrize(
    ("format_", "content", "ids", "reason"),
    [
        ("adm", '{"id": 1} {"id": nonsense}\n{"id": 3}', [1, 3], ", line 1: is not ADM"),
        ("csv", "id,said\n1,a\nx,b\n3,c\n", [1, 3], ", line 3: expected a whole number"),
        ("csv", "id,id\n1,a\n", [], " cannot be read: its header names the column id twice"),
        ("delimited-text", "1,a\n2\n3,c\n", [1, 3], ", line 2: has 1 columns, expected 2"),
        ("xml", "<a><r id='1'/><r id='x'/><r id='3'/></a>", [1, 3], ", line 1: expected a whole number"),
        ("xml", "<a><r id='1'/><r id=", [1], ", line 1: is not XML"),
    ],
)
def test_every_format_tells_what_it_cannot_read(
    tmp_path: Path, format_: str, content: str, ids: list[int], reason: str
) -> None:
    passed, (told,) = seen(written(tmp_path, content), format_)
    assert passed == ids
    assert told.startswith(reason)


def test_a_parquet_row_that_does_not_fit_is_refused_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "said": pa.array([b"a", b"\xff", b"c"])}), path)
    passed, (told,) = seen(path, "parquet")
    assert passed == [1, 3]
    assert told.startswith(", record 2: is binary")


def test_a_parquet_value_of_no_year_here_is_refused_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    days = pa.array([0, 2**31 - 1, 1], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"day": days}), path)
    kind = ObjectType((), open=True)
    (part,) = parts(path, check_format("parquet", NONE), kind)
    first, bad, last = part.records
    assert first.record == {"day": date(1970, 1, 1)}
    assert last.record == {"day": date(1970, 1, 2)}
    assert (bad.field, "record 2: has a value that cannot be kept" in bad.reason) == ("day", True)


@pytest.mark.parametrize(
    ("format_", "content", "reason"),
    [
        ("json", gzip.compress(b'{"id": 1}\n' * 9, mtime=0)[:-4], " cannot be read: it is not gzip, or damaged"),
        ("parquet", b"PAR1", " cannot be read: it is not Parquet, or damaged"),
    ],
)
def test_a_file_that_is_damaged_says_so_last(tmp_path: Path, format_: str, content: bytes, reason: str) -> None:
    _, told = seen(written(tmp_path, content), format_)
    assert len(told) == 1
    assert told[0].startswith(reason)


@pytest.mark.parametrize("format_", ["json", "parquet"])
def test_a_file_that_is_gone_says_so(tmp_path: Path, format_: str) -> None:
    assert seen(tmp_path / "gone", format_) == ([], [f"there is no file {tmp_path / 'gone'}"])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
def test_a_file_gives_the_same_pieces_each_time_and_says_which_is_the_last(tmp_path: Path, rows: int) -> None:
    path = written(tmp_path, "".join(f'{{"id": {number}}}\n' for number in range(4)))
    found = read(path, most_rows=rows)
    assert found == read(path, most_rows=rows)
    assert [part.is_last for part in found] == [False] * (len(found) - 1) + [True]
    assert [record.record for part in found for record in part.records] == [{"id": number} for number in range(4)]
    assert all([record.index for record in part.records] == list(range(len(part.records))) for part in found)
    assert all(len(part.records) <= rows for part in found)


def test_a_piece_has_bounded_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(f'{{"id": {number}}}\n' for number in range(100)))
    assert max(len(part.records) for part in read(path, most_bytes=40)) <= 5
