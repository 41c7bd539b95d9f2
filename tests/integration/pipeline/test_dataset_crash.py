"""kill -9 at every named place of a dataset's life: afterwards each change happened or did not, and life goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.small_tables import EAGER
from tocsin import faults
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import clean_up, upkeep
from tocsin.storage.local import LocalFolder

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


def take(step: str, rows: State, folder: Path) -> None:
    if step == "create":
        DatasetTable.create(LocalFolder(folder), SCHEMA, KEYS, history=2)
        return
    table = DatasetTable.open(LocalFolder(folder), SCHEMA, KEYS, history=2, retention_s=0 if step == "expire" else None)
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
    rows = [row for path in table.snapshot().files for row in pq.ParquetFile(path).read().to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["said"] for row in rows}


def live(folder: Path) -> None:
    """Take the steps one after the other, and say so after each."""
    for place, (step, rows) in enumerate(STEPS):
        take(step, rows, folder)
        print(place, flush=True)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_place_each_change_happened_or_did_not(point: str, nth: int, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    process = subprocess.run(
        [sys.executable, "-m", "tests.integration.pipeline.test_dataset_crash", str(folder)],
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
        if not (folder / "_delta_log").exists() or not any((folder / "_delta_log").iterdir()):
            take("create", {}, folder)
    table = DatasetTable.open(LocalFolder(folder), SCHEMA, KEYS, history=2)
    possible = [after[told - 1] if told else {}, after[min(told, len(STEPS) - 1)]]
    held = held_in(table)
    assert held in possible
    done = [sum(step in COMMITS for step, _ in STEPS[:count]) for count in (told, told + 1)]
    assert table.number in done
    upkeep(table)
    clean_up(table)
    assert held_in(table) == held
    assert table.insert(pa.table({"id": [99], "said": ["z"]}, schema=SCHEMA)).number == table.number
    assert held_in(DatasetTable.open(LocalFolder(folder), SCHEMA, KEYS, history=2)) == {**held, 99: "z"}
    assert not [path for path in table.data.names() if path not in table.past.kept_files()]


if __name__ == "__main__":
    live(Path(sys.argv[1]))
