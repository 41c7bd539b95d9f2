"""Measures the CPU of a dataset's commits, compared with bare delta-rs, and whether commits and queries stay cheap.

python -m benchmarks.datasets
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks import running
from benchmarks.baselines.datasets import REPORT, BareDelta, reports, write_at_once
from benchmarks.harness import Bench, beside, compare, process_cpu_s, read_options, with_children_cpu_s
from tocsin.pipeline import session
from tocsin.pipeline.datasets.delta.log_files import LOG_FOLDER, entry_name
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import UpkeepLimits, is_upkeep_due, upkeep
from tocsin.pipeline.plan_check import check_plan
from tocsin.storage.local import LocalFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS: Final = (("recordId",),)
AN_HOUR: Final = OutsideReaders(keep_s=3600.0)  # as a cluster keeps what it removes, if nothing else is set
SMALL_COMMITS: Final = 10_000
_WINDOW: Final = 200  # commits measured together, young and old: several rounds of upkeep are among them
_IDLE_COMMITS: Final = 40
_SETTLE_S: Final = 20.0
_IDLE_S: Final = 30.0
_ROUNDS: Final = 5
_CHECKPOINT_CYCLE: Final = 100  # delta-rs writes one in this many commits: a whole cycle is a fair share of its cost
_UPSERTS: Final = 15
KEPT_VERSIONS: Final = 36_000  # an hour at ten commits a second
_KEPT_CHECKPOINTS_APART: Final = 1_000
_CHECKED: Final = 200


def main() -> None:
    read_options(__doc__)
    bench = Bench("datasets")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
        folder = Path(scratch)
        commits(bench, folder)
        upserts(bench, folder)
        kept_versions(bench, folder)
        old = many_small_commits(bench, folder)
        queries(bench, folder, old)
        idle(bench, folder)
    bench.finish()


def live(table: DatasetTable) -> None:
    """What the cluster's upkeep thread does after a commit."""
    if is_upkeep_due(table):
        upkeep(table)


def supply(count: int, rows_each: int, seed: int) -> list[pa.Table]:
    """So many batches of new reports, made beforehand: making them is nobody's cost."""
    made = reports(count * rows_each, seed)
    return [made.slice(number * rows_each, rows_each) for number in range(count)]


def fresh_folders(folder: Path, name: str) -> Iterator[Path]:
    return (folder / f"{name}-{number}" for number in itertools.count())


def commits(bench: Bench, folder: Path) -> None:
    """The first hundred appends to a dataset, upkeep included, beside bare delta-rs with its own checkpoint."""
    for rows_each in (1, 1000):
        ready = supply(_CHECKPOINT_CYCLE, rows_each, rows_each)
        folders = fresh_folders(folder, f"commits-{rows_each}")

        def insert(ready: list[pa.Table] = ready, folders: Iterator[Path] = folders) -> None:
            mine = DatasetTable.create(LocalFolder(next(folders)), REPORT, KEYS)
            for rows in ready:
                mine.insert(rows)
                live(mine)

        def append(ready: list[pa.Table] = ready, folders: Iterator[Path] = folders) -> None:
            bare = BareDelta(next(folders))
            for rows in ready:
                bare.append(rows)

        (found,) = compare(append, {"insert": insert}, rounds=_ROUNDS, operations=len(ready))
        what = "commit of 1 row" if rows_each == 1 else f"commit of {rows_each:,} rows"
        bench.compared(what, found, bar=2.0, baseline="delta-rs append")


