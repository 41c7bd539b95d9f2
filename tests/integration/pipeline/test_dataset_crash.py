"""kill -9 at every named place of a dataset's life: afterwards each change happened or did not, and life goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.s3_server import S3Server, read_data_file
from tests.support.small_tables import EAGER
from tocsin import faults
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import clean_up, upkeep
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.storage.locations import open_storage
from tocsin.storage.s3 import S3Folder

SCHEMA = pa.schema([("id", pa.int64()), ("said", pa.string())])
KEYS = (("id",),)
POINTS = [point for point in faults.POINTS if point.startswith("dataset.")]

State = dict[int, str]
STEPS: list[tuple[str, State]] = [
    ("create", {}),
    ("insert", {1: "a", 2: "a"}),
    ("insert", {3: "a"}),
    ("load", {4: "a", 5: "a"}),
    ("upkeep", {}),
    ("upsert", {2: "b", 6: "b"}),
    ("delete", {1: "a", 4: "a"}),
    ("insert", {1: "c"}),
    ("upkeep", {}),
    ("upsert", {1: "d"}),
    ("upkeep", {}),
    ("expire", {}),
]
COMMITS = ("insert", "load", "upsert", "delete")


def states() -> list[State]:
    """What the dataset holds after each step."""
    held: State = {}
    after = []
    for step, rows in STEPS:
        if step == "expire":
            held = {}
        elif step == "delete":
            held = {key: said for key, said in held.items() if key not in rows}
        else:
            held = {**held, **rows}
        after.append(held)
    return after


def take(step: str, rows: State, folder: StorageFolder) -> None:
    if step == "create":
        DatasetTable.create(folder, SCHEMA, KEYS, history=2)
        return
    table = DatasetTable.open(folder, SCHEMA, KEYS, history=2, retention_s=0 if step == "expire" else None)
    data = pa.table({"id": list(rows), "said": list(rows.values())}, schema=SCHEMA)
    if step == "insert":
        table.insert(data)
    elif step == "load":
        table.load(iter(data.to_batches(max_chunksize=1)))
    elif step == "upsert":
        table.upsert(data)
    elif step == "delete":
        table.delete(data)
    else:
        table.leftovers = True
        upkeep(table, EAGER)


def held_in(table: DatasetTable) -> State:
    rows = [row for path in table.snapshot().files for row in read_data_file(path).to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["said"] for row in rows}


def live(folder: StorageFolder) -> None:
    """Take the steps one after the other, and say so after each."""
    for place, (step, rows) in enumerate(STEPS):
        take(step, rows, folder)
        print(place, flush=True)


def place_of(folder: StorageFolder) -> str:
    """The folder as an argument of another process."""
    if isinstance(folder, S3Folder):
        return json.dumps({"url": folder.url, "options": dict(folder.bucket.options)})
    return json.dumps({"url": folder.url, "options": {}})


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_place_each_change_happened_or_did_not(point: str, nth: int, tmp_path: Path) -> None:
    check_crash(LocalFolder(tmp_path / "d"), point, nth)


@pytest.mark.cluster
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_place_each_change_in_a_bucket_happened_or_did_not(point: str, s3_server: S3Server) -> None:
    check_crash(s3_server.new_folder(), point, 1)


def check_crash(folder: StorageFolder, point: str, nth: int) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.integration.pipeline.test_dataset_crash", place_of(folder)],
        env={**os.environ, "TOCSIN_CRASH_AT": f"{point}:{nth}", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode in (-signal.SIGKILL, 0), process.stderr
    assert process.returncode or nth > 1, f"{point} was not visited"
    told = len(process.stdout.split())
    after = states()
    if told < len(STEPS) and not told:
        assert STEPS[0][0] == "create"
        if not folder.child("_delta_log").list_names():
            take("create", {}, folder)
    table = DatasetTable.open(folder, SCHEMA, KEYS, history=2)
    possible = [after[told - 1] if told else {}, after[min(told, len(STEPS) - 1)]]
    held = held_in(table)
    assert held in possible
    done = [sum(step in COMMITS for step, _ in STEPS[:count]) for count in (told, told + 1)]
    assert table.number in done
    upkeep(table)
    clean_up(table)
    assert held_in(table) == held
    assert table.insert(pa.table({"id": [99], "said": ["z"]}, schema=SCHEMA)).number == table.number
    assert held_in(DatasetTable.open(folder, SCHEMA, KEYS, history=2)) == {**held, 99: "z"}
    assert not [path for path in table.data.names() if path not in table.past.kept_files()]


if __name__ == "__main__":
    place: dict[str, Any] = json.loads(sys.argv[1])
    live(open_storage(place["url"], place["options"], Path()))
