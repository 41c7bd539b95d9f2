"""Killed on the way, neither leaves anything under its final name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.example_backup import STORES, Data, content, leftovers
from tests.support.waiting import WITHIN_S
from tocsin.cluster.backup.restore import restore

CRASH = """
import asyncio, sys
from pathlib import Path
from tests.support.example_backup import KEYS, SCHEMA, STORES
from tocsin.cluster.backup.restore import restore
from tocsin.cluster.backup.backup_writer import write_backup
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.storage.local import LocalFolder
from tocsin.store.cluster.sqlite_store import SqliteStore

async def run(doing, folder, other):
    if doing == "restore":
        return await restore(other, folder, **STORES)
    store = SqliteStore(folder / "catalog.sqlite")
    await store.open()
    datasets = LocalFolder(folder / "datasets")
    tables = {name: DatasetTable.open(datasets.child(name), SCHEMA, KEYS) for name in ("reports", "empty")}
    await write_backup(store, lambda: tables, other, data=folder)

asyncio.run(run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
"""


def crash(point: str, *arguments: object) -> int:
    environment = {**os.environ, "TOCSIN_CRASH_AT": point, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parents[4])])
    command = [sys.executable, "-c", CRASH, *map(str, arguments)]
    return subprocess.run(command, env=environment, timeout=WITHIN_S, check=False).returncode


async def test_a_crash_before_the_end_leaves_nothing_under_the_final_name(
    data: Data, target: Path, tmp_path: Path
) -> None:
    await data.store.close()
    assert crash("backup.copied", "backup", data.folder, target) == -signal.SIGKILL
    assert not target.exists()
    (left,) = leftovers(tmp_path)
    assert left.startswith(target.name)
    await data.store.open()
    await data.back_up(target)
    new = tmp_path / "new"
    assert crash("restore.verified", "restore", new, target) == -signal.SIGKILL
    assert not new.exists()
    assert [name.split(".")[0] for name in leftovers(tmp_path)] == ["new", "saved"]
    await restore(target, new, **STORES)
    assert content(data.reopened("reports", new)) == {1: "x", 2: "y", 3: "x"}
