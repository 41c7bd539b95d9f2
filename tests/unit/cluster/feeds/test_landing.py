"""From a feed's log into a dataset: what is refused on the way, and what a feed that ends leaves for the next time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from tocsin.cluster.catalog.entries import DatasetEntry, FeedEntry
from tocsin.cluster.feeds.batches import pack_batch
from tocsin.cluster.feeds.isolate_failures import Enrich
from tocsin.cluster.feeds.landing import REJECTED, Landing, Rejections
from tocsin.cluster.feeds.limits import USUAL_LIMITS
from tocsin.cluster.intake.log import LogEntry
from tocsin.language.translate.expressions import TranslationError
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType
from tocsin.storage.local import LocalFolder
from tocsin.wire.errors import CapacityError, DeadlineError, StatementError, UnavailableError

FEED = ObjectType((Field("id", t.BIGINT),), True)
CLOSED = ObjectType((Field("id", t.BIGINT),), False)


class LandingTables:
    def __init__(self, folder: Path, enrich: Enrich | None = None) -> None:
        self.feed = FeedEntry("v", "F", (), "T", FEED, "folder")
        entry = DatasetEntry("v", "D", "C", CLOSED, (("id",),), False, False, "d", 1, None)
        self.table = DatasetTable.create(LocalFolder(folder / "d"), layout.record_schema(CLOSED), (("id",),))
        self.rejected = DatasetTable.create(LocalFolder(folder / "r"), layout.record_schema(REJECTED), (("id",),))
        self.landing = Landing(self.feed, 0, entry, self.table, self.rejected, enrich)
        self.rejections = Rejections(self.feed, 0, self.rejected)

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in _rows(self.table))

    def set_aside(self) -> list[Any]:
        """The refused records' own ids."""
        return sorted(json.loads(row["record"])["id"] for row in _rows(self.rejected))


def _rows(table: DatasetTable) -> list[dict[str, Any]]:
    return [row for path in table.snapshot().files for row in pq.ParquetFile(path).read().to_pylist()]


def logged(*requests: Sequence[dict[str, Any] | str]) -> list[LogEntry]:
    """Entries of a log: a text is a record that was refused when it came."""
    entries: list[LogEntry] = []
    for request in requests:
        decoded = [
            DecodedRecord(i, None, "id", "is wrong", record.encode())
            if isinstance(record, str)
            else DecodedRecord(i, record)
            for i, record in enumerate(request)
        ]
        first = entries[-1].end if entries else 0
        entries.append(LogEntry(first, len(decoded), pack_batch(decoded, FEED), None, b"", 0.0))
    return entries


def test_a_refused_record_is_kept_once_however_the_log_is_cut_into_batches(tmp_path: Path) -> None:
    world = LandingTables(tmp_path)
    entries = logged(
        ['{"id": "a"}', {"id": 1}, {"id": 2, "more": 1}],
        ['{"id": "b"}', {"id": 3, "more": 1}],
        [{"id": 4, "more": 1}, {"id": 5}],
    )
    world.landing.land(entries)
    for entry in entries:
        world.landing.land([entry])
    assert world.ids() == [1, 5]
    assert world.set_aside() == [2, 3, 4]
    world.rejections.land(entries)
    world.rejections.land(entries[1:])
    assert len(_rows(world.rejected)) == 5
    assert world.landing.position == world.rejections.position == 7


def test_what_fails_because_the_feed_ends_is_left_for_the_next_time(tmp_path: Path) -> None:
    def stopped(_rows: pa.Table) -> Sequence[Any]:
        world.landing.halted = True
        raise StatementError("Job 1 cancelled")

    world = LandingTables(tmp_path, stopped)
    with pytest.raises(StatementError):
        world.landing.land(logged([{"id": 1}, {"id": 2}]))
    assert (world.landing.position, world.ids(), world.set_aside()) == (0, [], [])


def test_what_fails_because_the_engine_is_gone_is_left_for_the_next_time(tmp_path: Path) -> None:
    def gone(_rows: pa.Table) -> Sequence[Any]:
        raise UnavailableError("the engine has stopped")

    world = LandingTables(tmp_path, gone)
    with pytest.raises(UnavailableError):
        world.landing.land(logged([{"id": 1}]))
    assert (world.landing.position, world.set_aside()) == (0, [])


def test_a_function_that_means_nothing_for_the_type_is_tried_once(tmp_path: Path) -> None:
    calls = 0

    def meaningless(_rows: pa.Table) -> Sequence[Any]:
        nonlocal calls
        calls += 1
        raise TranslationError("there is no field colour")

    world = LandingTables(tmp_path, meaningless)
    world.landing.land(logged([{"id": number} for number in range(50)]))
    assert calls == 1
    assert world.set_aside() == list(range(50))
    assert {row["reason"] for row in _rows(world.rejected)} == {"there is no field colour"}


