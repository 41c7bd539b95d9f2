"""The catalog: what uses what, what may go, and that the store and the snapshot always agree."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tocsin
from tocsin.cluster.catalog import (
    DEFAULT,
    Catalog,
    CatalogEntry,
    CatalogStore,
    DatasetEntry,
    DataverseEntry,
    FunctionEntry,
    IndexEntry,
    Put,
    Ref,
    Remove,
    TypeEntry,
    dataset_ref,
    dataverse_ref,
    function_ref,
    index_ref,
    qualified,
    type_from_json,
    type_ref,
    type_to_json,
    unqualified,
)
from tocsin.cluster.entries import entry_from_json, entry_to_json
from tocsin.cluster.type_json import TYPE_DEPTH_LIMIT
from tocsin.rules.model.types import (
    ANY,
    BIGINT,
    DATETIME,
    POINT,
    PRIMITIVES,
    STRING,
    ArrayType,
    Field,
    MultisetType,
    ObjectType,
    Type,
)
from tocsin.store.sqlite import SqliteStore
from tocsin.store.store import Entry
from tocsin.wire.errors import ConflictError, InputError, LimitError, NotFoundError, StoreError, UnavailableError

SOURCE = Path(tocsin.__file__).parents[1]
E = "Emergency"

PLACE = ObjectType((Field("at", POINT),), open=False, name="Place")
REPORT = ObjectType(
    (
        Field("id", BIGINT),
        Field("where", PLACE),
        Field("notes", ArrayType(STRING, True), True),
        Field("when", DATETIME),
    ),
    name="Report",
)

verse = DataverseEntry(E)
place = TypeEntry(E, "Place", PLACE, "CREATE TYPE Place AS CLOSED { at: point }")
report = TypeEntry(E, "Report", REPORT, "CREATE TYPE Report AS { … }")
reports = DatasetEntry(
    E, "Reports", "Emergency.Report", REPORT, (("id",), ("where", "at")), False, True, "f1", 1000, 60.5
)
by_place = IndexEntry(E, "Reports", "byPlace", (("where", "at"),), "RTREE")
near = FunctionEntry(E, "near", ("p", "r"), "SELECT …", (dataset_ref(E, "Reports"),))
near_3 = FunctionEntry(E, "near", ("p", "r", "n"), "SELECT …", (near.ref, type_ref(E, "Report")))
EVERYTHING: list[CatalogEntry] = [verse, place, report, reports, by_place, near, near_3]


def emergency() -> Catalog:
    catalog = Catalog.empty()
    for entry in EVERYTHING:
        catalog = catalog.with_(entry)
    return catalog


@pytest.fixture
async def opened(tmp_path: Path) -> Any:
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def kept(opened: SqliteStore) -> CatalogStore:
    kept = CatalogStore(opened)
    await kept.load()
    return kept


async def loaded(store: SqliteStore) -> Catalog:
    return await CatalogStore(store).load()


# --- the snapshot ---


def test_default_and_metadata_are_always_there() -> None:
    assert [entry.name for entry in Catalog.empty().dataverses] == ["Metadata", "Default"]
    assert Catalog.empty().dataverse(DEFAULT) == DataverseEntry("Default")


@pytest.mark.parametrize("name", ["Default", "Metadata"])
def test_a_built_in_dataverse_is_neither_made_nor_dropped(name: str) -> None:
    with pytest.raises(ConflictError, match="exists already"):
        Catalog.empty().with_(DataverseEntry(name))
    with pytest.raises(ConflictError, match="cannot be dropped"):
        Catalog.empty().without(dataverse_ref(name))


def test_nothing_can_be_put_into_metadata() -> None:
    with pytest.raises(ConflictError, match="reserved"):
        Catalog.empty().with_(dataclasses.replace(place, dataverse="Metadata"))


def test_whoever_holds_a_catalog_sees_no_change() -> None:
    before = emergency()
    entries = dict(before.entries)
    after = before.without(near_3.ref).without(near.ref).without(reports.ref)
    assert dict(before.entries) == entries
    assert after.find(reports.ref) is None
    with pytest.raises(TypeError):
        before.entries[reports.ref] = reports  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.entries = {}  # type: ignore[misc]


def test_every_kind_is_found_by_its_names() -> None:
    catalog = emergency()
    assert catalog.dataverse(E) == verse
    assert catalog.type_(E, "Place") == place
    assert catalog.dataset(E, "Reports") == reports
    assert catalog.index(E, "Reports", "byPlace") == by_place
    assert catalog.function(E, "near", 2) == near
    assert catalog.function(E, "near", 3) == near_3
    assert catalog.functions_named(E, "near") == [near, near_3]
    assert catalog.indexes_of(E, "Reports") == [by_place]
    assert catalog.types == (place, report)
    assert catalog.datasets == (reports,)
    assert catalog.indexes == (by_place,)
    assert catalog.functions == (near, near_3)


def test_names_are_case_sensitive() -> None:
    catalog = emergency().with_(dataclasses.replace(reports, name="reports", folder="f2"))
    assert catalog.dataset(E, "reports").folder == "f2"
    assert catalog.dataset(E, "Reports").folder == "f1"


@pytest.mark.parametrize(
    ("ask", "message", "hint"),
    [
        (lambda c: c.dataset(E, "reports"), "there is no dataset Emergency.reports", "did you mean Reports?"),
        (lambda c: c.dataset(E, "Report"), "there is no dataset Emergency.Report", "did you mean Reports?"),
        (lambda c: c.dataset("Default", "Reports"), "no dataset Default.Reports", "did you mean Emergency.Reports?"),
        (lambda c: c.dataset("Emergancy", "Reports"), "no dataverse Emergancy", "did you mean Emergency?"),
        (lambda c: c.dataset(E, "Shelters"), "there is no dataset Emergency.Shelters", None),
        (lambda c: c.type_(E, "Plce"), "there is no type Emergency.Plce", "did you mean Place?"),
        (lambda c: c.function(E, "near", 1), "function Emergency.near@1", "it takes 2 or 3 arguments, not 1"),
        (lambda c: c.function(E, "nar", 2), "function Emergency.nar@2", "did you mean near?"),
        (lambda c: c.index(E, "Reports", "byplace"), "no index Emergency.Reports.byplace", "did you mean byPlace?"),
        (lambda c: c.index(E, "Report", "byPlace"), "there is no dataset Emergency.Report", "did you mean Reports?"),
        (lambda c: c.without(dataverse_ref("emergency")), "no dataverse emergency", "did you mean Emergency?"),
        (lambda c: c.without(dataset_ref(E, "odd name")), "there is no dataset Emergency.`odd name`", None),
    ],
)
def test_a_miss_names_what_is_missing_and_what_may_be_meant(ask: Any, message: str, hint: str | None) -> None:
    with pytest.raises(NotFoundError) as caught:
        ask(emergency())
    assert message in caught.value.message
    assert caught.value.hint == hint


def test_users_are_known_through_fields_types_and_functions() -> None:
    catalog = emergency()
    assert catalog.users_of(place.ref) == [report.ref]
    assert catalog.users_of(report.ref) == [reports.ref, near_3.ref]
    assert catalog.users_of(reports.ref) == [near.ref]
    assert catalog.users_of(near.ref) == [near_3.ref]
    assert catalog.users_of(near_3.ref) == []
    assert catalog.users_of(by_place.ref) == []
    assert catalog.users_of(verse.ref) == []


@pytest.mark.parametrize(
    "nested",
    [PLACE, ArrayType(PLACE), MultisetType(ArrayType(PLACE)), ObjectType((Field("x", ArrayType(PLACE)),))],
)
def test_a_type_uses_the_named_types_at_any_depth(nested: Type) -> None:
    assert TypeEntry(E, "T", ObjectType((Field("f", nested, True),), name="T"), "").uses == (place.ref,)


def test_a_type_of_another_dataverse_is_named_with_it() -> None:
    other = ObjectType((), name=qualified("Odd.verse", "Place"))
    assert TypeEntry(E, "T", ObjectType((Field("f", other),)), "").uses == (type_ref("Odd.verse", "Place"),)


def test_what_is_used_is_not_dropped_and_the_user_is_named() -> None:
    catalog = emergency()
    for ref, user in [
        (place.ref, "type Emergency.Report"),
        (report.ref, "dataset Emergency.Reports, function Emergency.near@3"),
        (reports.ref, "function Emergency.near@2"),
        (near.ref, "function Emergency.near@3"),
    ]:
        with pytest.raises(ConflictError, match="cannot be dropped") as caught:
            catalog.without(ref)
        assert caught.value.message.endswith(f"it is used by {user}")


def test_many_users_are_counted_rather_than_listed() -> None:
    catalog = emergency()
    for number in range(10):
        catalog = catalog.with_(FunctionEntry(E, f"f{number}", (), "", (reports.ref,)))
    with pytest.raises(ConflictError, match=r"near@2, function Emergency\.f0@0, function Emergency\.f1@0 and 8 more"):
        catalog.without(reports.ref)


def test_a_dataset_takes_its_indexes_with_it() -> None:
    catalog = emergency().without(near_3.ref).without(near.ref)
    assert catalog.belonging_to(reports.ref) == [reports, by_place]
    after = catalog.without(reports.ref)
    assert after.indexes == ()
    assert after.datasets == ()


def test_dropping_a_dataverse_drops_all_in_it_though_they_use_each_other() -> None:
    assert emergency().without(verse.ref) == Catalog.empty()


def test_a_dataverse_used_from_outside_is_not_dropped() -> None:
    catalog = emergency().with_(FunctionEntry(DEFAULT, "f", (), "", (near.ref,)))
    assert catalog.users_of(verse.ref) == [function_ref(DEFAULT, "f", 0)]
    with pytest.raises(ConflictError, match=r"something in it is used by function Default\.f@0"):
        catalog.without(verse.ref)


@pytest.mark.parametrize("entry", EVERYTHING)
def test_a_taken_name_is_refused(entry: CatalogEntry) -> None:
    with pytest.raises(ConflictError, match="exists already"):
        emergency().with_(entry)


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        (dataclasses.replace(place, dataverse="Nowhere"), "dataverse Nowhere"),
        (
            dataclasses.replace(report, name="R2", type=ObjectType((Field("f", ObjectType(name="X")),))),
            "type Emergency.X",
        ),
        (dataclasses.replace(reports, name="R2", type_name="Default.Report"), "type Default.Report"),
        (IndexEntry(E, "Nothing", "i", (("a",),), "BTREE"), "dataset Emergency.Nothing"),
        (FunctionEntry(E, "g", (), "", (function_ref(E, "near", 9),)), "function Emergency.near@9"),
    ],
)
def test_what_uses_something_that_is_not_there_is_refused(entry: CatalogEntry, missing: str) -> None:
    with pytest.raises(NotFoundError, match=missing):
        emergency().with_(entry)


def test_a_function_may_use_what_metadata_describes() -> None:
    catalog = emergency().with_(FunctionEntry(E, "count_all", (), "", (dataset_ref("Metadata", "Dataset"),)))
    assert catalog.function(E, "count_all", 0).arity == 0


def test_a_replaced_function_keeps_its_place_and_its_users() -> None:
    changed = dataclasses.replace(near, body="SELECT 2", uses=())
    catalog = emergency().with_(changed, replace=True)
    assert catalog.functions == (changed, near_3)
    assert catalog.without(by_place.ref).without(near_3.ref).users_of(reports.ref) == []


def test_a_type_that_is_used_is_not_replaced() -> None:
    with pytest.raises(ConflictError, match=r"used by type Emergency\.Report"):
        emergency().with_(dataclasses.replace(place, text="new"), replace=True)


def test_a_function_never_comes_to_use_itself() -> None:
    with pytest.raises(ConflictError, match="would use itself"):
        emergency().with_(dataclasses.replace(near, uses=(near_3.ref,)), replace=True)
    with pytest.raises(ConflictError, match="would use itself"):
        emergency().with_(FunctionEntry(E, "loop", (), "", (function_ref(E, "loop", 0),)))


@pytest.mark.parametrize("name", ["", "x" * 129, "a\0b", "\ud800"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    for entry in (DataverseEntry(name), dataclasses.replace(place, name=name), dataclasses.replace(near, name=name)):
        with pytest.raises(InputError):
            emergency().with_(entry)


# --- names and JSON ---


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_qualified_names_never_collide(names: list[str]) -> None:
    assert unqualified(qualified(*names)) == tuple(names)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "`a", "a`b`", "`a`b"])
def test_what_is_no_qualified_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a qualified name"):
        unqualified(text)


def test_an_index_with_dots_in_its_name_is_not_taken_for_another() -> None:
    assert index_ref(E, "a.b", "c") != index_ref(E, "a", "b.c")
    assert index_ref(E, "a", "b") == Ref("index", E, "a.b")


def types() -> st.SearchStrategy[Type]:
    simple: st.SearchStrategy[Type] = st.sampled_from([ANY, *PRIMITIVES.values()])

    def nested(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
        field = st.builds(Field, st.text(), inner, st.booleans())
        objects = st.builds(
            ObjectType,
            st.lists(field, max_size=4).map(tuple),
            st.booleans(),
            st.none() | st.sampled_from(["Place", "`odd.verse`.Place"]),
        )
        return st.builds(ArrayType, inner, st.booleans()) | st.builds(MultisetType, inner, st.booleans()) | objects

    return st.recursive(simple, nested, max_leaves=12)


@given(types())
def test_every_type_comes_back_from_json_with_its_names(type_: Type) -> None:
    back = type_from_json(type_to_json(type_))
    assert back == type_
    assert repr(back) == repr(type_), "equality does not look at names"


def test_a_type_nested_too_deeply_is_refused() -> None:
    type_: Type = STRING
    for _ in range(TYPE_DEPTH_LIMIT + 1):
        type_ = ArrayType(type_)
    with pytest.raises(LimitError, match="too deeply"):
        type_to_json(type_)


@pytest.mark.parametrize("entry", EVERYTHING)
def test_every_entry_comes_back_from_json(entry: CatalogEntry) -> None:
    row = Entry(entry.ref.kind, entry.ref.dataverse, entry.ref.name, entry_to_json(entry), 1)
    assert entry_from_json(row) == entry


@pytest.mark.parametrize("returns", [ANY, ArrayType(report.type, item_optional=True)])
def test_a_function_in_python_comes_back_from_json(returns: Type) -> None:
    entry = FunctionEntry(E, "coded", ("r",), "m:f", (report.ref,), "PYTHON", returns, optional=False)
    assert entry_from_json(Entry("function", E, "coded@1", entry_to_json(entry), 1)) == entry


@pytest.mark.parametrize(
    "row",
    [
        Entry("rumour", E, "c", {}, 1),
        Entry("channel", E, "c", {}, 1),
        Entry("procedure", E, "p@0", {"procedure_id": "p", "parameters": [], "body": "1", "period": "soon"}, 1),
        Entry("type", E, "T", {}, 1),
        Entry("type", E, "T", {"type": "bigint", "text": ""}, 1),
        Entry("type", E, "T", {"type": {"what": 1}, "text": ""}, 1),
        Entry("index", E, "no dataset", {"fields": [], "kind": "BTREE"}, 1),
    ],
)
def test_a_row_that_cannot_be_read_is_said_to_be_damaged(row: Entry) -> None:
    with pytest.raises(StoreError, match="the catalog"):
        entry_from_json(row)


# --- the store ---


async def test_the_catalog_is_known_once_loaded(opened: SqliteStore) -> None:
    kept = CatalogStore(opened)
    with pytest.raises(UnavailableError, match="not loaded"):
        _ = kept.catalog
    assert await kept.load() == Catalog.empty()
    assert kept.catalog == Catalog.empty()


async def test_everything_is_there_after_a_restart_in_the_same_order(opened: SqliteStore, kept: CatalogStore) -> None:
    after = await kept.apply([Put(entry) for entry in EVERYTHING])
    assert after == emergency()
    assert kept.catalog is after
    again = await loaded(opened)
    assert again == after
    assert list(again.entries) == list(after.entries)
    assert again.type_(E, "Report").uses == (place.ref,)


async def test_a_change_that_is_refused_undoes_those_before_it(opened: SqliteStore, kept: CatalogStore) -> None:
    before = await kept.apply([Put(verse), Put(place)])
    with pytest.raises(ConflictError):
        await kept.apply([Put(report), Remove(place.ref)])
    assert kept.catalog is before
    assert await loaded(opened) == before


async def test_a_store_that_fails_leaves_the_snapshot(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "small.sqlite", max_bytes=100_000)
    await store.open()
    kept = CatalogStore(store)
    await kept.load()
    before = await kept.apply([Put(verse)])
    with pytest.raises(Exception, match="no room"):
        await kept.apply([Put(place), Put(dataclasses.replace(report, text="x" * 500_000))])
    assert kept.catalog is before
    assert await loaded(store) == before
    await store.close()


async def test_dropping_a_dataverse_removes_every_row(opened: SqliteStore, kept: CatalogStore) -> None:
    await kept.apply([Put(entry) for entry in EVERYTHING])
    await kept.apply([Remove(verse.ref)])
    assert kept.catalog == Catalog.empty()
    assert await opened.entries() == []


async def test_dropping_a_dataset_removes_the_rows_of_its_indexes(opened: SqliteStore, kept: CatalogStore) -> None:
    await kept.apply([Put(entry) for entry in EVERYTHING])
    await kept.apply([Remove(near_3.ref), Remove(near.ref), Remove(reports.ref)])
    assert [entry.kind for entry in await opened.entries()] == ["dataverse", "type", "type"]
    assert await loaded(opened) == kept.catalog


async def test_a_replaced_entry_is_replaced_in_the_store(opened: SqliteStore, kept: CatalogStore) -> None:
    await kept.apply([Put(entry) for entry in EVERYTHING])
    changed = dataclasses.replace(near, body="SELECT 2")
    await kept.apply([Put(changed, "replace"), Put(FunctionEntry(E, "new", (), "", ()), "replace")])
    again = await loaded(opened)
    assert again.function(E, "near", 2) == changed
    assert list(again.entries) == list(kept.catalog.entries)


async def test_if_exists_and_if_not_exists_change_nothing_when_they_need_not(
    opened: SqliteStore, kept: CatalogStore
) -> None:
    before = await kept.apply([Put(verse), Put(place)])
    rows = await opened.entries()
    again = dataclasses.replace(place, text="another")
    after = await kept.apply([Put(again, "keep"), Put(verse, "keep"), Remove(report.ref, if_exists=True)])
    assert after == before
    assert await opened.entries() == rows
    with pytest.raises(NotFoundError):
        await kept.apply([Remove(report.ref)])


async def test_of_many_who_create_the_same_at_once_one_succeeds(opened: SqliteStore, kept: CatalogStore) -> None:
    answers = await asyncio.gather(*(kept.apply([Put(verse)]) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(answer, Catalog) for answer in answers) == 1
    assert sum(isinstance(answer, ConflictError) for answer in answers) == 9
    assert len(await opened.entries()) == 1


async def test_a_cancellation_at_any_step_leaves_snapshot_and_store_in_agreement(
    opened: SqliteStore, kept: CatalogStore
) -> None:
    for steps in range(40):
        task = asyncio.create_task(kept.apply([Put(DataverseEntry(f"d{steps}")), Put(DataverseEntry(f"e{steps}"))]))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await loaded(opened) == kept.catalog


async def test_cancellations_during_the_commit_still_swap_the_snapshot(
    opened: SqliteStore, kept: CatalogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit stands still until an impatient caller has cancelled three times."""
    committing, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def reach(point: str) -> None:
        if point == "store.commit.before":
            loop.call_soon_threadsafe(committing.set)
            go_on.wait()

    monkeypatch.setattr("tocsin.faults.reach", reach)
    task = asyncio.create_task(kept.apply([Put(verse)]))
    await committing.wait()
    for _ in range(3):
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
    gave_up = task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not gave_up, "the caller was let go before anybody knew whether the change happened"
    assert kept.catalog.find(verse.ref) == verse
    assert await loaded(opened) == kept.catalog


CHILD = """
import asyncio, sys
from pathlib import Path
from tocsin.cluster.catalog import CatalogStore, DataverseEntry, Put, Remove, dataverse_ref
from tocsin.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    kept = CatalogStore(store)
    await kept.load()
    await kept.apply([Put(DataverseEntry("Old"))])
    await kept.apply([Put(DataverseEntry("New")), Remove(dataverse_ref("Old"))])

asyncio.run(main())
"""


@pytest.mark.parametrize(("point", "there"), [("store.commit.before:2", "Old"), ("store.commit.after:2", "New")])
async def test_kill_during_a_change_leaves_all_of_it_or_nothing(tmp_path: Path, point: str, there: str) -> None:
    path = tmp_path / "store.sqlite"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TOCSIN_CRASH_AT": point}
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = SqliteStore(path)
    await store.open()
    assert [entry.name for entry in (await loaded(store)).dataverses] == ["Metadata", "Default", there]
    await store.close()