def upserts(bench: Bench, folder: Path) -> None:
    """1,000 rows into 10⁵, half of them new, the others anywhere in the dataset, each time others."""
    base = reports(100_000, 1)
    ready = [_half_known(rows, base, number) for number, rows in enumerate(supply(_UPSERTS, 1000, 2))]
    folders = fresh_folders(folder, "upserts")
    seconds: dict[str, list[float]] = {"mine": [], "bare": [], "again": []}
    # Filling the tables is not measured: only the upserts that follow, three tables side by side.
    mine = DatasetTable.create(LocalFolder(next(folders)), REPORT, KEYS)
    mine.insert(base)
    bare, again = BareDelta(next(folders)), BareDelta(next(folders))
    bare.append(base)
    again.append(base)
    for rows in ready:
        for name, work in (("bare", bare.merge), ("mine", lambda rows: _upsert(mine, rows)), ("again", again.merge)):
            begun = process_cpu_s()
            work(rows)
            seconds[name].append(process_cpu_s() - begun)
    bench.compared(
        "upsert of 1,000 into 10⁵",
        beside(seconds["mine"], seconds["bare"], seconds["again"], name="upsert"),
        bar=2.0,
        baseline="delta-rs merge",
    )


def _upsert(table: DatasetTable, rows: pa.Table) -> None:
    table.upsert(rows)
    live(table)


