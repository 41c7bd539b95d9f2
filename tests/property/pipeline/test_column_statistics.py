"""Statistics in the log bound what is in the file, so that an engine that leaves files out by them misses nothing."""

from __future__ import annotations

import json
import math
import operator
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tocsin.pipeline.datasets.delta.statistics import TEXT_MAX, ColumnStatistics, statistics_leaves
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.storage.local import LocalFolder

ZONE = pa.struct([("x", pa.float64()), ("name", pa.string()), ("_open", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("small", pa.int8()), ("f", pa.float64()), ("g", pa.float32()), ("s", pa.string()),
        ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("flag", pa.bool_()), ("zone", ZONE),
        ("tags", pa.list_(pa.string())), ("_open", pa.string()),
    ]
)  # fmt: skip

TEXTS = st.one_of(
    st.text(max_size=3),
    st.text(st.sampled_from("a\ud7ff\ue000\U0010ffff"), min_size=TEXT_MAX - 1, max_size=TEXT_MAX + 3),
)
NUMBERS = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf])
RECORDS = st.fixed_dictionaries(
    {
        "small": st.none() | st.integers(-128, 127),
        "f": st.none() | NUMBERS,
        "g": st.none() | st.floats(width=32),
        "s": st.none() | TEXTS,
        "day": st.none() | st.dates(),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "flag": st.none() | st.booleans(),
        "zone": st.none() | st.fixed_dictionaries({"x": st.none() | NUMBERS, "name": st.none() | TEXTS}),
        "tags": st.none() | st.lists(st.text(max_size=2), max_size=2),
        "_open": st.none() | st.just('{"more":1}'),
    }
)


def leaves(record: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    zone = record["zone"] or {}
    flat = {(name,): value for name, value in record.items() if name not in ("zone", "tags", "_open")}
    return {**flat, ("zone", "x"): zone.get("x"), ("zone", "name"): zone.get("name")}


def at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values.get(name) if values is not None else None
    return values


def comparable(value: Any, told: Any) -> tuple[Any, Any]:
    if isinstance(value, datetime):
        return value, datetime.fromisoformat(told)
    if isinstance(value, date):
        return value, date.fromisoformat(told)
    if isinstance(value, float):
        # Some engines tell -0.0 from 0.0.
        return (value, math.copysign(1, value)), (told, math.copysign(1, told))
    return value, told


@settings(deadline=None)
@given(st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=3))
@example([[dict.fromkeys(("small", "f", "g", "s", "day", "at", "flag", "zone", "tags", "_open"))]])
def test_statistics_bound_every_value_and_count_every_null(pieces: list[list[dict[str, Any]]]) -> None:
    statistics = ColumnStatistics(statistics_leaves(SCHEMA))
    for piece in pieces:
        table = pa.Table.from_pylist([{"id": 1, **record} for record in piece], schema=SCHEMA)
        statistics.add(table)
        for record, kept in zip(piece, table.column("g").to_pylist(), strict=True):
            record["g"] = kept
    found = [leaves(record) for piece in pieces for record in piece]
    summary = statistics.summary()
    low, high, nulls = (json.loads(json.dumps(dict(part), allow_nan=False)) for part in summary)
    for told in (low, high, nulls):
        assert "_open" not in told
        assert "tags" not in told
        assert "_open" not in told.get("zone", {})
    for path in found[0]:
        values = [record[path] for record in found]
        assert at(nulls, path) == values.count(None)
        least, greatest = at(low, path), at(high, path)
        if path == ("flag",) or all(value is None for value in values):
            assert least is greatest is None
        for value in values:
            if value is None:
                continue
            if isinstance(value, float) and math.isnan(value):
                assert least is greatest is None
                continue
            for told, bounds in ((least, operator.ge), (greatest, operator.le)):
                if told is not None:
                    assert bounds(*comparable(value, told)), (path, value, told)
                    assert not isinstance(told, str) or len(told) <= TEXT_MAX


@settings(deadline=None, max_examples=examples(25))
@given(
    st.lists(st.lists(st.tuples(st.integers(-5, 5), TEXTS), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(-5, 5),
    TEXTS,
)
def test_another_engine_that_leaves_files_out_finds_every_row(
    commits: list[list[tuple[int, str]]], number: int, text: str
) -> None:
    with TemporaryDirectory() as scratch:
        table = DatasetTable.create(LocalFolder(Path(scratch) / "d"), SCHEMA, (("id",),))
        records = []
        for commit in commits:
            more = [{"id": len(records) + place, "small": n, "s": t} for place, (n, t) in enumerate(commit)]
            records += more
            table.insert(pa.Table.from_pylist(more, schema=SCHEMA))
        seen = DeltaTable(str(table.log.folder)).to_pyarrow_dataset()
        for wanted, picked in (
            (pc.field("small") == number, {record["id"] for record in records if record["small"] == number}),
            (pc.field("s") == text, {record["id"] for record in records if record["s"] == text}),
        ):
            assert set(seen.to_table(columns=["id"], filter=wanted).column("id").to_pylist()) == picked


def test_files_that_cannot_hold_what_is_asked_for_are_left_out(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, (("id",),))
    for each in range(5):
        zone = {"x": each / 2, "name": f"z{each}", "_open": None}
        table.insert(pa.Table.from_pylist([{"id": each, "s": f"text {each}", "zone": zone}], schema=SCHEMA))
    delta = DeltaTable(str(table.log.folder))
    for opened in (delta, _checkpointed(delta)):
        for wanted in (pc.field("id") == 3, pc.field("s") == "text 3", pc.field("id") > 3):
            assert len(list(opened.to_pyarrow_dataset().get_fragments(filter=wanted))) == 1
        listed = pa.table(opened.get_add_actions(flatten=True))
        assert sorted(listed.column("max.zone.x").to_pylist()) == [0.0, 0.5, 1.0, 1.5, 2.0]


def _checkpointed(delta: DeltaTable) -> DeltaTable:
    delta.create_checkpoint()
    return DeltaTable(delta.table_uri)