def test_records_on_which_the_function_fails_are_found_among_many(tmp_path: Path) -> None:
    poison = {3, 4, 17}

    def picky(rows: pa.Table) -> Sequence[Any]:
        records = layout.from_arrow(rows, FEED)
        if poison & {record["id"] for record in records}:
            raise StatementError("it does not like one of them")
        return [None if record["id"] == 5 else [record, {"id": record["id"] + 100}] for record in records]

    world = LandingTables(tmp_path, picky)
    world.landing.land(logged([{"id": number} for number in range(20)]))
    passed = [number for number in range(20) if number not in poison and number != 5]
    assert world.ids() == sorted([*passed, *(number + 100 for number in passed)])
    assert world.set_aside() == sorted(poison)


@pytest.mark.parametrize("error", [CapacityError, DeadlineError])
def test_a_batch_that_the_engine_has_no_room_or_time_for_goes_through_the_function_in_pieces(
    tmp_path: Path, error: type[CapacityError]
) -> None:
    alone = 0

    def heavy(rows: pa.Table) -> Sequence[Any]:
        nonlocal alone
        records = layout.from_arrow(rows, FEED)
        alone += [record["id"] for record in records] == [7]
        if len(records) > 5 or any(record["id"] == 7 for record in records):
            raise error("too much")
        return records

    world = LandingTables(tmp_path, heavy)
    world.landing.land(logged([{"id": number} for number in range(20)]))
    assert world.ids() == [number for number in range(20) if number != 7]
    assert world.set_aside() == [7]
    assert alone == 3, "a record by itself has two tries more"


def test_of_one_record_all_that_a_function_made_lands_or_nothing(tmp_path: Path) -> None:
    def several(rows: pa.Table) -> Sequence[Any]:
        records = layout.from_arrow(rows, FEED)
        return [
            [record, {"id": record["id"] + 10}, *([{"id": "x"}, 7] if record["id"] == 2 else [])] for record in records
        ]

    world = LandingTables(tmp_path, several)
    entries = logged([{"id": 1}, {"id": 2}, {"id": 3}])
    for _ in range(2):  # doing it again changes nothing
        world.landing.land(entries)
        assert world.ids() == [1, 3, 11, 13]
        assert world.set_aside() == [2]
    (kept,) = _rows(world.rejected)
    assert kept["field"] == "id"
    assert kept["reason"].startswith("element 3 of 4 that the function made: expected")


def test_a_record_that_two_datasets_of_one_name_refuse_is_kept_for_each(tmp_path: Path) -> None:
    world = LandingTables(tmp_path)
    entry = DatasetEntry("w", "D", "C", CLOSED, (("id",),), False, False, "e", 1, None)
    table = DatasetTable.create(LocalFolder(tmp_path / "e"), layout.record_schema(CLOSED), (("id",),))
    entries = logged([{"id": 1, "more": 1}])
    world.landing.land(entries)
    Landing(world.feed, 0, entry, table, world.rejected, None).land(entries)
    assert sorted(row["dataset"] for row in _rows(world.rejected)) == ["v.D", "w.D"]


class Telling:
    """Fails as a whole where one of its records is poison, and can say which those are."""

    def __init__(self, poison: set[int]) -> None:
        self.poison = poison
        self.queries = 0
        self.halt: list[LandingTables] = []

    def __call__(self, rows: pa.Table) -> Sequence[Any]:
        self.queries += 1
        records = layout.from_arrow(rows, FEED)
        found = sorted(self.poison & {record["id"] for record in records})
        if found:
            raise StatementError(f"it does not like {found[0]}")
        return records

    def failing(self, rows: pa.Table) -> Sequence[bool]:
        self.queries += 1
        if self.halt:
            self.halt[0].landing.halted = True
            raise StatementError("Job 1 cancelled")
        return [record["id"] in self.poison for record in layout.from_arrow(rows, FEED)]


@pytest.mark.parametrize("poison", [{3}, set(range(0, 300, 2)), set(range(300))])
def test_records_on_which_a_function_fails_cost_few_queries_however_many_they_are(
    tmp_path: Path, poison: set[int]
) -> None:
    function = Telling(poison)
    world = LandingTables(tmp_path, function)
    with capture_logs() as told:
        world.landing.land(logged([{"id": number} for number in range(300)]))
    assert world.ids() == [number for number in range(300) if number not in poison]
    assert world.set_aside() == sorted(poison)
    assert function.queries <= 3 + USUAL_LIMITS.reasons
    reasons = {json.loads(row["record"])["id"]: row["reason"] for row in _rows(world.rejected)}
    assert all(reasons[record] == f"it does not like {record}" for record in sorted(poison)[: USUAL_LIMITS.reasons])
    assert all(
        f"and on {len(poison) - 1} others" in reasons[record] for record in sorted(poison)[USUAL_LIMITS.reasons :]
    )
    assert [item["records"] for item in told] == [300, len(poison)]


def test_a_function_that_is_stopped_while_it_tells_which_records_fail_leaves_them_for_the_next_time(
    tmp_path: Path,
) -> None:
    function = Telling({1})
    world = LandingTables(tmp_path, function)
    function.halt.append(world)
    with pytest.raises(StatementError):
        world.landing.land(logged([{"id": 1}, {"id": 2}]))
    assert (world.landing.position, world.ids(), world.set_aside()) == (0, [], [])
