"""What a dataset's commits cost beside bare delta-rs, and whether they and its queries stay as cheap as it grows.

python -m benchmarks.datasets
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.baselines.datasets import REPORT, BareDelta, reports, write_at_once
from benchmarks.harness import Bench, compare, with_children_cpu_s
from tocsin.pipeline import session
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS: Final = (("recordId",),)
SMALL_COMMITS: Final = 10_000
_WINDOW: Final = 200  # commits measured together, young and old: several rounds of upkeep are among them
_ROUNDS: Final = 5


def main() -> None:
    bench = Bench("datasets")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
        folder = Path(scratch)
        commits(bench, folder)
        upserts(bench, folder)
        old = many_small_commits(bench, folder)
        queries(bench, folder, old)
        # The cluster as a whole (its idle CPU and memory) is measured here when there is one to start.
    bench.finish()


def live(table: DatasetTable) -> None:
    """What the cluster's upkeep thread does after a commit."""
    if table.upkeep_due():
        upkeep(table)


def supply(count: int, rows_each: int, seed: int) -> Iterator[pa.Table]:
    """So many batches of new reports, made beforehand: making them is nobody's cost."""
    made = reports(count * rows_each, seed)
    return iter([made.slice(each * rows_each, rows_each) for each in range(count)])


def commits(bench: Bench, folder: Path) -> None:
    """Appends, upkeep included, beside bare delta-rs with its own checkpoints."""
    rounds, operations = 7, 20
    for rows_each in (1, 1000):
        mine = DatasetTable.create(folder / f"commits-{rows_each}", REPORT, KEYS)
        bare = BareDelta(folder / f"bare-{rows_each}")
        ready = supply(3 * operations * (rounds + 1), rows_each, rows_each)

        def insert(mine: DatasetTable = mine, ready: Iterator[pa.Table] = ready) -> None:
            for _ in range(operations):
                mine.insert(next(ready))
                live(mine)

        def append(bare: BareDelta = bare, ready: Iterator[pa.Table] = ready) -> None:
            for _ in range(operations):
                bare.append(next(ready))

        (found,) = compare(append, {"insert": insert}, rounds=rounds, operations=operations)
        what = "commit of 1 row" if rows_each == 1 else f"commit of {rows_each:,} rows"
        bench.compared(what, found, bar=2.0, baseline="delta-rs append")


def upserts(bench: Bench, folder: Path) -> None:
    """1,000 rows into 10⁵, half of them new, the others anywhere in the dataset."""
    rounds = 9
    base = reports(100_000, 1)
    mine = DatasetTable.create(folder / "upsert", REPORT, KEYS, history=10)
    mine.insert(base)
    bare = BareDelta(folder / "bare-upsert")
    bare.append(base)
    known = base.column("recordId").take(pa.array(range(0, 100_000, 200)))
    ready = iter([_half_known(rows, known) for rows in supply(3 * (rounds + 1), 1000, 2)])

    def upsert() -> None:
        mine.upsert(next(ready))
        live(mine)

    (found,) = compare(lambda: bare.merge(next(ready)), {"upsert": upsert}, rounds=rounds)
    bench.compared("upsert of 1,000 into 10⁵", found, bar=2.0, baseline="delta-rs merge")


def _half_known(rows: pa.Table, known: pa.ChunkedArray) -> pa.Table:
    ids = [*known.chunks, *rows.column("recordId").slice(len(known)).chunks]
    return rows.set_column(0, REPORT.field("recordId"), pa.chunked_array(ids).combine_chunks())


def many_small_commits(bench: Bench, folder: Path) -> DatasetTable:
    """A commit after ten thousand beside a commit to a young dataset, upkeep included on both sides."""
    ready = supply(SMALL_COMMITS + 3 * _WINDOW * (_ROUNDS + 1), 1, 3)
    old = DatasetTable.create(folder / "old", REPORT, KEYS)
    young_folders = (folder / f"young-{each}" for each in itertools.count())

    def commit(table: DatasetTable, count: int) -> None:
        for _ in range(count):
            table.insert(next(ready))
            live(table)

    commit(old, SMALL_COMMITS)
    (found,) = compare(
        lambda: commit(DatasetTable.create(next(young_folders), REPORT, KEYS), _WINDOW),
        {"old": lambda: commit(old, _WINDOW)},
        rounds=_ROUNDS,
        operations=_WINDOW,
    )
    bench.compared("commit after 10,000 small ones", found, bar=1.5, baseline="a young dataset")
    return old


def queries(bench: Bench, folder: Path, old: DatasetTable) -> None:
    """A Spark query over the dataset of many small commits beside the same rows written at once."""
    with old.pin(old.snapshot()) as snapshot, spark(folder) as started:
        rows = pa.concat_tables(pq.ParquetFile(path).read() for path in snapshot.files)
        at_once = write_at_once(rows, folder / "at-once")
        schema = started.read.parquet(*at_once).schema

        def query(files: Sequence[str]) -> object:
            found = started.read.schema(schema).parquet(*files).where("severity > 2 AND impactZone.x > 0")
            return found.groupBy("emergencyType").agg({"recordId": "count", "severity": "avg"}).collect()

        (found,) = compare(
            lambda: query(at_once),
            {"old": lambda: query(snapshot.files)},
            rounds=25,
            clock=with_children_cpu_s,
            warm_up=20,
        )
    bench.compared("query after 10,000 small commits", found, bar=1.5, baseline="the same rows written at once")


@contextlib.contextmanager
def spark(folder: Path) -> Iterator[SparkSession]:
    started = session.start(folder / "spark")
    try:
        yield started
    finally:
        session.stop(started)


if __name__ == "__main__":
    main()