def _half_known(rows: pa.Table, base: pa.Table, turn: int) -> pa.Table:
    half = rows.num_rows // 2
    known = base.column("recordId").take(pa.array(range(turn, base.num_rows, base.num_rows // half)))
    ids = pa.chunked_array([*known.chunks, *rows.column("recordId").slice(half).chunks]).combine_chunks()
    return rows.set_column(0, REPORT.field("recordId"), ids)


def many_small_commits(bench: Bench, folder: Path) -> DatasetTable:
    """A commit after ten thousand beside a commit to a young dataset, upkeep included on both sides."""
    ready = iter(supply(SMALL_COMMITS + 3 * _WINDOW * (_ROUNDS + 1) + UpkeepLimits().files_per_compaction, 1, 3))
    old = DatasetTable.create(LocalFolder(folder / "old"), REPORT, KEYS, outside_readers=AN_HOUR)
    young_folders = fresh_folders(folder, "young")

    def commit(table: DatasetTable, count: int) -> None:
        for _ in range(count):
            table.insert(next(ready))
            live(table)

    commit(old, SMALL_COMMITS)
    (found,) = compare(
        lambda: commit(DatasetTable.create(LocalFolder(next(young_folders)), REPORT, KEYS), _WINDOW),
        {"old": lambda: commit(old, _WINDOW)},
        rounds=_ROUNDS,
        operations=_WINDOW,
    )
    bench.compared("commit after 10,000 small ones", found, bar=1.5, baseline="a young dataset")
    # Its worst moment for a query: as many small files as there may be just before a compaction.
    while len(old.past.state.files) < UpkeepLimits().files_per_compaction - 1:
        old.insert(next(ready))
    return old


def kept_versions(bench: Bench, folder: Path) -> None:
    """A commit to a dataset that keeps an hour of versions for readers outside, beside one that keeps none."""
    ready = iter(supply(3 * _WINDOW * (_ROUNDS + 1), 1, 4))
    old = keeping(folder / "keeping", KEPT_VERSIONS)
    young_folders = fresh_folders(folder, "keeping-nothing")

    def commit(table: DatasetTable) -> None:
        for _ in range(_WINDOW):
            table.insert(next(ready))
            live(table)

    (found,) = compare(
        lambda: commit(DatasetTable.create(LocalFolder(next(young_folders)), REPORT, KEYS)),
        {"keeping": lambda: commit(old)},
        rounds=_ROUNDS,
        operations=_WINDOW,
    )
    bench.compared(f"commit with {KEPT_VERSIONS:,} versions kept", found, bar=1.5, baseline="a young dataset")
    entries = len(old.log_files.entries) if old.log_files is not None else 0
    bench.note(f"kept for readers outside: {len(old.past.tombstones):,} files and {entries:,} log entries")


def keeping(folder: Path, versions: int) -> DatasetTable:
    """Makes a dataset that was compacted after each commit a moment ago, and keeps the removed files."""
    made = DatasetTable.create(LocalFolder(folder), REPORT, KEYS, outside_readers=AN_HOUR)
    (file,) = made.data.write([made.stamp(reports(1, 5), 1, made.log.next_at_us())])
    content = (folder / file.name).read_bytes()
    for version in range(1, versions + 1):
        following = replace(file, name=f"part-{version:032x}.parquet")
        (folder / following.name).write_bytes(content)
        at_ms = time.time_ns() // 1_000_000
        actions = [following.add_action(data_change=True), {"txn": {"appId": "tocsin.commit", "version": version}}]
        if version > 1:
            actions.append(file.remove_action(at_ms * 1000, data_change=False))
        info = {"timestamp": at_ms, "operation": "WRITE", "tocsin.commit": version}
        lines = [orjson.dumps(line) for line in ({"commitInfo": info}, *actions)]
        (folder / LOG_FOLDER / entry_name(version)).write_bytes(b"\n".join(lines))
        file = following
        if version % _KEPT_CHECKPOINTS_APART == 0 or version == versions:
            DeltaTable(str(folder)).create_checkpoint()
    made.close()
    kept = DatasetTable.open(LocalFolder(folder), REPORT, KEYS, outside_readers=AN_HOUR)
    upkeep(kept)  # reads what is kept, once
    return kept


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
        check_of_plans(bench, started)
    bench.compared("query after 10,000 small commits", found, bar=1.5, baseline="the same rows written at once")


def check_of_plans(bench: Bench, started: SparkSession) -> None:
    """What looking at the plan adds to a statement: one of several joins and subqueries, and some 500 expressions."""
    started.range(10).selectExpr("id", *(f"id + {i} AS c{i}" for i in range(20))).createOrReplaceTempView("tocsin_wide")
    sums = ", ".join(f"sum(a.c{i} * coalesce(b.c{i}, {i})) + max(length(string(a.c{i}))) AS s{i}" for i in range(20))
    frame = started.sql(
        f"SELECT a.id, {sums} FROM tocsin_wide a JOIN tocsin_wide b ON a.id = b.id AND b.c1 > 3"
        " WHERE EXISTS (SELECT 1 FROM tocsin_wide c WHERE c.id = a.id AND c.c2 IN (SELECT id FROM tocsin_wide))"
        " GROUP BY a.id ORDER BY a.id LIMIT 10"
    )
    for _ in range(_CHECKED):
        check_plan(started, frame)
    cpu_s, wall_s = with_children_cpu_s(), time.perf_counter()
    for _ in range(_CHECKED):
        check_plan(started, frame)
    cpu_s, wall_s = with_children_cpu_s() - cpu_s, time.perf_counter() - wall_s
    bench.bar("check of a statement's plan, CPU", cpu_s / _CHECKED * 1e3, bar=5.0, unit="ms")
    bench.bar("check of a statement's plan, wall time", wall_s / _CHECKED * 1e3, bar=5.0, unit="ms")


def idle(bench: Bench, folder: Path) -> None:
    """A cluster that has worked a little and is then left alone."""
    with running.cluster(folder / "idle") as cluster:
        cluster.run("CREATE TYPE T AS {id: int}; CREATE DATASET D(T) PRIMARY KEY id")
        for number in range(_IDLE_COMMITS):
            cluster.run(
                f'INSERT INTO D ({{"id": {number}, "text": "{number}"}}); SELECT count(*) AS n FROM D d WHERE d.id > 3'
            )
        # What the work set going (compilation, collection) comes to its end first.
        running.idle_share(cluster, _SETTLE_S)
        bench.bar("idle CPU, share of one core", running.idle_share(cluster, _IDLE_S), bar=0.05, unit="")
        bench.bar("memory of the idle cluster", cluster.memory_bytes() / 1e9, bar=1.5, unit="GB")


@contextlib.contextmanager
def spark(folder: Path) -> Iterator[SparkSession]:
    started = session.start(folder / "spark")
    try:
        yield started
    finally:
        session.stop(started)


if __name__ == "__main__":
    main()
