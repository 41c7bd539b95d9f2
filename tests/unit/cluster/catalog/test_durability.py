"""The store and the snapshot always agree."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tocsin
from tests.support.emergency_entries import EVERYTHING, E, emergency, near, near_3, place, report, reports, verse
from tocsin.cluster.catalog.catalog import Catalog, CatalogStore, Put, Remove
from tocsin.cluster.catalog.entries import DatasetEntry, DataverseEntry, FunctionEntry
from tocsin.cluster.data_folder.removals import Removals
from tocsin.store.cluster.interface import Removal
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.wire.errors import ConflictError, NotFoundError, UnavailableError

SOURCE = Path(tocsin.__file__).parents[1]


async def loaded(store: SqliteStore) -> Catalog:
    return await CatalogStore(store).load()


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
from tocsin.cluster.catalog.catalog import CatalogStore, Put, Remove
from tocsin.cluster.catalog.entries import DataverseEntry
from tocsin.cluster.catalog.refs import dataverse_ref
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.store.cluster.interface import Removal

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


async def test_a_change_records_what_may_be_removed_in_the_same_transaction(opened: SqliteStore) -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    kept = CatalogStore(opened, Removals(opened, lambda: noon))
    await kept.load()
    await kept.removals.intend(reports)
    assert await opened.removals() == [Removal("dataset", reports.folder)]
    with pytest.raises(NotFoundError):
        await kept.apply([Put(reports)])
    assert await opened.removals() == [Removal("dataset", reports.folder)]
    await kept.apply([Put(entry) for entry in EVERYTHING])
    assert await opened.removals() == []
    await kept.apply([Remove(verse.ref)])
    datasets = [entry.folder for entry in EVERYTHING if isinstance(entry, DatasetEntry)]
    assert [removal for removal in await opened.removals() if removal.kind == "dataset"] == [
        Removal("dataset", folder, noon) for folder in datasets
    ]
